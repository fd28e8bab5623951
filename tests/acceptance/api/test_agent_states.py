"""The state of threads with the unmodified LangGraph client and a real worker: read, history, update, copy, prune."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.store.threads import states
from tests.acceptance.api.agent_client import lacking, langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving

INPUT: dict[str, Any] = {"value": 1, "items": []}
# As the official server answered.
RECORDED_EMPTY: dict[str, Any] = {
    "values": {},
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": [],
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}
RECORDED_STATE: dict[str, Any] = {
    "values": {"value": 3, "items": ["a", "b"]},
    "next": ["c"],
    "tasks": [
        {
            "id": "c6c84e95-99e6-c097-5caa-e8c039ecaf30",
            "name": "c",
            "path": ["__pregel_pull", "c"],
            "error": None,
            "interrupts": [],
            "checkpoint": None,
            "state": None,
            "result": {"items": ["c"], "value": 4},
        }
    ],
    "interrupts": [],
}


@pytest.fixture
async def served(own_app: App) -> AsyncGenerator[Api]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield api


@pytest.fixture
async def client(served: Api) -> AsyncGenerator[Any]:
    async with langgraph_client(served) as sdk:
        yield sdk


async def test_state_and_history(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = (await client.threads.create())["thread_id"]
    assert await client.threads.get_state(thread) == RECORDED_EMPTY
    assert await client.threads.get_history(thread) == []
    await client.runs.wait(thread, "three", input=INPUT)
    state = await client.threads.get_state(thread)
    assert (state["values"], state["next"], state["tasks"]) == ({"value": 4, "items": ["a", "b", "c"]}, [], [])
    assert state["metadata"]["source"] == "loop"
    history = await client.threads.get_history(thread)
    assert [item["next"] for item in history] == [[], ["c"], ["b"], ["a"], ["__start__"]]
    assert lacking(RECORDED_STATE, history[1]) == []
    assert history[0]["parent_checkpoint"]["checkpoint_id"] == history[1]["checkpoint"]["checkpoint_id"]
    assert await client.threads.get_history(thread, limit=2) == history[:2]
    assert await client.threads.get_history(thread, before=history[1]["checkpoint"]) == history[2:]
    monkeypatch.setattr(states, "MAX_HISTORY_BYTES", 1)
    assert await client.threads.get_history(thread) == history[:1]
    assert await client.threads.get_history(thread, before=history[0]["checkpoint"]) == history[1:2]
    by_id = await client.threads.get_state(thread, checkpoint_id=history[2]["checkpoint_id"])
    assert by_id["values"] == {"value": 2, "items": ["a"]}
    at = await client.threads.get_state(thread, checkpoint=history[2]["checkpoint"])
    assert at["values"] == by_id["values"]
    with pytest.raises(NotFoundError):
        await client.threads.get_state(thread, checkpoint_id="00000000-0000-0000-0000-000000000000")


async def test_an_update_is_a_checkpoint_and_not_a_run(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    with pytest.raises(ConflictError, match="has no graph"):
        await client.threads.update_state(thread, {"items": ["x"]})
    await client.runs.wait(thread, "three", input=INPUT)
    updated = await client.threads.update_state(thread, {"items": ["patched"]}, as_node="a")
    state = await client.threads.get_state(thread)
    assert updated["checkpoint"]["checkpoint_id"] == state["checkpoint"]["checkpoint_id"]
    assert (state["values"]["items"], state["next"]) == (["a", "b", "c", "patched"], ["b"])
    assert (await client.threads.get(thread))["status"] == "interrupted"
    with pytest.raises(UnprocessableEntityError, match="nope"):
        await client.threads.update_state(thread, {"items": ["x"]}, as_node="nope")
    assert await client.threads.get_state(thread) == state
    assert len(await client.runs.list(thread)) == 1
    assert (await client.runs.wait(thread, "three", input=None))["items"][-2:] == ["b", "c"]


async def test_a_busy_thread_is_not_updated(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "sleepy", input=INPUT)
    with pytest.raises(ConflictError):
        await client.threads.update_state(thread, {"items": ["x"]})
    await client.runs.cancel(thread, run["run_id"], wait=True)


async def test_updates_and_runs_at_once_lose_nothing(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "three", input=INPUT)

    async def update(number: int) -> str | None:
        try:
            await client.threads.update_state(thread, {"items": [f"u{number}"]}, as_node="c")
        except ConflictError:
            return None
        return f"u{number}"

    async def run() -> None:
        await client.runs.wait(thread, "three", input={"value": 1, "items": []})

    updates, _ = await asyncio.gather(
        asyncio.gather(*(update(number) for number in range(6))), asyncio.gather(*(run() for _ in range(3)))
    )
    items = (await client.threads.get_state(thread))["values"]["items"]
    # An update that was accepted is applied once, one that was refused is not, and no run is lost.
    assert sorted(item for item in items if item.startswith("u")) == sorted(filter(None, updates))
    assert [item for item in items if not item.startswith("u")] == ["a", "b", "c"] * 4


async def test_a_fork_continues_from_its_checkpoint(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "three", input=INPUT)
    before_b = (await client.threads.get_history(thread))[2]
    assert before_b["next"] == ["b"]
    again = await client.runs.wait(thread, "three", input=None, checkpoint=before_b["checkpoint"])
    assert again == {"value": 4, "items": ["a", "b", "c"]}
    assert len(await client.threads.get_history(thread, limit=100)) > 5


async def test_supersteps_make_the_first_state(client: Any) -> None:
    step = {"updates": [{"values": {"value": 7, "items": ["given"]}, "as_node": "a"}]}
    thread = await client.threads.create(graph_id="three", supersteps=[step])
    state = await client.threads.get_state(thread["thread_id"])
    assert (state["values"], state["next"]) == ({"value": 7, "items": ["given"]}, ["b"])
    wrong = {"updates": [{"values": {"value": 7}, "as_node": "nope"}]}
    with pytest.raises(UnprocessableEntityError):
        await client.threads.create(graph_id="three", supersteps=[wrong])
    assert await client.threads.count() == 1


async def test_copies_and_pruning(client: Any) -> None:
    thread = (await client.threads.create(metadata={"tag": "z"}))["thread_id"]
    await client.runs.wait(thread, "human", input=INPUT)
    await client.threads.copy(thread)
    (copied,) = [item for item in await client.threads.search(metadata={"tag": "z"}) if item["thread_id"] != thread]
    copy = copied["thread_id"]
    assert (await client.threads.get_state(copy))["values"] == {"value": 2, "items": ["a"]}
    await client.runs.wait(copy, "human", command={"resume": "yes"})
    assert (await client.threads.get(thread))["status"] == "interrupted"
    assert await client.threads.prune([copy], strategy="keep_latest") == {"pruned_count": 1}
    assert len(await client.threads.get_history(copy)) == 1
    assert await client.threads.prune([copy, thread, "no-such"]) == {"pruned_count": 2}
    assert await client.threads.count() == 0


async def test_a_thread_stream_stays_open_between_runs(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "human", input=INPUT)
    seen: list[Any] = []
    ends = asyncio.Event()

    async def read() -> None:
        async for part in await client.threads.join_stream(thread, last_event_id="-"):
            seen.append(part)
            if part.event == "end" and sum(one.event == "end" for one in seen) == 2:
                ends.set()
                return

    reader = asyncio.create_task(read())
    await client.runs.wait(thread, "human", command={"resume": "yes"})
    await asyncio.wait_for(ends.wait(), 60)
    await reader
    values = [part.data for part in seen if part.event == "values"]
    assert values[-1] == {"value": 3, "items": ["a", "ask:yes", "c"]}
    assert [part.event for part in seen].count("metadata") == 2
    # A frame without an id has that of the frame before it for the client.
    numbered = list(dict.fromkeys(part.id for part in seen if part.id))
    later: list[Any] = []
    async for part in await client.threads.join_stream(thread, last_event_id=numbered[-2]):
        later.append(part)
        if part.event == "end":
            break
    assert [part.event for part in later] == ["values", "end"]
    assert later[0].id == numbered[-1]


async def test_updates_of_the_state_are_streamed(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    # Metadata of a run is part of that of its checkpoints.
    await client.runs.wait(thread, "three", input=INPUT, metadata={"x": {"source": "update"}})
    await client.threads.update_state(thread, {"items": ["one"]}, as_node="c")
    await client.runs.wait(thread, "three", input=INPUT)
    modes = ["state_update", "lifecycle"]
    seen: list[Any] = []
    async for part in await client.threads.join_stream(thread, last_event_id="-", stream_mode=modes):
        seen.append(part)
        if [one.event for one in seen].count("end") == 2:
            break
    assert [part.event for part in seen] == ["metadata", "end", "state_update", "metadata", "end"]
    (update,) = [part for part in seen if part.event == "state_update"]
    assert update.data["thread_id"] == thread
    state = update.data["state"]
    assert (state["values"]["items"][-1], state["metadata"]["source"]) == ("one", "update")
    assert state == await client.threads.get_state(thread, checkpoint_id=state["checkpoint_id"])
    # A reader of the updates alone resumes after one, and gets the next one when it is stored.
    found: list[Any] = []

    async def follow() -> None:
        async for part in await client.threads.join_stream(thread, last_event_id=update.id, stream_mode="state_update"):
            found.append(part)
            return

    reading = asyncio.create_task(follow())
    await client.runs.wait(thread, "three", input=INPUT)
    await client.threads.update_state(thread, {"items": ["two"]}, as_node="c")
    await reading
    assert (found[0].event, found[0].data["state"]["values"]["items"][-1]) == ("state_update", "two")
    assert found[0].id != update.id
