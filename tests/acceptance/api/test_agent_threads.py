"""Threads with the unmodified LangGraph client, as far as they need no graph."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from tests.acceptance.api.agent_client import host, lacking, langgraph_client, stranger_key
from tests.acceptance.api.serving import Api

FIXED = "11111111-1111-4111-8111-111111111111"
RECORDED: dict[str, Any] = {
    "thread_id": FIXED,
    "created_at": "2026-11-16T17:57:53.999619+00:00",
    "updated_at": "2026-11-16T17:57:53.999619+00:00",
    "state_updated_at": "2026-11-16T17:57:53.999619+00:00",
    "metadata": {},
    "status": "idle",
    "config": {},
    "values": None,
}


async def test_threads_are_created_once(idle_api: Api) -> None:
    async with langgraph_client(idle_api) as client:
        made = await client.threads.create(thread_id=FIXED)
        assert lacking(RECORDED, made) == []
        with pytest.raises(ConflictError):
            await client.threads.create(thread_id=FIXED)
        assert await client.threads.create(thread_id=FIXED, if_exists="do_nothing") == made
        assert await client.threads.get(FIXED) == made
        await client.threads.delete(FIXED)
        with pytest.raises(NotFoundError):
            await client.threads.get(FIXED)
        with pytest.raises(UnprocessableEntityError, match="UUID"):
            await client.threads.create(thread_id="not-a-uuid")


async def test_metadata_is_merged_and_found(idle_api: Api) -> None:
    async with langgraph_client(idle_api) as client:
        one = await client.threads.create(metadata={"owner": "me", "n": 1}, graph_id="three")
        await client.threads.create(metadata={"owner": "you"})
        changed = await client.threads.update(one["thread_id"], metadata={"n": 2})
        assert changed["metadata"] == {"owner": "me", "n": 2, "graph_id": "three"}
        found = await client.threads.search(metadata={"owner": "me"})
        assert [item["thread_id"] for item in found] == [one["thread_id"]]
        assert await client.threads.search(metadata={"owner": "nobody"}) == []
        assert await client.threads.count(metadata={"owner": "you"}) == 1
        assert await client.threads.count(status="busy") == 0
        assert len(await client.threads.search(ids=[one["thread_id"]])) == 1
        listed = await client.threads.search(limit=1, sort_by="created_at", sort_order="asc", select=["thread_id"])
        assert listed == [{"thread_id": one["thread_id"]}]
        extracted = await client.threads.search(extract={"who": "metadata.owner", "no": "values.x[0]"}, limit=1)
        assert extracted[0]["extracted"] == {"who": "me", "no": None}


async def test_a_ttl_is_shown_on_request(idle_api: Api) -> None:
    async with langgraph_client(idle_api) as client:
        made = await client.threads.create(ttl={"ttl": 60, "strategy": "keep_latest"})
        assert "ttl" not in made
        shown = await client.threads.get(made["thread_id"], include=["ttl"])
        assert (shown["ttl"]["ttl_minutes"], shown["ttl"]["strategy"]) == (60, "keep_latest")
        assert shown["ttl"]["expires_at"] > made["created_at"]


async def test_bodies_of_any_content_type(idle_api: Api) -> None:
    answer = await idle_api.client.post(
        "/threads", content='{"metadata": {"a": 1}}', headers={"content-type": "text/plain"}
    )
    assert (answer.status_code, answer.json()["metadata"]) == (200, {"a": 1})
    assert (await idle_api.client.post("/threads/search")).status_code == 200
    minimal = await idle_api.client.patch(
        f"/threads/{answer.json()['thread_id']}", json={"metadata": {}}, headers={"prefer": "return=minimal"}
    )
    assert (minimal.status_code, minimal.content) == (204, b"")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/threads", {"metadata": "x"}),
        ("/threads", {"bogus": 1}),
        ("/threads", []),
        ("/threads", {"ttl": {"ttl": -1}}),
        ("/threads/search", {"limit": 0}),
        ("/threads/search", {"limit": 1001}),
        ("/threads/search", {"limit": "many"}),
        ("/threads/search", {"status": "nope"}),
        ("/threads/search", {"sort_by": "color"}),
        ("/threads/search", {"extract": {"x": "secret[0"}}),
    ],
)
async def test_bad_requests_are_refused_by_name(idle_api: Api, path: str, body: object) -> None:
    answer = await idle_api.client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"] == answer.json()["message"]


async def test_threads_of_other_tenants_do_not_exist(idle_api: Api) -> None:
    other = await stranger_key(idle_api)
    async with langgraph_client(idle_api) as client, langgraph_client(idle_api, other) as stranger:
        mine = (await client.threads.create())["thread_id"]
        with pytest.raises(NotFoundError):
            await stranger.threads.get(mine)
        with pytest.raises(NotFoundError):
            await stranger.threads.update(mine, metadata={})
        with pytest.raises(NotFoundError):
            await stranger.threads.delete(mine)
        assert await stranger.threads.count() == 0
        # The same id is another thread for another tenant.
        await stranger.threads.create(thread_id=mine)


async def test_metadata_does_not_grow_without_end(idle_api: Api) -> None:
    await host(idle_api)
    thread = (await idle_api.client.post("/threads", json={})).json()["thread_id"]
    assistant = (await idle_api.client.post("/assistants", json={"graph_id": "three"})).json()["assistant_id"]
    for path in (f"/threads/{thread}", f"/assistants/{assistant}"):
        answers = [
            await idle_api.client.patch(path, json={"metadata": {name: "x" * 600_000}}) for name in ("first", "second")
        ]
        assert [answer.status_code for answer in answers] == [200, 413], answers[1].text
        assert list((await idle_api.client.get(path)).json()["metadata"]) == ["first"]
