"""Runs of agents, and conversations with them: what the model gets, in which order, and what is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from runlane import Conflict, IdempotencyConflict, Status, UnknownSession
from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.errors import InvalidRequest, UnknownDefinition, WrongState
from runlane.llm.models import Delta, ModelContext, ModelFailed, ModelReply, ModelRequest
from runlane.store.chat.deletion import delete_session
from runlane.store.chat.turns import Turn, find_session, read_turns
from tests.harness import eventually
from tests.integration.process import Process
from tests.integration.test_orchestrations import flow, sync

SECRET = "canary-4711: never repeat this"


class Parrot:
    """Repeats its prompt, fails on `fail`, and waits on `wait` until it is released."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.go_on = asyncio.Event()

    def __call__(self, name: str, scene: ModelContext, /) -> Parrot:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        self.requests.append(request)
        if "fail" in request.prompt:
            raise ModelFailed("broken", "It fails.", retryable=False)
        if "wait" in request.prompt:
            await self.go_on.wait()
        return ModelReply(f"echo: {request.prompt}", model="parrot")


@pytest.fixture
def parrot(process: Process) -> Parrot:
    model = Parrot()
    process.app.models.register("parrot", model)
    return model


def bird(**more: Any) -> Agent:
    return Agent.model_validate({"id": "bird", "model": "parrot", "system_prompt": SECRET, **more})


def messages_of(request: ModelRequest) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


async def turns_of(process: Process, session_id: str) -> list[Turn]:
    return await read_turns(await process.app.database(), session_id)


async def test_the_answer_of_an_agent_is_the_result_of_its_run(process: Process, parrot: Parrot) -> None:
    await sync(process, bird())
    await process.start()
    accepted = await process.app.ask("bird", "hello", {"city": "Graz", "not a key!": 1})
    run = await process.app.wait(accepted.run_id)
    assert run.target == "agent:bird"
    assert (run.agent, run.orchestration, run.has_steps) == ("bird", None, True)
    assert run.status is Status.COMPLETED
    assert run.result.startswith("echo: # Values\n\n## city\nGraz\n\n## not a key!\n1\n\n# Task\n\nhello")
    assert run.definition is not None
    events = await process.app.events(run.id)
    assert "canary" not in orjson.dumps([event.data for event in events]).decode()
    assert [event.data["orch_step_id"] for event in events if event.type == "step_start"] == ["answer"]
    assert parrot.requests[0].instructions == SECRET


async def test_an_orchestrator_agent_runs_its_orchestration(process: Process, parrot: Parrot) -> None:
    inner = flow({"id": "echo", "type": "agent", "agent_id": "bird"}, id="boss", lane="quick")
    boss = Agent.model_validate({"id": "boss", "type": "orchestrator", "orchestration_id": "boss"})
    await sync(process, inner, boss, bird())
    await process.start()
    first = await process.app.chat("boss", "one")
    assert (await process.app.get(first.run_id)).lane == "quick"
    assert (await process.app.wait(first.run_id)).result == "echo: one"
    second = await process.app.chat("boss", "two", first.session_id)
    assert (await process.app.wait(second.run_id)).result == "echo: two"
    assert messages_of(parrot.requests[1]) == [("user", "one"), ("assistant", "echo: one"), ("user", "two")]


async def test_turns_run_in_order_and_each_gets_the_earlier_ones(process: Process, parrot: Parrot) -> None:
    await sync(process, bird(history_turns=2))
    first = await process.app.chat("bird", "one")
    posted = [first] + [await process.app.chat("bird", text, first.session_id) for text in ("two", "fail", "four")]
    assert [post.turn for post in posted] == [1, 2, 3, 4]
    assert [post.status for post in posted] == [Status.QUEUED] + [Status.BLOCKED] * 3
    await process.start()
    await process.app.wait(posted[-1].run_id)
    assert [messages_of(request) for request in parrot.requests] == [
        [("user", "one")],
        [("user", "one"), ("assistant", "echo: one"), ("user", "two")],
        [
            ("user", "one"),
            ("assistant", "echo: one"),
            ("user", "two"),
            ("assistant", "echo: two"),
            ("user", "fail"),
        ],
        [
            ("user", "two"),
            ("assistant", "echo: two"),
            ("user", "fail\n\n[This message was not answered: the attempt to answer it failed.]"),
            ("user", "four"),
        ],
    ]
    turns = await turns_of(process, first.session_id)
    assert [(turn.message, turn.status, turn.answer) for turn in turns] == [
        ("one", Status.COMPLETED, "echo: one"),
        ("two", Status.COMPLETED, "echo: two"),
        ("fail", Status.FAILED, None),
        ("four", Status.COMPLETED, "echo: four"),
    ]
    assert turns[2].error is not None
    assert turns[2].error["type"] == "broken"
    session = await find_session(await process.app.database(), first.session_id)
    assert (session.status, session.turns, session.agent_id) == (Status.COMPLETED, 4, "bird")


async def test_an_agent_can_be_called_without_earlier_turns(process: Process, parrot: Parrot) -> None:
    await sync(process, bird(history_turns=0))
    await process.start()
    first = await process.app.chat("bird", "one")
    second = await process.app.chat("bird", "two", first.session_id)
    await process.app.wait(second.run_id)
    assert messages_of(parrot.requests[-1]) == [("user", "two")]


async def test_cancelling_ends_the_open_turns_and_keeps_the_conversation(process: Process, parrot: Parrot) -> None:
    await sync(process, bird())
    await process.start()
    first = await process.app.chat("bird", "wait")
    waiting = [await process.app.chat("bird", text, first.session_id) for text in ("two", "three")]
    await eventually(lambda: parrot.requests, "the first turn to be asked")
    database = await process.app.database()
    assert (await find_session(database, first.session_id)).status is Status.RUNNING
    with pytest.raises(WrongState, match="Cancel it first"):
        await delete_session(database, first.session_id)
    only = await process.app.cancel_chat(first.session_id, only_current=True)
    assert only == [first.run_id]
    assert (await process.app.wait(first.run_id)).status is Status.CANCELLED
    assert (await process.app.wait(waiting[-1].run_id)).result == "echo: three"
    note = "wait\n\n[This message was not answered: it was cancelled before there was an answer.]"
    assert messages_of(parrot.requests[-1])[0] == ("user", note)

    again = [await process.app.chat("bird", text, first.session_id) for text in ("wait", "five", "six")]
    await eventually(lambda: parrot.requests[-1].prompt == "wait", "the turn to be asked")
    cancelled = await process.app.cancel_chat(first.session_id)
    assert cancelled == sorted(post.run_id for post in again)
    for post in again:
        assert (await process.app.wait(post.run_id)).status is Status.CANCELLED
    assert await process.app.cancel_chat(first.session_id) == []
    assert all(request.prompt not in ("five", "six") for request in parrot.requests)


async def test_a_repeated_post_is_one_turn(process: Process, parrot: Parrot) -> None:
    await sync(process, bird())
    first = await process.app.chat("bird", "one", idempotency_key="k")
    again = await process.app.chat("bird", "one", idempotency_key="k")
    assert (again.session_id, again.turn, again.run_id) == (first.session_id, 1, first.run_id)
    assert again.replayed
    with pytest.raises(IdempotencyConflict):
        await process.app.chat("bird", "two", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await process.app.chat("bird", "one", first.session_id, idempotency_key="k")
    assert len(await turns_of(process, first.session_id)) == 1


async def test_a_message_that_is_refused_leaves_nothing_behind(process: Process, parrot: Parrot) -> None:
    await sync(process, bird(), bird(id="owl"))
    first = await process.app.chat("bird", "one")
    with pytest.raises(UnknownSession):
        await process.app.chat("bird", "two", "sess_unknown")
    with pytest.raises(UnknownDefinition):
        await process.app.chat("birt", "two")
    with pytest.raises(Conflict, match="is one with the agent"):
        await process.app.chat("owl", "two", first.session_id)
    with pytest.raises(InvalidRequest):
        await process.app.chat("bird", "  ", first.session_id)
    assert [turn.message for turn in await turns_of(process, first.session_id)] == ["one"]


async def test_a_long_conversation_is_cut_to_a_size(process: Process, parrot: Parrot) -> None:
    await sync(process, bird(history_turns=100))
    await process.start()
    first = await process.app.chat("bird", "x" * 30_000)
    last = first
    for number in range(8):
        last = await process.app.chat("bird", f"{number}" + "y" * 30_000, first.session_id)
    await process.app.wait(last.run_id)
    history = messages_of(parrot.requests[-1])[:-1]
    assert len(history) == 8
    assert history[0][1].startswith("3")
    assert all(len(text) < 20_100 and "[abridged: 20000 of" in text for _, text in history)


async def test_a_retried_turn_answers_in_its_place(process: Process, parrot: Parrot) -> None:
    await sync(process, bird())
    await process.start()
    first = await process.app.chat("bird", "one")
    failed = await process.app.chat("bird", "fail", first.session_id)
    third = await process.app.chat("bird", "three", first.session_id)
    await process.app.wait(third.run_id)
    seen = len(parrot.requests)
    await process.app.retry(failed.run_id)
    await eventually(lambda: len(parrot.requests) > seen, "the second call for the turn")
    assert messages_of(parrot.requests[-1]) == [("user", "one"), ("assistant", "echo: one"), ("user", "fail")]


def test_the_orchestration_of_an_agent_has_a_reserved_name() -> None:
    from runlane.definitions.schema.base import ID_PATTERN
    from runlane.orchestration.agent_run import single_step
    from runlane.orchestration.executor import PinnedDefinitions

    alone = single_step(bird(), PinnedDefinitions.of({}), {})
    assert isinstance(alone, Orchestration)
    assert alone.id == "agent:bird"
    assert ":" not in ID_PATTERN


async def test_an_app_reads_and_deletes_conversations(process: Process, parrot: Parrot) -> None:
    await sync(process, bird())
    first = await process.app.chat("bird", "one")
    await process.start()
    await process.end(first.run_id)
    second = await process.app.chat("bird", "wait", first.session_id)
    other = await process.app.chat("bird", "fail")
    await process.end(other.run_id)
    state = await process.app.chat_state(first.session_id)
    assert (state.agent_id, state.turns, state.status.terminal) == ("bird", 2, False)
    shown = [(message.turn, message.role) for message in state.messages]
    assert shown == [(1, "user"), (1, "assistant"), (2, "user")]
    pages = [message async for message in process.app.chat_messages(first.session_id, page=1)]
    assert pages == list(state.messages)
    chats = [chat.session_id async for chat in process.app.chats(agent="bird", page=1)]
    assert chats == [other.session_id, first.session_id]
    assert [chat async for chat in process.app.chats(tenant="other")] == []
    with pytest.raises(WrongState):
        await process.app.delete_chat(first.session_id)
    parrot.go_on.set()
    await process.end(second.run_id)
    await process.app.delete_chat(first.session_id)
    for reading in (process.app.chat_state(first.session_id), anext(process.app.chat_messages(first.session_id))):
        with pytest.raises(UnknownSession):
            await reading
