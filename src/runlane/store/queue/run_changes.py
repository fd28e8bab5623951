"""Changes of runs by operators and callers.

Each change names the state that it expects; when no row changes, the error reports the state of the run. The functions
`*_in` make a change within a transaction whose caller holds the lock of the run's ordering key (`lock_key_of`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, SmallInteger, bindparam, case, cast, func, insert, select, update

from runlane.domain.events import EventType, Notice
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.errors import RunNotFound, WrongState
from runlane.failpoints import failpoint
from runlane.store.access.audit import append_audit
from runlane.store.events.run_ends import hooks_of_end
from runlane.store.orchestration.children import MARK_CHILDREN
from runlane.store.queue.events import append
from runlane.store.queue.limits import move_place, queued_status, wait_for_limits
from runlane.store.queue.ordering import ReleasedRun, key_locks, release_next
from runlane.store.queue.run_ends import count_ended, settle_ended
from runlane.store.queue.start_tags import place_run, point_in_lane
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import by_key_only, lit, now_us
from runlane.store.sql.schema import run_results, runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import has_endpoints

_WAITING = [lit(status) for status in Status if status.waiting]
_by_id = runs.c.id == bindparam("run_id")
CHANGED = (
    runs.c.id,
    runs.c.lane,
    runs.c.status,
    runs.c.attempt,
    runs.c.last_seq,
    runs.c.ordering_key,
    runs.c.holds_key,
    runs.c.tenant,
    hooks_of_end(),
)
_notifies = has_endpoints(runs.c.tenant).label("notifies")


@dataclass(frozen=True, slots=True)
class RunChange:
    """The result of a change: the run's status, and the lanes in which a run became ready.

    `due_seconds` is the time until a scheduled run is due. `new_run_id` is the run that the change has started.
    """

    run_id: str
    status: Status
    worker_id: str | None = None
    ready_lanes: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    due_seconds: float | None = None
    new_run_id: str | None = None


_KEY_OF = Statement(
    "key_of_run",
    select(
        runs.c.ordering_key,
        runs.c.status,
        runs.c.worker_id,
        runs.c.tenant,
        runs.c.priority,
        runs.c.lane,
        runs.c.start_tag,
    ).where(_by_id),
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
    .returning(*CHANGED, runs.c.target, _notifies),
    purpose="Cancel a run that no worker is executing.",
)
_CANCEL_RUNNING = Statement(
    "cancel_running",
    update(runs)
    .where(_by_id, by_key_only(runs.c.status) == lit(Status.RUNNING), runs.c.cancel_requested_at.is_(None))
    .values(cancel_requested_at=now_us(), last_seq=runs.c.last_seq + lit(1))
    .returning(*CHANGED),
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
            else_=queued_status(),
        ),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*CHANGED),
    purpose="Release a run that waits for approval.",
)
_FREE_KEY = Statement(
    "free_key",
    update(runs)
    .where(_by_id, runs.c.status == lit(Status.FAILED), runs.c.holds_key)
    .values(holds_key=False)
    .returning(*CHANGED),
    purpose="Take the ordering key from a failed run.",
)
_PRIORITY = Statement(
    "set_priority",
    update(runs)
    .where(_by_id, runs.c.status.in_(_WAITING))
    .values(
        priority=bindparam("priority", type_=SmallInteger()),
        rank=func.coalesce(runs.c.start_tag, runs.c.accepted_at)
        - cast(bindparam("priority", type_=SmallInteger()), BigInteger) * bindparam("point", type_=BigInteger()),
    )
    .returning(*CHANGED),
    purpose="Change the priority of a waiting run.",
)
_MOVE = Statement(
    "move_run",
    update(runs).where(_by_id, runs.c.status.in_(_WAITING)).values(lane=bindparam("lane")).returning(*CHANGED),
    purpose="Move a waiting run to another lane.",
)


async def cancel_run(database: Database, run_id: str, *, actor: str = "local") -> RunChange:
    """Cancel a run that has not ended. Repeating is harmless. WrongState for one that completed or failed.

    The child canceller cancels its child runs, once this one has ended as cancelled.
    """

    async def work(session: Session) -> RunChange:
        await lock_key_of(session, run_id)
        return await cancel_in(session, run_id, actor=actor)

    return await operate(database, work)


async def cancel_in(session: Session, run_id: str, *, actor: str) -> RunChange:
    """Cancel a run that has not ended."""
    # Without the lock, a running run could be requeued between the two statements and escape both.
    if not await session.fetch(_LOCK_RUN, run_id=run_id):
        raise RunNotFound(run_id)
    before = (await session.fetch(_KEY_OF, run_id=run_id))[0]
    if Status(before["status"]) in (Status.COMPLETED, Status.FAILED):
        raise await wrong_state(session, run_id, "Only a run that has not ended can be cancelled")
    await session.fetch(MARK_CHILDREN, run_id=run_id)
    for row in await session.fetch(_CANCEL_WAITING, run_id=run_id):
        await audit_change(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
        await session.fetch(_STORE_NO_RESULT, run_id=run_id)
        await append_event(session, row, EventType.DONE, {"status": Status.CANCELLED.value})
        count_ended([row])
        return change_of(row, await settle_ended(session, [row]))
    notices: list[Notice] = []
    for row in await session.fetch(_CANCEL_RUNNING, run_id=run_id):
        await audit_change(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
        await append_event(session, row, EventType.CANCEL_REQUESTED, {})
        notices.append(Notice(run_id, row["last_seq"]))
    current = (await session.fetch(_KEY_OF, run_id=run_id))[0]
    return RunChange(run_id, Status(current["status"]), worker_id=current["worker_id"], notices=tuple(notices))


async def approve_run(database: Database, run_id: str) -> RunChange:
    """Start a held run."""

    async def work(session: Session) -> RunChange:
        await place_run(session, run_id)
        for row in await session.fetch(_APPROVE, run_id=run_id):
            await wait_for_limits(session, [row])
            await append_event(session, row, EventType.APPROVED, {"status": row["status"]})
            return change_of(row, [])
        raise await wrong_state(session, run_id, "Only a run that awaits approval can be approved")

    return await operate(database, work)


async def release_run(database: Database, run_id: str) -> RunChange:
    """Unblock the runs queued behind a failed run that was accepted with on_dead=block."""

    async def work(session: Session) -> RunChange:
        await lock_key_of(session, run_id)
        change = await release_in(session, run_id)
        if change is None:
            raise await wrong_state(session, run_id, "Only a failed run that blocks its ordering key can be released")
        return change

    return await operate(database, work)


async def release_in(session: Session, run_id: str) -> RunChange | None:
    """Take the ordering key from a failed run and give it to the next one; None if the run does not hold a key."""
    for row in await session.fetch(_FREE_KEY, run_id=run_id):
        return change_of(row, await release_next(session, [row["ordering_key"]]))
    return None


async def free_key_in(session: Session, run_id: str) -> None:
    """Take the ordering key from a failed run, for a run that takes its place in this transaction."""
    await session.fetch(_FREE_KEY, run_id=run_id)


async def set_priority(database: Database, run_id: str, priority: int, *, actor: str = "local") -> RunChange:
    """Change the priority of a waiting run; it gets the rank that it would have had with this priority."""
    return await operate(database, lambda session: set_priority_in(session, run_id, priority, actor=actor))


async def set_priority_in(session: Session, run_id: str, priority: int, *, actor: str) -> RunChange:
    """Change the priority of a waiting run."""
    await session.fetch(_LOCK_RUN, run_id=run_id)
    before = await session.fetch(_KEY_OF, run_id=run_id)
    if not before:
        raise RunNotFound(run_id)
    point = await point_in_lane(session, before[0]["lane"], has_tag=before[0]["start_tag"] is not None)
    for row in await session.fetch(_PRIORITY, run_id=run_id, priority=priority, point=point):
        await audit_change(session, actor, "run.priority", run_id, before[0], {"priority": priority})
        await move_place(session, row, before[0]["priority"], priority)
        return change_of(row, [])
    raise await wrong_state(session, run_id, "Only the priority of a waiting run can be changed")


async def move_in(session: Session, run_id: str, lane: str, *, actor: str) -> RunChange:
    """Move a waiting run to another lane, which exists."""
    before = await session.fetch(_KEY_OF, run_id=run_id)
    for row in await session.fetch(_MOVE, run_id=run_id, lane=lane):
        await audit_change(session, actor, "run.lane", run_id, before[0], {"lane": lane})
        return change_of(row, [])
    raise await wrong_state(session, run_id, "Only a waiting run can be moved to another lane")


async def operate(database: Database, work: Callable[[Session], Awaitable[RunChange]]) -> RunChange:
    """Make a change that a caller requested."""

    async def probed(session: Session) -> RunChange:
        change = await work(session)
        failpoint("operate.before_commit")
        return change

    change = await database.transact(probed)
    failpoint("operate.committed")
    return change


async def lock_key_of(session: Session, run_id: str) -> str | None:
    """Lock the ordering key of a run, if it has one. RunNotFound if the run does not exist."""
    rows = await session.fetch(_KEY_OF, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    await session.lock(exclusive=key_locks([rows[0]["ordering_key"]]))
    return rows[0]["ordering_key"]


async def append_event(session: Session, row: Row, kind: EventType, data: dict[str, Any]) -> None:
    """Add an event to a changed run; its number is the last one of the row."""
    await append(session, [(row["id"], row["last_seq"], row["attempt"], kind.value, None, dump_json(data))])


def change_of(row: Row, released: Sequence[ReleasedRun]) -> RunChange:
    """Return the result of a change, with the runs that obtained its ordering key."""
    status = Status(row["status"])
    lanes = [item.lane for item in released if item.status is Status.QUEUED]
    if status is Status.QUEUED:
        lanes.append(row["lane"])
    notices = (Notice(row["id"], row["last_seq"]), *(Notice(item.run_id, item.last_seq) for item in released))
    return RunChange(row["id"], status, ready_lanes=tuple(lanes), notices=notices)


async def audit_change(
    session: Session, actor: str, action: str, run_id: str, before: Row, new: Mapping[str, Any]
) -> None:
    """Add the audit entry of a change; `before` has the old values and the tenant."""
    old = {name: before[name] for name in new}
    await append_audit(session, actor=actor, tenant=before["tenant"], action=action, subject=run_id, old=old, new=new)


async def wrong_state(session: Session, run_id: str, rule: str) -> Exception:
    """Return the error for a run whose status does not allow a change."""
    rows = await session.fetch(_KEY_OF, run_id=run_id)
    if not rows:
        return RunNotFound(run_id)
    return WrongState(f"Run {run_id} is {rows[0]['status']}. {rule}.")
