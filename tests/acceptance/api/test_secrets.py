"""Secrets over HTTP: permitted callers set, list, delete and rotate them, and no answer shows a value."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Client, NotFound
from runlane.access.keyring import new_key
from runlane.access.secrets import SecretVault
from runlane.app import App
from runlane.errors import InvalidRequest, NoSecretKey
from runlane.settings import Settings, load_settings
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import settings_for

CANARY = "canary-71e0d4-secret"


async def put(api: Api, name: str, value: str = CANARY, **options: Any) -> Any:
    return await api.client.put(f"{API}/secrets/{name}", json={"value": value}, **options)


async def test_a_secrets_life(idle_api: Api) -> None:
    api = idle_api
    made = await put(api, "TOKEN")
    assert made.status_code == 200, made.text
    stored = made.json()
    assert (stored["name"], stored["tenant"], stored["version"]) == ("TOKEN", "default", 1)
    assert (await put(api, "TOKEN", f"{CANARY}-2")).json()["version"] == 2
    await put(api, "ANOTHER")
    listed = await api.get("/secrets")
    assert [(item["name"], item["version"]) for item in listed.json()["secrets"]] == [("ANOTHER", 1), ("TOKEN", 2)]
    assert CANARY not in listed.text + made.text
    page = (await api.get("/secrets", params={"limit": 1})).json()
    assert page["next_cursor"] == "ANOTHER"
    rest = (await api.get("/secrets", params={"limit": 1, "cursor": "ANOTHER"})).json()
    assert [item["name"] for item in rest["secrets"]] == ["TOKEN"]
    gone = await api.client.delete(f"{API}/secrets/TOKEN")
    assert (gone.status_code, gone.json()["version"]) == (200, 2)
    problem_of(await api.client.delete(f"{API}/secrets/TOKEN"), 404, "not_found")
    actions = [entry["action"] for entry in (await api.get("/audit")).json()["entries"]]
    assert actions[:4] == ["secret.delete", "secret.set", "secret.set", "secret.set"]


async def test_invalid_values_are_refused_without_being_repeated(idle_api: Api) -> None:
    api = idle_api
    problem_of(await put(api, "9LIVES"), 422, "invalid_request")
    for body in ({"value": "short12"}, {"value": ["a list", CANARY]}, {"valeu": CANARY}, {"value": "aaaaaaaaaaaa"}, {}):
        answer = await api.client.put(f"{API}/secrets/TOKEN", json=body)
        problem_of(answer, 422, "invalid_request")
        assert CANARY not in answer.text
        assert "short12" not in answer.text
    large = await api.client.put(f"{API}/secrets/TOKEN", json={"value": "äbcd" * 16384})
    problem_of(large, 422, "invalid_request")
    problem_of(await put(api, "TOKEN", headers={"Content-Type": "text/plain"}), 422, "invalid_request")
    assert (await api.get("/secrets")).json()["secrets"] == []


async def test_a_repeated_request_is_carried_out_once_and_its_value_is_not_kept(idle_api: Api) -> None:
    api = idle_api
    key = {"Idempotency-Key": "once"}
    first = await put(api, "TOKEN", headers=key)
    again = await put(api, "TOKEN", headers=key)
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    problem_of(await put(api, "TOKEN", f"{CANARY}-2", headers=key), 409, "idempotency_conflict")
    assert (await api.get("/secrets")).json()["secrets"][0]["version"] == 1
    await create_tenant(api.parts.database, "acme", actor="test")
    await api.client.put(f"{API}/secrets/TOKEN", json={"value": CANARY, "tenant": "acme"})
    for tenant in ("acme", "default"):
        gone = await api.client.delete(f"{API}/secrets/TOKEN", params={"tenant": tenant}, headers=key)
        assert gone.json()["tenant"] == tenant


async def test_each_tenant_has_its_own(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    theirs = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    await put(api, "TOKEN")
    assert (await put(api, "TOKEN", f"{CANARY}-acme", headers=theirs)).json()["tenant"] == "acme"
    assert len((await api.get("/secrets", headers=theirs)).json()["secrets"]) == 1
    for answer in (
        await api.get("/secrets", headers=theirs, params={"tenant": "default"}),
        await api.client.delete(f"{API}/secrets/TOKEN", headers=theirs, params={"tenant": "default"}),
        await api.client.put(f"{API}/secrets/T", json={"value": CANARY, "tenant": "default"}, headers=theirs),
        await api.post("/secrets/rotate", {"tenant": "default"}, headers=theirs),
        await api.client.put(f"{API}/secrets/T", json={"value": CANARY, "tenant": "unknown"}),
    ):
        problem_of(answer, 404, "not_found")
    values = api.parts.connection.vault.values
    assert await values("acme", ["TOKEN"]) == {"TOKEN": f"{CANARY}-acme"}
    assert await values("default", ["TOKEN"]) == {"TOKEN": CANARY}


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_callers_without_permission_see_no_secrets(idle_api: Api, role: str) -> None:
    await put(idle_api, "TOKEN")
    headers = {"Authorization": f"Bearer {await idle_api.key(role)}"}
    problem_of(await idle_api.get("/secrets", headers=headers), 403, "forbidden")
    problem_of(await put(idle_api, "TOKEN", headers=headers), 403, "forbidden")


async def test_keys_are_changed_over_http_and_by_the_client(settings: Settings) -> None:
    old, new = new_key(), new_key()
    async with App(_keyed(settings, old)) as app:
        await SecretVault(await app.database(), app.settings).set("default", "OLD", CANARY, actor="test")
    async with serving(copy_of(shop, _keyed(settings, new, old))) as api:
        raw = await api.key()
        async with Client(api.url, raw) as client:
            made = await client.secrets.set("NEW", CANARY)
            done = await client.secrets.rotate()
            assert (done.key_id, done.rotated, done.unreadable) == (made.key_id, 1, ())
            assert [(item.name, item.key_id) async for item in client.secrets.list()] == [
                ("NEW", made.key_id),
                ("OLD", made.key_id),
            ]
            assert (await client.secrets.delete("OLD", tenant="default")).version == 1
            with pytest.raises(NotFound):
                await client.secrets.delete("OLD")
            with pytest.raises(InvalidRequest):
                await client.secrets.set("NEW", "short")
    async with serving(copy_of(shop, _keyed(settings, new_key()))) as api:
        done = (await api.post("/secrets/rotate", {})).json()
        assert (done["rotated"], [item["name"] for item in done["unreadable"]]) == (0, ["NEW"])


async def test_a_server_without_a_key_explains_what_to_do(settings: Settings) -> None:
    keyless = settings.model_copy(update={"secret_key": None})
    async with serving(copy_of(shop, keyless)) as api:
        problem = problem_of(await put(api, "TOKEN"), 409, "no_secret_key")
        assert "runlane secrets new-key" in problem["message"]
        problem_of(await api.post("/secrets/rotate", {}), 409, "no_secret_key")
        async with Client(api.url, await api.key()) as client:
            with pytest.raises(NoSecretKey):
                await client.secrets.set("TOKEN", CANARY)


async def test_the_definitions_that_refer_to_a_secret_are_listed(idle_api: Api) -> None:
    servers = [
        {"name": "one", "url": "https://one.example.com/mcp", "token": "{secret.A_TOKEN}"},
        {"name": "two", "url": "https://two.example.com/mcp", "headers": {"X-Key": "{secret.AXTOKEN}"}},
    ]
    assert (await idle_api.post("/sync", {"mcp_servers": servers, "source": "tests"})).status_code == 200
    used = (await idle_api.get("/secrets/A_TOKEN/used-by")).json()["used_by"]
    assert [(item["kind"], item["id"]) for item in used] == [("mcp_server", "one")]
    assert (await idle_api.get("/secrets/NONE/used-by")).json()["used_by"] == []
    async with Client(idle_api.url, await idle_api.key()) as client:
        (user,) = await client.secrets.used_by("A_TOKEN")
        assert (user.kind, user.id) == ("mcp_server", "one")
        assert await client.secrets.used_by("NONE") == []
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await idle_api.key('developer', tenant='acme')}"}
    assert (await idle_api.get("/secrets/A_TOKEN/used-by", headers=acme)).json()["used_by"] == []
    viewer = {"Authorization": f"Bearer {await idle_api.key('viewer')}"}
    problem_of(await idle_api.get("/secrets/A_TOKEN/used-by", headers=viewer), 403, "forbidden")


async def test_secrets_that_definitions_miss_are_warnings(idle_api: Api) -> None:
    server = {"name": "hub", "server_type": "remote", "url": "https://example.com/mcp", "token": "{secret.HUB}"}
    report = (await idle_api.post("/sync", {"mcp_servers": [server]})).json()
    assert [("HUB is not set" in item["message"], item["id"]) for item in report["warnings"]] == [(True, "hub")]
    await put(idle_api, "HUB")
    assert (await idle_api.post("/sync", {"mcp_servers": [server]})).json()["warnings"] == []
    bundle = {"runlane_export": True, "mcp_servers": [server | {"token": "{secret.OTHER_HUB}"}]}
    imported = (await idle_api.post("/bundles/import", {"bundle": bundle, "take_over": True})).json()
    assert ["OTHER_HUB is not set" in item["message"] for item in imported["warnings"]] == [True]


def _keyed(settings: Settings, *keys: str) -> Settings:
    assert settings.database_url is not None
    key = load_settings(secret_key=",".join(keys)).secret_key
    return settings_for(settings.database_url.get_secret_value()).model_copy(update={"secret_key": key})
