"""The retry of failed runs: at once or later, on the same versions of their definitions or on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import (
    BigInteger,
    Integer,
    SmallInteger,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from runlane.domain.events import EventType
from runlane.domain.run import MIN_PRIORITY, PRIORITY_STEP_US, RunHook, Status
from runlane.errors import WrongState
from runlane.store.orchestration.steps import SNAPSHOT_PATH
from runlane.store.queue.dead_letters import letter_revived
from runlane.store.queue.flow_starts import take_unique_key
from runlane.store.queue.limits import queued_status, wait_for_limits
from runlane.store.queue.run_changes import (
    CHANGED,
    RunChange,
    append_event,
    audit_change,
    change_of,
    lock_key_of,
    operate,
    wrong_state,
)
from runlane.store.queue.start_tags import place_run
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import run_inputs, run_results, run_steps, runs
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.outbox import has_endpoints
from runlane.store.webhooks.run_messages import report_retried

_by_id = runs.c.id == bindparam("run_id")


@dataclass(frozen=True, slots=True)
class Revival:
    """How a failed run is retried: after a delay, with a lower priority, on other versions.

    `plan` replaces the stored plan of the run. It was computed from the records of this `attempt`; it is not used if
    the run has been retried since. With `of_letter`, its dead letter must still be one that may be retried.
    """

    delay_us: int = 0
    lowered_priority: int = 0
    plan: str | None = None
    attempt: int | None = None
    of_letter: bool = False


AS_BEFORE: Final = Revival()

_other = runs.alias("other")
_key_is_taken = and_(
    runs.c.ordering_key.is_not(None),
    ~runs.c.holds_key,
    exists().where(_other.c.ordering_key == runs.c.ordering_key, _other.c.holds_key),
)
_waiting = runs.alias("waiting")
_delay_us = bindparam("delay_us", type_=BigInteger())
_attempt = bindparam("attempt", type_=Integer())
_wished = cast(runs.c.priority - bindparam("lowered", type_=SmallInteger()), SmallInteger)
_lower = case((_wished < lit(MIN_PRIORITY), lit(MIN_PRIORITY)), else_=_wished)
_REVIVE = Statement(
    "retry_run",
    update(runs)
    .where(
        _by_id,
        runs.c.status == lit(Status.FAILED),
        or_(cast(_attempt, Integer).is_(None), runs.c.attempt == _attempt),
    )
    .values(
        status=case(
            (_key_is_taken, lit(Status.BLOCKED)),
            (_delay_us > lit(0), lit(Status.SCHEDULED)),
            else_=queued_status(),
        ),
        holds_key=and_(runs.c.ordering_key.is_not(None), ~_key_is_taken),
        key_no=func.coalesce(
            select(func.max(_waiting.c.key_no))
            .where(_waiting.c.ordering_key == runs.c.ordering_key, _waiting.c.status == lit(Status.BLOCKED))
            .scalar_subquery(),
            lit(0),
        )
        + lit(1),
        failures=0,
        losses=0,
        lone_losses=0,
        ended_at=None,
        due_at=case((_delay_us > lit(0), now_us() + _delay_us), else_=None),
        # A retried run is to be executed, so a request to cancel it that came too late no longer counts.
        cancel_requested_at=None,
        priority=_lower,
        # The change is relative, so that it does not depend on how the rank was computed.
        rank=runs.c.rank + cast(runs.c.priority - _lower, BigInteger) * lit(PRIORITY_STEP_US),
        hooks=runs.c.hooks.op("|")(lit(RunHook.DEAD_LETTER)),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*CHANGED, runs.c.target, has_endpoints(runs.c.tenant).label("notifies")),
    purpose="Make a failed run ready again.",
)
_DROP_RESULT = Statement(
    "delete_result",
    delete(run_results).where(run_results.c.run_id == bindparam("run_id")),
    purpose="Delete the result of a run that is retried.",
)
_NEW_PLAN = Statement(
    "replace_plan",
    update(run_inputs).where(run_inputs.c.run_id == bindparam("run_id")).values(plan=bindparam("plan")),
    purpose="Pin a retried run to other versions.",
)
_DROP_SNAPSHOT = Statement(
    "delete_snapshot",
    delete(run_steps).where(run_steps.c.run_id == bindparam("run_id"), run_steps.c.path == lit(SNAPSHOT_PATH)),
    purpose="Delete the snapshot of a run that continues on other versions.",
)


async def retry_run(database: Database, run_id: str, how: Revival = AS_BEFORE, *, actor: str = "local") -> RunChange:
    """Retry a failed run, with all its attempts. Its checkpoint, attempts and events are kept."""

    async def work(session: Session) -> RunChange:
        await lock_key_of(session, run_id)
        return await retry_in(session, run_id, how, actor=actor)

    return await operate(database, work)


async def retry_in(session: Session, run_id: str, how: Revival = AS_BEFORE, *, actor: str) -> RunChange:
    """Retry a failed run. UniqueConflict while another run with its unique key is open."""
    await take_unique_key(session, run_id)
    await place_run(session, run_id)
    parameters = {"delay_us": how.delay_us, "lowered": how.lowered_priority, "attempt": how.attempt}
    for row in await session.fetch(_REVIVE, run_id=run_id, **parameters):
        # The run waits by age and priority, so that a replay of many runs does not delay all new runs of their key.
        await wait_for_limits(session, [row], again=False)
        if row["hooks"] & RunHook.THREAD:
            # Imported here: a worker without graphs is smaller without it.
            from runlane.store.threads.run_ends import reopen_thread

            await reopen_thread(session, run_id, row["ordering_key"])
        await session.fetch(_DROP_RESULT, run_id=run_id)
        if how.plan is not None:
            await session.fetch(_NEW_PLAN, run_id=run_id, plan=how.plan)
            await session.fetch(_DROP_SNAPSHOT, run_id=run_id)
        if not await letter_revived(session, run_id, actor, only_retryable=how.of_letter) and how.of_letter:
            raise WrongState(f"The dead letter of run {run_id} was changed at the same time. Read it again.")
        before = {"status": Status.FAILED.value, "tenant": row["tenant"]}
        await audit_change(session, actor, "run.retry", run_id, before, {"status": row["status"]})
        await append_event(session, row, EventType.REVIVED, {"status": row["status"]})
        if row["notifies"]:
            await report_retried(session, row)
        change = change_of(row, [])
        return replace(change, due_seconds=how.delay_us / 1_000_000) if how.delay_us else change
    raise await wrong_state(session, run_id, "Only a failed run can be retried")
