"""Runs of threads with the unmodified LangGraph client and a real worker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk.errors import ConflictError, NotFoundError

from runlane.api.services import WorkerOptions
from runlane.app import App
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import State, add_graphs
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}
LATE: dict[str, Any] = {"value": 101, "items": []}
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


async def _napping(client: Any, thread_id: str, run_id: str) -> None:
    """Wait until the run sleeps in its second node."""

    async def sleeps() -> bool:
        state = await client.threads.get_state(thread_id)
        return state["next"] == ["nap"] and (await client.runs.get(thread_id, run_id))["status"] == "running"

    await eventually(sleeps, "the nap")


async def test_a_run_of_a_thread(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    created: list[Any] = []
    assert await client.runs.wait(thread, "three", input=INPUT, on_run_created=created.append) == FINAL
    run = await client.runs.get(thread, created[0]["run_id"])
    assert (run["status"], run["kwargs"]["input"], run["multitask_strategy"]) == ("success", INPUT, "enqueue")
    assert run["metadata"]["graph_id"] == "three"
    assert [item["run_id"] for item in await client.runs.list(thread)] == [run["run_id"]]
    assert await client.runs.list(thread, status="error") == []
    after = await client.threads.get(thread)
    assert (after["status"], after["values"], after["metadata"]["graph_id"]) == ("idle", FINAL, "three")
    assert await client.runs.join(thread, run["run_id"]) == FINAL
    await client.runs.delete(thread, run["run_id"])
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, run["run_id"])
    assert (await client.threads.get(thread))["values"] == FINAL
    assert len(await client.threads.get_history(thread)) == 5


async def test_stream_modes_and_resuming(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    created: list[Any] = []
    modes = ["values", "updates", "custom"]
    events = await _events(
        client.runs.stream(thread, "three", input=INPUT, stream_mode=modes, on_run_created=created.append)
    )
    run_id = created[0]["run_id"]
    assert events[0] == ("metadata", {"run_id": run_id, "attempt": 1})
    assert [data for name, data in events if name == "values"][-1] == FINAL
    assert next(data for name, data in events if name == "updates") == {"a": {"value": 2, "items": ["a"]}}
    assert [data for name, data in events if name == "custom"] == [{"note": "from b"}]
    assert events[-1] == ("end", {"run_id": run_id, "status": "success"})
    everything = await _events(client.runs.join_stream(thread, run_id, last_event_id="-1"))
    assert everything == events
    only = await _events(client.runs.join_stream(thread, run_id, stream_mode="updates"))
    assert {name for name, _ in only} == {"metadata", "updates", "end"}
    parts = [part async for part in client.runs.join_stream(thread, run_id)]
    numbered = [part.id for part in parts if part.id]
    rest = await _events(client.runs.join_stream(thread, run_id, last_event_id=numbered[2]))
    assert rest == events[3:]


async def test_messages_are_assembled_from_chunks(client: Any) -> None:
    given = {"messages": [{"role": "user", "content": "hi"}]}
    events = await _events(client.runs.stream(None, "chat", input=given, stream_mode="messages"))
    partial = [data[0]["content"] for name, data in events if name == "messages/partial"]
    assert partial == ["hello", "hello ", "hello there", "hello there ", "hello there friend"]
    assert events[1][0] == "messages/metadata"
    assert list(events[1][1]) == ["ai-1"]
    assert next(data[0]["type"] for name, data in events if name == "messages/partial") == "ai"
    tuples = await _events(client.runs.stream(None, "chat", input=given, stream_mode="messages-tuple"))
    chunks = [data[0] for name, data in tuples if name == "messages"]
    assert "".join(chunk["content"] for chunk in chunks) == "hello there friend"
    assert chunks[0]["type"] == "AIMessageChunk"


async def test_a_failure_is_an_error(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    with pytest.raises(Exception, match="boom on purpose"):
        await client.runs.wait(thread, "failing", input=INPUT)
    failed = await client.runs.wait(None, "failing", input=INPUT, raise_error=False)
    assert failed == {"__error__": {"error": "ValueError", "message": "boom on purpose"}}
    after = await client.threads.get(thread)
    assert (after["status"], after["error"]) == ("error", {"error": "ValueError", "message": "boom on purpose"})
    events = await _events(client.runs.stream(thread, "failing", input=INPUT))
    assert events[-2] == ("error", {"error": "ValueError", "message": "boom on purpose"})
    assert events[-1][1]["status"] == "error"


async def test_a_person_answers(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    waiting = await client.runs.wait(thread, "human", input=INPUT)
    (question,) = waiting["__interrupt__"]
    assert question["value"] == {"question": "ok?", "value": 2}
    asked = await client.threads.get(thread)
    assert (asked["status"], next(iter(asked["interrupts"].values()))[0]["id"]) == ("interrupted", question["id"])
    assert [item["thread_id"] for item in await client.threads.search(status="interrupted")] == [thread]
    with pytest.raises(Exception, match="has no interrupt"):
        await client.runs.wait(thread, "human", command={"resume": {"0" * 32: "yes"}})
    answered = await client.runs.wait(thread, "human", command={"resume": {question["id"]: "yes"}})
    assert answered == {"value": 3, "items": ["a", "ask:yes", "c"]}
    with pytest.raises(ConflictError, match="does not wait for an answer"):
        await client.runs.create(thread, "human", command={"resume": "again"})


async def test_stateless_runs_leave_no_thread(client: Any) -> None:
    assert await client.runs.wait(None, "three", input=INPUT) == FINAL
    made = await client.runs.create_batch(
        [{"assistant_id": "three", "input": INPUT}, {"assistant_id": "three", "input": INPUT, "on_completion": "keep"}]
    )
    for run in made:
        assert await client.runs.join(run["thread_id"], run["run_id"]) == FINAL
    assert [item["thread_id"] for item in await client.threads.search()] == [made[1]["thread_id"]]


async def test_cancel_keeps_or_rolls_back(client: Any) -> None:
    for action, status in (("interrupt", "interrupted"), ("rollback", None)):
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "sleepy", input=INPUT)
        assert run["status"] == "pending"
        await _napping(client, thread, run["run_id"])
        assert (await client.threads.get(thread))["status"] == "busy"
        await client.runs.cancel(thread, run["run_id"], wait=True, action=action)
        state = await client.threads.get_state(thread)
        if status is None:
            with pytest.raises(NotFoundError):
                await client.runs.get(thread, run["run_id"])
            assert (state["values"], state["next"]) == ({}, [])
        else:
            assert (await client.runs.get(thread, run["run_id"]))["status"] == status
            assert (state["values"], state["next"]) == ({"value": 2, "items": ["a"]}, ["nap"])
        assert (await client.threads.get(thread))["status"] != "busy"
        with pytest.raises(NotFoundError):
            await client.runs.cancel(thread, run["run_id"])


async def test_cancel_many(client: Any) -> None:
    runs = [await client.runs.create(None, "sleepy", input=INPUT, after_seconds=3600) for _ in range(3)]
    first = runs[0]
    await client.runs.cancel_many(thread_id=first["thread_id"], run_ids=[first["run_id"]])
    await client.runs.cancel_many(status="pending")
    for run in runs:
        assert (await client.runs.get(run["thread_id"], run["run_id"]))["status"] == "interrupted"
    with pytest.raises(NotFoundError):
        await client.runs.cancel_many(status="all")
    assert await client.threads.count() == 0


@pytest.mark.parametrize("strategy", ["reject", "enqueue", "interrupt", "rollback"])
async def test_eight_posts_at_once(client: Any, strategy: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    first = await client.runs.create(thread, "sleepy", input=INPUT)
    await _napping(client, thread, first["run_id"])
    posts = [
        client.runs.create(thread, "three", input={"value": number, "items": []}, multitask_strategy=strategy)
        for number in range(8)
    ]
    results = await asyncio.gather(*posts, return_exceptions=True)
    refused = [one for one in results if isinstance(one, Exception)]
    if strategy == "reject":
        assert len(refused) == 8
        assert all(isinstance(one, ConflictError) for one in refused)
    else:
        assert refused == []
    if strategy in ("reject", "enqueue"):
        await client.runs.cancel(thread, first["run_id"], action="rollback")
    await eventually(lambda: _idle(client, thread), "the end of all runs")
    listed = await client.runs.list(thread, limit=20)
    statuses = sorted(run["status"] for run in listed)
    items = (await client.threads.get_state(thread))["values"].get("items", [])
    if strategy == "reject":
        assert (statuses, items) == ([], [])
    elif strategy == "enqueue":
        assert (statuses, items) == (["success"] * 8, ["a", "b", "c"] * 8)
    elif strategy == "rollback":
        # Each post removed what was open before it, so the last one is left; others may have finished before.
        assert "interrupted" not in statuses
        assert items == ["a", "b", "c"] * len(statuses)
    else:
        assert "success" in statuses
        assert (await client.runs.get(thread, first["run_id"]))["status"] == "interrupted"


@pytest.mark.parametrize("strategy", ["reject", "enqueue", "interrupt", "rollback"])
async def test_runs_of_a_thread_are_never_executed_at_once(own_app: App, strategy: Any) -> None:
    running, most = 0, 0

    async def work(state: State) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            for _ in range(50):
                await asyncio.sleep(0)
            return {"items": ["worked"]}
        finally:
            running -= 1

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    own_app.graph("alone", builder)
    async with serving(own_app, worker=WorkerOptions()) as api, langgraph_client(api) as client:
        thread = (await client.threads.create())["thread_id"]
        posts = [client.runs.create(thread, "alone", input=INPUT, multitask_strategy=strategy) for _ in range(8)]
        answers = await asyncio.gather(*posts, return_exceptions=True)
        await eventually(lambda: _idle(client, thread), "the end of all runs")
        ended = [run for run in await client.runs.list(thread) if run["status"] == "success"]
        worked = (await client.threads.get_state(thread))["values"]["items"]
    assert (running, most) == (0, 1)
    refused = sum(isinstance(answer, ConflictError) for answer in answers)
    assert len(ended) <= len(worked) <= 8 - refused
    if strategy != "interrupt":
        # A run that is interrupted keeps the checkpoint of a node that has just ended.
        assert len(worked) == len(ended)


async def _idle(client: Any, thread: str) -> bool:
    return (await client.threads.get(thread))["status"] != "busy"


async def test_requests_at_once_get_their_own_answers(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    alone = [client.runs.create(None, "three", input=INPUT, on_completion="keep") for _ in range(8)]
    together = [client.runs.create(thread, "three", input=INPUT) for _ in range(4)]
    unknown = [client.runs.create(str(uuid.uuid4()), "three", input=INPUT) for _ in range(3)]
    missing = [client.runs.create(None, "nope", input=INPUT) for _ in range(2)]
    calls = (*alone, *together, *unknown, *missing)
    found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    accepted, refused = found[:12], found[12:]
    assert len({run["run_id"] for run in accepted}) == 12
    assert len({run["thread_id"] for run in accepted}) == 9
    assert all(isinstance(error, NotFoundError) for error in refused)
    for run in accepted:
        await client.runs.join(run["thread_id"], run["run_id"])
    state = await client.threads.get_state(thread)
    assert state["values"]["items"] == ["a", "b", "c"] * 4
    assert len(await client.runs.list(thread)) == 4


async def test_a_deleted_thread_leaves_nothing(client: Any, served: Api) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "sleepy", input=INPUT)
    await _napping(client, thread, run["run_id"])
    await client.threads.delete(thread)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)
    assert await client.threads.count() == 0


async def test_bad_requests_change_nothing(client: Any, served: Api) -> None:
    thread = (await client.threads.create())["thread_id"]
    other = (await client.threads.create())["thread_id"]
    await client.runs.wait(other, "three", input=INPUT)
    foreign = (await client.threads.get_state(other))["checkpoint"]
    unknown = "00000000-0000-0000-0000-000000000000"
    path = f"/threads/{thread}/runs"
    for method, url, body in (
        ("POST", f"/threads/{unknown}/runs", {"assistant_id": "three"}),
        ("POST", path, {"assistant_id": "nope"}),
        ("POST", path, {"assistant_id": unknown}),
        ("POST", path, {"assistant_id": "three", "checkpoint_id": unknown}),
        ("GET", f"/threads/{unknown}/runs", None),
        ("GET", f"{path}/run_1", None),
        ("GET", f"{path}/run_1/join", None),
        ("GET", f"{path}/run_1/stream", None),
        ("POST", f"{path}/run_1/cancel", None),
        ("DELETE", f"{path}/run_1", None),
    ):
        answer = await served.client.request(method, url, json=body)
        assert answer.status_code == 404, (method, url, answer.text)
    for options in (
        {"checkpoint": foreign},
        {"stream_mode": "nope"},
        {"multitask_strategy": "nope"},
        {"after_seconds": "soon"},
        {"config": {"recursion_limit": "many"}},
        {"feedback_keys": ["x"]},
        {"webhook": "not a url"},
    ):
        answer = await served.client.post(path, json={"assistant_id": "three", "input": INPUT, **options})
        assert answer.status_code == 422, answer.text
        assert next(iter(options)) in answer.text
    with pytest.raises(ConflictError):
        await client.runs.create(thread, "three", command={"resume": 1})
    assert await client.runs.list(thread) == []
    made = await client.runs.wait(unknown, "three", input=INPUT, if_not_exists="create")
    assert made == FINAL


async def test_an_idempotency_key_starts_one_run(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    once = {"Idempotency-Key": "k1"}
    first = await client.runs.create(thread, "three", input=INPUT, headers=once, multitask_strategy="reject")
    again = await client.runs.create(thread, "three", input=INPUT, headers=once, multitask_strategy="reject")
    assert first["run_id"] == again["run_id"]
    with pytest.raises(ConflictError):
        await client.runs.create(thread, "three", input=LATE, headers=once)
