"""Runs: reading them, and the changes that people make to them.

Each change names the state it expects; when no row changes, the run was elsewhere and the error says where.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Integer,
    SmallInteger,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from runlane.domain.events import EventType, Notice
from runlane.domain.run import PRIORITY_STEP_US, Run, Status
from runlane.domain.tenant import DEFAULT_TENANT, bare_key, scoped_key
from runlane.domain.text import dump_json, load_json
from runlane.errors import RunNotFound, WrongState
from runlane.failpoints import failpoint
from runlane.store.access.audit import append_audit
from runlane.store.orchestration.children import MARK_CHILDREN
from runlane.store.queue.attempts import STARTED_AT
from runlane.store.queue.dead_letters import UNBURY
from runlane.store.queue.events import append
from runlane.store.queue.ordering import ReleasedRun, key_locks, release_next
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import by_key_only, lit, member, now_us
from runlane.store.sql.schema import run_inputs, run_results, runs
from runlane.store.sql.statement import Row, Statement

_EVERY_STATUS = tuple(status.value for status in Status)
_WAITING = [lit(status) for status in Status if status.waiting]
_by_id = runs.c.id == bindparam("run_id")
_changed = (runs.c.id, runs.c.lane, runs.c.status, runs.c.attempt, runs.c.last_seq, runs.c.ordering_key)


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a change did: the run's status now, and the lanes in which a run became ready."""

    run_id: str
    status: Status
    worker_id: str | None = None
    ready_lanes: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()


_holder = runs.alias("holder")
# By the unique index on holders, and only for a run that is blocked.
_blocked_by = (
    select(_holder.c.id)
    .where(
        runs.c.status == lit(Status.BLOCKED),
        _holder.c.ordering_key == runs.c.ordering_key,
        _holder.c.holds_key,
        _holder.c.id != runs.c.id,
    )
    .correlate(runs)
    .scalar_subquery()
    .label("blocked_by")
)
_READ = Statement(
    "read_run",
    select(
        runs,
        run_inputs.c.input,
        run_inputs.c.plan,
        run_results.c.result,
        run_results.c.error,
        run_results.c.state,
        _blocked_by,
        STARTED_AT,
    )
    .select_from(
        runs.outerjoin(run_inputs, run_inputs.c.run_id == runs.c.id).outerjoin(
            run_results, run_results.c.run_id == runs.c.id
        )
    )
    .where(_by_id),
)


def _optional(name: str, column: Any) -> Any:
    wanted = bindparam(name, type_=Text())
    return or_(cast(wanted, Text).is_(None), column == wanted)


_LIST = Statement(
    "list_runs",
    select(runs, STARTED_AT)
    .where(
        or_(
            cast(bindparam("before", type_=Text()), Text).is_(None),
            runs.c.id < bindparam("before", type_=Text()),
        ),
        member(runs.c.status, "statuses"),
        _optional("lane", runs.c.lane),
        _optional("target", runs.c.target),
        _optional("ordering_key", runs.c.ordering_key),
        _optional("tenant", runs.c.tenant),
    )
    .order_by(runs.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
)

_KEY_OF = Statement(
    "key_of_run",
    select(runs.c.ordering_key, runs.c.status, runs.c.worker_id, runs.c.tenant, runs.c.priority).where(_by_id),
)
_HOLD_STILL = Statement("hold_run_still", select(runs.c.id).where(_by_id).with_for_update())
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
)
_CANCEL_RUNNING = Statement(
    "cancel_running",
    update(runs)
    .where(_by_id, by_key_only(runs.c.status) == lit(Status.RUNNING), runs.c.cancel_requested_at.is_(None))
    .values(cancel_requested_at=now_us(), last_seq=runs.c.last_seq + lit(1))
    .returning(*_changed),
)
_STORE_NO_RESULT = Statement("store_no_result", insert(run_results).values(run_id=bindparam("run_id")))
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
)
_other = runs.alias("other")
_key_is_taken = and_(
    runs.c.ordering_key.is_not(None),
    ~runs.c.holds_key,
    exists().where(_other.c.ordering_key == runs.c.ordering_key, _other.c.holds_key),
)
_waiting = runs.alias("waiting")
_REVIVE = Statement(
    "revive",
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
        # Whoever retries it wants it to run: an earlier request to cancel, which came too late, is over.
        cancel_requested_at=None,
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(*_changed),
)
_DROP_RESULT = Statement("drop_result", delete(run_results).where(run_results.c.run_id == bindparam("run_id")))
_FREE_KEY = Statement(
    "free_key",
    update(runs)
    .where(_by_id, runs.c.status == lit(Status.FAILED), runs.c.holds_key)
    .values(holds_key=False)
    .returning(*_changed),
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
)


async def find_run(database: Database, run_id: str) -> Run:
    """A run with its input and result."""
    rows = await read(database, _READ, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return run_value(rows[0], whole=True)


async def list_runs(
    database: Database,
    *,
    statuses: Sequence[str] = (),
    lane: str | None = None,
    target: str | None = None,
    ordering_key: str | None = None,
    tenant: str | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[Run]:
    """The newest runs that fit, without input and result; `before` is the last id of the page before.

    Without statuses, runs of every status fit. An ordering key is looked for in one tenant: in the default one if
    none is given.
    """

    async def work(session: Session) -> list[Run]:
        rows = await session.fetch(
            _LIST,
            statuses=session.texts(statuses or _EVERY_STATUS),
            lane=lane,
            target=target,
            ordering_key=None if ordering_key is None else scoped_key(tenant or DEFAULT_TENANT, ordering_key),
            tenant=tenant,
            before=before,
            limit=limit,
        )
        return [run_value(row, whole=False) for row in rows]

    return await database.transact(work)


async def cancel_run(database: Database, run_id: str, *, actor: str = "local") -> RunChange:
    """Cancel a run that has not ended; asking twice is harmless. WrongState for one that completed or failed.

    The runs that it has started are cancelled by a duty, once this one has ended as cancelled.
    """

    async def work(session: Session) -> RunChange:
        await _lock_key_of(session, run_id)
        # Between the two statements a running run could be put back and get away from both.
        if not await session.fetch(_HOLD_STILL, run_id=run_id):
            raise RunNotFound(run_id)
        before = (await session.fetch(_KEY_OF, run_id=run_id))[0]
        if Status(before["status"]) in (Status.COMPLETED, Status.FAILED):
            raise await _wrong_state(session, run_id, "Only a run that has not ended can be cancelled")
        await session.fetch(MARK_CHILDREN, run_id=run_id)
        for row in await session.fetch(_CANCEL_WAITING, run_id=run_id):
            await _audit(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
            await session.fetch(_STORE_NO_RESULT, run_id=run_id)
            await _tell(session, row, EventType.DONE, {"status": Status.CANCELLED.value})
            released = await release_next(session, [row["ordering_key"]] if row["ordering_key"] else [])
            return _change(row, released)
        notices: list[Notice] = []
        for row in await session.fetch(_CANCEL_RUNNING, run_id=run_id):
            await _audit(session, actor, "run.cancel", run_id, before, {"status": row["status"]})
            await _tell(session, row, EventType.CANCEL_REQUESTED, {})
            notices.append(Notice(run_id, row["last_seq"]))
        current = (await session.fetch(_KEY_OF, run_id=run_id))[0]
        return RunChange(run_id, Status(current["status"]), worker_id=current["worker_id"], notices=tuple(notices))

    return await operate(database, work)


async def approve_run(database: Database, run_id: str) -> RunChange:
    """Let a held run go."""

    async def work(session: Session) -> RunChange:
        for row in await session.fetch(_APPROVE, run_id=run_id):
            await _tell(session, row, EventType.APPROVED, {"status": row["status"]})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only a run that awaits approval can be approved")

    return await operate(database, work)


async def retry_run(database: Database, run_id: str) -> RunChange:
    """Give a dead run its attempts again. Its checkpoint, attempts and events are kept."""

    async def work(session: Session) -> RunChange:
        await _lock_key_of(session, run_id)
        for row in await session.fetch(_REVIVE, run_id=run_id):
            await session.fetch(_DROP_RESULT, run_id=run_id)
            await session.fetch(UNBURY, run_id=run_id)
            await _tell(session, row, EventType.REVIVED, {"status": row["status"]})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only a failed run can be retried")

    return await operate(database, work)


async def release_run(database: Database, run_id: str) -> RunChange:
    """Let the runs behind a dead one go on that was accepted with on_dead=block."""

    async def work(session: Session) -> RunChange:
        key = await _lock_key_of(session, run_id)
        for row in await session.fetch(_FREE_KEY, run_id=run_id):
            return _change(row, await release_next(session, [key] if key else []))
        raise await _wrong_state(session, run_id, "Only a failed run that blocks its ordering key can be released")

    return await operate(database, work)


async def set_priority(database: Database, run_id: str, priority: int, *, actor: str = "local") -> RunChange:
    """Move a waiting run to the place it would have had with this priority."""

    async def work(session: Session) -> RunChange:
        before = await session.fetch(_KEY_OF, run_id=run_id)
        for row in await session.fetch(_PRIORITY, run_id=run_id, priority=priority):
            await _audit(session, actor, "run.priority", run_id, before[0], {"priority": priority})
            return _change(row, [])
        raise await _wrong_state(session, run_id, "Only a waiting run has a place that priority can change")

    return await operate(database, work)


async def operate(database: Database, work: Callable[[Session], Awaitable[RunChange]]) -> RunChange:
    """Make a change that somebody outside asked for."""

    async def probed(session: Session) -> RunChange:
        change = await work(session)
        failpoint("operate.before_commit")
        return change

    change = await database.transact(probed)
    failpoint("operate.committed")
    return change


def run_value(row: Row, *, whole: bool) -> Run:
    """A run as readers see it."""
    plan: dict[str, Any] = (_loaded(row, "plan") if whole else None) or {}
    fork: dict[str, Any] | None = plan.get("fork")
    return Run(
        id=row["id"],
        target=row["target"],
        lane=row["lane"],
        status=Status(row["status"]),
        priority=row["priority"],
        attempt=row["attempt"],
        failures=row["failures"],
        losses=row["losses"],
        max_attempts=row["max_attempts"],
        ordering_key=None if row["ordering_key"] is None else bare_key(row["ordering_key"]),
        accepted_at_us=row["accepted_at"],
        due_at_us=row["due_at"],
        claimed_at_us=row["claimed_at"],
        ended_at_us=row["ended_at"],
        cancel_requested_at_us=row["cancel_requested_at"],
        worker_id=row["worker_id"],
        last_seq=row["last_seq"],
        progress=row["progress"],
        progress_note=row["progress_note"],
        input=_loaded(row, "input") if whole else None,
        result=_loaded(row, "result") if whole else None,
        error=_loaded(row, "error") if whole else None,
        state=_loaded(row, "state") if whole else None,
        plan=plan or None,
        definition=plan.get("pins", {}).get(row["target"]),
        forked_from=None if fork is None else {"run_id": fork["run_id"], "from_step": fork["path"]},
        parent=plan.get("parent"),
        tenant=row["tenant"],
        first_seq=row["first_seq"],
        blocked_by=row["blocked_by"] if whole else None,
        started_at_us=row["started_at"],
    )


def _loaded(row: Row, name: str) -> Any:
    text = row[name]
    return None if text is None else load_json(text)


async def _lock_key_of(session: Session, run_id: str) -> str | None:
    rows = await session.fetch(_KEY_OF, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    await session.lock(exclusive=key_locks([rows[0]["ordering_key"]]))
    return rows[0]["ordering_key"]


async def _tell(session: Session, row: Row, kind: EventType, data: dict[str, Any]) -> None:
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
