"""The store of graphs, with the unmodified LangGraph client, and what clients ask a server about itself."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.errors import UnprocessableEntityError

from runlane.domain.item_text import MAX_CHARACTERS, item_text
from runlane.store.threads import items
from tests.acceptance.api.agent_client import lacking, langgraph_client, stranger_key
from tests.acceptance.api.serving import Api

RECORDED: dict[str, Any] = {
    "namespace": ["a", "b"],
    "key": "k1",
    "value": {"x": 1},
    "created_at": "2026-11-16T18:00:09.949998+00:00",
    "updated_at": "2026-11-16T18:00:09.950001+00:00",
}


async def test_items_are_stored_and_found(idle_api: Api) -> None:
    async with langgraph_client(idle_api) as client:
        await client.store.put_item(["a", "b"], "k1", {"x": 1})
        await client.store.put_item(["a", "c"], "k2", {"x": 2, "note": "green apples"}, ttl=60)
        assert lacking(RECORDED, await client.store.get_item(["a", "b"], "k1")) == []
        assert await client.store.get_item(["a", "b"], "nope") is None
        found = (await client.store.search_items(["a"]))["items"]
        assert [(item["key"], item["score"]) for item in found] == [("k1", None), ("k2", None)]
        assert [item["key"] for item in (await client.store.search_items(["a"], filter={"x": 2}))["items"]] == ["k2"]
        worded = (await client.store.search_items(["a"], query="apples"))["items"]
        assert (worded[0]["key"], worded[0]["score"] > 0) == ("k2", True)
        assert (await client.store.search_items(["zzz"]))["items"] == []
        assert await client.store.list_namespaces() == {"namespaces": [["a", "b"], ["a", "c"]]}
        assert await client.store.list_namespaces(prefix=["a"], max_depth=1) == {"namespaces": [["a"]]}
        await client.store.delete_item(["a", "b"], "k1")
        assert await client.store.get_item(["a", "b"], "k1") is None


async def test_bad_items_are_refused(idle_api: Api) -> None:
    async with langgraph_client(idle_api) as client:
        bodies: list[dict[str, Any]] = [
            {"namespace": ["a.b"], "key": "k", "value": {}},
            {"namespace": ["a"], "key": "k"},
            {"namespace": [], "key": "k", "value": {}},
            {"namespace": ["a"], "key": "k", "value": 1},
            {"namespace": ["a"], "key": "k", "value": {}, "ttl": -1},
            {"namespace": ["a"], "key": "k", "value": {}, "bogus": 1},
        ]
        for body in bodies:
            assert (await idle_api.client.put("/store/items", json=body)).status_code == 422, body
        with pytest.raises(UnprocessableEntityError):
            await client.store.search_items(["a"], limit=0)
        assert await client.store.list_namespaces() == {"namespaces": []}


async def test_tenants_have_their_own_items(idle_api: Api) -> None:
    other = await stranger_key(idle_api)
    async with langgraph_client(idle_api) as client, langgraph_client(idle_api, other) as stranger:
        await client.store.put_item(["a"], "k", {"x": 1})
        assert await stranger.store.get_item(["a"], "k") is None
        await stranger.store.put_item(["a"], "k", {"x": 2})
        assert (await client.store.get_item(["a"], "k"))["value"] == {"x": 1}


async def test_a_server_describes_itself(idle_api: Api) -> None:
    without_key = {"authorization": ""}
    assert (await idle_api.client.get("/ok", headers=without_key)).json() == {"ok": True, "services": {}}
    assert (await idle_api.client.get("/ok", params={"check_db": True})).json()["ok"] is True
    info = (await idle_api.client.get("/info", headers=without_key)).json()
    assert (info["flags"]["assistants"], info["flags"]["strict_resume"]) == (True, True)


async def test_paths_of_an_index_cannot_occupy_the_server(idle_api: Api) -> None:
    value: dict[str, Any] = {}
    for _ in range(40):
        value = {"a": value}
    # Each part doubles what the path visits.
    body = {"namespace": ["n"], "key": "k", "value": value, "index": [".".join(["{a,*}"] * 30)]}
    refused = await idle_api.client.put("/store/items", json=body)
    assert (refused.status_code, "visit more than" in refused.json()["message"]) == (422, True), refused.text
    many = await idle_api.client.put("/store/items", json={**body, "index": ["a"] * 51})
    assert many.status_code == 422
    # The same large part many times becomes a string of bounded size.
    wide = {"a": {"text": "x" * 100_000}}
    index = ["{" + ",".join(["a"] * 90) + "}"]
    stored = await idle_api.client.put("/store/items", json={**body, "value": wide, "index": index})
    assert stored.status_code == 204
    assert len(item_text(wide, index)) == MAX_CHARACTERS


async def test_items_and_searches_are_bounded(idle_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"namespace": ["n"], "key": "k", "value": {"text": "x" * 1024 * 1024}}
    assert (await idle_api.client.put("/store/items", json=large)).status_code == 413
    for search in ({"filter": {"a": "x" * 20_000}}, {"query": "x" * 5000}):
        assert (await idle_api.client.post("/store/items/search", json=search)).status_code == 422
    monkeypatch.setattr(items, "MAX_SCANNED", 1000)
    for key in ("a", "b"):
        assert (
            await idle_api.client.put("/store/items", json={**large, "key": key, "value": {"text": "x" * 400}})
        ).is_success
    refused = await idle_api.client.post("/store/items/search", json={"query": "x"})
    assert (refused.status_code, "longer namespace prefix" in refused.json()["message"]) == (422, True), refused.text
