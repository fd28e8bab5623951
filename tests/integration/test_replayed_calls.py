"""A replayed dead letter whose run has a call with an unknown outcome: a person decides, and nothing is repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import Context, Fail, Status
from runlane.definitions.schema.definition import Agent, Tool
from runlane.domain.dead_letter import LetterState, RetryKind
from runlane.errors import Retry
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry
from runlane.store.failures.letters import read_letter
from tests.integration.process import Process
from tests.integration.test_attempts import answer
from tests.integration.test_orchestrations import flow, sync

WORK = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "work"}
QUESTION = "unknown outcome of charge"
CHARGE = Tool.model_validate({"name": "charge", "tool_type": "task", "task": "pay", "effect": "once"})


def helper(*answers: Any) -> Agent:
    return Agent.model_validate({"id": "helper", "model": "scripted", "tools": ["charge"], "answers": list(answers)})


def charge(amount: int = 7) -> dict[str, Any]:
    return {"tool": "charge", "arguments": {"amount": amount}}


async def replay(process: Process, run_id: str, kind: RetryKind = RetryKind.RESUME) -> str:
    """Retry the dead letter, and return the id of the run that repeats the work."""
    change = await retry_letter(await process.app.database(), run_id, LetterRetry(kind=kind), actor="ann")
    (await process.app.connect()).publish_change(change)
    return change.new_run_id or run_id


async def test_a_run_that_failed_beside_the_call_asks_when_it_is_replayed(process: Process) -> None:
    calls: list[str] = []
    began, broken = asyncio.Event(), True

    @process.app.task("pay")
    async def pay(ctx: Context, amount: int) -> str:
        calls.append(ctx.idempotency_key)
        began.set()
        await asyncio.sleep(600)
        return "never"

    @process.app.task("beside")
    async def beside(ctx: Context) -> str:
        await began.wait()
        if broken:
            raise Fail("Broken.")
        return "repaired"

    await process.start()
    both = {"id": "both", "type": "parallel", "parallel_branches": [["work"], ["beside"]]}
    step = {"id": "beside", "type": "task", "task": "beside", "output_key": "beside"}
    last = {"id": "last", "type": "end"}
    branches = [{**WORK, "next_step_id": "last"}, {**step, "next_step_id": "last"}]
    await sync(process, flow({**both, "next_step_id": "last"}, *branches, last), helper(charge(), "done"), CHARGE)
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    assert (await process.end(run_id)).status is Status.FAILED
    assert len(calls) == 1

    broken = False
    await replay(process, run_id)
    await answer(process, run_id, QUESTION, {"decision": "done", "result": '"paid"'})
    assert (await process.end(run_id)).status is Status.COMPLETED
    assert len(calls) == 1
    letter = await read_letter(await process.app.database(), run_id)
    assert letter is not None
    assert letter.state is LetterState.RESOLVED


@pytest.mark.parametrize("kind", [RetryKind.RESUME, RetryKind.FORK])
async def test_a_call_that_was_given_up_is_asked_for_when_its_run_is_replayed(
    process: Process, kind: RetryKind
) -> None:
    calls: list[str] = []

    @process.app.task("pay", max_attempts=1)
    async def pay(ctx: Context, amount: int) -> str:
        calls.append(ctx.idempotency_key)
        raise Retry(reason="The line went dead.")

    await process.start()
    await sync(process, flow(WORK), helper(charge(), "done"), CHARGE)
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    await answer(process, run_id, QUESTION, {"decision": "give_up"})
    ended = await process.end(run_id)
    assert (ended.status, ended.error and ended.error["type"]) == (Status.FAILED, "tool_unknown")

    again = await replay(process, run_id, kind)
    await answer(process, again, QUESTION, {"decision": "done", "result": '"paid"'})
    assert (await process.end(again)).status is Status.COMPLETED
    assert len(calls) == 1
