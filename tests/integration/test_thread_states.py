"""The state and the history that a server reads from the database are those that LangGraph computes from the graph."""

from __future__ import annotations

import operator
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from runlane.domain.text import dump_json, load_json
from runlane.graphs.saver import RunlaneSaver
from runlane.graphs.snapshot import CheckpointSnapshots
from runlane.store.queue.reaping import take_over
from runlane.store.queue.run_changes import cancel_run
from runlane.store.threads.graph_writes import GraphWrites
from runlane.store.threads.plain_values import plain_value
from runlane.store.threads.states import read_history, read_state
from tests.harness import Store, entry_of
from tests.threads import add_thread, add_thread_run, checkpoint_writes, thread_row

CONFIG: Any = {"configurable": {"thread_id": "t1"}}


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], operator.add]


class Inner(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    answer: str


def plan(state: State) -> Command[Any]:
    return Command(goto=[Send("work", {"log": [], "number": number}) for number in range(2)])


def work(state: Any) -> Any:
    if state["number"] == 1:
        answer = interrupt({"question": "which?"})
        return {"log": [f"work {answer}"]}
    return {"log": ["work 0"], "messages": [AIMessage("done", id="m2")]}


def think(state: Inner) -> Any:
    return {"answer": interrupt("deep question"), "log": ["inner"]}


def build(saver: RunlaneSaver | None) -> Any:
    inner: Any = StateGraph(Inner)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    outer: Any = StateGraph(State)
    outer.add_node("plan", plan, destinations=("work",))
    outer.add_node("work", work)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "plan")
    outer.add_edge("work", "inner")
    outer.add_edge("inner", END)
    return outer.compile(checkpointer=saver)


def hosted(store: Store) -> Any:
    return build(RunlaneSaver(store.database, snapshot=CheckpointSnapshots(build(None)).describe))


def shown(snapshot: StateSnapshot | Any) -> Any:
    """Return a snapshot of LangGraph as JSON, with the fields that a server shows."""
    if not isinstance(snapshot, StateSnapshot):
        return None
    tasks = [
        {
            "id": task.id,
            "name": task.name,
            "interrupts": [{"value": item.value, "id": item.id} for item in task.interrupts],
            "result": task.result,
            "state": shown(task.state),
        }
        for task in snapshot.tasks
    ]
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": tasks,
        "created_at": snapshot.created_at,
        "checkpoint_id": snapshot.config.get("configurable", {})["checkpoint_id"],
        "interrupts": [{"value": item.value, "id": item.id} for item in snapshot.interrupts],
    }


def same(expected: Any, found: Any) -> None:
    """Compare the fields of the expected state, as JSON."""
    assert normal(cut(expected, found)) == normal(expected)


def cut(expected: Any, found: Any) -> Any:
    """Return the found state with the fields of the expected one."""
    if expected is None or found is None:
        return found
    fields = {name: found[name] for name in expected}
    if "tasks" in fields:
        fields["tasks"] = [cut(*pair) for pair in zip(expected["tasks"], fields["tasks"], strict=True)]
    if "state" in fields:
        fields["state"] = cut(expected["state"], fields["state"])
    return fields


def normal(value: Any) -> Any:
    return load_json(dump_json(value))


async def check_all(store: Store, graph: Any) -> None:
    same(shown(await graph.aget_state(CONFIG, subgraphs=True)), await read_state(store.database, "t1", subgraphs=True))
    expected = [item async for item in graph.aget_state_history(CONFIG)]
    found = await read_history(store.database, "t1", limit=100)
    assert len(found) == len(expected)
    for wanted, given in zip(expected, found, strict=True):
        wanted_shown = shown(wanted)
        for task in wanted_shown["tasks"]:
            task.pop("state")
        same(wanted_shown, given)
        at = await read_state(store.database, "t1", "", given["checkpoint_id"])
        assert at == given


async def test_a_server_shows_the_state_that_the_graph_computes(store: Store) -> None:
    await add_thread(store)
    graph = hosted(store)
    started = {"messages": [HumanMessage("hello", id="m1")], "log": []}
    await graph.ainvoke(started, CONFIG)
    # One of two tasks has finished; what it wrote is known to the worker, which stores it with the end of the run.
    live = await graph.aget_state(CONFIG)
    await store.sql("update threads set state_values = :values", values=dump_json(live.values))
    await check_all(store, graph)
    assert (await read_state(store.database, "t1") or {})["next"] == ["work"]
    await graph.ainvoke(Command(resume="first"), CONFIG)
    await check_all(store, graph)
    state: Any = await read_state(store.database, "t1", subgraphs=True)
    (task,) = state["tasks"]
    assert task["checkpoint"]["checkpoint_ns"] == f"inner:{task['id']}"
    assert task["state"]["next"] == ["think"]
    assert task["state"]["checkpoint"]["checkpoint_map"].keys() == {"", f"inner:{task['id']}"}
    await graph.ainvoke(Command(resume="second"), CONFIG)
    await check_all(store, graph)
    state = await read_state(store.database, "t1")
    assert [message["type"] for message in state["values"]["messages"]] == ["human", "ai"]
    assert state["values"] == normal((await graph.aget_state(CONFIG)).values)
    assert (state["next"], state["tasks"], state["interrupts"]) == ([], [], [])
    history = await read_history(store.database, "t1", limit=2, before=state["checkpoint_id"])
    assert [item["next"] for item in history] == [["inner"], ["work", "work"]]
    assert await read_history(store.database, "t1", metadata={"source": "input"}, limit=5) == [
        item for item in await read_history(store.database, "t1", limit=100) if item["metadata"]["source"] == "input"
    ]


def ask(state: State) -> Any:
    return {"log": [interrupt("ready?")]}


async def test_an_answered_question_is_not_part_of_the_newest_state(store: Store) -> None:
    await add_thread(store)

    def pair(saver: RunlaneSaver | None) -> Any:
        graph: Any = StateGraph(State)
        for name in ("left", "right"):
            graph.add_node(name, ask)
            graph.add_edge(START, name)
        return graph.compile(checkpointer=saver)

    graph = pair(RunlaneSaver(store.database, snapshot=CheckpointSnapshots(pair(None)).describe))
    stopped = await graph.ainvoke({"log": []}, CONFIG)
    first = stopped["__interrupt__"][0]
    await graph.ainvoke(Command(resume={first.id: "yes"}), CONFIG)
    values = (await graph.aget_state(CONFIG)).values
    await store.sql("update threads set state_values = :values", values=dump_json(values))
    await check_all(store, graph)
    state: Any = await read_state(store.database, "t1")
    assert len(state["interrupts"]) == 1
    assert first.id not in {item["id"] for item in state["interrupts"]}


@pytest.mark.parametrize("end", ["cancelled", "failed", "rolled back"])
async def test_a_thread_shows_the_checkpoints_of_a_run_that_ended_without_its_worker(store: Store, end: str) -> None:
    await add_thread(store, state_values='{"log":["before"]}')
    run_id = await add_thread_run(
        store, on_cancel="rollback" if end == "rolled back" else None, max_losses=0 if end == "failed" else 10
    )
    worker = await store.worker()
    claimed = await store.claim_one(worker)

    async def write(writes: GraphWrites) -> None:
        assert await store.record(entry_of(claimed, graph=writes))

    graph = build(RunlaneSaver(store.database, write=write, snapshot=CheckpointSnapshots(build(None)).describe))
    await graph.ainvoke({"messages": [HumanMessage("hello", id="m1")], "log": ["started"]}, CONFIG)
    if end != "failed":
        await cancel_run(store.database, run_id)
    await store.database.transact(lambda session: take_over(session, [worker]))
    row = await thread_row(store)
    assert row["open_runs"] == 0
    if end == "rolled back":
        assert (row["status"], row["state_values"]) == ("idle", '{"log":["before"]}')
        return
    assert row["status"] == ("error" if end == "failed" else "interrupted")
    assert load_json(row["state_values"])["log"] == ["started"]
    (interrupts,) = load_json(row["interrupts"]).values()
    assert interrupts[0]["value"] == {"question": "which?"}


async def test_a_value_that_cannot_be_decoded_does_not_keep_a_run_from_ending(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store, max_losses=0)
    worker = await store.worker()
    await store.record(entry_of(await store.claim_one(worker), graph=checkpoint_writes(1)))
    await store.database.transact(lambda session: take_over(session, [worker]))
    assert (await thread_row(store))["status"] == "error"


async def test_a_thread_without_checkpoints_has_no_state(store: Store) -> None:
    assert await read_state(store.database, "t1") is None
    assert await read_history(store.database, "t1") == []


class Model(BaseModel):
    name: str
    at: datetime


@dataclass
class Point:
    x: int
    inside: Any


VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "bytes": (b"\x00\xff", "AP8="),
    "nested bytes": ({"a": [b"\x00"]}, {"a": ["AA=="]}),
    "numbers as keys": ({1: "a"}, {"1": "a"}),
    "set": ({3}, [3]),
    "tuple": ((1, (2,)), [1, [2]]),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "decimal": ([Decimal("1.5"), Decimal(2)], [1.5, 2]),
    "date": (date(2026, 1, 2), "2026-01-02"),
    "datetime": (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    "timedelta": (timedelta(seconds=90), 90.0),
    "secret": (SecretStr("hidden"), "**********"),
    "model": (Model(name="a", at=datetime(2026, 1, 2, tzinfo=UTC)), {"name": "a", "at": "2026-01-02T00:00:00+00:00"}),
    "dataclass": (Point(1, Point(2, {UUID(int=1)})),
                  {"x": 1, "inside": {"x": 2, "inside": ["00000000-0000-0000-0000-000000000001"]}}),
    "send": (Send("node", {"a": 1}), {"node": "node", "arg": {"a": 1}}),
    "exception": (ValueError("no"), "ValueError('no')"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_stored_value_is_shown_without_its_class(name: str) -> None:
    value, expected = VALUES[name]
    assert plain_value(JsonPlusSerializer().dumps_typed(value)) == expected


def test_values_that_cannot_be_decoded_name_their_encoding() -> None:
    assert plain_value(("pickle", b"\x80")) == {"opaque_encoding": "pickle"}


def test_servers_read_states_without_langgraph() -> None:
    code = (
        "import sys; import runlane.store.threads.states, ormsgpack\n"
        "from runlane.store.threads.plain_values import plain_value\n"
        "plain_value(('msgpack', ormsgpack.packb({'a': 1})))\n"
        "assert not [name for name in sys.modules if name.startswith('lang')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
