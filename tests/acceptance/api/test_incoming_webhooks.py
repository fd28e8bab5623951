"""Incoming webhooks over HTTP: sources, verified requests that become events, and everything that is refused."""

from __future__ import annotations

import base64
import hmac
import json
import time
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from runlane import Client, Conflict, InvalidRequest, NotFound
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.events.reading import list_events
from runlane.store.sql.database import read
from runlane.store.sql.statement import Statement
from tests.acceptance.api.serving import Api
from tests.harness import eventually

SECRET = "a-secret-of-the-sender"


async def client_of(api: Api, role: str = "developer", tenant: str = "default") -> Client:
    return Client(api.url, await api.key(role, tenant))


def github(body: bytes, secret: str = SECRET, delivery: str = "d-1") -> dict[str, str]:
    return {
        "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, sha256).hexdigest()}",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": "push",
    }


async def post(api: Api, path: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=api.url, trust_env=False, timeout=60) as stranger:
        return await stranger.post(path, content=body, headers=headers)


async def test_a_verified_request_becomes_an_event_and_starts_a_run(api: Api) -> None:
    trigger = {"id": "on-push", "event": "github.push", "task": "greet", "input": {"text": "{{event.data.ref}}"}}
    async with await client_of(api) as client:
        await client.sync({"triggers": [trigger]})
        created = await client.webhook_sources.set("github", "github", secret=SECRET)
        assert created.hook_path is not None
        assert created.secret is None
        body = json.dumps({"ref": "main"}).encode()
        answer = await post(api, created.hook_path, body, github(body))
        assert answer.status_code == 202, answer.text
        event_id = answer.json()["event_id"]
        again = await post(api, created.hook_path, body, github(body))
        assert again.json() == {"event_id": event_id, "duplicate": True}
        event = await client.stored_event(event_id)
        assert (event.name, event.source, event.data, event.sent_id) == (
            "github.push",
            "webhook:github",
            {"ref": "main"},
            "github:d-1",
        )

        async def started() -> Any:
            return [item for item in await client.event_outcomes(event_id) if item.run_id]

        (outcome,) = await eventually(started, "the run")
        assert (await client.wait(outcome.run_id, timeout=60)).result == {"said": "main"}


async def test_what_is_not_verified_stores_nothing(idle_api: Api) -> None:
    api = idle_api
    async with await client_of(api) as client:
        created = await client.webhook_sources.set("github", "github", secret=SECRET)
        path = created.hook_path or ""
        body = b"{}"
        refusals: list[tuple[str, bytes, dict[str, str], int]] = [
            (path, body, {}, 401),
            (path, body, github(body, "wrong-secret"), 401),
            (path, b"{} ", github(body), 401),
            ("/hooks/whk_unknown", body, github(body), 404),
            (path[:-1], body, github(body), 404),
            (path, b"x" * (1024 * 1024 + 1), {}, 413),
        ]
        for where, content, headers, status in refusals:
            answer = await post(api, where, content, headers)
            assert answer.status_code == status, answer.text
            assert SECRET not in answer.text
        assert (await post(api, path, body, github(body, "wrong-secret"))).json()["code"] == "signature_rejected"
        await client.webhook_sources.set("github", "github", secret=SECRET, enabled=False)
        assert (await post(api, path, body, github(body))).status_code == 404
    assert (await list_events(api.parts.database, "default"))[0] == []


async def test_requests_to_a_disabled_tenant_are_refused(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    async with await client_of(api, tenant="acme") as client:
        created = await client.webhook_sources.set("github", "github", secret=SECRET)
    body = b"{}"
    statuses: list[int] = []
    for enabled in (False, True):
        await set_tenant(api.parts.database, "acme", TenantChange(enabled=enabled), actor="test")
        statuses.append((await post(api, created.hook_path or "", body, github(body))).status_code)
    assert statuses == [404, 202]
    assert len((await list_events(api.parts.database, "acme"))[0]) == 1


async def test_tokens_and_secrets_are_replaced_and_never_stored_in_the_clear(idle_api: Api) -> None:
    api = idle_api
    body = b"{}"
    async with await client_of(api) as client:
        first = await client.webhook_sources.set("ci", "github", secret=SECRET)
        changed = await client.webhook_sources.set("ci", "github", secret="another-secret")
        assert changed.hook_path is None
        assert (await post(api, first.hook_path or "", body, github(body))).status_code == 401
        assert (await post(api, first.hook_path or "", body, github(body, "another-secret"))).status_code == 202
        second = await client.webhook_sources.rotate_token("ci")
        assert (await post(api, first.hook_path or "", body, github(body, "another-secret"))).status_code == 404
        assert (await post(api, second.hook_path or "", body, github(body, "another-secret"))).status_code == 202
        generated = await client.webhook_sources.set("shop", "standard")
        assert generated.secret is not None
        shown = [source.name for source in await client.webhook_sources.list()]
        assert shown == ["ci", "shop"]
        stored = ""
        for table in ("webhook_sources", "audit", "api_answers"):
            rows = await read(api.parts.database, Statement("raw", text(f"select * from {table}")))
            stored += str([dict(row) for row in rows])
        paths = [first.hook_path, second.hook_path, generated.hook_path]
        for value in (SECRET, "another-secret", generated.secret, *(str(path).rpartition("/")[2] for path in paths)):
            assert value not in stored
        assert (await client.webhook_sources.delete("ci")).name == "ci"
        assert (await post(api, second.hook_path or "", body, github(body, "another-secret"))).status_code == 404
    actions = [entry["action"] for entry in (await api.get("/audit")).json()["entries"]]
    assert [action for action in actions if action.startswith("webhook")] == [
        "webhook_source.delete",
        "webhook_source.set",
        "webhook_source.token",
        "webhook_source.set",
        "webhook_source.set",
    ]


async def test_standard_webhooks_with_a_generated_secret(idle_api: Api) -> None:
    api = idle_api
    async with await client_of(api) as client:
        created = await client.webhook_sources.set("shop", "standard")
        key = base64.b64decode((created.secret or "").removeprefix("whsec_"))
        body, now = b'{"type":"order.paid","data":{"order":7}}', str(int(time.time()))
        signature = base64.b64encode(hmac.new(key, f"msg_1.{now}.".encode() + body, sha256).digest()).decode()
        headers = {"webhook-id": "msg_1", "webhook-timestamp": now, "webhook-signature": f"v1,{signature}"}
        answer = await post(api, created.hook_path or "", body, headers)
        assert answer.status_code == 202, answer.text
        assert (await client.stored_event(answer.json()["event_id"])).name == "shop.order.paid"


async def test_the_rate_of_a_source(idle_api: Api) -> None:
    api = idle_api
    async with await client_of(api) as client:
        created = await client.webhook_sources.set("few", "bearer", secret=SECRET, rate_per_minute=2)
        headers = {"Authorization": f"Bearer {SECRET}"}
        codes = [(await post(api, created.hook_path or "", b"{}", headers)).status_code for _ in range(3)]
        assert codes == [202, 202, 429]
        wrong = await post(api, created.hook_path or "", b"{}", {"Authorization": "Bearer x"})
        assert wrong.status_code == 401


async def test_roles_tenants_and_bad_settings(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    async with await client_of(api) as mine, await client_of(api, tenant="acme") as theirs:
        await mine.webhook_sources.set("ci", "bearer", secret=SECRET)
        with pytest.raises(NotFound):
            await theirs.webhook_sources.get("ci")
        with pytest.raises(NotFound):
            await theirs.webhook_sources.delete("ci")
        assert await theirs.webhook_sources.list() == []
        bad: list[dict[str, Any]] = [
            {"verifier": "github"},
            {"verifier": "unknown", "secret": SECRET},
            {"verifier": "bearer", "secret": "short"},
            {"verifier": "standard", "secret": "not base64!"},
            {"verifier": "bearer", "event": "run"},
            {"verifier": "bearer", "event": "a b"},
            {"verifier": "hmac", "header": "a b"},
            {"verifier": "bearer", "rate_per_minute": 0},
        ]
        for settings in bad:
            with pytest.raises(InvalidRequest):
                await mine.webhook_sources.set("bad", **settings)
        with pytest.raises(InvalidRequest):
            await mine.webhook_sources.set("Bad Name", "bearer")
    operator = {"Authorization": f"Bearer {await api.key('operator')}"}
    assert (await api.get("/webhook-sources", headers=operator)).status_code == 403


async def test_a_tenant_has_a_bounded_number_of_sources(idle_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.store.events.sources.MAX_SOURCES", 1)
    async with await client_of(idle_api) as client:
        await client.webhook_sources.set("one", "bearer")
        await client.webhook_sources.set("one", "bearer")
        with pytest.raises(Conflict, match="limit"):
            await client.webhook_sources.set("two", "bearer")
