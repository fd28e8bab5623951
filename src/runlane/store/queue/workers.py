"""Workers: their registration, lease and end. While a worker lives, only the worker itself writes its row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    null,
    or_,
    select,
    update,
)

from runlane.domain.run import Status
from runlane.domain.text import dump_json, load_json
from runlane.domain.views import WorkerInfo
from runlane.observability.process_usage import Usage
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import lanes, runs, workers
from runlane.store.sql.statement import Row, Statement

LIVE = (lit("online"), lit("draining"))
_by_id = workers.c.id == bindparam("worker_id")
_seconds = bindparam("lease_seconds", type_=Float())


def micros(seconds: Any) -> Any:
    """Return seconds as microseconds, inside a statement."""
    return cast(seconds * 1_000_000, BigInteger)


_REGISTER = Statement(
    "register_worker",
    insert(workers).from_select(
        [
            "id", "status", "host", "pid", "version", "lanes", "capacity", "has_lock", "started_at",
            "heartbeat_at", "lease_until", "targets", "health_address", "python",
        ],
        select(
            bindparam("worker_id", type_=Text()),
            lit("online"),
            bindparam("host", type_=Text()),
            bindparam("pid", type_=Integer()),
            bindparam("version", type_=Text()),
            bindparam("lanes", type_=Text()),
            bindparam("capacity", type_=Integer()),
            bindparam("has_lock", type_=Boolean()),
            now_us(),
            now_us(),
            now_us() + micros(_seconds),
            bindparam("targets", type_=Text()),
            bindparam("health_address", type_=Text()),
            bindparam("python", type_=Text()),
        ),
    ), purpose="Register a worker.",
)  # fmt: skip
HEARTBEAT = Statement(
    "heartbeat",
    update(workers)
    .where(_by_id, workers.c.status.in_(LIVE))
    .values(
        heartbeat_at=now_us(),
        lease_until=now_us() + micros(_seconds),
        active=bindparam("active", type_=Integer()),
        memory_bytes=bindparam("memory_bytes", type_=BigInteger()),
        cpu_percent=bindparam("cpu_percent", type_=Float()),
    )
    .returning(workers.c.drain_requested_at),
    purpose="Renew the lease of a worker.",
)
_stale_minutes = select(lanes.c.stale_timeout_minutes).where(lanes.c.name == runs.c.lane).scalar_subquery()
# A record of an earlier attempt is older than the claim.
_last_sign_of_life = case(
    (runs.c.recorded_at > runs.c.claimed_at, runs.c.recorded_at),
    else_=runs.c.claimed_at,
)
# Lanes are read only if one of them has a timeout.
_is_stale = and_(
    exists().where(lanes.c.stale_timeout_minutes.is_not(None)),
    _last_sign_of_life < now_us() - _stale_minutes * lit(60_000_000),
)
_INTERRUPTS = Statement(
    "read_interrupts",
    select(
        runs.c.id,
        runs.c.attempt,
        case((runs.c.cancel_requested_at.is_(None), _stale_minutes), else_=null()).label("stale_minutes"),
    ).where(
        runs.c.worker_id == bindparam("worker_id"),
        runs.c.status == lit(Status.RUNNING),
        or_(runs.c.cancel_requested_at.is_not(None), _is_stale),
    ),
    purpose="Find the runs of a worker that are to be cancelled, and those without progress for too long.",
)
_BEGIN_DRAINING = Statement(
    "begin_draining",
    update(workers)
    .where(_by_id, workers.c.status.in_(LIVE))
    .values(status=lit("draining"), drain_until=now_us() + micros(bindparam("grace_seconds", type_=Float())))
    .returning(workers.c.id),
    purpose="Note that a worker is draining.",
)
_SIGN_OFF = Statement(
    "sign_off_worker",
    update(workers)
    .where(
        _by_id,
        workers.c.status.in_(LIVE),
        ~exists().where(runs.c.worker_id == workers.c.id, runs.c.status == lit(Status.RUNNING)),
    )
    .values(status=lit("offline"), ended_at=now_us(), active=0)
    .returning(workers.c.id),
    purpose="Note that a worker has stopped.",
)
_RUNS_OF = Statement(
    "runs_of_workers",
    select(runs.c.id, runs.c.attempt).where(
        member(runs.c.worker_id, "worker_ids"), runs.c.status == lit(Status.RUNNING)
    ),
    purpose="Read the running runs of workers.",
)
_LIST = Statement(
    "list_workers",
    select(workers)
    .where(or_(workers.c.status.in_(LIVE), bindparam("all", type_=Boolean())))
    .order_by(workers.c.id.desc())
    .limit(lit(500)),
    purpose="Read workers, newest first.",
)
CAPACITY = Statement(
    "slots_of_workers",
    select(func.coalesce(func.sum(workers.c.capacity), lit(0)).label("slots")).where(workers.c.status.in_(LIVE)),
    purpose="Read the capacity of live workers.",
)
DELETE_OLD_WORKERS = Statement(
    "delete_old_workers",
    delete(workers).where(
        workers.c.status.in_([lit("lost"), lit("offline")]),
        workers.c.ended_at < now_us() - micros(bindparam("keep_seconds", type_=Float())),
        ~exists().where(runs.c.worker_id == workers.c.id, runs.c.status == lit(Status.RUNNING)),
    ),
    purpose="Delete the rows of workers that ended long ago.",
)


class Interrupt(NamedTuple):
    """An attempt to interrupt: its run was cancelled, or was without progress for this many minutes."""

    run_id: str
    attempt: int
    stale_minutes: int | None = None


async def register(
    database: Database,
    *,
    worker_id: str,
    host: str,
    pid: int,
    version: str,
    lanes: Sequence[str],
    capacity: int,
    has_lock: bool,
    lease_seconds: float,
    targets: Sequence[str] | None = None,
    health_address: str | None = None,
    python: str | None = None,
) -> None:
    """Write the row of a worker that already holds its liveness lock, if it has one."""
    await read(
        database,
        _REGISTER,
        worker_id=worker_id,
        host=host,
        pid=pid,
        version=version,
        lanes=dump_json(list(lanes)),
        capacity=capacity,
        has_lock=has_lock,
        lease_seconds=lease_seconds,
        targets=None if targets is None else dump_json(list(targets)),
        health_address=health_address,
        python=python,
    )


async def renew(
    database: Database,
    worker_id: str,
    lease_seconds: float,
    active: int,
    usage: Usage | None = None,
    then: Callable[[Session], Awaitable[None]] | None = None,
    on_drain: Callable[[bool], None] | None = None,
) -> Sequence[Interrupt] | None:
    """Renew the lease; return the runs of the worker to interrupt, or None if the worker was declared lost.

    `then` reads more in the same transaction. `on_drain` is called with whether an operator drains the worker.
    """

    async def work(session: Session) -> Sequence[Interrupt] | None:
        used = {"memory_bytes": None, "cpu_percent": None} if usage is None else usage._asdict()
        given = {"worker_id": worker_id, "lease_seconds": lease_seconds, "active": active}
        renewed = await session.fetch(HEARTBEAT, **given, **used)
        if not renewed:
            return None
        if on_drain is not None:
            on_drain(renewed[0]["drain_requested_at"] is not None)
        rows = await session.fetch(_INTERRUPTS, worker_id=worker_id) if active else ()
        if then is not None:
            await then(session)
        return [Interrupt(row["id"], row["attempt"], row["stale_minutes"]) for row in rows]

    return await database.transact(work)


async def begin_draining(database: Database, worker_id: str, grace_seconds: float) -> None:
    """Store that the worker claims nothing more, and when its grace period ends."""
    await read(database, _BEGIN_DRAINING, worker_id=worker_id, grace_seconds=grace_seconds)


async def sign_off(database: Database, worker_id: str) -> bool:
    """Mark the worker offline, unless it still owns runs, which the reaper requeues."""
    return bool(await read(database, _SIGN_OFF, worker_id=worker_id))


async def owned_runs(database: Database, worker_id: str) -> set[tuple[str, int]]:
    """Return the running runs of a worker, with their attempts."""

    async def work(session: Session) -> set[tuple[str, int]]:
        rows = await session.fetch(_RUNS_OF, worker_ids=session.texts([worker_id]))
        return {(row["id"], row["attempt"]) for row in rows}

    return await database.transact(work)


async def list_workers(database: Database, *, gone_too: bool = False) -> list[WorkerInfo]:
    """Return the live workers, newest first; with `gone_too` also those that ended and are not deleted yet."""
    return [worker_of(row) for row in await read(database, _LIST, all=gone_too)]


def worker_of(row: Row) -> WorkerInfo:
    """Return the worker of a row. One that an operator drains is shown as such, though its claims see it online."""
    drained = row["status"] == "online" and row["drain_requested_at"] is not None
    return from_row(
        WorkerInfo,
        row,
        status="draining" if drained else row["status"],
        lanes=tuple(load_json(row["lanes"])),
        targets=None if row["targets"] is None else tuple(load_json(row["targets"])),
    )
