"""Streams and long polls end within seconds after their key is no longer valid."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runlane.access import stream_revocation
from runlane.store.access.keys import create_key, list_keys, revoke_key
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store, eventually, settings_for

SOON_SECONDS = 20.0


async def revoke(api: Api) -> None:
    for key in await list_keys(api.parts.database, tenant="acme"):
        await revoke_key(api.parts.database, key.id, actor="test")


async def close_tenant(api: Api) -> None:
    await set_tenant(api.parts.database, "acme", TenantChange(enabled=False), actor="test")


async def take_permission(api: Api) -> None:
    await set_role(api.parts.database, "reader", ["audit:read"], actor="test")


async def expire(api: Api) -> None:
    store = Store(api.parts.app.settings, api.parts.database)
    await store.sql("update api_keys set expires_at = created_at where tenant = 'acme'")


@pytest.mark.parametrize(
    ("end", "status"),
    [(revoke, 401), (close_tenant, 401), (take_permission, 403), (expire, 401)],
)
async def test_streams_and_long_polls_end_with_their_key(
    idle_api: Api, end: Callable[[Api], Awaitable[None]], status: int
) -> None:
    api, database = idle_api, idle_api.parts.database
    await create_tenant(database, "acme", actor="test")
    await set_role(database, "reader", ["runs:read", "runs:write"], actor="test")
    _, raw = await create_key(database, "k", "reader", actor="test", tenant="acme", life_seconds=3600)
    theirs = {"Authorization": f"Bearer {raw}"}
    run_id = (await api.post("/tasks/greet/run", {}, headers=theirs)).json()["run_id"]
    path = f"{API}/runs/{run_id}/stream"
    async with api.client.stream("GET", path) as admins, api.client.stream("GET", path, headers=theirs) as answer:
        pieces, admins_pieces = answer.aiter_text(), admins.aiter_text()
        await anext(admins_pieces)
        text = await anext(pieces)
        polling = asyncio.create_task(api.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 60}, headers=theirs))
        await eventually(lambda: api.parts.tail.followers == 3 or polling.done(), "all of them follow")
        await end(api)
        async with asyncio.timeout(SOON_SECONDS):
            text += "".join([piece async for piece in pieces])
            problem_of(await polling, status, "unauthorized" if status == 401 else "forbidden")
        assert text.count("data: ") == 1
        assert text.splitlines()[-2].startswith(": closed: The ")
        await eventually(lambda: api.parts.tail.followers == 1, "one follows")
        # The stream of another key continues to the end.
        await api.post(f"/runs/{run_id}/cancel")
        assert '"type":"done"' in "".join([piece async for piece in admins_pieces])
    await eventually(lambda: api.parts.tail.followers == 0, "no follower")


async def test_a_stream_whose_access_cannot_be_checked_for_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_revocation, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(stream_revocation, "UNCHECKED_SECONDS", 0.5)
    with PostgresServer() as server:
        settings = settings_for(server.create_database("away"))
        await upgrade(settings)
        async with serving(copy_of(shop, settings)) as api:
            run = await api.run("greet", wait=False)
            async with api.client.stream("GET", f"{API}/runs/{run['run_id']}/stream") as answer:
                pieces = answer.aiter_text()
                await anext(pieces)
                server.kill()
                async with asyncio.timeout(SOON_SECONDS):
                    text = "".join([piece async for piece in pieces])
            assert ": closed: The API key cannot be checked at the moment" in text


async def test_local_callers_need_no_key(idle_api: Api) -> None:
    ended: list[object] = []
    from runlane.access.policy import LOCAL
    from runlane.domain.access import Permission

    release = idle_api.parts.revocation.guard(LOCAL, Permission.RUNS_READ, ended.append)
    await idle_api.parts.revocation.run_once()
    release()
    release()
    assert ended == []
