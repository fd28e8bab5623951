"""Changes of runs by operators and callers.

Each change names the state that it expects; when no row changes, the error reports the state of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    SmallInteger,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from runlane.domain.events import EventType, Notice
from runlane.domain.run import PRIORITY_STEP_US, Status
from runlane.domain.text import dump_json
from runlane.errors import RunNotFound, WrongState
from runlane.failpoints import failpoint
from runlane.store.access.audit import append_audit
from runlane.store.orchestration.children import MARK_CHILDREN
from runlane.store.queue.dead_letters import DELETE_DEAD_LETTER
from runlane.store.queue.events import append
from runlane.store.queue.ordering import ReleasedRun, key_locks, release_next
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import by_key_only, lit, now_us
from runlane.store.sql.schema import run_results, runs
from runlane.store.sql.statement import Row, Statement

_WAITING = [lit(status) for status in Status if status.waiting]
_by_id = runs.c.id == bindparam("run_id")
_changed = (runs.c.id, runs.c.lane, runs.c.status, runs.c.attempt, runs.c.last_seq, runs.c.ordering_key)


@dataclass(frozen=True, slots=True)
class RunChange:
    """The result of a change: the run's status, and the lanes in which a run became ready."""

    run_id: str
    status: Status
    worker_id: str | None = None
    ready_lanes: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()


_KEY_OF = Statement(
    "key_of_run",
    select(runs.c.ordering_key, runs.c.status, runs.c.worker_id, runs.c.tenant, runs.c.priority).where(_by_id),
    purpose="Read the ordering key of a run.",
)
_LOCK_RUN = Statement(
    "lock_run", select(runs.c.id).where(_by_id).with_for_update(), purpose="Lock a run while it is changed."
)
_CANCEL_WAITING = Statement(
    "cancel_waiting",
    update(runs)
    .where(_by_id, runs.c.status.in_(_WAITING))
    .values(
        status=lit(Status.CANCELLED),
        cancel_requested_at=now_us(),
        ended_at=now_us(),
        holds_key=False,
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*_changed),
    purpose="Cancel a run that no worker is executing.",
)
_CANCEL_RUNNING = Statement(
    "cancel_running",
    update(runs)
    .where(_by_id, by_key_only(runs.c.status) == lit(Status.RUNNING), runs.c.cancel_requested_at.is_(None))
    .values(cancel_requested_at=now_us(), last_seq=runs.c.last_seq + lit(1))
    .returning(*_changed),
    purpose="Request the cancellation of a running run.",
)
_STORE_NO_RESULT = Statement(
    "store_no_result",
    insert(run_results).values(run_id=bindparam("run_id")),
    purpose="Store the empty result of a cancelled run.",
)
_APPROVE = Statement(
    "approve",
    update(runs)
    .where(
        _by_id,
        runs.c.hold,
        runs.c.status.in_([lit(Status.AWAITING_APPROVAL), lit(Status.BLOCKED)]),
    )
    .values(
        hold=False,
        status=case(
            (runs.c.status == lit(Status.BLOCKED), lit(Status.BLOCKED)),
            (runs.c.due_at > now_us(), lit(Status.SCHEDULED)),
            else_=lit(Status.QUEUED),
        ),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*_changed),
    purpose="Release a run that waits for approval.",
)
_other = runs.alias("other")
_key_is_taken = and_(
    runs.c.ordering_key.is_not(None),
    ~runs.c.holds_key,
    exists().where(_other.c.ordering_key == runs.c.ordering_key, _other.c.holds_key),
)
_waiting = runs.alias("waiting")
_REVIVE = Statement(
    "retry_run",
    update(runs)
    .where(_by_id, runs.c.status == lit(Status.FAILED))
    .values(
        status=case((_key_is_taken, lit(Status.BLOCKED)), else_=lit(Status.QUEUED)),
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
        due_at=None,
        # A retried run is to be executed, so an earlier cancellation that came too late is void.
        cancel_requested_at=None,
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*_changed),
    purpose="Make a failed or cancelled run ready again.",
)
_DROP_RESULT = Statement(
    "delete_result",
    delete(run_results).where(run_results.c.run_id == bindparam("run_id")),
    purpose="Delete the result of a run that is retried.",
)
_FREE_KEY = Statement(
    "free_key",
    update(runs)
    .where(_by_id, runs.c.status == lit(Status.FAILED), runs.c.holds_key)
    .values(holds_key=False)
    .returning(*_changed),
    purpose="Take the ordering key from a failed run.",
)
_PRIORITY = Statement(
    "set_priority",
    update(runs)
    .where(_by_id, runs.c.status.in_(_WAITING))
    .values(
        priority=bindparam("priority", type_=SmallInteger()),
        rank=runs.c.accepted_at - cast(bindparam("priority", type_=SmallInteger()), BigInteger) * lit(PRIORITY_STEP_US),
    )
    .returning(*_changed),
    purpose="Change the priority of a waiting run.",
)


async def cancel_run(database: Database, run_id: str, *, actor: str = "local") -> RunChange:
    """Cancel a run that has not ended. Repeating is harmless. WrongState for one that completed or failed.

    The child canceller cancels its child runs, once this one has ended as cancelled.
    """

    async def work(session: Session) -> RunChange:
        await _lock_key_of(session, run_id)
        # Between the two statements a running run could be requeued and escape both.
        if not await session.fetch(_LOCK_RUN, run_id=run_id):
            raise RunNotFound(run_id)
        before = (await session.fetch(_KEY_OF, run_id=run_id))[0]
        if Status(before["status"]) in (Status.COMPLETED, Status.FAILED):
            raise await _wrong_state(session, run_id, "Only a run that has not ended can be cancelled")
        await session.fetch(MARK_CHILDREN, run_id=run_id)
        for row in await session.fetch(_CANCEL_WAITING, run_id=run_id):
            await _audit(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
            await session.fetch(_STORE_NO_RESULT, run_id=run_id)
            await _append_event(session, row, EventType.DONE, {"status": Status.CANCELLED.value})
            released = await release_next(session, [row["ordering_key"]] if row["ordering_key"] else [])
            return _change(row, released)
        notices: list[Notice] = []
        for row in await session.fetch(_CANCEL_RUNNING, run_id=run_id):
            await _audit(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
            await _append_event(session, row, EventType.CANCEL_REQUESTED, {})
            notices.append(Notice(run_id, row["last_seq"]))
        current = (await session.fetch(_KEY_OF, run_id=run_id))[0]
        return RunChange(run_id, Status(current["status"]), worker_id=current["worker_id"], notices=tuple(notices))

    return await operate(database, work)


async def approve_run(database: Database, run_id: str) -> RunChange:
    """Start a held run."""

    async def work(session: Session) -> RunChange:
        for row in await session.fetch(_APPROVE, run_id=run_id):
            await _append_event(session, row, EventType.APPROVED, {"status": row["status"]})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only a run that awaits approval can be approved")

    return await operate(database, work)


async def retry_run(database: Database, run_id: str) -> RunChange:
    """Retry a failed run, with all its attempts. Its checkpoint, attempts and events are kept."""

    async def work(session: Session) -> RunChange:
        await _lock_key_of(session, run_id)
        for row in await session.fetch(_REVIVE, run_id=run_id):
            await session.fetch(_DROP_RESULT, run_id=run_id)
            await session.fetch(DELETE_DEAD_LETTER, run_id=run_id)
            await _append_event(session, row, EventType.REVIVED, {"status": row["status"]})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only a failed run can be retried")

    return await operate(database, work)


async def release_run(database: Database, run_id: str) -> RunChange:
    """Unblock the runs queued behind a failed run that was accepted with on_dead=block."""

    async def work(session: Session) -> RunChange:
        key = await _lock_key_of(session, run_id)
        for row in await session.fetch(_FREE_KEY, run_id=run_id):
            return _change(row, await release_next(session, [key] if key else []))
        raise await _wrong_state(session, run_id, "Only a failed run that blocks its ordering key can be released")

    return await operate(database, work)


async def set_priority(database: Database, run_id: str, priority: int, *, actor: str = "local") -> RunChange:
    """Change the priority of a waiting run, which gets the rank that it would have had with it."""

    async def work(session: Session) -> RunChange:
        before = await session.fetch(_KEY_OF, run_id=run_id)
        for row in await session.fetch(_PRIORITY, run_id=run_id, priority=priority):
            await _audit(session, actor, "run.priority", run_id, before[0], {"priority": priority})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only the priority of a waiting run can be changed")

    return await operate(database, work)


async def operate(database: Database, work: Callable[[Session], Awaitable[RunChange]]) -> RunChange:
    """Make a change that a caller requested."""

    async def probed(session: Session) -> RunChange:
        change = await work(session)
        failpoint("operate.before_commit")
        return change

    change = await database.transact(probed)
    failpoint("operate.committed")
    return change


async def _lock_key_of(session: Session, run_id: str) -> str | None:
    rows = await session.fetch(_KEY_OF, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    await session.lock(exclusive=key_locks([rows[0]["ordering_key"]]))
    return rows[0]["ordering_key"]


async def _append_event(session: Session, row: Row, kind: EventType, data: dict[str, Any]) -> None:
    await append(session, [(row["id"], row["last_seq"], row["attempt"], kind.value, None, dump_json(data))])


def _change(row: Row, released: Sequence[ReleasedRun]) -> RunChange:
    status = Status(row["status"])
    lanes = [item.lane for item in released if item.status is Status.QUEUED]
    if status is Status.QUEUED:
        lanes.append(row["lane"])
    notices = (Notice(row["id"], row["last_seq"]), *(Notice(item.run_id, item.last_seq) for item in released))
    return RunChange(row["id"], status, ready_lanes=tuple(lanes), notices=notices)


async def _audit(session: Session, actor: str, action: str, run_id: str, before: Row, new: Mapping[str, Any]) -> None:
    old = {name: before[name] for name in new}
    await append_audit(session, actor=actor, tenant=before["tenant"], action=action, subject=run_id, old=old, new=new)


async def _wrong_state(session: Session, run_id: str, rule: str) -> Exception:
    rows = await session.fetch(_KEY_OF, run_id=run_id)
    if not rows:
        return RunNotFound(run_id)
    return WrongState(f"Run {run_id} is {rows[0]['status']}. {rule}.")
