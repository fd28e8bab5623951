"""Runs of graphs in a real worker: streams, interrupts, errors, cancel, hand-over, operations, and where they start."""

from __future__ import annotations

import asyncio
import itertools
import operator
import threading
from typing import Annotated, Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from runlane import Status
from runlane.api.agent_server.frames import wire_event
from runlane.domain.events import StoredEvent
from runlane.domain.graph import Operation
from runlane.domain.text import dump_json, load_json
from tests.graph_runs import GraphThread
from tests.harness import eventually
from tests.integration.process import Process


class State(TypedDict):
    value: int
    items: Annotated[list[str], operator.add]


def _node(name: str) -> Any:
    def node(state: State) -> dict[str, Any]:
        return {"value": state["value"] + 1, "items": [name]}

    return node


def _chain(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
    names = [START, *nodes, END]
    for source, target in itertools.pairwise(names):
        builder.add_edge(source, target)
    return builder


def _three() -> StateGraph[Any, Any, Any, Any]:
    return _chain(a=_node("a"), b=_node("b"), c=_node("c"))


def ask(state: State) -> dict[str, Any]:
    return {"items": [f"ask:{interrupt({'question': 'ok?', 'value': state['value']})}"]}


INPUT: dict[str, Any] = {"value": 1, "items": []}


async def _hosted(process: Process, graph: Any, **options: Any) -> GraphThread:
    process.app.graph("g", graph)
    await process.start()
    return await GraphThread(await process.store(), await process.app.connect(), "g", **options).create()


async def _stream(process: Process, run_id: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for event in await process.events(run_id):
        line = StoredEvent(event.seq, event.type, event.attempt, 0, dump_json(event.data))
        wire = wire_event(run_id, line)
        if wire is not None:
            found.append((wire[0], load_json(wire[1])))
    return found


# --- streams


async def test_a_run_streams_its_values_and_leaves_its_state(process: Process) -> None:
    thread = await _hosted(process, _three())
    run_id = await thread.start(input=INPUT)
    run = await process.end(run_id)
    assert run.status is Status.COMPLETED
    assert run.result == {"value": 4, "items": ["a", "b", "c"]}
    assert await _stream(process, run_id) == [
        ("metadata", {"run_id": run_id, "attempt": 1}),
        ("values", {"value": 1, "items": []}),
        ("values", {"value": 2, "items": ["a"]}),
        ("values", {"value": 3, "items": ["a", "b"]}),
        ("values", {"value": 4, "items": ["a", "b", "c"]}),
    ]
    row = await thread.row()
    assert (row["status"], row["open_runs"], row["state_values"], row["interrupts"]) == ("idle", 0, run.result, {})
    assert await thread.outcome(run_id) == "success"


@pytest.mark.parametrize(
    ("modes", "names"),
    [
        (["updates"], ["updates", "updates", "updates"]),
        (["custom"], []),
        (["tasks"], ["tasks"] * 6),
        (["checkpoints"], ["checkpoints"] * 5),
        (["debug"], ["debug"] * 11),
        (["values", "updates"], ["values", *["updates", "values"] * 3]),
    ],
)
async def test_each_mode_has_its_events(process: Process, modes: list[str], names: list[str]) -> None:
    thread = await _hosted(process, _three())
    run_id = await thread.start(input=INPUT, stream_mode=modes)
    await process.end(run_id)
    assert [name for name, _ in await _stream(process, run_id)] == ["metadata", *names]


async def test_a_checkpoint_event_names_its_checkpoint(process: Process) -> None:
    thread = await _hosted(process, _three())
    run_id = await thread.start(input=INPUT, stream_mode=["checkpoints", "debug"])
    await process.end(run_id)
    stream = await _stream(process, run_id)
    last = [data for name, data in stream if name == "checkpoints"][-1]
    assert (last["values"], last["next"], last["tasks"]) == ({"value": 4, "items": ["a", "b", "c"]}, [], [])
    assert last["checkpoint"].keys() == {"checkpoint_id", "thread_id", "checkpoint_ns"}
    assert last["checkpoint"]["thread_id"] == thread.id
    assert last["metadata"] == {"source": "loop", "step": 3, "parents": {}}
    assert not any(key.startswith("__") for key in last["config"]["configurable"])
    assert [data["payload"]["checkpoint"] for name, data in stream if name == "debug" and data["type"] == "checkpoint"]


async def test_events_of_every_runnable(process: Process) -> None:
    thread = await _hosted(process, _three())
    run_id = await thread.start(input=INPUT, stream_mode=["events", "updates"])
    run = await process.end(run_id)
    assert run.result == {"value": 4, "items": ["a", "b", "c"]}
    stream = await _stream(process, run_id)
    events = [(data["event"], data["name"]) for name, data in stream if name == "events"]
    assert (events[0], events[-1]) == (("on_chain_start", "g"), ("on_chain_end", "g"))
    # The chunks of the root are the events of the other modes.
    assert [kind for kind, name in events if name == "g"] == ["on_chain_start", "on_chain_end"]
    assert [name for name, _ in stream if name != "events"] == ["metadata", "updates", "updates", "updates"]


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def test_messages_are_stored_as_chunks(process: Process) -> None:
    async def talk(state: Talk) -> dict[str, Any]:
        get_stream_writer()({"note": "thinking"})
        model = GenericFakeChatModel(messages=iter([AIMessage(content="hello there friend", id="ai-1")]))
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    thread = await _hosted(process, builder)
    run_id = await thread.start(
        input={"messages": [{"role": "user", "content": "hi"}]}, stream_mode=["messages-tuple", "custom"]
    )
    run = await process.end(run_id)
    stream = await _stream(process, run_id)
    chunks = [data for name, data in stream if name == "messages"]
    assert "".join(chunk["content"] for chunk, _ in chunks) == "hello there friend"
    assert {chunk["type"] for chunk, _ in chunks} == {"AIMessageChunk"}
    assert {metadata["langgraph_node"] for _, metadata in chunks} == {"talk"}
    assert ("custom", {"note": "thinking"}) in stream
    assert [(message["type"], message["content"]) for message in run.result["messages"]] == [
        ("human", "hi"),
        ("ai", "hello there friend"),
    ]


async def test_subgraphs_stream_under_their_namespace(process: Process) -> None:
    outer = _chain(a=_node("a"), inner=_chain(x=_node("x")).compile(), c=_node("c"))
    thread = await _hosted(process, outer)
    run_id = await thread.start(input=INPUT, stream_mode=["updates"], stream_subgraphs=True)
    await process.end(run_id)
    names = [name.split(":")[0] for name, _ in await _stream(process, run_id)]
    assert names == ["metadata", "updates", "updates|inner", "updates", "updates"]


# --- interrupts and errors


async def test_a_question_is_answered_by_a_later_run(process: Process) -> None:
    thread = await _hosted(process, _chain(a=_node("a"), ask=ask, c=_node("c")))
    first = await thread.start(input=INPUT, stream_mode=["updates"])
    run = await process.end(first)
    assert run.status is Status.COMPLETED
    assert await thread.outcome(first) == "interrupted"
    row = await thread.row()
    assert row["status"] == "interrupted"
    ((task_id, (question,)),) = row["interrupts"].items()
    assert question["value"] == {"question": "ok?", "value": 2}
    assert run.result["__interrupt__"][0]["id"] == question["id"]
    assert (await _stream(process, first))[-1][1]["__interrupt__"][0]["value"] == question["value"]
    assert task_id
    second = await thread.start(command={"resume": {"any": "json"}})
    run = await process.end(second)
    assert run.result == {"value": 3, "items": ["a", "ask:{'any': 'json'}", "c"]}
    assert await thread.outcome(second) == "success"
    row = await thread.row()
    assert (row["status"], row["interrupts"]) == ("idle", {})


async def test_an_answer_without_a_question_fails(process: Process) -> None:
    thread = await _hosted(process, _chain(a=_node("a"), ask=ask))
    for command in ({"resume": "yes"}, {"resume": {"0" * 32: "yes"}}):
        run = await process.end(await thread.start(command=command, max_attempts=3))
        assert run.status is Status.FAILED
        assert run.error is not None
        assert run.error["type"] == "UnknownInterruptError"
    await process.end(await thread.start(input=INPUT))
    run = await process.end(await thread.start(command={"resume": {"0" * 32: "yes"}}))
    assert run.error is not None
    assert "is not open" in run.error["message"]


async def test_a_retried_answer_without_a_question_fails_again(process: Process) -> None:
    """It does not pass the breakpoint at which the thread has stopped."""
    thread = await _hosted(process, _three())
    await process.end(await thread.start(input=INPUT, interrupt_before=["b"]))
    before = await thread.row()
    run_id = await thread.start(command={"resume": {"0" * 32: "yes"}})
    for _ in range(2):
        run = await process.end(run_id)
        assert run.error is not None
        assert run.error["type"] == "UnknownInterruptError"
        row = await thread.row()
        assert [row[name] for name in ("status", "state_values")] == ["interrupted", before["state_values"]]
        await process.app.retry(run_id)
    assert (await process.end(run_id)).status is Status.FAILED


async def test_null_is_an_answer(process: Process) -> None:
    thread = await _hosted(process, _chain(a=_node("a"), ask=ask))
    await process.end(await thread.start(input=INPUT))
    run = await process.end(await thread.start(command={"resume": None}))
    assert run.status is Status.COMPLETED, run.error
    assert run.result["items"] == ["a", "ask:None"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"interrupt_before": ["nope"], "input": INPUT},
        {"interrupt_after": ["a", "nope"], "input": INPUT},
        {"command": {"goto": "nope"}},
        {"command": {"goto": [{"node": "nope", "input": INPUT}]}},
    ],
)
async def test_a_name_that_is_not_a_node_fails_the_run(process: Process, wrong: dict[str, Any]) -> None:
    thread = await _hosted(process, _three())
    run = await process.end(await thread.start(**wrong, max_attempts=3))
    assert (run.status, run.failures) == (Status.FAILED, 1)
    assert run.error is not None
    assert 'no node "nope". Its nodes: a, b, c.' in run.error["message"]
    assert (await thread.row())["state_values"] is None


async def test_a_breakpoint_is_passed_by_the_next_run(process: Process) -> None:
    thread = await _hosted(process, _three())
    first = await thread.start(input=INPUT, interrupt_before=["b"])
    run = await process.end(first)
    assert run.result == {"value": 2, "items": ["a"]}
    assert (await thread.row())["status"] == "interrupted"
    run = await process.end(await thread.start(input=None, interrupt_after=["b"]))
    assert run.result == {"value": 3, "items": ["a", "b"]}
    run = await process.end(await thread.start(input=None))
    assert run.result == {"value": 4, "items": ["a", "b", "c"]}


async def test_a_failed_node_fails_the_run(process: Process) -> None:
    def fail(state: State) -> dict[str, Any]:
        raise ValueError("boom on purpose")

    thread = await _hosted(process, _chain(a=_node("a"), fail=fail))
    run = await process.end(await thread.start(input=INPUT))
    assert run.status is Status.FAILED
    assert run.error is not None
    assert (run.error["type"], run.error["message"]) == ("ValueError", "boom on purpose")
    row = await thread.row()
    assert (row["status"], row["state_values"]) == ("error", {"value": 2, "items": ["a"]})


async def test_a_retry_continues_after_the_last_superstep(process: Process) -> None:
    calls: list[str] = []

    def fail_once(state: State) -> dict[str, Any]:
        calls.append("b")
        if len(calls) == 1:
            raise ValueError("once")
        return {"items": ["b"]}

    thread = await _hosted(process, _chain(a=_node("a"), b=fail_once))
    run_id = await thread.start(input=INPUT, max_attempts=2)
    await eventually(lambda: len(calls) == 1, "the first attempt")
    await (await process.store()).make_due()
    run = await process.end(run_id)
    assert run.result == {"value": 2, "items": ["a", "b"]}
    attempts = [data["attempt"] for name, data in await _stream(process, run_id) if name == "metadata"]
    assert attempts == [1, 2]


# --- what an attempt writes


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_graph_reads_what_its_run_has_written(process: Process, durability: str) -> None:
    counting: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    counting.add_node("count", _node("count"))
    counting.add_edge(START, "count")
    counter = counting.compile(checkpointer=True)

    async def call(state: State) -> dict[str, Any]:
        # Its state continues where the last call in this thread has left it.
        ended = await counter.ainvoke({"value": state["value"], "items": []})
        return {"value": state["value"] + 1, "items": [f"{len(ended['items'])} calls"]}

    def following(state: State) -> str:
        return "call" if state["value"] < 4 else END

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    builder.add_conditional_edges("call", following, ["call", END])
    thread = await _hosted(process, builder)
    run = await process.end(await thread.start(input=INPUT, durability=durability))
    assert run.result == {"value": 4, "items": ["1 calls", "2 calls", "3 calls"]}
    again = await process.end(await thread.start(input={"value": 3, "items": []}, durability=durability))
    assert again.result["items"] == ["1 calls", "2 calls", "3 calls", "4 calls"]


async def test_a_commit_that_fails_ends_the_run_and_stores_nothing_after_it(process: Process) -> None:
    thread = await _hosted(process, _three())
    store = await process.store()
    # The table takes one row.
    await store.sql("create unique index one_checkpoint on checkpoints ((length(thread) * 0))")
    try:
        run_id = await thread.start(input=INPUT)
        run = await process.end(run_id)
    finally:
        await store.sql("drop index one_checkpoint")
    # The second if the first commit that fails is that of the end.
    assert (run.status, (run.error or {})["type"] in ("StorageRefused", "NotStored")) == (Status.FAILED, True)
    values = [data for name, data in await _stream(process, run_id) if name == "values"]
    assert len(values) <= await store.count("checkpoints"), "a client has read what is not stored"
    row = await thread.row()
    assert (row["status"], row["open_runs"]) == ("error", 0)


# --- commands and forks


async def test_a_command_updates_and_goes_to_a_node(process: Process) -> None:
    thread = await _hosted(process, _three())
    await process.end(await thread.start(input=INPUT))
    run = await process.end(await thread.start(command={"update": {"items": ["u"]}, "goto": "c"}))
    assert run.result == {"value": 5, "items": ["a", "b", "c", "u", "c"]}


async def test_a_run_may_fork_from_a_checkpoint(process: Process) -> None:
    thread = await _hosted(process, _three())
    await process.end(await thread.start(input=INPUT))
    store = await process.store()
    rows = await store.sql("select id, metadata from checkpoints order by id")
    fork = next(row["id"] for row in rows if '"step":1' in row["metadata"])
    run = await process.end(await thread.start(input=None, checkpoint={"checkpoint_id": fork}))
    assert run.result == {"value": 4, "items": ["a", "b", "c"]}
    assert await store.count("checkpoints") > len(rows)


# --- stop and hand over


async def test_a_cancelled_run_keeps_its_checkpoints(process: Process) -> None:
    begun = asyncio.Event()

    async def sleep(state: State) -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(600)
        return {"items": ["continued"]}

    thread = await _hosted(process, _chain(a=_node("a"), sleep=sleep))
    run_id = await thread.start(input=INPUT)
    await eventually(begun.is_set, "the node")
    await process.app.cancel(run_id)
    run = await process.end(run_id)
    assert run.status is Status.CANCELLED
    row = await thread.row()
    # The graph has a node left, as the thread of the official server shows it.
    assert (row["status"], row["open_runs"], row["state_values"]) == ("interrupted", 0, {"value": 2, "items": ["a"]})
    run = await process.end(await thread.start())
    assert run.result == {"value": 2, "items": ["a", "continued"]}
    assert (await thread.row())["status"] == "idle"


async def test_a_graph_that_cancels_itself_fails(process: Process) -> None:
    async def cancel(state: State) -> dict[str, Any]:
        raise asyncio.CancelledError

    thread = await _hosted(process, _chain(cancel=cancel))
    run = await process.end(await thread.start(input=INPUT))
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["message"]


@pytest.mark.settings(max_run_bytes=2_000_000)
async def test_a_run_that_writes_too_much_fails(process: Process) -> None:
    def large(state: State) -> dict[str, Any]:
        return {"items": ["x" * 500_000]}

    thread = await _hosted(process, _chain(a=large, b=large, c=large))
    run = await process.end(await thread.start(input=INPUT, max_attempts=3))
    assert run.error is not None
    assert "RUNLANE_MAX_RUN_BYTES" in run.error["message"]


async def test_a_plain_node_runs_in_a_thread(process: Process) -> None:
    names: list[str] = []

    def plain(state: State) -> dict[str, Any]:
        names.append(threading.current_thread().name)
        return {"items": ["plain"]}

    thread = await _hosted(process, _chain(plain=plain))
    await process.end(await thread.start(input=INPUT))
    assert names
    assert threading.main_thread().name not in names


@pytest.mark.settings(drain_handover="immediate")
async def test_a_draining_worker_hands_over_between_supersteps(process: Process) -> None:
    begun, go_on, executed = asyncio.Event(), asyncio.Event(), list[str]()

    async def wait(state: State) -> dict[str, Any]:
        executed.append("wait")
        begun.set()
        await go_on.wait()
        return {"items": ["wait"]}

    async def after(state: State) -> dict[str, Any]:
        executed.append("after")
        return {"items": ["after"]}

    thread = await _hosted(process, _chain(wait=wait, after=after))
    run_id = await thread.start(input=INPUT)
    await eventually(begun.is_set, "the node")
    stopping = asyncio.create_task(process.workers[0].stop(30))
    await eventually(lambda: process.workers[0].handing_over, "the drain")
    go_on.set()
    await stopping
    run = await process.app.get(run_id)
    assert (run.status, run.failures, run.losses) == (Status.QUEUED, 0, 0)
    assert executed == ["wait"]
    await process.start()
    run = await process.end(run_id)
    assert run.result == {"value": 1, "items": ["wait", "after"]}
    assert executed == ["wait", "after"]


# --- operations


async def test_the_state_is_updated_without_executing_a_node(process: Process) -> None:
    thread = await _hosted(process, _three())
    await process.end(await thread.start(input=INPUT))
    run = await process.end(
        await thread.start(Operation.UPDATE_STATE, values={"items": ["patched"]}, as_node="a"),
    )
    assert run.status is Status.COMPLETED
    assert run.result["configurable"].keys() >= {"thread_id", "checkpoint_ns", "checkpoint_id"}
    row = await thread.row()
    assert (row["status"], row["state_values"]["items"]) == ("interrupted", ["a", "b", "c", "patched"])
    run = await process.end(await thread.start(input=None))
    assert run.result == {"value": 6, "items": ["a", "b", "c", "patched", "b", "c"]}


async def test_an_update_for_an_unknown_node_fails(process: Process) -> None:
    thread = await _hosted(process, _three())
    await process.end(await thread.start(input=INPUT))
    run = await process.end(await thread.start(Operation.UPDATE_STATE, values={"items": ["x"]}, as_node="nope"))
    assert run.error is not None
    assert (run.error["type"], run.error["message"]) == ("InvalidUpdateError", "Node nope does not exist")


async def test_a_new_thread_may_begin_with_supersteps(process: Process) -> None:
    thread = await _hosted(process, _three())
    steps = [
        {"updates": [{"values": INPUT, "as_node": "__input__"}]},
        {"updates": [{"values": INPUT, "as_node": "__start__"}]},
        {"updates": [{"values": {"value": 7, "items": ["given"]}, "as_node": "a"}]},
    ]
    run = await process.end(await thread.start(Operation.SUPERSTEPS, supersteps=steps))
    assert run.status is Status.COMPLETED, run.error
    assert (await thread.row())["state_values"] == {"value": 7, "items": ["given"]}
    run = await process.end(await thread.start(input=None))
    assert run.result == {"value": 9, "items": ["given", "b", "c"]}


async def test_a_fan_out_joins(process: Process) -> None:
    def spread(state: State) -> list[Send]:
        return [Send("work", {"value": number, "items": []}) for number in range(3)]

    def work(state: State) -> dict[str, Any]:
        return {"items": [f"w{state['value']}"]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, spread, ["work"])
    thread = await _hosted(process, builder)
    run = await process.end(await thread.start(input=INPUT))
    assert run.result["items"] == ["w0", "w1", "w2"]
