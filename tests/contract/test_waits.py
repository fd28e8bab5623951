"""Questions of runs: asked once, answered once, and no answer is left lying."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.domain.run import ORCHESTRATION, Status
from runlane.errors import WrongState
from runlane.store.orchestration import inbox, resume
from runlane.store.orchestration.fork import fork_run, step_number
from runlane.store.orchestration.inbox import InboxFilter
from runlane.store.orchestration.resume import MAX_SENT, answer_by_event, answer_wait, store_event
from runlane.store.orchestration.steps import (
    RECORD_STEPS,
    SNAPSHOT_PATH,
    StepOutcome,
    StepRecord,
    read_replay_records,
    read_steps,
)
from runlane.store.orchestration.waits import OPEN_WAITS, SETTLE_WAITS, NewWait, Wait, WaitKind, read_waits
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.run_changes import RunChange, cancel_run
from runlane.store.queue.runs import running_seconds
from runlane.store.queue.timers import queue_due
from runlane.store.sql.database import Database, Session
from tests.harness import Store, entry_of, new_run

PAUSED = Finish(AttemptOutcome.PAUSED, Status.PAUSED)


def question(path: str = "approve", kind: WaitKind = "human", due_us: int | None = None, name: str = "Ok?") -> NewWait:
    return NewWait(path, kind, path, name, '{"prompt":"Ok?","fields":[]}', due_us)


def done(path: str, no: int, output: str = '"x"', cost_usd: float | None = None, tokens: int = 0) -> StepRecord:
    return StepRecord(path, no, path, "print", StepOutcome.DONE, output=output, cost_usd=cost_usd, tokens=tokens)


def retrying(path: str, no: int) -> StepRecord:
    return StepRecord(path, no, path, "llm", StepOutcome.RETRYING, error="{}", tries=no, cost_usd=0.5, tokens=5)


async def begun(store: Store, **fields: Any) -> Claimed:
    await store.add(target=f"{ORCHESTRATION}o", plan='{"pins":{}}', **fields)
    (claimed,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    return claimed


async def paused(store: Store, *waits: NewWait, delay_us: int | None = None) -> Claimed:
    claimed = await begun(store)
    finish = Finish(AttemptOutcome.PAUSED, Status.PAUSED, delay_us=delay_us)
    await store.record(entry_of(claimed, finish, waits=list(waits or [question()])))
    assert await store.status(claimed.run_id) is Status.PAUSED
    return claimed


async def test_orchestrations_are_claimed_by_workers_that_execute_them(store: Store) -> None:
    await store.add(target=f"{ORCHESTRATION}o", plan='{"pins":{}}')
    worker = await store.worker()
    assert await store.claim(worker, targets=["job"]) == []
    (claimed,) = await store.claim(worker, targets=["job", ORCHESTRATION])
    assert claimed.target == "orchestration:o"
    assert claimed.plan == '{"pins":{}}'


async def test_an_answer_wakes_a_paused_run_and_its_next_attempt_has_it(store: Store) -> None:
    claimed = await paused(store)
    change = await answer_wait(store.database, claimed.run_id, "approve", {"ok": True}, "ada")
    assert change.status is Status.QUEUED
    assert change.ready_lanes == ("default",)
    (again,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    assert again.attempt == 2
    (wait,) = await read_waits(store.database, claimed.run_id)
    assert wait.answer == {"ok": True}
    assert wait.answered_by == "ada"
    await store.record(entry_of(again, settled=["approve"], steps=[done("approve", 1)]))
    assert await read_waits(store.database, claimed.run_id) == []
    assert "resumed" in await store.event_types(claimed.run_id)


async def test_two_answers_at_once_have_one_winner(store: Store) -> None:
    claimed = await paused(store)
    tries = [answer_wait(store.database, claimed.run_id, "approve", number, f"p{number}") for number in range(8)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(outcome, RunChange) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, WrongState) for outcome in outcomes) == 7
    assert (await store.event_types(claimed.run_id)).count("resumed") == 1


async def test_an_answer_while_the_run_is_busy_elsewhere_does_not_interrupt_it(store: Store) -> None:
    claimed = await begun(store)
    await store.record(entry_of(claimed, waits=[question()]))
    change = await answer_wait(store.database, claimed.run_id, "approve", "yes", "ada")
    assert change.status is Status.RUNNING
    # It pauses a moment too late: the answer exists, so it is ready again in the same transaction.
    verdicts = await store.record(entry_of(claimed, PAUSED))
    assert verdicts[claimed.run_id, 1].status is Status.QUEUED
    assert await store.status(claimed.run_id) is Status.QUEUED


async def test_a_question_that_is_over_takes_no_answer(store: Store) -> None:
    claimed = await paused(store, question(due_us=0))
    with pytest.raises(WrongState):
        await answer_wait(store.database, claimed.run_id, "approve", "late", "ada")
    other = await paused(store)
    await cancel_run(store.database, other.run_id)
    with pytest.raises(WrongState):
        await answer_wait(store.database, other.run_id, "approve", "late", "ada")
    (wait,) = await read_waits(store.database, other.run_id)
    assert not wait.answered


async def test_a_paused_run_is_woken_when_it_is_due_and_not_before(store: Store) -> None:
    soon = await paused(store, question(kind="time", due_us=0), delay_us=0)
    late = await paused(store, question(kind="time", due_us=60_000_000), delay_us=60_000_000)
    never = await paused(store)
    assert await store.database.transact(queue_due) == ["default"]
    assert await store.status(soon.run_id) is Status.QUEUED
    assert await store.status(late.run_id) is Status.PAUSED
    assert await store.status(never.run_id) is Status.PAUSED
    (wait,) = await read_waits(store.database, soon.run_id)
    assert wait.overdue


async def test_an_event_goes_to_the_step_that_waits_for_it(store: Store) -> None:
    claimed = await paused(store, question("paid", "event", name="payment"), question("else", "event", name="other"))
    change = await store_event(store.database, claimed.run_id, "payment", {"amount": 3}, "shop")
    assert change.status is Status.QUEUED
    waits = {wait.path: wait for wait in await read_waits(store.database, claimed.run_id)}
    assert waits["paid"].answer == {"amount": 3}
    assert not waits["else"].answered


async def test_an_early_event_is_kept_for_the_run_that_will_wait_for_it(store: Store) -> None:
    claimed = await begun(store)
    await store_event(store.database, claimed.run_id, "payment", 1, "shop")
    # This attempt does not wait for it, so it must not wake the run again and again.
    await store.record(entry_of(claimed, PAUSED, waits=[question()]))
    assert await store.status(claimed.run_id) is Status.PAUSED
    await answer_wait(store.database, claimed.run_id, "approve", "yes", "ada")
    (again,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    opened = [question("paid", "event", name="payment")]
    verdicts = await store.record(entry_of(again, PAUSED, waits=opened, settled=["approve"]))
    assert verdicts[claimed.run_id, 2].status is Status.QUEUED
    kinds = {wait.kind for wait in await read_waits(store.database, claimed.run_id)}
    assert kinds == {"event", "sent"}


async def test_events_that_no_run_waits_for_do_not_pile_up_without_end(store: Store) -> None:
    claimed = await begun(store)
    await store.sql(
        "insert into run_waits (run_id, path, tenant, target, kind, step_id, name, request, opened_at, answer, "
        "answered_at) "
        f"select '{claimed.run_id}', '.sent/' || path, 'default', 'o', 'sent', '', 'early', '{{}}', 1, '1', 1 from ("
        "with recursive n (path) as (select 1 union all select path + 1 from n "
        f"where path < {MAX_SENT - 1}) select path from n) as many"
    )
    await store_event(store.database, claimed.run_id, "early", 1, "ada")
    with pytest.raises(WrongState, match="for which no step has waited"):
        await store_event(store.database, claimed.run_id, "early", 2, "ada")
    # What a step waits for is not kept, so it still arrives.
    await store.record(entry_of(claimed, waits=[question("wait", "event", name="now")]))
    await store_event(store.database, claimed.run_id, "now", 3, "ada")
    waits = await read_waits(store.database, claimed.run_id)
    assert [wait.answer for wait in waits if wait.path == "wait"] == [3]


async def test_an_ended_run_takes_no_event(store: Store) -> None:
    claimed = await begun(store)
    await store.finish(claimed)
    with pytest.raises(WrongState):
        await store_event(store.database, claimed.run_id, "payment", 1, "shop")


async def test_a_question_is_asked_once_and_again_when_its_step_is_repeated(store: Store) -> None:
    claimed = await begun(store)
    await store.record(entry_of(claimed, waits=[question()]))
    await answer_wait(store.database, claimed.run_id, "approve", "yes", "ada")
    await store.record(entry_of(claimed, waits=[question()]))
    (wait,) = await read_waits(store.database, claimed.run_id)
    assert wait.answered
    await store.record(entry_of(claimed, settled=["approve"]))
    await store.record(entry_of(claimed, waits=[question()]))
    (wait,) = await read_waits(store.database, claimed.run_id)
    assert not wait.answered


async def test_the_fence_refuses_steps_and_questions_of_a_lost_attempt(store: Store) -> None:
    claimed = await paused(store)
    await answer_wait(store.database, claimed.run_id, "approve", "yes", "ada")
    assert await store.record(entry_of(claimed, waits=[question("more")], steps=[done("late", 1)])) == {}
    assert await read_replay_records(store.database, claimed.run_id) == []
    assert [wait.path for wait in await read_waits(store.database, claimed.run_id)] == ["approve"]


async def test_each_statement_has_the_fence_of_its_own(store: Store) -> None:
    """Even without RECORD before them, the statements that follow it refuse what another attempt writes."""
    claimed = await begun(store)
    await store.record(entry_of(claimed, waits=[question()]))
    before = await store.contents()
    lost = 7

    async def work(session: Session) -> None:
        await session.fetch(SETTLE_WAITS, [(claimed.run_id, "approve", lost)])
        await session.fetch(OPEN_WAITS, [question("other").row(claimed.run_id, lost)])
        await session.fetch(RECORD_STEPS, [done("a", 1).row(claimed.run_id, lost)])

    await store.database.transact(work)
    assert await store.contents() == before


async def read_inbox(
    database: Database, tenant: str | None, after: tuple[int, str, str] | None = None, limit: int = 100
) -> list[Wait]:
    return (await inbox.read_inbox(database, InboxFilter(tenant), after, limit))[0]


async def test_the_inbox_has_every_open_question_to_a_person_oldest_first(store: Store) -> None:
    runs = [(await paused(store)).run_id for _ in range(3)]
    await paused(store, question(kind="time"))
    ended = await paused(store)
    await cancel_run(store.database, ended.run_id)
    await answer_wait(store.database, runs[1], "approve", "yes", "ada")
    assert [wait.run_id for wait in await read_inbox(store.database, None)] == [runs[0], runs[2]]
    assert await read_inbox(store.database, "acme") == []
    (first,) = await read_inbox(store.database, "default", limit=1)
    (second,) = await read_inbox(store.database, "default", after=(first.opened_at_us, first.run_id, first.path))
    assert second.run_id == runs[2]


async def test_pages_of_the_inbox_may_end_between_questions_of_one_run(store: Store) -> None:
    claimed = await begun(store)
    asked = ["split/0/ask", "split/1/ask", "split/2/ask"]
    await store.record(entry_of(claimed, waits=[question(path) for path in asked]))
    await store.sql("update run_waits set opened_at = 5")
    found: list[str] = []
    after = None
    while page := await read_inbox(store.database, None, after=after, limit=1):
        found.append(page[0].path)
        after = (page[0].opened_at_us, page[0].run_id, page[0].path)
    assert found == asked


async def test_questions_that_can_no_longer_be_answered_are_not_in_the_inbox(store: Store) -> None:
    await paused(store)
    await store.sql("update run_waits set due_at = 5")
    assert await read_inbox(store.database, None) == []


async def test_a_snapshot_spares_the_records_before_it(store: Store) -> None:
    claimed = await begun(store)
    snapshot = StepRecord(SNAPSHOT_PATH, 2, "", "snapshot", StepOutcome.SNAPSHOT, output='{"v":1}')
    await store.record(entry_of(claimed, steps=[done("a", 1), done("b", 2), snapshot]))
    await store.record(entry_of(claimed, steps=[done("c", 3)]))
    assert [step.path for step in await read_replay_records(store.database, claimed.run_id)] == [SNAPSHOT_PATH, "c"]
    assert [step["path"] for step in await read_steps(store.database, claimed.run_id)] == ["a", "b", "c"]
    later = StepRecord(SNAPSHOT_PATH, 3, "", "snapshot", StepOutcome.SNAPSHOT, output='{"v":2}')
    await store.record(entry_of(claimed, steps=[later]))
    (only,) = await read_replay_records(store.database, claimed.run_id)
    assert only.output == '{"v":2}'


async def test_later_records_of_a_path_replace_earlier_ones_also_within_one_commit(store: Store) -> None:
    # A slow commit lets many steps gather: two snapshots, or two tries of one step.
    claimed = await begun(store)
    first, second = (
        StepRecord(SNAPSHOT_PATH, no, "", "snapshot", StepOutcome.SNAPSHOT, output=f'{{"v":{no}}}') for no in (2, 4)
    )
    steps = [retrying("a", 1), done("a", 2), first, done("b", 3), done("c", 4), second, done("d", 5)]
    await store.record(entry_of(claimed, steps=steps))
    assert [step.path for step in await read_replay_records(store.database, claimed.run_id)] == [SNAPSHOT_PATH, "d"]
    stored = await read_steps(store.database, claimed.run_id)
    assert [(step["path"], step["outcome"]) for step in stored] == [(path, "done") for path in "abcd"]


async def test_the_cost_of_every_try_of_a_step_counts(store: Store) -> None:
    claimed = await begun(store)
    await store.record(entry_of(claimed, steps=[retrying("a", 1), retrying("a", 2)]))
    await store.record(entry_of(claimed, steps=[retrying("a", 3)]))
    (step,) = await read_replay_records(store.database, claimed.run_id)
    assert (step.cost_usd, step.tokens) == (1.5, 15)
    await store.record(entry_of(claimed, steps=[done("a", 4, cost_usd=0.25, tokens=2)]))
    (step,) = await read_replay_records(store.database, claimed.run_id)
    assert (step.cost_usd, step.tokens) == (1.75, 17)
    failed = StepRecord("b", 5, "b", "llm", StepOutcome.FAILED, error="{}", cost_usd=1.0)
    await store.record(entry_of(claimed, steps=[failed]))
    await store.record(entry_of(claimed, steps=[done("b", 6)]))
    assert [(step.path, step.cost_usd) for step in await read_replay_records(store.database, claimed.run_id)] == [
        ("a", 1.75),
        ("b", 1.0),
    ]


async def test_a_fork_does_not_pay_for_the_tries_that_it_took_over(store: Store) -> None:
    claimed = await begun(store)
    await store.record(entry_of(claimed, steps=[retrying("a", 1), done("b", 2)]))
    fresh = new_run(target=claimed.target, plan='{"pins":{},"fork":{"edits":[]}}')
    await fork_run(store.database, claimed.run_id, 2, fresh, actor="test")
    (fork,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    await store.record(entry_of(fork, steps=[done("a", 2, cost_usd=0.25)]))
    costs = {step.path: step.cost_usd for step in await read_replay_records(store.database, fork.run_id)}
    assert costs["a"] == 0.25


async def test_a_fork_has_the_steps_before_the_chosen_one(store: Store) -> None:
    claimed = await begun(store)
    failed = StepRecord("d", 4, "d", "print", StepOutcome.FAILED, error="{}")
    await store.record(entry_of(claimed, steps=[done("a", 1), done("b", 2), done("c", 3), failed]))
    fresh = new_run(target=claimed.target, plan='{"pins":{},"fork":{"edits":[]}}')
    assert await step_number(store.database, claimed.run_id, "c") == 3
    accepted = await fork_run(store.database, claimed.run_id, 3, fresh, actor="test")
    copied = await read_replay_records(store.database, accepted.run_id)
    assert [(step.path, step.attempt) for step in copied] == [("a", 0), ("b", 0)]
    assert len(await read_replay_records(store.database, claimed.run_id)) == 4


async def test_running_time_is_that_of_the_ended_attempts(store: Store) -> None:
    claimed = await paused(store)
    assert 0 <= await running_seconds(store.database, claimed.run_id) < 60
    await store.sql("update run_attempts set started_at = ended_at - 5000000")
    assert await running_seconds(store.database, claimed.run_id) == 5.0


async def test_what_a_run_has_not_read_is_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reads all answers and stored events of a run at once."""
    monkeypatch.setattr(resume, "MAX_UNREAD_BYTES", 1000)
    claimed = await paused(store, question("ask"), question("pay", "event", name="payment"))
    for _ in range(3):
        await store_event(store.database, claimed.run_id, "other", "x" * 300, "test")
    for change in (
        store_event(store.database, claimed.run_id, "other", "x" * 300, "test"),
        store_event(store.database, claimed.run_id, "payment", "x" * 300, "test"),
        answer_wait(store.database, claimed.run_id, "ask", "x" * 300, "Ann"),
        answer_by_event(store.database, claimed.run_id, "pay", "event", "x" * 300),
    ):
        with pytest.raises(WrongState, match="has not read"):
            await change
    await answer_wait(store.database, claimed.run_id, "ask", "yes", "Ann")
    assert sum(wait.answered for wait in await read_waits(store.database, claimed.run_id)) == 4


async def test_one_large_answer_is_stored_if_nothing_else_is_unread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "MAX_UNREAD_BYTES", 1000)
    claimed = await paused(store)
    await answer_wait(store.database, claimed.run_id, "approve", "x" * 2000, "Ann")
    assert await store.status(claimed.run_id) is Status.QUEUED
