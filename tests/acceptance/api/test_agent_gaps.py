"""What clients of other agent servers work around: breakpoints, outputs, metadata, filters of joined streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.events import EventType
from runlane.domain.text import dump_json
from runlane.store.queue.events import read_events
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}


@pytest.fixture
async def served(own_app: App) -> AsyncGenerator[Api]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield api


@pytest.fixture
async def client(served: Api) -> AsyncGenerator[Any]:
    async with langgraph_client(served) as sdk:
        yield sdk


async def _events(stream: Any) -> list[tuple[str, Any]]:
    return [(part.event, part.data) async for part in stream]


async def test_a_breakpoint_interrupts_in_every_mode_and_continues_without_input(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    stopped = await _events(
        client.runs.stream(thread, "three", input=INPUT, stream_mode="custom", interrupt_before=["b"])
    )
    assert [name for name, _ in stopped] == ["metadata", "end"]
    waiting = await client.threads.get(thread)
    assert (waiting["status"], waiting["values"]) == ("interrupted", {"value": 2, "items": ["a"]})
    assert (await client.threads.get_state(thread))["next"] == ["b"]
    with pytest.raises(ConflictError, match="neither input nor command"):
        await client.runs.create(thread, "three", command={"resume": "yes"})
    assert len(await client.runs.list(thread)) == 1
    rest = await _events(client.runs.stream(thread, "three", input=None, stream_mode="updates"))
    assert next(data for name, data in rest if name == "updates") == {"b": {"value": 3, "items": ["b"]}}
    # The result is complete, although no stream had the mode `values`.
    run = (await client.runs.list(thread))[0]["run_id"]
    assert await client.runs.join(thread, run) == FINAL


async def test_a_joined_stream_has_the_modes_that_it_names(served: Api, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    created: list[Any] = []
    modes = ["values", "updates", "custom", "tasks"]
    await _events(client.runs.stream(thread, "three", input=INPUT, stream_mode=modes, on_run_created=created.append))
    run = created[0]["run_id"]
    joined = await _events(client.runs.join_stream(thread, run, stream_mode="custom"))
    assert [name for name, _ in joined] == ["metadata", "custom", "end"]
    whole = await _events(client.runs.join_stream(thread, run))
    assert {name for name, _ in whole} == {"metadata", "end", *modes}
    for wrong in ("99999", "1-0"):
        answer = await served.client.get(f"/threads/{thread}/runs/{run}/stream", headers={"Last-Event-ID": wrong})
        assert answer.status_code == 400, answer.text


async def test_a_client_that_leaves_ends_its_run_only_if_it_asked_for_that(served: Api, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    for wanted, left in (({}, "running"), ({"on_disconnect": "cancel"}, "interrupted")):
        body = {"assistant_id": "sleepy", "input": INPUT, "multitask_strategy": "interrupt", **wanted}
        async with served.client.stream("POST", f"/threads/{thread}/runs/stream", json=body) as answer:
            run = answer.headers["content-location"].rpartition("/")[2]
            async for line in answer.aiter_lines():
                if line == "event: values":
                    break

        async def as_expected(run_id: str = run, status: str = left) -> bool:
            return (await client.runs.get(thread, run_id))["status"] == status

        await eventually(as_expected, f"the run to be {left}")
    assert sorted(item["status"] for item in await client.runs.list(thread)) == ["interrupted", "interrupted"]


async def test_each_durability_stores_its_checkpoints(client: Any) -> None:
    for durability, stored in (("sync", 5), ("async", 5), ("exit", 1)):
        thread = (await client.threads.create())["thread_id"]
        assert await client.runs.wait(thread, "three", input=INPUT, durability=durability) == FINAL
        history = await client.threads.get_history(thread, limit=20)
        assert len(history) == stored, durability
        assert history[0]["values"] == FINAL
    late = await client.runs.create(thread, "three", input=INPUT, after_seconds=3600)
    assert (await client.runs.get(thread, late["run_id"]))["status"] == "pending"
    assert len(await client.threads.get_history(thread)) == 1
    await client.runs.cancel(thread, late["run_id"])


async def test_the_stored_bytes_of_a_message_grow_with_its_length(served: Api, client: Any) -> None:
    sizes: list[int] = []
    for words in (20, 80):
        thread = (await client.threads.create())["thread_id"]
        told = {"messages": [{"role": "user", "content": f"say {words}"}]}
        parts = await _events(client.runs.stream(thread, "chat", input=told, stream_mode="messages"))
        texts = [data[0]["content"] for name, data in parts if name == "messages/partial"]
        assert len(texts[-1].split()) == words
        (run,) = await client.runs.list(thread)
        events = await read_events(served.parts.database, run["run_id"])
        sizes.append(sum(len(dump_json(event.data)) for event in events if event.type == EventType.GRAPH_STREAM))
    # Four times the length; the square would be sixteen times.
    assert sizes[1] < 6 * sizes[0]


async def test_metadata_may_be_any_json_and_assistants_may_be_equal(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    given: dict[str, Any] = {f"key{number}": {"nested": [number, None, {"deep": True}]} for number in range(40)}
    run = await client.runs.create(thread, "three", input=INPUT, metadata=given)
    assert given.items() <= run["metadata"].items()
    assert await client.runs.join(thread, run["run_id"]) == FINAL
    twins = [await client.assistants.create("three", config={"tags": ["x"]}, name="twin") for _ in range(2)]
    assert twins[0]["assistant_id"] != twins[1]["assistant_id"]
    renamed = await client.assistants.update(twins[0]["assistant_id"], name="other")
    assert (renamed["graph_id"], renamed["config"]) == ("three", twins[0]["config"])
