"""The order in which an attempt acts: store before effects, stop for a drain, ask when in doubt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from runlane import Context, Status, failpoints
from runlane.access.keyring import new_key
from runlane.access.secrets import SecretVault
from runlane.definitions.schema.definition import Agent, Tool
from runlane.domain.events import Delta, Notice
from runlane.errors import Retry
from runlane.redaction import REDACTED
from runlane.settings import Settings
from runlane.store.orchestration.steps import read_steps
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.sql.database import CommitInDoubt, Session
from tests.faults import FaultyDatabase
from tests.harness import eventually, settings_for
from tests.integration.process import Process
from tests.integration.test_orchestrations import flow, say, sync

T = TypeVar("T")

# How long a commit is held for a step that must not begin before it. A correct attempt waits for all of it.
HELD_SECONDS = 0.3
SECRET = "canary-40c9-secret"


async def test_a_step_with_an_effect_begins_when_its_predecessors_are_stored(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    found: list[str] = []

    @process.app.task("effect")
    async def effect(ctx: Context) -> None:
        begun.set()
        found.extend(step["path"] for step in await read_steps(await process.app.database(), ctx.run_id))

    worker = await process.start()
    record = worker.record

    async def held(entry: RecordEntry) -> Recorded:
        if entry.steps and not begun.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(begun.wait(), HELD_SECONDS)
        return await record(entry)

    monkeypatch.setattr(worker, "record", held)
    await sync(process, flow(say("a", "one"), say("b", "two"), {"id": "c", "type": "task", "task": "effect"}))
    await process.end((await process.app.orchestrate("flow", "go")).run_id)
    assert found == ["a", "b"]


@pytest.mark.settings(drain_handover="immediate")
async def test_a_draining_worker_begins_no_further_step(process: Process) -> None:
    began, let_go = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    @process.app.task("work")
    async def work(ctx: Context, name: str) -> str:
        calls.append(name)
        began.set()
        await let_go.wait()
        return name

    worker = await process.start()
    steps = [
        {"id": name, "type": "task", "task": "work", "arguments": {"name": name}, "output_key": name} for name in "ab"
    ]
    await sync(process, flow(*steps))
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    await began.wait()
    stopping = asyncio.create_task(worker.stop(600))
    await eventually(lambda: worker.handing_over, "the drain")
    let_go.set()
    await stopping
    assert calls == ["a"]
    run = await process.app.get(run_id)
    assert (run.status, run.failures) == (Status.QUEUED, 0)
    assert (await process.types(run_id))[-1] == "handed_back"
    # Another worker continues after the step that was finished.
    await process.start()
    assert (await process.end(run_id)).result == "b"
    assert calls == ["a", "b"]


@pytest.mark.settings(drain_handover="late")
async def test_a_draining_worker_begins_steps_while_there_is_time(process: Process) -> None:
    began, let_go = asyncio.Event(), asyncio.Event()

    @process.app.task("work")
    async def work(ctx: Context) -> None:
        began.set()
        await let_go.wait()

    worker = await process.start()
    await sync(process, flow({"id": "a", "type": "task", "task": "work"}, say("b", "two")))
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    await began.wait()
    stopping = asyncio.create_task(worker.stop(600))
    await eventually(lambda: worker.health.draining, "the drain")
    let_go.set()
    await stopping
    assert (await process.app.get(run_id)).result == "two"


@pytest.mark.parametrize("effect", ["once", "ask"])
async def test_a_call_that_may_have_had_its_effect_is_not_repeated_by_itself(process: Process, effect: str) -> None:
    calls: list[str] = []

    @process.app.task("pay", max_attempts=1)
    async def pay(ctx: Context, amount: int) -> str:
        calls.append(ctx.idempotency_key)
        raise Retry(reason="The line went dead.")

    await process.start()
    step = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "work"}
    answers: list[Any] = [{"tool": "charge", "arguments": {"amount": 7}}, "done"]
    helper = {"id": "helper", "model": "scripted", "tools": ["charge"], "answers": answers}
    charge = {"name": "charge", "tool_type": "task", "task": "pay", "effect": effect}
    await sync(process, flow(step), Agent.model_validate(helper), Tool.model_validate(charge))
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    if effect == "ask":
        await answer(process, run_id, "approve charge", {"decision": "approve"})
    await answer(process, run_id, "unknown outcome of charge", {"decision": "done", "result": '"paid"'})
    assert (await process.end(run_id)).status is Status.COMPLETED
    assert len(calls) == 1


async def answer(process: Process, run_id: str, name: str, response: dict[str, Any]) -> None:
    """Answer the question of this name when the run waits for it."""

    async def asked() -> bool:
        run = await process.app.get(run_id)
        assert not run.status.terminal
        return run.status is Status.PAUSED and [wait.name for wait in await process.app.waits(run_id)] == [name]

    await eventually(asked, f"the question {name!r}")
    await process.app.resume(run_id, response)


async def test_no_stored_or_published_data_of_a_run_has_secrets(settings: Settings) -> None:
    assert settings.database_url is not None
    keyed = settings_for(settings.database_url.get_secret_value(), secret_key=new_key())
    process = Process(keyed)
    subscribed = asyncio.Event()
    received: list[Notice | Delta] = []

    @process.app.task("reveal")
    async def reveal(ctx: Context) -> None:
        value = await ctx.secret("TOKEN")
        await subscribed.wait()
        await ctx.progress(0.5, f"half of {value}")
        await ctx.log(f"all of {value}")

    worker = await process.start()
    try:
        await SecretVault(await process.app.database(), keyed).set("default", "TOKEN", SECRET, actor="test")
        run_id = (await process.app.enqueue("reveal")).run_id
        worker._bus.follow(run_id, received.append)
        subscribed.set()
        await process.end(run_id)
        (stored,) = [event.data for event in await process.events(run_id) if event.type == "log"]
    finally:
        await process.stop()
    assert stored == {"message": f"all of {REDACTED}"}
    (delta,) = [piece.data for piece in received if isinstance(piece, Delta)]
    assert SECRET not in delta
    assert REDACTED in delta


class LostClaims(FaultyDatabase):
    """Loses the answer to the commit of every claim that took a run."""

    took_a_run = False

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        sessions: list[Session] = []

        async def watched(session: Session) -> T:
            sessions.append(session)
            return await work(session)

        value = await self._database.transact(watched)
        if self.took_a_run:
            self.took_a_run = False
            raise CommitInDoubt(self._mark(sessions[-1], committed=True))
        return value


async def test_a_claim_whose_answer_was_lost_is_executed(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> str:
        return "done"

    worker = await process.start()
    database = LostClaims(worker._claims._database)
    monkeypatch.setattr(worker._claims, "_database", database)

    def reached(point: str) -> None:
        database.took_a_run = database.took_a_run or point == "claim.before_commit"

    failpoints.install(reached)
    run_id = (await process.app.enqueue("job")).run_id
    assert (await process.app.wait(run_id, 15)).result == "done"
    assert database.commit_checks == 1
