"""The retry of a dead letter: resume its run, restart it as a new one, or fork it at a step.

All reads happen before the transaction. The transaction makes the change and updates the state of the letter.
"""

from __future__ import annotations

from typing import NamedTuple

from runlane.domain.dead_letter import MAX_DEATHS, RETRYABLE, LetterState, RetryKind
from runlane.domain.run import MIN_PRIORITY, Status
from runlane.errors import InvalidRequest, WrongState
from runlane.failures.options import LetterRetry, RetryOptions
from runlane.store.access.audit import append_audit
from runlane.store.access.tenants import tenant_lock
from runlane.store.failures.handling import wrong_letter_state
from runlane.store.failures.letters import LetterNotFound, find_letter, find_letter_in
from runlane.store.orchestration.fork import repeat_in
from runlane.store.queue.accept import NewRun
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.revival import Revival, retry_in
from runlane.store.queue.run_changes import RunChange, free_key_in, lock_key_of, operate
from runlane.store.sql.database import Database, Session
from runlane.store.sql.statement import Row
from runlane.submit.repeats import forked_run, restarted_run


class DiedTooOften(WrongState):
    """The run failed for good too often, so a bulk retry leaves it out."""

    code = "died_too_often"


class PreparedRetry(NamedTuple):
    """The writes of a retry: a revival of the run, or a new run with the records of the old one before a number."""

    revival: Revival | None = None
    new_run: NewRun | None = None
    before: int | None = None


async def retry_letter(database: Database, run_id: str, how: LetterRetry, *, actor: str) -> RunChange:
    """Retry one dead letter."""
    prepared = await prepare_letter(database, run_id, how, how.delay_us(1, 1))

    async def work(session: Session) -> RunChange:
        await lock_retry(session, run_id, prepared)
        return await retry_letter_in(session, run_id, prepared, actor=actor)

    return await operate(database, work)


async def prepare_letter(
    database: Database, run_id: str, how: LetterRetry, delay_us: int, *, guard: bool = False
) -> PreparedRetry:
    """Prepare a retry. With `guard`, a run that failed for good too often is refused, unless it is forced."""
    letter = await find_letter(database, run_id)
    if letter is None:
        raise LetterNotFound(run_id)
    _check_state(letter)
    if guard and not how.force and letter["times_died"] >= MAX_DEATHS:
        raise DiedTooOften(
            f"Run {run_id} failed for good {letter['times_died']} times. Repair the cause first, or pass force."
        )
    match how.kind:
        case RetryKind.RESUME:
            return await prepare_revival(database, run_id, how, delay_us, of_letter=True)
        case RetryKind.RESTART:
            lowered = how.lower_priority
            return PreparedRetry(
                new_run=await restarted_run(database, run_id, delay_us=delay_us, lowered_priority=lowered)
            )
        case RetryKind.FORK:
            path = how.from_step or letter["last_step"]
            if path is None:
                raise InvalidRequest(f"Run {run_id} has no failed step to fork at. Name one as from_step.")
            no, fresh = await forked_run(database, run_id, path, how.state, latest=how.latest)
            return PreparedRetry(
                new_run=fresh._replace(
                    delay_us=delay_us, priority=max(MIN_PRIORITY, fresh.priority - how.lower_priority)
                ),
                before=no,
            )


async def prepare_revival(
    database: Database, run_id: str, how: RetryOptions, delay_us: int, *, of_letter: bool = False
) -> PreparedRetry:
    """Prepare the retry of the run itself. With `of_letter`, its letter must not be handled before the transaction."""
    if not how.latest:
        return PreparedRetry(Revival(delay_us, how.lower_priority, of_letter=of_letter))
    from runlane.submit.repair import latest_plan

    plan, attempt = await latest_plan(database, run_id)
    return PreparedRetry(Revival(delay_us, how.lower_priority, plan, attempt, of_letter))


async def lock_retry(session: Session, run_id: str, prepared: PreparedRetry) -> None:
    """Take the locks of a retry, before any row."""
    if prepared.new_run is None:
        await lock_key_of(session, run_id)
        return
    fresh = prepared.new_run
    # The tenant's lock too: if it has limits, accepting the run needs it.
    await session.lock(exclusive=[*accept_locks([fresh]), tenant_lock(fresh.tenant)])


async def retry_letter_in(session: Session, run_id: str, prepared: PreparedRetry, *, actor: str) -> RunChange:
    """Retry a letter. The caller holds the locks of `lock_retry`."""
    if prepared.revival is not None:
        return await retry_in(session, run_id, prepared.revival, actor=actor)
    fresh = prepared.new_run
    assert fresh is not None  # noqa: S101 - a retry revives a run or starts one
    if fresh.ordering_key is not None:
        # The new run takes the place of the old one, which may block its ordering key.
        await free_key_in(session, run_id)
    accepted = await repeat_in(session, run_id, fresh, before=prepared.before, actor=actor)
    letter = await find_letter_in(session, run_id)
    if letter is None or letter["retry_run_id"] != fresh.id:
        raise WrongState(f"The dead letter of run {run_id} was changed at the same time. Read it again.")
    await append_audit(
        session,
        actor=actor,
        tenant=letter["tenant"],
        action="dead_letter.retrying",
        subject=run_id,
        new={"state": LetterState.RETRYING.value, "retry_run_id": fresh.id},
    )
    ready = (accepted.lane,) if accepted.status is Status.QUEUED else ()
    due = fresh.delay_us / 1_000_000 if fresh.delay_us else None
    return RunChange(run_id, accepted.status, ready_lanes=ready, due_seconds=due, new_run_id=fresh.id)


def _check_state(letter: Row) -> None:
    if letter["state"] not in RETRYABLE:
        raise wrong_letter_state(letter, LetterState.RETRYING, RETRYABLE)
