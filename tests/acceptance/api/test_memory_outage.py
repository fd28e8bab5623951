"""Memory over HTTP while Postgres is unavailable: an owner serves its memories to keys that it has checked before."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from runlane.app import App
from runlane.domain.access import mint_key
from runlane.memory.service import MemoryService
from runlane.store.access.keys import revoke_key
from runlane.store.sql.database import open_database
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.chaos.proxy import Proxy
from tests.harness import eventually, settings_for
from tests.memory import check_log, texts_of


@asynccontextmanager
async def node(url: str, folder: Path, **settings: Any) -> AsyncGenerator[tuple[Api, Proxy]]:
    """A server with a memory file whose connections to Postgres can be cut."""
    async with Proxy(url) as proxy:
        given: dict[str, Any] = {"memory_lease_seconds": 300, "grace_seconds": 0.2, **settings}
        app: App = copy_of(shop, settings_for(proxy.url, memory_path=folder / "memory.db", **given))
        async with serving(app) as served:
            try:
                yield served, proxy
            finally:
                proxy.accept()
                proxy.heal()


async def owned(api: Api) -> str:
    """Create a memory that the node owns; return the path of its resources."""
    memory_id = (await api.post("/memory/memories", {"title": "notes"})).json()["id"]
    path = f"{API}/memory/memories/{memory_id}"
    assert (await api.client.post(f"{path}/entries", json={"text": "first"})).status_code == 201
    return path


async def add(api: Api, path: str, text: str, **options: Any) -> httpx2.Response:
    return await api.client.post(f"{path}/entries", json={"text": text}, **options)


def bearer(raw: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {raw}"}}


def service_of(api: Api) -> MemoryService:
    opened = api.parts.connection.memory_opener._opened
    assert opened is not None
    return opened.service


async def committed(api: Api, path: str) -> list[str]:
    """Wait for the replication of a memory and return its entries in Postgres, after checking its log."""
    memory_id = path.rpartition("/")[2]

    async def replicated() -> bool:
        answer = await api.client.post(f"{path}/await-commit", json={"timeout_seconds": 30})
        return answer.status_code == 200 and answer.json()["state"] == "committed"

    await eventually(replicated, "the replication")
    await check_log(api.parts.database, memory_id)
    return await texts_of(service_of(api), memory_id, consistency="committed")


async def test_changes_and_reads_of_an_owned_memory_continue_and_are_replicated_in_order(
    postgres_url: str, tmp_path: Path
) -> None:
    async with node(postgres_url, tmp_path) as (api, proxy):
        path, unused = await owned(api), await api.key("viewer")
        foreign = (await api.post("/memory/memories", {"title": "not-owned"})).json()["id"]
        vault = (await api.get("/memory/vaults")).json()["vaults"][0]["id"]
        older = f"/v0/vaults/{vault}/memories/{path.rpartition('/')[2]}"
        proxy.refuse()
        added: list[str] = []
        for number in range(20):
            answer = await add(api, path, str(number), headers={"Idempotency-Key": f"add-{number}"})
            assert answer.status_code == 201, answer.text
            added.append(answer.json()["id"])
        again = await add(api, path, "19", headers={"Idempotency-Key": "add-19"})
        assert again.json()["id"] == added[-1]
        page = (await api.client.get(f"{path}/entries", params={"limit": 50})).json()["entries"]
        assert [entry["text"] for entry in page] == [*map(str, reversed(range(20))), "first"]
        assert not page[0]["synced"]
        hits = (await api.client.post(f"{path}/search", json={"query": "first"})).json()["hits"]
        assert [hit["entry"]["text"] for hit in hits] == ["first"]
        assert (await api.client.put(f"{path}/fragments/context", json={"content": "new"})).status_code == 200
        assert (await api.client.get(f"{path}/fragments/context")).json()["content"] == "new"
        unsynced = await api.client.post(f"{path}/await-commit", json={"timeout_seconds": 0.05})
        assert unsynced.json()["state"] == "timeout"
        # The compatible paths serve the memory by its ids.
        assert (await api.client.post(f"{older}/entries", json={"rawEntry": "older"})).status_code == 201
        found = (await api.client.get(f"{older}/entries", params={"limit": 1})).json()["entries"]
        assert [entry["rawEntry"] for entry in found] == ["older"]
        by_title = await api.client.post("/v0/vaults/default/memories/notes/entries", json={"rawEntry": "x"})
        problem_of(by_title, 503, "unavailable")

        # Other keys, also correct ones, other memories and all other routes are refused.
        for raw in (unused, mint_key().raw):
            problem_of(await api.client.get(f"{path}/entries", **bearer(raw)), 503, "unavailable")
        problem_of(await add(api, f"{API}/memory/memories/{foreign}", "x"), 503, "unavailable")
        memory_id = path.rpartition("/")[2]
        for method, route in (
            ("POST", f"{API}/tasks/double/run"),
            ("GET", f"{API}/runs"),
            ("GET", f"{API}/me"),
            ("GET", f"{API}/memory/memories"),
            ("GET", path),
            ("DELETE", path),
            ("GET", f"{path}/export"),
            ("POST", f"{path}/discard"),
            ("POST", f"{path}/retry"),
            ("POST", f"{API}/memory/memories"),
            ("GET", f"/v0/vaults/{vault}/memories/{memory_id}"),
            ("POST", "/mcp"),
        ):
            answer = await api.client.request(method, route, json={} if method == "POST" else None)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), (method, route, answer.text)

        proxy.accept()
        assert await committed(api, path) == ["first", *map(str, range(20)), "older"]
        assert (await api.client.get(f"{path}/entries", **bearer(unused))).status_code == 200
        problem_of(await api.client.get(f"{path}/entries", **bearer(mint_key().raw)), 401, "unauthorized")
        assert await texts_of(service_of(api), foreign, consistency="committed") == []


async def test_a_silent_database_is_waited_for_once(postgres_url: str, tmp_path: Path) -> None:
    """Nothing answers and nothing fails: the timeout of a statement would end after the test."""
    async with node(postgres_url, tmp_path, database_timeout_seconds=600) as (api, proxy):
        path = await owned(api)
        proxy.black_hole()
        try:
            for number in range(50):
                added = await add(api, path, str(number))
                assert added.status_code == 201, added.text
            # Only the first request has asked the database.
            assert api.parts.authenticator._outage.lookups == 1
        finally:
            proxy.heal()
        assert await committed(api, path) == ["first", *map(str, range(50))]


async def test_a_search_by_meaning_finds_words(postgres_url: str, tmp_path: Path) -> None:
    """The cap of the tenant cannot be read, so no embedding model is called."""
    async with node(postgres_url, tmp_path, memory_embedding_model="openai:text-embedding-3-small") as (api, proxy):
        path = await owned(api)
        proxy.refuse()
        found = await api.client.post(f"{path}/search", json={"query": "first"})
        assert [(hit["entry"]["text"], hit["found_by"]) for hit in found.json()["hits"]] == [("first", ["text"])]


async def test_a_key_whose_check_is_too_old_is_refused(postgres_url: str, tmp_path: Path) -> None:
    async with node(postgres_url, tmp_path, memory_outage_seconds=30) as (api, proxy):
        path, remembered = await owned(api), api.parts.authenticator.remembered
        clock = remembered._clock
        proxy.refuse()
        assert (await add(api, path, "in time")).status_code == 201
        remembered._clock = lambda: clock() + 30
        problem_of(await add(api, path, "too late"), 503, "unavailable")
        problem_of(await api.client.get(f"{path}/entries"), 503, "unavailable")
        proxy.accept()
        assert await committed(api, path) == ["first", "in time"]


async def test_without_the_setting_every_request_is_refused(postgres_url: str, tmp_path: Path) -> None:
    async with node(postgres_url, tmp_path, memory_outage_seconds=0) as (api, proxy):
        path = await owned(api)
        proxy.refuse()
        problem_of(await add(api, path, "x"), 503, "unavailable")
        problem_of(await api.client.get(f"{path}/entries"), 503, "unavailable")
        proxy.accept()
        assert await committed(api, path) == ["first"]


async def test_after_the_lease_changes_are_refused_whatever_the_age_of_the_key(
    postgres_url: str, tmp_path: Path
) -> None:
    async with node(postgres_url, tmp_path, memory_lease_seconds=4) as (api, proxy):
        path = await owned(api)
        api.parts.authenticator.remembered._seconds = 3600
        proxy.refuse()
        accepted = ["first"]

        async def refused() -> bool:
            text = str(len(accepted))
            answer = await add(api, path, text)
            if answer.status_code == 503:
                problem_of(answer, 503, "unavailable")
                return True
            assert answer.status_code == 201, answer.text
            accepted.append(text)
            return False

        await eventually(refused, "the end of the lease")
        proxy.accept()
        assert await committed(api, path) == accepted


async def test_a_revoked_key_is_refused_as_soon_as_the_database_answers(postgres_url: str, tmp_path: Path) -> None:
    async with node(postgres_url, tmp_path) as (api, proxy):
        # Only the answers to requests teach the node.
        await api.parts.revocation.stop()
        path = await owned(api)
        created = (await api.post("/keys", {"name": "agent", "role": "platform_admin"})).json()
        assert (await add(api, path, "before", **bearer(created["key"]))).status_code == 201
        proxy.refuse()
        elsewhere = await open_database(settings_for(postgres_url))
        try:
            await revoke_key(elsewhere, created["id"], actor="test")
        finally:
            await elsewhere.close()
        # The node is cut off and cannot know.
        assert (await add(api, path, "unknown", **bearer(created["key"]))).status_code == 201
        proxy.accept()

        async def answered() -> bool:
            return (await api.get("/me")).status_code == 200

        await eventually(answered, "an answer of the database")
        problem_of(await add(api, path, "after", **bearer(created["key"])), 401, "unauthorized")
        proxy.refuse()
        problem_of(await add(api, path, "away again", **bearer(created["key"])), 503, "unavailable")
        assert (await add(api, path, "of the other key")).status_code == 201
        proxy.accept()
        assert await committed(api, path) == ["first", "before", "unknown", "of the other key"]


async def test_what_a_server_has_revoked_itself_is_refused_at_once(postgres_url: str, tmp_path: Path) -> None:
    async with node(postgres_url, tmp_path) as (api, proxy):
        await api.parts.revocation.stop()
        path = await owned(api)
        key = (await api.post("/keys", {"name": "agent", "role": "platform_admin"})).json()
        assert (await api.post("/tenants", {"id": "acme"})).status_code == 201
        tenant_key = await api.key("developer", "acme")
        assert (await api.client.put(f"{API}/roles/writer", json={"permissions": ["memory:write"]})).status_code == 200
        role_key = await api.key("writer")
        for raw in (key["key"], tenant_key, role_key):
            assert (await api.get("/me", **bearer(raw))).status_code == 200
            assert api.parts.authenticator.remembered.recall(raw) is not None
        assert (await api.client.delete(f"{API}/keys/{key['id']}")).status_code == 200
        assert (await api.client.patch(f"{API}/tenants/acme", json={"enabled": False})).status_code == 200
        assert (await api.client.put(f"{API}/roles/writer", json={"permissions": ["memory:read"]})).status_code == 200
        proxy.refuse()
        for raw in (key["key"], tenant_key, role_key):
            problem_of(await add(api, path, "x", **bearer(raw)), 503, "unavailable")


async def test_a_revocation_elsewhere_is_learned_before_the_outage(postgres_url: str, tmp_path: Path) -> None:
    """A remembered key is checked again without a request."""
    async with node(postgres_url, tmp_path) as (api, proxy):
        path, raw = await owned(api), await api.key()
        assert (await add(api, path, "before", **bearer(raw))).status_code == 201
        remembered = api.parts.authenticator.remembered
        known = remembered.recall(raw)
        assert known is not None
        await revoke_key(api.parts.database, known.key_id, actor="test")
        await eventually(lambda: remembered.recall(raw) is None, "the check of remembered keys")
        proxy.refuse()
        problem_of(await add(api, path, "x", **bearer(raw)), 503, "unavailable")
        assert (await add(api, path, "of the other key")).status_code == 201


async def test_permissions_and_tenants_hold_during_an_outage(postgres_url: str, tmp_path: Path) -> None:
    async with node(postgres_url, tmp_path) as (api, proxy):
        path = await owned(api)
        assert (await api.post("/tenants", {"id": "acme"})).status_code == 201
        viewer, stranger = await api.key("viewer"), await api.key("developer", "acme")
        for raw in (viewer, stranger):
            assert (await api.get("/me", **bearer(raw))).status_code == 200
        proxy.refuse()
        problem_of(await add(api, path, "x", **bearer(viewer)), 403, "forbidden")
        problem_of(await add(api, path, "x", **bearer(stranger)), 404, "not_found")
        problem_of(await api.client.get(f"{path}/entries", **bearer(stranger)), 404, "not_found")
        assert await texts_of(service_of(api), path.rpartition("/")[2]) == ["first"]
        proxy.accept()
