"""Characters that Postgres cannot store: they are refused or replaced, wherever a caller sends them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.acceptance.api.openai_clients import bring
from tests.acceptance.api.serving import Api

# SQLite stores them, so only Postgres can show that none arrives.
pytestmark = pytest.mark.parametrize("settings", ["postgres-redis"], indirect=True)

NUL, HALF = "a\x00b", "\ud800"


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def message(**fields: Any) -> dict[str, Any]:
    given = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], **fields}
    return {"message": given, "configuration": {"returnImmediately": True}}


async def test_a2a_refuses_them(idle_api: Api) -> None:
    await bring(idle_api)
    calls = [
        ("SendMessage", message(parts=[{"text": NUL}])),
        ("SendMessage", message(taskId=NUL)),
        ("SendMessage", message(contextId=NUL)),
        *((method, {"id": NUL}) for method in ("GetTask", "CancelTask", "SubscribeToTask")),
        ("ListTasks", {"pageToken": NUL}),
        ("ListTasks", {"contextId": NUL}),
        ("CreateTaskPushNotificationConfig", {"taskId": NUL, "url": "https://example.com"}),
        ("GetTaskPushNotificationConfig", {"taskId": NUL}),
        ("ListTaskPushNotificationConfigs", {"taskId": NUL}),
    ]
    for method, params in calls:
        answer = await idle_api.client.post("/a2a/agents/helper", json=rpc(method, params))
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, -32602), (method, params, answer.text)


async def test_conversations_refuse_them(idle_api: Api) -> None:
    await bring(idle_api)
    answer = await idle_api.post("/chat", {"agent": "helper", "message": NUL})
    assert (answer.status_code, "NUL" in answer.json()["message"]) == (422, True)
    call = rpc("tools/call", {"name": "chat", "arguments": {"agent": "helper", "message": NUL, "wait_seconds": 0}})
    headers = {"accept": "application/json, text/event-stream"}
    answer = await idle_api.client.post("/mcp", json=call, headers=headers)
    assert "NUL" in answer.text
    assert "Internal error" not in answer.text


@pytest.mark.parametrize("path", ["bulk", "workers", "concurrency-limits"])
async def test_no_path_contains_them(idle_api: Api, path: str) -> None:
    answer = await idle_api.get(f"/{path}/{quote(NUL)}")
    assert answer.status_code == 404, answer.text


async def put(api: Api, label: str, value: dict[str, Any]) -> httpx2.Response:
    # A JSON text of ASCII characters, because half of a surrogate pair has no UTF-8.
    text = json.dumps({"namespace": [label], "key": "k", "value": value})
    return await api.client.put("/store/items", content=text, headers={"content-type": "application/json"})


async def test_items_of_graphs_are_found_without_them(idle_api: Api) -> None:
    client = idle_api.client
    for character in (NUL, HALF):
        value = {"text": f"found {character}", f"name {character}": 1}
        answer = await put(idle_api, "n", value)
        assert answer.status_code == 204, answer.text
        found = await client.post("/store/items/search", json={"namespace_prefix": ["n"], "query": "found"})
        assert [item["key"] for item in found.json()["items"]] == ["k"]
        assert (await put(idle_api, character, {})).status_code == 422
    for query in (f"namespace={quote(NUL)}&key=k", f"namespace=n&key={quote(NUL)}"):
        assert (await client.get(f"/store/items?{query}")).status_code == 422
    assert (await client.post("/store/namespaces", json={"prefix": [NUL]})).status_code == 422
