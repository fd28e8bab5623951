"""Workers: their registration, their lease, and the taking over of their runs when they are gone.

A worker's row is written by the worker alone while it lives. Whoever declares it gone holds the worker's lock, so
that no claim of it is under way, and moves its runs in the same transaction: a run is never without an owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.errors import Unavailable
from runlane.model.event import EventType, Notice
from runlane.model.run import Status
from runlane.model.text import dump_json, load_json
from runlane.store.chain import Chain
from runlane.store.claim import worker_lock
from runlane.store.database import Database, Session, read
from runlane.store.expressions import database_started_us, json_of, lit, member, now_us
from runlane.store.ordering import key_locks
from runlane.store.record import Outcome, end_attempts, say_done, settle, store_results
from runlane.store.schema import run_events, runs, workers
from runlane.store.statement import Statement

# How long workers may take to come back after the database dropped all connections.
RECONNECT_SECONDS = 3

_LIVE = (lit("online"), lit("draining"))
_by_id = workers.c.id == bindparam("worker_id")
_seconds = bindparam("lease_seconds", type_=Float())


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as operators see it. `targets` is None when it did not tell what it can execute."""

    id: str
    status: str
    host: str
    pid: int
    version: str
    lanes: tuple[str, ...]
    capacity: int
    active: int
    started_at_us: int
    heartbeat_at_us: int
    lease_until_us: int
    ended_at_us: int | None
    targets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker that may be gone. `expired` means that its lease is over, which needs no other proof."""

    id: str
    expired: bool


@dataclass(frozen=True, slots=True)
class TakeOver:
    """What became of the runs of workers that are gone."""

    workers: tuple[str, ...]
    notices: tuple[Notice, ...]
    ready_lanes: tuple[str, ...]

    @property
    def runs(self) -> int:
        """How many runs moved."""
        return len(self.notices)


def _micros(seconds: Any) -> Any:
    return cast(seconds * 1_000_000, BigInteger)


_REGISTER = Statement(
    "register_worker",
    insert(workers).from_select(
        [
            "id", "status", "host", "pid", "version", "lanes", "capacity", "has_lock", "started_at",
            "heartbeat_at", "lease_until", "targets",
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
            now_us() + _micros(_seconds),
            bindparam("targets", type_=Text()),
        ),
    ),
)  # fmt: skip
HEARTBEAT = Statement(
    "heartbeat",
    update(workers)
    .where(_by_id, workers.c.status.in_(_LIVE))
    .values(
        heartbeat_at=now_us(),
        lease_until=now_us() + _micros(_seconds),
        active=bindparam("active", type_=Integer()),
    )
    .returning(workers.c.status),
)
_CANCELS = Statement(
    "read_cancels",
    select(runs.c.id, runs.c.attempt).where(
        runs.c.worker_id == bindparam("worker_id"),
        runs.c.status == lit(Status.RUNNING),
        runs.c.cancel_requested_at.is_not(None),
    ),
)
_BEGIN_DRAINING = Statement(
    "begin_draining",
    update(workers).where(_by_id, workers.c.status.in_(_LIVE)).values(status=lit("draining")).returning(workers.c.id),
)
_SIGN_OFF = Statement(
    "sign_off_worker",
    update(workers)
    .where(
        _by_id,
        workers.c.status.in_(_LIVE),
        ~exists().where(runs.c.worker_id == workers.c.id, runs.c.status == lit(Status.RUNNING)),
    )
    .values(status=lit("offline"), ended_at=now_us(), active=0)
    .returning(workers.c.id),
)
_SUSPECTS = Statement(
    "suspect_workers",
    select(workers.c.id, (workers.c.lease_until < now_us()).label("expired"), workers.c.has_lock)
    .where(
        workers.c.status.in_(_LIVE),
        or_(
            workers.c.lease_until < now_us(),
            and_(
                workers.c.has_lock,
                bindparam("trust_locks", type_=Boolean()),
                # A server that just started has dropped everybody's lock; the living need a moment to return.
                database_started_us() < now_us() - lit(RECONNECT_SECONDS * 1_000_000),
                workers.c.heartbeat_at < now_us() - _micros(bindparam("silence_seconds", type_=Float())),
            ),
        ),
    )
    .order_by(workers.c.id),
)
# The conditions are checked again under the worker's lock: it may have renewed meanwhile.
_MARK_LOST = Statement(
    "mark_worker_lost",
    update(workers)
    .where(
        _by_id,
        workers.c.status.in_(_LIVE),
        or_(
            workers.c.lease_until < now_us(),
            and_(
                bindparam("lock_is_free", type_=Boolean()),
                workers.c.heartbeat_at < now_us() - _micros(bindparam("silence_seconds", type_=Float())),
            ),
        ),
    )
    .values(status=lit("lost"), ended_at=now_us(), active=0)
    .returning(workers.c.id),
)
_ORPHANS = Statement(
    "orphaned_workers",
    select(runs.c.worker_id)
    .where(
        runs.c.status == lit(Status.RUNNING),
        ~exists().where(workers.c.id == runs.c.worker_id, workers.c.status.in_(_LIVE)),
    )
    .distinct()
    .limit(lit(100)),
)
_RUNS_OF = Statement(
    "runs_of_workers",
    select(runs.c.id, runs.c.attempt).where(
        member(runs.c.worker_id, "worker_ids"), runs.c.status == lit(Status.RUNNING)
    ),
)
_KEYS_THAT_END = Statement(
    "keys_that_end",
    select(runs.c.ordering_key).where(
        member(runs.c.worker_id, "worker_ids"),
        runs.c.status == lit(Status.RUNNING),
        runs.c.ordering_key.is_not(None),
        or_(runs.c.cancel_requested_at.is_not(None), runs.c.losses >= runs.c.max_losses),
    ),
)
_TAKEN = {
    "id": Text(),
    "lane": Text(),
    "status": Text(),
    "attempt": Integer(),
    "last_seq": Integer(),
    "worker_id": Text(),
    "claimed_at": BigInteger(),
    "ordering_key": Text(),
    "holds_key": Boolean(),
}
_next_status = case(
    (runs.c.cancel_requested_at.is_not(None), lit(Status.CANCELLED)),
    (runs.c.losses >= runs.c.max_losses, lit(Status.FAILED)),
    else_=lit(Status.QUEUED),
)
_ends = _next_status != lit(Status.QUEUED)
_take_back = (
    update(runs)
    .where(member(runs.c.worker_id, "worker_ids"), runs.c.status == lit(Status.RUNNING))
    .values(
        status=_next_status,
        losses=runs.c.losses + lit(1),
        ended_at=case((_ends, now_us()), else_=None),
        holds_key=case(
            (_next_status == lit(Status.CANCELLED), False),
            (and_(_next_status == lit(Status.FAILED), runs.c.on_dead == lit("skip")), False),
            else_=runs.c.holds_key,
        ),
        last_seq=runs.c.last_seq + lit(1) + case((_ends, lit(1)), else_=lit(0)),
    )
    .returning(
        *(runs.c[name] for name in _TAKEN),
        now_us().label("at"),
        lit(Outcome.LOST).label("outcome"),
        null().label("result"),
        json_of(
            type=lit("WorkerLost"),
            message=literal_column("'Worker '", Text())
            + runs.c.worker_id
            + literal_column("' vanished during the attempt.'", Text()),
            worker_id=runs.c.worker_id,
            losses=runs.c.losses,
            max_losses=runs.c.max_losses,
        ).label("error"),
    )
)


def _say_lost(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    closing = case((c.status == lit(Status.QUEUED), lit(0)), else_=lit(1))
    return insert(run_events).from_select(
        ["run_id", "seq", "attempt", "type", "at", "data"],
        select(
            c.id,
            c.last_seq - closing,
            c.attempt,
            lit(EventType.WORKER_LOST),
            c.at,
            json_of(worker_id=c.worker_id, status=c.status),
        ).select_from(changed),
    )


TAKE_BACK = Chain(
    "take_back_runs",
    _take_back,
    returns={**_TAKEN, "at": BigInteger(), "outcome": Text(), "result": Text(), "error": Text()},
    links=[end_attempts, store_results, say_done, _say_lost],
)
_LIST = Statement(
    "list_workers",
    select(workers)
    .where(or_(workers.c.status.in_(_LIVE), bindparam("all", type_=Boolean())))
    .order_by(workers.c.id.desc())
    .limit(lit(500)),
)
FORGET = Statement(
    "forget_workers",
    delete(workers).where(
        workers.c.status.in_([lit("lost"), lit("offline")]),
        workers.c.ended_at < now_us() - _micros(bindparam("keep_seconds", type_=Float())),
        ~exists().where(runs.c.worker_id == workers.c.id, runs.c.status == lit(Status.RUNNING)),
    ),
)


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
) -> None:
    """Write the row of a worker that holds its liveness lock, if it has one, already."""
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
    )


async def renew(
    database: Database, worker_id: str, lease_seconds: float, active: int
) -> Sequence[tuple[str, int]] | None:
    """Renew the lease; None when the worker was declared gone, else the runs somebody asked to cancel."""

    async def work(session: Session) -> Sequence[tuple[str, int]] | None:
        if not await session.fetch(HEARTBEAT, worker_id=worker_id, lease_seconds=lease_seconds, active=active):
            return None
        if not active:
            return ()
        return [(row["id"], row["attempt"]) for row in await session.fetch(_CANCELS, worker_id=worker_id)]

    return await database.transact(work)


async def begin_draining(database: Database, worker_id: str) -> None:
    """Tell everybody that the worker claims nothing more."""
    await read(database, _BEGIN_DRAINING, worker_id=worker_id)


async def sign_off(database: Database, worker_id: str) -> bool:
    """Mark the worker offline, unless runs are still its own: those are the reaper's to move."""
    return bool(await read(database, _SIGN_OFF, worker_id=worker_id))


async def find_suspects(database: Database, silence_seconds: float, *, trust_locks: bool) -> list[Suspect]:
    """Workers whose lease is over or that are silent although they hold a lock."""
    rows = await read(database, _SUSPECTS, silence_seconds=silence_seconds, trust_locks=trust_locks)
    return [Suspect(row["id"], bool(row["expired"])) for row in rows]


async def declare_lost(session: Session, worker_id: str, silence_seconds: float, *, lock_is_free: bool) -> bool:
    """Mark a worker lost if it still looks so. Never waits for a claim that is under way: the next round will do."""
    if not await session.try_lock(worker_lock(worker_id)):
        return False
    rows = await session.fetch(
        _MARK_LOST, worker_id=worker_id, silence_seconds=silence_seconds, lock_is_free=lock_is_free
    )
    return bool(rows)


async def owned_runs(database: Database, worker_id: str) -> set[tuple[str, int]]:
    """The running runs of a worker, with their attempts."""

    async def work(session: Session) -> set[tuple[str, int]]:
        rows = await session.fetch(_RUNS_OF, worker_ids=session.texts([worker_id]))
        return {(row["id"], row["attempt"]) for row in rows}

    return await database.transact(work)


async def find_orphans(session: Session) -> list[str]:
    """Owners of running runs that are no live workers. There should be none; if there are, their runs must move."""
    return [row["worker_id"] for row in await session.fetch(_ORPHANS)]


async def take_over(session: Session, worker_ids: Sequence[str]) -> TakeOver:
    """Put the runs of these workers back at their old place, or end those that may not run again."""
    ids = session.texts(list(worker_ids))
    # Locks before rows, everywhere: a run that ends here hands its ordering key on. The others keep theirs, and a
    # lock for each of them could be more than the server has room for when a whole cluster vanishes.
    keys = {row["ordering_key"] for row in await session.fetch(_KEYS_THAT_END, worker_ids=ids)}
    await session.lock(exclusive=key_locks(keys))
    rows = await session.chain(TAKE_BACK, worker_ids=ids)
    ended = [row for row in rows if Status(row["status"]).terminal]
    if any(row["ordering_key"] is not None and row["ordering_key"] not in keys for row in ended):
        raise Unavailable("A run of a vanished worker was cancelled at this moment; the next round moves it.")
    released = await settle(session, ended)
    ready = {row["lane"] for row in rows if row["status"] == Status.QUEUED}
    ready |= {item.lane for item in released if item.status is Status.QUEUED}
    notices = tuple(Notice(row["id"], row["last_seq"]) for row in rows)
    return TakeOver(tuple(worker_ids), notices, tuple(sorted(ready)))


async def list_workers(database: Database, *, gone_too: bool = False) -> list[WorkerRow]:
    """The live workers, newest first; with `gone_too` also those that ended and are not yet forgotten."""
    return [
        WorkerRow(
            id=row["id"],
            status=row["status"],
            host=row["host"],
            pid=row["pid"],
            version=row["version"],
            lanes=tuple(load_json(row["lanes"])),
            capacity=row["capacity"],
            active=row["active"],
            started_at_us=row["started_at"],
            heartbeat_at_us=row["heartbeat_at"],
            lease_until_us=row["lease_until"],
            ended_at_us=row["ended_at"],
            targets=None if row["targets"] is None else tuple(load_json(row["targets"])),
        )
        for row in await read(database, _LIST, all=gone_too)
    ]
