"""Searches are bounded: the bytes of one answer, and how many of one key are served at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import bindparam, update
from sqlalchemy import text as sql_text

from runlane.store.sql.schema import threads
from runlane.store.sql.statement import Statement
from runlane.store.threads.thread_search import MAX_PAGE_BYTES
from tests.acceptance.api.agent_client import host
from tests.acceptance.api.serving import API, Api

LARGE = 4 * 1024 * 1024
_FILL = Statement("fill_threads", update(threads).values(state_values=bindparam("values")), purpose="For a test.")
MEMORY = "01890000-0000-7000-8000-000000000000"
SEARCHES: list[tuple[str, dict[str, Any]]] = [
    ("/threads/search", {"metadata": {"a": 1}}),
    ("/threads/count", {"values": {"a": 1}}),
    ("/assistants/search", {"metadata": {"a": 1}}),
    ("/assistants/count", {"metadata": {"a": 1}}),
    ("/assistants/three/versions", {"metadata": {"a": 1}}),
    ("/runs/crons/search", {"metadata": {"a": 1}}),
    ("/runs/crons/count", {"metadata": {"a": 1}}),
    ("/store/items/search", {"namespace_prefix": [], "query": "word"}),
    ("/store/namespaces", {}),
    (f"{API}/memory/memories/{MEMORY}/search", {"query": "word"}),
    ("/v0/search", {"memoryId": MEMORY, "query": "word"}),
]


async def _fill_threads(api: Api, count: int) -> None:
    for _ in range(count):
        assert (await api.client.post("/threads", json={})).status_code == 200
    values = f'{{"text": "{"x" * LARGE}"}}'
    await api.parts.database.transact(lambda session: session.fetch(_FILL, values=values))


async def test_a_page_of_threads_has_a_bound_in_bytes(idle_api: Api) -> None:
    await _fill_threads(idle_api, 6)
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        answer = await idle_api.client.post("/threads/search", json={"limit": 1000, "offset": offset})
        assert len(answer.content) <= MAX_PAGE_BYTES
        page = answer.json()
        assert 0 < len(page) < 6
        seen += [thread["thread_id"] for thread in page]
        following = answer.headers.get("x-pagination-next")
        assert following == (None if len(seen) == 6 else str(len(seen)))
        offset = None if following is None else int(following)
    assert len(set(seen)) == len(seen) == 6


async def test_extracted_parts_count_as_bytes_of_the_page(idle_api: Api) -> None:
    await _fill_threads(idle_api, 3)
    paths = {f"part{number}": "values.text" for number in range(3)}
    answer = await idle_api.client.post("/threads/search", json={"select": ["thread_id"], "extract": paths})
    assert (len(answer.json()), answer.headers["x-pagination-next"]) == (1, "1")
    assert len(answer.content) <= MAX_PAGE_BYTES


async def test_values_that_are_not_selected_do_not_shorten_a_page(idle_api: Api) -> None:
    await _fill_threads(idle_api, 6)
    fields = ["thread_id", "metadata", "status"]
    answer = await idle_api.client.post("/threads/search", json={"limit": 10, "select": fields})
    assert (len(answer.json()), "x-pagination-next" in answer.headers) == (6, False)
    assert set(answer.json()[0]) == set(fields)


@pytest.mark.parametrize(("path", "body"), SEARCHES)
async def test_searches_of_one_key_are_bounded(idle_api: Api, path: str, body: dict[str, Any]) -> None:
    await host(idle_api)
    raw = await idle_api.key("viewer")
    headers = {"Authorization": f"Bearer {raw}"}
    principal = await idle_api.parts.authenticator.identify(raw)
    async with AsyncExitStack() as stack:
        for _ in range(idle_api.parts.app.settings.api_max_searches_per_key):
            await stack.enter_async_context(idle_api.parts.searches.turn(principal))
        refused, other = await asyncio.gather(
            idle_api.client.post(path, json=body, headers=headers), idle_api.client.post(path, json=body)
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1"), refused.text
        assert other.status_code in (200, 404), other.text
    assert (await idle_api.client.post(path, json=body, headers=headers)).status_code in (200, 404)


async def test_a_search_waits_for_the_turn_of_its_key(idle_api: Api) -> None:
    most = idle_api.parts.app.settings.api_max_searches_per_key
    answers = await asyncio.gather(*(idle_api.client.post("/threads/search", json={}) for _ in range(most * 4)))
    assert [answer.status_code for answer in answers] == [200] * (most * 4)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/threads/search", {"ids": ["\x00"]}),
        ("/assistants/search", {"name": "\x00"}),
        ("/assistants/count", {"graph_id": "\x00"}),
        ("/runs/crons/search", {"thread_id": "\x00"}),
        ("/runs/crons", {"assistant_id": "three", "schedule": "0 3 * * *", "webhook": "http://["}),
        ("/runs", {"assistant_id": "three", "webhook": "http://x:99999/"}),
        ("/threads/%00/history", {}),
    ],
)
async def test_hostile_text_is_refused_and_not_an_error(idle_api: Api, path: str, body: dict[str, Any]) -> None:
    await host(idle_api)
    answer = await idle_api.client.post(path, json=body)
    assert answer.status_code == (404 if "%00" in path else 422), answer.text


_UPDATES: dict[str, tuple[str, str]] = {
    "/assistants/search": ("assistants", "config"),
    "/assistants/{one}/versions": ("assistant_versions", "context"),
    "/runs/crons/search": ("schedules", "settings"),
}


async def _grow(api: Api, table: str, column: str) -> None:
    """Give every row of a table a large value."""
    text = f"""update {table} set {column} = replace({column}, '"filler"', '"{"x" * LARGE}"')"""
    await api.parts.database.transact(
        lambda session: session.fetch(Statement("fill", sql_text(text), purpose="For a test."))
    )


@pytest.mark.parametrize("path", [*_UPDATES])
async def test_other_lists_have_a_bound_in_bytes(idle_api: Api, path: str) -> None:
    await host(idle_api)
    filler = {"configurable": {"filler": "filler"}}
    made = [
        (await idle_api.client.post("/assistants", json={"graph_id": "three", "config": filler})).json()
        for _ in range(6)
    ]
    one = made[0]["assistant_id"]
    for _ in range(5):
        assert (await idle_api.client.patch(f"/assistants/{one}", json={"config": filler})).status_code == 200
    for number in range(6):
        body = {"assistant_id": "three", "schedule": f"{number} 3 * * *", "input": {"text": "filler"}}
        assert (await idle_api.client.post("/runs/crons", json=body)).status_code == 200
    await _grow(idle_api, *_UPDATES[path])
    seen, offset = 0, 0
    while True:
        answer = await idle_api.client.post(path.format(one=one), json={"limit": 1000, "offset": offset})
        assert answer.status_code == 200, answer.text[:300]
        assert len(answer.content) <= MAX_PAGE_BYTES + 1024 * 1024
        seen += len(answer.json())
        following = answer.headers.get("x-pagination-next")
        if following is None:
            break
        assert int(following) == seen
        offset = int(following)
    assert offset > 0
    assert seen >= 6


async def test_the_runs_of_a_thread_have_a_bound_in_bytes(idle_api: Api) -> None:
    await host(idle_api)
    thread = (await idle_api.client.post("/threads", json={})).json()["thread_id"]
    for _ in range(6):
        body = {"assistant_id": "three", "input": {"text": "filler"}, "multitask_strategy": "enqueue"}
        assert (await idle_api.client.post(f"/threads/{thread}/runs", json=body)).status_code == 200
    await _grow(idle_api, "run_inputs", "input")
    first = await idle_api.client.get(f"/threads/{thread}/runs?limit=1000")
    assert len(first.content) <= MAX_PAGE_BYTES + 1024 * 1024
    following = int(first.headers["x-pagination-next"])
    assert 0 < len(first.json()) == following < 6
    rest = await idle_api.client.get(f"/threads/{thread}/runs?limit=1000&offset={following}")
    assert len(rest.json()) == 6 - following
    assert "x-pagination-next" not in rest.headers
