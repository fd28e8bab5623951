"""Answers of people that are sent twice, sent early, rolled back or repeated: each reaches its own question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from langgraph_sdk.errors import APIError, ConflictError, NotFoundError

from runlane.api.services import WorkerOptions
from runlane.app import App
from tests.acceptance.api.agent_client import host, langgraph_client
from tests.acceptance.api.agent_graphs import State, add_graphs, chain
from tests.acceptance.api.openai_clients import CAREFUL, bring
from tests.acceptance.api.serving import Api, serving
from tests.harness import Store, eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}


@dataclass(frozen=True, slots=True)
class Served:
    """A served API with a worker, and the gate at which the graphs of this module wait."""

    api: Api
    gate: asyncio.Event


@pytest.fixture
async def served(own_app: App) -> AsyncGenerator[Served]:
    gate = asyncio.Event()

    async def one(state: State) -> dict[str, Any]:
        answer = interrupt("one?")
        await gate.wait()
        return {"items": [f"one={answer}"]}

    async def two(state: State) -> dict[str, Any]:
        return {"items": [f"two={interrupt('two?')}"]}

    async def both(state: State) -> dict[str, Any]:
        answers = [interrupt("one?"), interrupt("two?")]
        await gate.wait()
        return {"items": [f"both={','.join(answers)}"]}

    async def waits(state: State) -> dict[str, Any]:
        await gate.wait()
        return {"items": ["waited"]}

    own_app.graph("steps", chain(State, one=one, two=two))
    own_app.graph("both", chain(State, both=both))
    beside: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name, node in (("two", two), ("waits", waits)):
        beside.add_node(name, node)
        beside.add_edge(START, name)
    own_app.graph("beside", beside)
    branches: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name, node in (("both", both), ("one", one)):
        branches.add_node(name, node)
        branches.add_edge(START, name)
    own_app.graph("branches", branches)
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield Served(api, gate)


@pytest.fixture
async def client(served: Served) -> AsyncGenerator[Any]:
    async with langgraph_client(served.api) as sdk:
        yield sdk


async def _asked(client: Any, graph: str) -> tuple[str, dict[str, str]]:
    """Start a graph in a new thread. Return the thread, and the ids of its open questions."""
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, graph, input=INPUT)
    return thread, await _questions(client, thread)


async def _questions(client: Any, thread: str) -> dict[str, str]:
    shown = await client.threads.get_state(thread)
    return {question["value"]: question["id"] for question in shown["interrupts"]}


async def _running(client: Any, thread: str, run: dict[str, Any]) -> None:
    async def runs() -> bool:
        return (await client.runs.get(thread, run["run_id"]))["status"] == "running"

    await eventually(runs, "the run to start")


async def test_an_answer_that_is_sent_twice_answers_one_question(served: Served, client: Any) -> None:
    thread, _ = await _asked(client, "steps")
    first = await client.runs.create(thread, "steps", command={"resume": "yes"})
    for strategy in ("enqueue", "interrupt", "rollback"):
        with pytest.raises(ConflictError, match="id of the interrupt"):
            await client.runs.create(thread, "steps", command={"resume": "yes"}, multitask_strategy=strategy)
    served.gate.set()
    values = await client.runs.join(thread, first["run_id"])
    assert (values["items"], [item["value"] for item in values["__interrupt__"]]) == (["one=yes"], ["two?"])
    assert len(await client.runs.list(thread)) == 2


async def test_an_answer_with_the_id_of_an_earlier_question_leaves_the_thread_as_it_is(
    served: Served, client: Any
) -> None:
    thread, questions = await _asked(client, "steps")
    answer = {questions["one?"]: "yes"}
    first = await client.runs.create(thread, "steps", command={"resume": answer})
    again = await client.runs.create(thread, "steps", command={"resume": answer})
    served.gate.set()
    await client.runs.join(thread, first["run_id"])
    failed = await client.runs.join(thread, again["run_id"])
    assert failed["__error__"]["error"] == "UnknownInterruptError"
    shown = await client.threads.get(thread)
    assert (shown["status"], shown["values"]["items"]) == ("interrupted", ["one=yes"])
    assert shown.get("error") is None
    assert [item[0]["value"] for item in shown["interrupts"].values()] == ["two?"]


async def test_a_question_is_answered_before_its_run_has_ended(served: Served, client: Any) -> None:
    """A client reads the question in the stream of a run whose other branch is still executed."""
    thread = (await client.threads.create())["thread_id"]
    answered: dict[str, Any] = {}
    async for part in client.runs.stream(thread, "beside", input=INPUT, stream_mode="updates"):
        if part.event == "updates" and "__interrupt__" in part.data and not answered:
            answered = await client.runs.create(thread, "beside", command={"resume": "early"})
            served.gate.set()
    values = await client.runs.join(thread, answered["run_id"])
    assert sorted(values["items"]) == ["two=early", "waited"]


async def test_a_rollback_restores_the_answers_before_it(served: Served, client: Any) -> None:
    thread, questions = await _asked(client, "both")
    asked = await client.runs.wait(thread, "both", command={"resume": {questions["one?"]: "1"}})
    before = await client.threads.get_state(thread)
    (second,) = asked["__interrupt__"]
    assert second["value"] == "two?"
    run = await client.runs.create(thread, "both", command={"resume": {second["id"]: "wrong"}})
    await _running(client, thread, run)
    await client.runs.cancel(thread, run["run_id"], action="rollback", wait=True)
    assert await client.threads.get_state(thread) == before
    served.gate.set()
    values = await client.runs.wait(thread, "both", command={"resume": "2"})
    assert values["items"] == ["both=1,2"]


async def test_a_rollback_restores_the_questions_before_it(served: Served, client: Any) -> None:
    thread, questions = await _asked(client, "branches")
    state = await client.threads.get_state(thread)
    found = {task["name"]: task["interrupts"][0]["id"] for task in state["tasks"]}
    assert set(questions) == {"one?"}
    # The node `both` asks its second question, and the node `one` waits.
    run = await client.runs.create(
        thread, "branches", command={"resume": {found["both"]: "1", found["one"]: "x"}}, stream_mode="updates"
    )
    async for part in client.runs.join_stream(thread, run["run_id"], last_event_id="-1"):
        if part.event == "updates" and "__interrupt__" in part.data:
            break
    await client.runs.cancel(thread, run["run_id"], action="rollback", wait=True)
    assert await client.threads.get_state(thread) == state
    served.gate.set()
    values = await client.runs.wait(thread, "branches", command={"resume": {found["both"]: "first", found["one"]: "y"}})
    (second,) = values["__interrupt__"]
    values = await client.runs.wait(thread, "branches", command={"resume": {second["id"]: "second"}})
    assert sorted(values["items"]) == ["both=first,second", "one=y"]


async def test_a_command_may_create_its_thread(client: Any) -> None:
    name = "00000000-0000-4000-8000-000000000001"
    command = {"update": {"value": 5, "items": ["given"]}}
    with pytest.raises(NotFoundError):
        await client.runs.create(name, "three", command=command)
    values = await client.runs.wait(name, "three", command=command, if_not_exists="create")
    assert (values["items"][0], values["items"][-3:]) == ("given", ["a", "b", "c"])
    other = "00000000-0000-4000-8000-000000000002"
    with pytest.raises(ConflictError, match="does not wait"):
        await client.runs.create(other, "three", command={"resume": 1}, if_not_exists="create")
    with pytest.raises(NotFoundError):
        await client.threads.get(other)


async def test_an_answer_to_an_agent_is_given_once_for_its_key(served: Served, client: Any) -> None:
    await bring(served.api, CAREFUL)
    thread = (await client.threads.create())["thread_id"]
    given = {"messages": [{"role": "user", "content": "pay"}]}
    await client.runs.wait(thread, "careful", input=given)
    key = {"Idempotency-Key": "answer-1"}
    first = await client.runs.create(thread, "careful", command={"resume": "approve"}, headers=key)
    await client.runs.join(thread, first["run_id"])
    again = await client.runs.create(thread, "careful", command={"resume": "approve"}, headers=key)
    assert again["run_id"] == first["run_id"]
    with pytest.raises(ConflictError, match="another answer"):
        await client.runs.create(thread, "careful", command={"resume": "reject"}, headers=key)
    values = await client.runs.wait(thread, "careful", command={"resume": "approve"}, headers=key)
    assert values["messages"][-1]["content"] == "All done."


async def test_a_thread_that_is_being_deleted_accepts_no_run(own_app: App) -> None:
    blocking = asyncio.Event()
    released = asyncio.Event()

    async def stubborn(state: State) -> dict[str, Any]:
        blocking.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return {"items": ["late"]}

    own_app.graph("stubborn", chain(State, a=stubborn))
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api, langgraph_client(api) as client:
        thread = (await client.threads.create())["thread_id"]
        await client.runs.create(thread, "stubborn", input=INPUT)
        await blocking.wait()
        deleting = asyncio.create_task(client.threads.delete(thread))

        async def refused() -> bool:
            try:
                await client.runs.create(thread, "three", input=INPUT, if_not_exists="create", after_seconds=3600)
            except ConflictError as error:
                return "is being deleted" in str(error)
            raise AssertionError("a thread that is being deleted has accepted a run")

        async def cancelled() -> bool:
            runs = (await api.get("/runs")).json()["runs"]
            return any(run["cancel_requested_at"] is not None for run in runs)

        await eventually(cancelled, "the deletion")
        assert await refused()
        released.set()
        await deleting

        async def gone() -> bool:
            try:
                await client.threads.get(thread)
            except NotFoundError:
                return True
            return False

        await eventually(gone, "the thread to be gone")
        assert (await client.runs.wait(thread, "three", input=INPUT, if_not_exists="create"))["items"] == [
            "a",
            "b",
            "c",
        ]


async def test_an_update_of_a_deleted_thread_leaves_nothing(own_app: App, store: Store) -> None:
    # Without a worker, the update stays in progress.
    async with serving(own_app) as api, langgraph_client(api) as client:
        await host(api)
        thread = (await client.threads.create(graph_id="three"))["thread_id"]
        updating = asyncio.create_task(client.threads.update_state(thread, INPUT, as_node="a"))

        async def busy() -> bool:
            return (await client.threads.get(thread))["status"] == "busy"

        await eventually(busy, "the update")
        await client.threads.delete(thread)
        with pytest.raises(APIError):
            await updating
        assert (await api.get("/runs")).json()["runs"][0]["status"] == "cancelled"
        assert await store.sql("select status from runs where status <> 'cancelled'") == []
