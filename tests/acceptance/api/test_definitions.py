"""Definitions over HTTP: sync, lists, versions, schemas, bundles, and each tenant's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import Api
from tests.acceptance.api.test_runs import problem_of

HELLO: dict[str, Any] = {
    "id": "hello",
    "name": "Hello",
    "description": "Says hello.",
    "steps": [
        {"id": "ask", "type": "agent", "agent_id": "writer", "output_key": "text", "next_step_id": "say"},
        {"id": "say", "type": "print", "print_content": "{state.text}"},
    ],
}
WRITER: dict[str, Any] = {"id": "writer", "tools": ["search"]}
SEARCH: dict[str, Any] = {
    "name": "search",
    "url": "https://example.com/{query}",
    "headers": {"Authorization": "Bearer {secret.SEARCH_KEY}"},
}
FILES: dict[str, Any] = {"name": "files", "url": "https://example.com/mcp", "token": "{secret.FILES_TOKEN}"}
ALL: dict[str, Any] = {
    "orchestrations": [HELLO],
    "agents": [WRITER],
    "tools": [SEARCH],
    "mcp_servers": [FILES],
}


async def synced(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.post("/sync", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_definitions_are_brought_and_looked_at(idle_api: Api) -> None:
    api = idle_api
    tried = await synced(api, **ALL, dry_run=True)
    assert (tried["dry_run"], tried["added"]) == (True, 4)
    assert (await api.get("/orchestrations")).json() == {"orchestrations": [], "next_cursor": None}
    report = await synced(api, **ALL)
    assert [(item["kind"], item["id"], item["change"]) for item in report["items"]] == [
        ("agent", "writer", "added"),
        ("mcp_server", "files", "added"),
        ("orchestration", "hello", "added"),
        ("tool", "search", "added"),
    ]
    listed = (await api.get("/orchestrations")).json()["orchestrations"]
    assert [(item["id"], item["name"], item["description"]) for item in listed] == [("hello", "Hello", "Says hello.")]
    for path, key, body in (
        ("orchestrations", "orchestrations", HELLO),
        ("agents", "agents", WRITER),
        ("tools", "tools", SEARCH),
        ("mcp-servers", "mcp_servers", FILES),
    ):
        page = (await api.get(f"/{path}")).json()
        (item,) = page[key]
        found = (await api.get(f"/{path}/{item['id']}")).json()
        assert (found["definition"], found["version"], found["current"]) == (body, item["version"], True)
        versions = (await api.get(f"/{path}/{item['id']}/versions")).json()
        assert [entry["version"] for entry in versions["versions"]] == [item["version"]]


async def test_versions_can_be_read(idle_api: Api) -> None:
    api = idle_api
    first = (await synced(api, agents=[{"id": "a", "name": "one"}]))["items"][0]
    second = (await synced(api, agents=[{"id": "a", "name": "two"}]))["items"][0]
    assert (second["change"], second["old_version"]) == ("changed", first["version"])
    versions = (await api.get("/agents/a/versions")).json()["versions"]
    assert [(item["version"], item["current"]) for item in versions] == [
        (second["version"], True),
        (first["version"], False),
    ]
    old = (await api.get("/agents/a", params={"version": first["version"]})).json()
    assert (old["definition"]["name"], old["current"]) == ("one", False)
    problem_of(await api.get("/agents/a", params={"version": "0" * 64}), 404, "unknown_definition")
    report = await synced(api, tools=[SEARCH], remove_missing=True)
    assert [item["change"] for item in report["items"]] == ["added", "removed"]
    problem_of(await api.get("/agents/a"), 404, "unknown_definition")
    assert (await api.get("/agents/a", params={"version": first["version"]})).status_code == 200


async def test_problems_are_reported_with_their_location(idle_api: Api) -> None:
    api = idle_api
    bad: dict[str, Any] = {"id": "o", "steps": [{"id": "s", "type": "agent", "agent_id": "writr", "nxt": "x"}]}
    problem = problem_of(
        await api.post("/sync", {"orchestrations": [bad], "agents": [WRITER]}), 422, "invalid_definitions"
    )
    assert problem["fields"] == [
        {
            "field": 'orchestration "o", step "s", field nxt',
            "message": problem["fields"][0]["message"],
        }
    ]
    del bad["steps"][0]["nxt"]
    problem = problem_of(
        await api.post("/sync", {"orchestrations": [bad], "agents": [{"id": "writer"}]}), 422, "invalid_definitions"
    )
    assert 'The agent "writr" does not exist (did you mean "writer"?)' in problem["message"]
    secret = {"name": "t", "url": "https://example.com", "headers": {"Authorization": "Bearer abcdefghijkl"}}
    answer = await api.post("/sync", {"tools": [secret]})
    problem_of(answer, 422, "invalid_definitions")
    assert "abcdefghijkl" not in answer.text
    assert "{secret.AUTHORIZATION}" in answer.text
    assert (await api.get("/agents")).json()["agents"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"agents": [{"id": "\ud800"}]},
        {"agents": [{"id": "a", "\ud800": 1}]},
        {"agents": [{"id": "a\x00"}]},
        {"agents": [{"id": "a", "repos": [float("inf")]}]},
        {"agents": [{"id": "a", "repos": [10**400]}]},
        {"orchestrations": [{"id": "o", "steps": [{"id": "\ud800", "type": "\udfff"}]}]},
    ],
)
async def test_definitions_that_cannot_be_stored_are_refused(idle_api: Api, body: Any) -> None:
    answer = await idle_api.client.post(
        "/api/v2/sync", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    problem_of(answer, 422, "invalid_definitions")


async def test_tasks_that_steps_name_must_be_registered(idle_api: Api) -> None:
    def body(task: str) -> dict[str, Any]:
        return {"orchestrations": [{"id": "o", "steps": [{"id": "s", "type": "task", "task": task}]}]}

    problem = problem_of(await idle_api.post("/sync", body("gret")), 422, "invalid_definitions")
    assert 'did you mean "greet"' in problem["message"]
    await synced(idle_api, **body("greet"))


async def test_pages(idle_api: Api) -> None:
    await synced(idle_api, agents=[{"id": f"a{number}"} for number in range(5)])
    seen: list[str] = []
    cursor = None
    while True:
        page = (await idle_api.get("/agents", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        seen += [item["id"] for item in page["agents"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["a0", "a1", "a2", "a3", "a4"]


async def test_impossible_names_are_not_found(idle_api: Api) -> None:
    for name in ("none", "a%20b", "%F0%9F%98%80", "a" * 200):
        for path in ("", "/versions"):
            problem_of(await idle_api.get(f"/orchestrations/{name}{path}"), 404, "unknown_definition")


async def test_schemas_for_editors(idle_api: Api) -> None:
    for kind in ("orchestration", "agent", "tool", "mcp_server", "mcp-server"):
        schema = (await idle_api.get(f"/schemas/{kind}")).json()
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    problem = problem_of(await idle_api.get("/schemas/agents"), 404, "not_found")
    assert 'did you mean "agent"' in problem["message"]


async def test_each_tenant_has_its_own(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    headers = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    await synced(api, agents=[{"id": "ours"}])
    answer = await api.post("/sync", {"agents": [{"id": "theirs"}]}, headers=headers)
    assert answer.status_code == 200
    assert [item["id"] for item in (await api.get("/agents", headers=headers)).json()["agents"]] == ["theirs"]
    problem_of(await api.get("/agents/ours", headers=headers), 404, "unknown_definition")
    problem_of(await api.get("/agents", headers=headers, params={"tenant": "default"}), 404, "not_found")
    problem_of(await api.post("/sync", {"tenant": "default"}, headers=headers), 404, "not_found")
    assert [item["id"] for item in (await api.get("/agents", params={"tenant": "acme"})).json()["agents"]] == ["theirs"]
    problem_of(await api.post("/sync", {"tenant": "unknown", "agents": []}), 404, "not_found")
    exported = (await api.post("/bundles/export", {}, headers=headers)).json()
    assert [agent["id"] for agent in exported["agents"]] == ["theirs"]


async def test_a_sync_is_in_the_audit_log(idle_api: Api) -> None:
    await synced(idle_api, agents=[{"id": "a"}])
    await synced(idle_api, agents=[{"id": "a"}])
    entries = (await idle_api.get("/audit", params={"action": "definitions.sync"})).json()["entries"]
    assert [list(entry["new"]["added"]) for entry in entries] == [["agent:a"]]


async def test_a_bundle_is_exported_and_imported(idle_api: Api) -> None:
    api = idle_api
    await synced(api, **ALL, tenant=None)
    await synced(api, agents=[{"id": "other"}])
    bundle = (await api.post("/bundles/export", {"orchestrations": ["hello"]})).json()
    assert bundle["runlane_export"] is True
    assert [len(bundle[name]) for name in ("orchestrations", "agents", "custom_tools", "mcp_servers")] == [1, 1, 1, 0]
    bare = (await api.post("/bundles/export", {"orchestrations": ["hello"], "with_used": False})).json()
    assert bare["agents"] == []
    problem_of(await api.post("/bundles/export", {"agents": ["writr"]}), 404, "unknown_definition")
    everything = (await api.post("/bundles/export", {})).json()
    assert [agent["id"] for agent in everything["agents"]] == ["other", "writer"]

    await create_tenant(api.parts.database, "acme", actor="test")
    tried = await api.post("/bundles/import", {"bundle": bundle, "tenant": "acme", "dry_run": True})
    assert (tried.json()["imported"], tried.json()["dry_run"]) == (3, True)
    report = (await api.post("/bundles/import", {"bundle": bundle, "tenant": "acme"})).json()
    assert (report["imported"], report["unchanged"], report["skipped"]) == (3, 0, 0)
    assert ["SEARCH_KEY is not set" in warning["message"] for warning in report["warnings"]] == [True]
    assert report["secrets"] == [
        {"name": "SEARCH_KEY", "kind": "tool", "id": "search", "field": "headers.Authorization"}
    ]
    again = (await api.post("/bundles/import", {"bundle": bundle, "tenant": "acme"})).json()
    assert (again["imported"], again["unchanged"]) == (0, 3)
    kept = (await api.post("/bundles/import", {"bundle": bundle, "tenant": "acme", "keep_existing": True})).json()
    assert {item["reason"] for item in kept["items"]} == {"A definition of this name exists already."}
    one = (await api.post("/bundles/import", {"bundle": bundle, "agents": ["writer"]})).json()
    assert [(item["id"], item["status"]) for item in one["items"]] == [("writer", "unchanged")]
    problem_of(await api.post("/bundles/import", {"bundle": {"agents": []}}), 422, "invalid_request")


async def test_a_repeated_sync_gets_the_same_answer(idle_api: Api) -> None:
    headers = {"Idempotency-Key": "sync-1"}
    first = await idle_api.post("/sync", {"agents": [{"id": "a"}]}, headers=headers)
    again = await idle_api.post("/sync", {"agents": [{"id": "a"}]}, headers=headers)
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    assert first.json()["added"] == 1


SHOP: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example/v1"}],
    "paths": {
        "/orders/{id}": {
            "get": {
                "operationId": "order",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            }
        },
        "/orders": {
            "post": {
                "operationId": "add",
                "requestBody": {
                    "content": {"application/json": {"schema": {"properties": {"n": {"type": "integer"}}}}}
                },
            }
        },
        "/files": {"post": {"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}},
    },
}


async def test_tools_come_from_a_description(idle_api: Api) -> None:
    api = idle_api
    wanted: dict[str, Any] = {
        "spec": SHOP,
        "name_prefix": "shop_",
        "headers": {"Authorization": "Bearer {secret.SHOP}"},
    }
    answer = await api.post("/tools/import/openapi", wanted)
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert [tool["name"] for tool in report["tools"]] == ["shop_order", "shop_add"]
    assert [item["operation"] for item in report["left_out"]] == ["POST /files"]
    assert (report["notes"], report["saved"]) == ([], None)
    assert (await api.get("/tools")).json()["tools"] == []
    saved = (await api.post("/tools/import/openapi", {**wanted, "save": True})).json()["saved"]
    assert (saved["added"], saved["dry_run"]) == (2, False)
    stored = (await api.get("/tools/shop_add")).json()["definition"]
    assert (stored["method"], stored["effect"], stored["body"]) == ("POST", "once", "rest")
    assert stored["headers"] == {"Authorization": "Bearer {secret.SHOP}"}
    assert (await synced(api, agents=[{"id": "a", "tools": ["shop_order"]}], remove_missing=True))["removed"] == 0
    again = (await api.post("/tools/import/openapi", {**wanted, "save": True})).json()["saved"]
    assert (again["added"], again["unchanged"]) == (0, 2)


async def test_descriptions_that_cannot_be_used_change_nothing(idle_api: Api) -> None:
    path = "/tools/import/openapi"
    problem_of(await idle_api.post(path, {"spec": {"swagger": "2.0"}, "save": True}), 422, "invalid_request")
    problem_of(await idle_api.post(path, {"spec": SHOP, "base_url": "file:///x"}), 422, "invalid_request")
    for save in (True, False):
        body = {"spec": SHOP, "save": save, "headers": {"Authorization": "Bearer abcdefghijkl"}}
        answer = await idle_api.post(path, body)
        problem_of(answer, 422, "invalid_definitions")
        assert "abcdefghijkl" not in answer.text
    assert (await idle_api.get("/tools")).json()["tools"] == []
