"""Takeover: find lost workers and move their runs.

A process that declares a worker lost holds the worker's lock, so that no claim of it is in progress, and moves its runs
in the same transaction: a run is never without an owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.events import EventType, Notice
from runlane.domain.run import RunHook, Status
from runlane.errors import Unavailable
from runlane.store.events.run_ends import hooks_of_end
from runlane.store.queue.claim_locks import worker_lock
from runlane.store.queue.limits import free_slots
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.record import AttemptOutcome, emit_done, end_attempts, store_results
from runlane.store.queue.run_ends import count_ended, settle_ended
from runlane.store.queue.workers import LIVE, micros
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import database_started_us, json_of, lit, member, now_us
from runlane.store.sql.schema import run_events, runs, workers
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.outbox import has_endpoints

# How long workers may take to reconnect after the database dropped all connections.
RECONNECT_SECONDS = 3
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker that may be lost. `expired` means that its lease has expired, which needs no other proof."""

    id: str
    expired: bool


@dataclass(frozen=True, slots=True)
class ReapedRuns:
    """The outcome for the runs of lost workers. `ended` are those that may not run again."""

    workers: tuple[str, ...]
    notices: tuple[Notice, ...]
    ready_lanes: tuple[str, ...]
    ended: tuple[str, ...]

    @property
    def runs(self) -> int:
        """The number of requeued runs."""
        return len(self.notices)


_SUSPECTS = Statement(
    "suspect_workers",
    select(workers.c.id, (workers.c.lease_until < now_us()).label("expired"), workers.c.has_lock)
    .where(
        workers.c.status.in_(LIVE),
        or_(
            workers.c.lease_until < now_us(),
            and_(
                workers.c.has_lock,
                bindparam("trust_locks", type_=Boolean()),
                # A server that has just started holds no locks; live workers need a moment to reconnect.
                database_started_us() < now_us() - lit(RECONNECT_SECONDS * 1_000_000),
                workers.c.heartbeat_at < now_us() - micros(bindparam("silence_seconds", type_=Float())),
            ),
        ),
    )
    .order_by(workers.c.id),
    purpose="Find workers whose lease has expired or whose heartbeat is late.",
)
# The conditions are checked again under the worker's lock, because the worker may have renewed its lease meanwhile.
_MARK_LOST = Statement(
    "mark_worker_lost",
    update(workers)
    .where(
        workers.c.id == bindparam("worker_id"),
        workers.c.status.in_(LIVE),
        or_(
            workers.c.lease_until < now_us(),
            and_(
                bindparam("lock_is_free", type_=Boolean()),
                workers.c.heartbeat_at < now_us() - micros(bindparam("silence_seconds", type_=Float())),
            ),
        ),
    )
    .values(status=lit("lost"), ended_at=now_us(), active=0)
    .returning(workers.c.id),
    purpose="Declare a worker lost, unless it has renewed its lease.",
)
_ORPHANS = Statement(
    "orphaned_workers",
    select(runs.c.worker_id)
    .where(
        runs.c.status == lit(Status.RUNNING),
        ~exists().where(workers.c.id == runs.c.worker_id, workers.c.status.in_(LIVE)),
    )
    .distinct()
    .limit(lit(100)),
    purpose="Find running runs whose workers are not live.",
)
_KEYS_THAT_END = Statement(
    "keys_of_ending_runs",
    select(runs.c.ordering_key).where(
        member(runs.c.worker_id, "worker_ids"),
        runs.c.status == lit(Status.RUNNING),
        runs.c.ordering_key.is_not(None),
        or_(runs.c.cancel_requested_at.is_not(None), runs.c.lone_losses >= runs.c.max_losses),
    ),
    purpose="Find the ordering keys of lost runs that will not be retried.",
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
    "tenant": Text(),
    "target": Text(),
    "hooks": SmallInteger(),
}
# The runs of a worker are counted before they are requeued: only a run that was alone is known to have lost its worker.
_TOGETHER = Statement(
    "runs_by_lost_worker",
    select(runs.c.worker_id, func.count().label("together"))
    .where(member(runs.c.worker_id, "worker_ids"), runs.c.status == lit(Status.RUNNING))
    .group_by(runs.c.worker_id),
    purpose="Count the runs that each lost worker was executing.",
)
# The first loss adds no delay. A run that loses further workers waits longer each time.
_DELAYS_SECONDS = (0, 1, 2, 4, 8)
_MAX_DELAY_SECONDS = 15


def _delay_us(lost_before: ColumnElement[int]) -> ColumnElement[int]:
    steps = [(lost_before == lit(number), lit(delay * _SECOND_US)) for number, delay in enumerate(_DELAYS_SECONDS)]
    return case(*steps, else_=lit(_MAX_DELAY_SECONDS * _SECOND_US))


def _max_neighbors(together: ColumnElement[int]) -> ColumnElement[int]:
    """Return with how many runs the run may share a worker: half as many as before, from its second loss on."""
    halved = case((together > lit(3), together // lit(2) - lit(1)), else_=lit(0))
    return case((runs.c.losses == lit(0), runs.c.max_neighbors), else_=halved)


def _take_back(batch: FromClause) -> Executable:
    together = batch.c.together
    alone = together == lit(1)
    delay_us = _delay_us(runs.c.losses)
    next_status = case(
        (runs.c.cancel_requested_at.is_not(None), lit(Status.CANCELLED)),
        (and_(alone, runs.c.lone_losses >= runs.c.max_losses), lit(Status.FAILED)),
        (delay_us > lit(0), lit(Status.SCHEDULED)),
        else_=lit(Status.QUEUED),
    )
    ends = next_status.in_([lit(Status.CANCELLED), lit(Status.FAILED)])
    return (
        update(runs)
        .where(runs.c.worker_id == batch.c.worker_id, runs.c.status == lit(Status.RUNNING))
        .values(
            status=next_status,
            losses=runs.c.losses + lit(1),
            lone_losses=runs.c.lone_losses + case((alone, lit(1)), else_=lit(0)),
            max_neighbors=_max_neighbors(together),
            due_at=case((next_status == lit(Status.SCHEDULED), now_us() + delay_us), else_=None),
            ended_at=case((ends, now_us()), else_=None),
            holds_key=case(
                (next_status == lit(Status.CANCELLED), False),
                (and_(next_status == lit(Status.FAILED), runs.c.on_dead == lit("skip")), False),
                else_=runs.c.holds_key,
            ),
            last_seq=runs.c.last_seq + lit(1) + case((ends, lit(1)), else_=lit(0)),
        )
        .returning(
            *(runs.c[name] for name in _TAKEN if name != "hooks"),
            hooks_of_end(),
            now_us().label("at"),
            lit(AttemptOutcome.LOST).label("outcome"),
            null().label("result"),
            json_of(
                type=lit("WorkerLost"),
                message=literal_column("'Worker '", Text())
                + runs.c.worker_id
                + literal_column("' vanished during the attempt.'", Text()),
                worker_id=runs.c.worker_id,
                losses=runs.c.losses,
                lone_losses=runs.c.lone_losses,
                max_losses=runs.c.max_losses,
            ).label("error"),
        )
    )


def _add_lost_events(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    closing = case((c.status.in_([lit(Status.CANCELLED), lit(Status.FAILED)]), lit(1)), else_=lit(0))
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


TAKE_BACK = CompoundWrite(
    "take_back_runs",
    _take_back,
    columns={"worker_id": Text(), "together": Integer()},
    returns={**_TAKEN, "at": BigInteger(), "outcome": Text(), "result": Text(), "error": Text()},
    links=[end_attempts, store_results, emit_done, _add_lost_events],
    final=lambda changed: select(changed, has_endpoints(changed.c.tenant).label("notifies")),
    purpose="Requeue or end the runs of lost workers.",
)


async def find_suspects(database: Database, silence_seconds: float, *, trust_locks: bool) -> list[Suspect]:
    """Return workers whose lease has expired, or whose heartbeat is late and whose lock shows whether they live."""
    rows = await read(database, _SUSPECTS, silence_seconds=silence_seconds, trust_locks=trust_locks)
    return [Suspect(row["id"], bool(row["expired"])) for row in rows]


async def declare_lost(session: Session, worker_id: str, silence_seconds: float, *, lock_is_free: bool) -> bool:
    """Mark a worker lost if it still qualifies. Never waits for a claim in progress; the next pass retries."""
    if not await session.try_lock(worker_lock(worker_id)):
        return False
    rows = await session.fetch(
        _MARK_LOST, worker_id=worker_id, silence_seconds=silence_seconds, lock_is_free=lock_is_free
    )
    return bool(rows)


async def find_orphans(session: Session) -> list[str]:
    """Return owners of running runs that are not live workers. This should not happen; their runs are requeued."""
    return [row["worker_id"] for row in await session.fetch(_ORPHANS)]


async def take_over(session: Session, worker_ids: Sequence[str]) -> ReapedRuns:
    """Requeue the runs of these workers with their old rank, or end those that may not run again.

    The loss counts against a run that was alone on its worker. If there were several runs, any of them may have ended
    the worker: from its second loss on, each of them may share a worker with at most half as many others as before,
    until it has been alone.
    """
    ids = session.texts(list(worker_ids))
    # Locks before rows, everywhere: a run that ends here passes its ordering key on. The others keep theirs, and a
    # lock for each of them could exceed the server's lock table when a whole cluster is lost.
    keys = {row["ordering_key"] for row in await session.fetch(_KEYS_THAT_END, worker_ids=ids)}
    await session.lock(exclusive=key_locks(keys))
    together = [(row["worker_id"], row["together"]) for row in await session.fetch(_TOGETHER, worker_ids=ids)]
    rows = await session.write(TAKE_BACK, together)
    ended = [row for row in rows if Status(row["status"]).terminal]
    if any(row["ordering_key"] is not None and row["ordering_key"] not in keys for row in ended):
        raise Unavailable("A run of a lost worker was cancelled at this moment; the next pass requeues it.")
    released = await settle_ended(session, ended)
    count_ended(ended)
    # A run that is queued again at once keeps its slots.
    delayed = [row["id"] for row in rows if row["status"] == Status.SCHEDULED and row["hooks"] & RunHook.LIMITS]
    await free_slots(session, delayed)
    ready = {row["lane"] for row in rows if row["status"] == Status.QUEUED}
    ready |= {item.lane for item in released if item.status is Status.QUEUED}
    notices = tuple(Notice(row["id"], row["last_seq"]) for row in rows)
    return ReapedRuns(tuple(worker_ids), notices, tuple(sorted(ready)), tuple(row["id"] for row in ended))
