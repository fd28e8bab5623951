"""Bad input of LangGraph's clients: a status of 4xx that names the problem and what to do, and nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.assistant import HostedGraph
from tests.acceptance.api.agent_client import host, langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

UNKNOWN = "11111111-1111-4111-8111-111111111111"
INPUT: dict[str, Any] = {"value": 1, "items": []}


@dataclass(frozen=True, slots=True)
class Scene:
    """A thread whose graph has ended, one that waits, and a checkpoint of the latter."""

    api: Api
    client: Any
    idle: str
    waiting: str
    checkpoint: dict[str, Any]
    run: str

    async def snapshot(self) -> list[Any]:
        """Return everything that a refused request must not change."""
        found: list[Any] = [await self.client.assistants.count(), await self.client.crons.count()]
        for thread in (self.idle, self.waiting):
            shown = await self.client.threads.get(thread)
            # An update that the graph refuses occupies its thread for a moment.
            del shown["updated_at"]
            found += [
                shown,
                await self.client.threads.get_state(thread),
                [run["run_id"] for run in await self.client.runs.list(thread)],
            ]
        return [*found, await self.client.threads.count()]

    def path(self, path: str) -> str:
        return path.format(idle=self.idle, waiting=self.waiting, run=self.run, unknown=UNKNOWN)


@pytest.fixture
async def scene(own_app: App) -> AsyncGenerator[Scene]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api, langgraph_client(api) as client:
        await host(api, HostedGraph("broken", error="ModuleNotFoundError: No module named 'shop'"))
        idle = (await client.threads.create())["thread_id"]
        waiting = (await client.threads.create())["thread_id"]
        await client.runs.wait(idle, "three", input=INPUT)
        await client.runs.wait(waiting, "human", input=INPUT)
        state = await client.threads.get_state(waiting)
        run = (await client.runs.list(idle))[0]["run_id"]
        yield Scene(api, client, idle, waiting, state["checkpoint"], run)


RUN: dict[str, Any] = {"assistant_id": "three", "input": INPUT}
RESUME: dict[str, Any] = {"assistant_id": "human", "command": {"resume": "yes"}}
BOTH: dict[str, Any] = {"context": {"a": 1}, "config": {"configurable": {"b": 1}}}
CASES: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/assistants", {"graph_id": "nope"}, 404, "nope"),
    ("GET", "/assistants/nope", None, 404, "nope"),
    ("GET", "/assistants/nope/schemas", None, 404, "nope"),
    ("GET", "/threads/{unknown}", None, 404, "Create it"),
    ("GET", "/threads/{unknown}/state", None, 404, "Create it"),
    ("POST", "/threads/{unknown}/runs", RUN, 404, "Create it"),
    ("GET", "/threads/{idle}/runs/run_x", None, 404, "run_x"),
    ("GET", "/threads/{idle}/runs/run_x/stream", None, 404, "run_x"),
    ("GET", "/threads/{waiting}/runs/{run}/join", None, 404, "run_"),
    ("POST", "/threads/{idle}/runs/run_x/cancel", None, 404, "run_x"),
    ("POST", "/threads/{idle}/runs", {"assistant_id": "nope", "input": INPUT}, 404, "nope"),
    ("POST", "/threads/{idle}/runs", RESUME, 409, "Send input"),
    ("POST", "/threads/{waiting}/runs", {**RESUME, "command": {"resume": {"0" * 32: 1}}}, 422, "Open interrupts"),
    ("POST", "/threads/{idle}/runs", {**RUN, "checkpoint_id": "1f0-nope"}, 404, "history"),
    ("POST", "/threads/{idle}/runs", {**RUN, "config": {"configurable": "x"}}, 422, "configurable"),
    ("POST", "/threads/{idle}/runs", {**RUN, "config": {"recursion_limit": 0}}, 422, "recursion_limit"),
    ("POST", "/threads/{idle}/runs", {**RUN, "config": {"bogus": 1}}, 422, "bogus"),
    ("POST", "/threads/{idle}/runs", {**RUN, "stream_mode": "bogus"}, 422, "stream_mode"),
    ("POST", "/threads/{idle}/runs", {**RUN, "feedback_keys": ["x"]}, 422, "feedback_keys"),
    (
        "POST",
        "/threads/{idle}/runs",
        {**RUN, "context": {"a": 1}, "config": {"configurable": {"b": 1}}},
        422,
        "context",
    ),
    ("POST", "/threads/{idle}/runs", {"assistant_id": "broken", "input": INPUT}, 409, "No module named 'shop'"),
    ("GET", "/assistants/broken/graph", None, 409, "Correct it"),
    ("POST", "/threads/{idle}/state", {"values": INPUT, "as_node": "nope"}, 422, "nope"),
    ("POST", "/threads/{idle}/state", {"values": INPUT, "checkpoint_id": "1f0-nope"}, 404, "history"),
    ("POST", "/threads/{idle}/runs", {**RESUME, "command": {}}, 422, "omit the command"),
    ("POST", "/threads/{idle}/runs", {**RESUME, "command": {"goto": []}}, 422, "omit the command"),
    ("POST", "/threads/{idle}/runs", {**RESUME, "command": {"goto": [{"x": 1}]}}, 422, "an object with node"),
    ("POST", "/threads/{idle}/history", {"before": "nope"}, 422, "UUID"),
    ("GET", "/threads/{idle}/history?before=nope", None, 422, "UUID"),
    ("POST", "/threads/{idle}/history", {"before": {"thread_id": "{unknown}"}}, 422, "Use the path"),
    ("POST", "/runs/crons", {"assistant_id": "three", "schedule": "every tuesday"}, 422, "every tuesday"),
    ("PATCH", "/runs/crons/{unknown}", {"enabled": False}, 404, "search"),
    ("POST", "/threads/search", {"sort_by": "color"}, 422, "sort_by"),
    ("POST", "/threads/{idle}/stream/events", {"channels": ["bogus"]}, 422, "channels"),
]


async def test_bad_input_is_refused_and_changes_nothing(scene: Scene) -> None:
    before = await scene.snapshot()
    for method, path, body, status, problem in CASES:
        answer = await scene.api.client.request(method, scene.path(path), json=body)
        assert answer.status_code == status, (path, body, answer.text)
        problem_body = answer.json()
        assert problem in problem_body["message"], (path, body, problem_body)
        assert problem_body["detail"] == problem_body["message"]
    foreign = {**RUN, "checkpoint": scene.checkpoint}
    answer = await scene.api.client.post(f"/threads/{scene.idle}/runs", json=foreign)
    assert (answer.status_code, scene.waiting in answer.json()["message"]) == (422, True)
    unnamed = {"checkpoint_id": scene.checkpoint["checkpoint_id"]}
    answer = await scene.api.client.post(f"/threads/{scene.idle}/runs", json={**RUN, **unnamed})
    assert answer.status_code == 404, answer.text
    assert await scene.snapshot() == before


async def test_an_update_makes_its_thread_busy(own_app: App) -> None:
    # Without a worker, the update stays in progress until its request ends.
    async with serving(own_app) as api, langgraph_client(api) as client:
        await host(api)
        thread = (await client.threads.create(graph_id="three"))["thread_id"]
        updating = asyncio.create_task(client.threads.update_state(thread, INPUT, as_node="a"))

        async def busy() -> bool:
            return (await client.threads.get(thread))["status"] == "busy"

        await eventually(busy, "the busy thread")
        refused = await api.client.post(f"/threads/{thread}/runs", json={**RUN, "multitask_strategy": "reject"})
        assert refused.status_code == 409, refused.text
        for run in (await api.get("/runs")).json()["runs"]:
            await api.post(f"/runs/{run['run_id']}/cancel")
        with pytest.raises(ConflictError, match="cancelled"):
            await updating
        assert (await client.threads.get(thread))["status"] == "idle"
