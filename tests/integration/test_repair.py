"""Repair in place: a failed run continues on the current version, with the steps that it has finished."""

from __future__ import annotations

from collections import Counter

import pytest

from runlane import Context, Fail, Status, WrongState
from runlane.domain.dead_letter import LetterState, RetryKind
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry
from runlane.orchestration import snapshots
from runlane.store.failures.letters import read_letter
from tests.integration.process import Process
from tests.integration.test_orchestrations import flow, say, sync

WORK = {"id": "work", "type": "task", "task": "work", "output_key": "work"}
BROKEN = {"id": "pay", "type": "task", "task": "pay", "arguments": {"amount": "{state.missing}"}}
REPAIRED = {"id": "pay", "type": "task", "task": "pay", "arguments": {"amount": "{state.work}"}}


STATE = {"missing": {"type": "string", "default": ""}}


def register(process: Process) -> Counter[str]:
    calls: Counter[str] = Counter()

    @process.app.task("work")
    async def work(ctx: Context) -> str:
        calls["work"] += 1
        return "7"

    @process.app.task("pay")
    async def pay(ctx: Context, amount: str) -> str:
        calls["pay"] += 1
        if not amount:
            raise Fail("There is no amount.")
        return f"paid {amount}"

    return calls


async def failed_run(process: Process) -> str:
    await sync(process, flow(WORK, BROKEN, state_schema=STATE))
    run_id = (await process.app.orchestrate("flow")).run_id
    assert (await process.end(run_id)).status is Status.FAILED
    return run_id


async def test_a_retry_on_the_current_version_keeps_the_finished_steps(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A snapshot of the old version must not survive the repair.
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 1)
    calls = register(process)
    await process.start()
    run_id = await failed_run(process)
    old = (await process.app.get(run_id)).definition
    await sync(process, flow(WORK, REPAIRED, say("thanks", "Thank you for {state.work}.")))
    await process.app.retry(run_id)
    assert (await process.end(run_id)).status is Status.FAILED
    assert (await process.app.get(run_id)).definition == old
    await process.app.retry(run_id, latest=True)
    ended = await process.end(run_id)
    assert (ended.status, ended.result) == (Status.COMPLETED, "Thank you for 7.")
    assert ended.definition != old
    assert calls["work"] == 1
    letter = await read_letter(await process.app.database(), run_id)
    assert letter is not None
    assert (letter.state, letter.times_died, letter.last_step) == (LetterState.RESOLVED, 2, "pay")


async def test_a_retry_on_a_version_that_does_not_fit_is_refused_and_changes_nothing(process: Process) -> None:
    register(process)
    await process.start()
    run_id = await failed_run(process)
    await sync(process, flow({**WORK, "id": "toil"}, REPAIRED))
    before = await process.app.get(run_id)
    refusal = 'step "work" of run .* does not fit .*The step "work" does not exist any more'
    with pytest.raises(WrongState, match=refusal):
        await process.app.retry(run_id, latest=True)
    with pytest.raises(WrongState, match=refusal):
        await process.app.fork(run_id, "pay", latest=True)
    assert await process.app.get(run_id) == before
    # A fork at the first step has no recorded steps that could be unfit.
    forked = await process.app.fork(run_id, "work", latest=True)
    assert (await process.end(forked.run_id)).result == "paid 7"


async def test_a_fork_repairs_a_dead_letter(process: Process) -> None:
    calls = register(process)
    await process.start()
    run_id = await failed_run(process)
    database = await process.app.database()
    how = LetterRetry(kind=RetryKind.FORK, state={"missing": "9"})
    change = await retry_letter(database, run_id, how, actor="ann")
    (await process.app.connect()).publish_change(change)
    assert change.new_run_id is not None
    assert (await process.end(change.new_run_id)).result == "paid 9"
    letter = await read_letter(database, run_id)
    assert letter is not None
    assert (letter.state, letter.handled_by, letter.retry_run_id) == (LetterState.RESOLVED, "ann", change.new_run_id)
    assert calls["work"] == 1
    assert [(step.path, step.outcome) for step in letter.steps] == [("work", "done"), ("pay", "failed")]
