"""What clients of other agent servers work around: breakpoints, outputs, metadata, filters of joined streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane.api.services import WorkerOptions
from runlane.app import App
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving

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
