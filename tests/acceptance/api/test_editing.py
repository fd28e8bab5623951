"""Definitions, one at a time: checked with the place of each problem, stored once, and never over a newer version."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Client, VersionMismatch
from runlane.domain.example_values import example_of
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.flows import ARTICLE, PAYMENT, bring, say
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of

HELLO: dict[str, Any] = {"id": "hello", "steps": [say("one", "1", next_step_id="two"), say("two", "2")]}
OUTER: dict[str, Any] = {
    "id": "outer",
    "steps": [{"id": "inner", "type": "orchestration", "orchestration_id": "hello", "output_key": "inner"}],
}
PUT = f"{API}/definitions/orchestrations/hello"


async def check(api: Api, definition: dict[str, Any], **options: Any) -> dict[str, Any]:
    answer = await api.post("/definitions/check", {"kind": "orchestrations", "definition": definition}, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_problems_have_their_place_in_the_text(idle_api: Api) -> None:
    broken = {"id": "hello", "steps": [say("one", "1", next_step_id="tow"), say("two", "2")]}
    found = await check(idle_api, broken)
    assert (found["valid"], found["version"], found["graph"]) == (False, None, None)
    finding = next(finding for finding in found["findings"] if finding["step"] == "one")
    assert (finding["pointer"], finding["severity"]) == ("/steps/0/next_step_id", "error")
    assert 'did you mean "two"' in finding["message"]
    valid = await check(idle_api, HELLO)
    assert (valid["valid"], valid["change"]) == (True, "added")
    # The graph of a definition that is not stored.
    assert [node["id"] for node in valid["graph"]["nodes"]] == [step["id"] for step in HELLO["steps"]]
    assert valid["graph"]["version"] == valid["version"]
    assert (await idle_api.get("/orchestrations")).json()["orchestrations"] == []


async def test_an_older_text_does_not_replace_a_newer_one(idle_api: Api) -> None:
    api = idle_api
    first = await api.client.put(PUT, json={"definition": HELLO})
    assert (first.status_code, first.json()["change"], first.json()["source"]) == (200, "added", "dashboard")
    version = first.json()["version"]
    assert first.headers["etag"] == f'"{version}"'
    changed = {**HELLO, "name": "Hello"}
    second = await api.client.put(PUT, json={"definition": changed}, headers={"If-Match": f'"{version}"'})
    assert (second.json()["change"], second.json()["previous"]) == ("changed", version)
    stale = await api.client.put(PUT, json={"definition": HELLO}, headers={"If-Match": f'"{version}"'})
    problem_of(stale, 412, "version_mismatch")
    assert (await api.get("/orchestrations/hello")).json()["version"] == second.json()["version"]
    wrong = await api.client.put(f"{API}/definitions/orchestrations/other", json={"definition": HELLO})
    problem_of(wrong, 422, "invalid_request")
    problem_of(await api.client.put(f"{API}/definitions/plans/hello", json={"definition": HELLO}), 404, "not_found")


async def test_definitions_of_files_are_not_overwritten_by_accident(idle_api: Api) -> None:
    api = idle_api
    await bring(api.parts.database, HELLO)
    changed = {**HELLO, "name": "Hello"}
    problem_of(await api.client.put(PUT, json={"definition": changed}), 409, "conflict")
    taken = await api.client.put(PUT, json={"definition": changed, "take_over": True})
    assert taken.json()["change"] == "changed"
    # The sync of the files is refused in the same way, until it takes the definition over again.
    refused = await api.post("/sync", {"orchestrations": [HELLO]})
    problem_of(refused, 409, "conflict")
    assert (await api.post("/sync", {"orchestrations": [HELLO], "take_over": True})).status_code == 200


async def test_a_definition_names_what_uses_it(idle_api: Api) -> None:
    api = idle_api
    await bring(api.parts.database, HELLO, OUTER, ARTICLE)
    used = (await api.get("/definitions/orchestrations/hello/used-by")).json()["used_by"]
    assert [(item["kind"], item["id"]) for item in used] == [("orchestration", "outer")]
    outer = (await api.get("/definitions/orchestrations/outer/used-by")).json()
    assert outer["used_by"] == []
    assert {"kind": "orchestration", "id": "hello"} in outer["uses"]
    assert {"kind": "orchestration", "id": "outer"} not in outer["uses"]
    problem_of(await api.get("/definitions/orchestrations/none/used-by"), 404, "unknown_definition")
    assert (await api.get("/definitions/orchestrations/used-by")).json() == {"counts": {"hello": 1}}
    assert (await api.get("/definitions/orchestrations/used-by?tenant=acme")).json() == {"counts": {}}


async def test_the_client_reads_definitions_with_their_versions_and_users(idle_api: Api) -> None:
    await bring(idle_api.parts.database, HELLO, OUTER, ARTICLE)
    await bring(idle_api.parts.database, {**HELLO, "description": "Changed."})
    async with Client(idle_api.url, await idle_api.key()) as client:
        listed = [item["id"] async for item in client.definitions("orchestrations")]
        assert listed == ["article", "hello", "outer"]
        assert [item async for item in client.definitions("mcp-servers")] == []
        newest, oldest = await client.definition_versions("orchestrations", "hello")
        assert newest["version"] != oldest["version"]
        users = await client.definition_users("orchestrations", "hello")
        assert [item["id"] for item in users["used_by"]] == ["outer"]
        assert {"kind": "orchestration", "id": "hello"} in (await client.definition_users("orchestrations", "outer"))[
            "uses"
        ]
        assert await client.definition_user_counts("orchestrations") == {"hello": 1}
        assert await client.definition_user_counts("mcp_servers") == {}


async def test_the_client_checks_and_stores_one_definition(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key()) as client:
        found = await client.check_definition("orchestrations", HELLO)
        assert (found["valid"], found["change"]) == (True, "added")
        stored = await client.put_definition("orchestrations", "hello", HELLO)
        assert stored["version"] == found["version"]
        changed = {**HELLO, "name": "Hello"}
        newer = await client.put_definition("orchestrations", "hello", changed, version=stored["version"])
        assert newer["previous"] == stored["version"]
        with pytest.raises(VersionMismatch):
            await client.put_definition("orchestrations", "hello", HELLO, version=stored["version"])
        assert (await client.input_form("hello"))["orchestration_id"] == "hello"
        assert (await client.definition_schema("mcp_server"))["$schema"].startswith("https://json-schema.org/")
        spec = {
            "openapi": "3.1.0",
            "info": {"title": "Shop", "version": "1"},
            "servers": [{"url": "https://shop.example"}],
            "paths": {"/orders": {"get": {"operationId": "list_orders", "summary": "All orders"}}},
        }
        made = await client.import_openapi(spec, name_prefix="shop_", save=True)
        assert [tool["name"] for tool in made["tools"]] == ["shop_list_orders"]
        assert [item["id"] async for item in client.definitions("tools")] == ["shop_list_orders"]


async def test_forms_are_made_of_schemas(idle_api: Api) -> None:
    await bring(idle_api.parts.database, PAYMENT)
    form = (await idle_api.get("/orchestrations/payment/input")).json()
    assert form["input_schema"] == {"type": "object", "properties": {"item": {"type": "string"}}}
    assert form["example"] == {"item": ""}
    tasks = {task["name"]: task for task in (await idle_api.get("/tasks")).json()["tasks"]}
    assert tasks["wait"]["input_schema"]["properties"]["seconds"]["type"] == "number"
    assert set(tasks["wait"]["example"]) == {"seconds"}


def test_examples_end_even_if_a_schema_contains_itself() -> None:
    tree = {"$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}}, "$ref": "#/$defs/T"}
    assert "next" in example_of(tree)
    assert example_of({"enum": ["a", "b"]}) == "a"
    assert example_of({"type": ["integer", "null"], "minimum": 3}) == 3
    assert example_of({}) is None


async def test_another_tenant_sees_and_changes_its_own(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api.parts.database, HELLO, PAYMENT)
    acme = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    problem_of(await api.get("/definitions/orchestrations/hello/used-by", headers=acme), 404, "unknown_definition")
    problem_of(await api.get("/orchestrations/payment/input", headers=acme), 404, "unknown_definition")
    body = {"definition": HELLO, "tenant": "default"}
    problem_of(await api.client.put(PUT, json=body, headers=acme), 404, "not_found")
    assert (await check(api, HELLO, headers=acme))["change"] == "added"
