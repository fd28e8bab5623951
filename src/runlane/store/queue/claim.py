"""Claim as many ready runs as a worker has free slots, within the bounds of their lanes and tenants.

The locks of lanes and tenants make their bounds exact: a claim holds them shared, or exclusively where there is a
bound, while it reads the bound and takes runs; a change of a lane or a tenant holds its lock exclusively. The worker's
lock keeps the reaper from declaring the worker lost during its claim, which would leave runs without an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.events import EventType, Notice, StoredEvent
from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.domain.slots import Quarantined, Queue, QueueKey, SlotCap, WorkerLoad, share_slots
from runlane.domain.text import load_json
from runlane.store.orchestration.steps import CHECKPOINT_PATH
from runlane.store.queue.claim_locks import FIRST_LOCKS, ClaimLocks, LaneMemory, worker_lock
from runlane.store.queue.claim_survey import (
    LANES,
    LANES_OF_SOME,
    LIMITED,
    LIMITED_OF_SOME,
    MAX_LANES,
    MAX_QUEUES,
    OURS,
    QUARANTINED,
    QUARANTINED_OF_SOME,
    READY,
    READY_LIMITED,
    READY_QUARANTINED,
)
from runlane.store.queue.early_ends import may_start
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import MARK, json_of, lit, member, now_us
from runlane.store.sql.schema import lanes, run_events, run_inputs, run_steps, runs, workers
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import has_endpoints
from runlane.store.webhooks.run_messages import report_started


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this worker owns until it finishes, or until the fence rejects a write."""

    run_id: str
    target: str
    lane: str
    attempt: int
    failures: int
    max_attempts: int
    ordering_key: str | None
    accepted_at_us: int
    claimed_at_us: int
    input: str
    saved: str | None
    notice: Notice
    tenant: str = "default"
    trace: str | None = None
    plan: str | None = None
    max_neighbors: int | None = None
    losses: int = 0
    origin: str | None = None

    @property
    def tries(self) -> int:
        """The number of this try; claims after a pause or a handover do not count."""
        return self.failures + self.losses + 1


# For a quarantined run that has waited this long, one worker claims no other runs until it can execute this one.
_MAX_WAIT_US = 5_000_000
_POLL_MS = 250


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """`alive` is False when the worker has been declared lost; `again` when a lane could not be served yet."""

    claims: Sequence[Claimed]
    alive: bool
    again: bool


_CLAIMED = {
    "id": Text(),
    "target": Text(),
    "lane": Text(),
    "rank": BigInteger(),
    "attempt": Integer(),
    "failures": Integer(),
    "losses": Integer(),
    "max_attempts": Integer(),
    "ordering_key": Text(),
    "accepted_at": BigInteger(),
    "claimed_at": BigInteger(),
    "last_seq": Integer(),
    "worker_id": Text(),
    "tenant": Text(),
    "max_neighbors": Integer(),
}


def _take(*conditions: ColumnElement[bool]) -> Executable:
    picked = (
        select(runs.c.id)
        .where(*conditions, may_start())
        .order_by(runs.c.rank)
        .limit(bindparam("slots", type_=Integer()))
        .with_for_update(skip_locked=True)
        .cte("picked")
    )
    return (
        update(runs)
        .where(runs.c.id == picked.c.id)
        .values(
            status=lit(Status.RUNNING),
            worker_id=bindparam("worker_id"),
            attempt=runs.c.attempt + lit(1),
            claimed_at=now_us(),
            last_seq=runs.c.last_seq + lit(1),
            due_at=None,
            progress=None,
            progress_note=None,
        )
        .returning(*(runs.c[name] for name in _CLAIMED), MARK)
    )


def _add_events(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    return insert(run_events).from_select(
        ["run_id", "seq", "attempt", "type", "at", "data"],
        select(
            c.id,
            c.last_seq,
            c.attempt,
            lit(EventType.PICKED_UP),
            c.claimed_at,
            json_of(worker_id=c.worker_id, tries=c.failures + c.losses + lit(1)),
        ).select_from(changed),
    )


def _load(changed: FromClause) -> Select[Any]:
    saved = run_steps.c.output.label("saved")
    checkpoint = and_(run_steps.c.run_id == changed.c.id, run_steps.c.path == lit(CHECKPOINT_PATH))
    given = (run_inputs.c.input, run_inputs.c.trace, run_inputs.c.plan, run_inputs.c.origin)
    notifies = has_endpoints(changed.c.tenant).label("notifies")
    return select(changed, *given, saved, notifies).select_from(
        changed.join(run_inputs, run_inputs.c.run_id == changed.c.id).outerjoin(run_steps, checkpoint)
    )


def _claim_where(name: str, purpose: str, *conditions: ColumnElement[bool]) -> CompoundWrite:
    head = _take(*conditions)
    returns = {**_CLAIMED, "mark": Text()}
    return CompoundWrite(name, head, returns=returns, links=[_add_events], final=_load, purpose=purpose)


_of_lane = runs.c.lane == bindparam("lane")
CLAIM = _claim_where(
    "claim_lane", "Assign ready runs of a lane to a worker, and increase their fencing tokens.", _of_lane, READY, OURS
)
CLAIM_LIMITED = _claim_where(
    "claim_limited",
    "Assign ready runs of a tenant with limits to a worker, and increase their fencing tokens.",
    _of_lane,
    runs.c.tenant == bindparam("tenant"),
    READY_LIMITED,
    OURS,
)
CLAIM_QUARANTINED = _claim_where(
    "claim_quarantined",
    "Assign quarantined runs to a worker, and increase their fencing tokens.",
    READY_QUARANTINED,
    member(runs.c.id, "ids"),
)
_LANES = Statement(
    "lanes_to_lock",
    select(lanes.c.name).order_by(lanes.c.name).limit(lit(FIRST_LOCKS)),
    purpose="Read the lanes that a new worker locks before its first survey.",
)
_ONLINE = Statement(
    "online_workers",
    select(workers.c.id, workers.c.lanes, workers.c.targets).where(
        workers.c.status == lit("online"), workers.c.lease_until > now_us()
    ),
    purpose="Read the live workers, to choose the one that makes room for a quarantined run.",
)


async def claim(
    session: Session,
    worker_id: str,
    targets: Collection[str],
    slots: int,
    memory: LaneMemory,
    load: WorkerLoad | None = None,
) -> ClaimOutcome:
    """Claim up to `slots` ready runs of these targets; ORCHESTRATION and AGENT stand for all of their kind."""
    if not memory.names:
        names = memory.only or [row["name"] for row in await session.fetch(_LANES)]
        memory.names = dict.fromkeys(sorted(names)[:FIRST_LOCKS])
    held = ClaimLocks(memory, session.dialect)
    await session.lock(exclusive=held.exclusive, shared=[*held.shared, worker_lock(worker_id)])
    filters = {
        "targets": session.texts(sorted({*targets} - {ORCHESTRATION, AGENT})),
        "orchestrations": ORCHESTRATION if ORCHESTRATION in targets else "",
        "agents": AGENT if AGENT in targets else "",
    }
    survey = await _survey(session, worker_id, filters, memory)
    if not survey.online:
        return ClaimOutcome((), alive=False, again=False)
    # A queue whose locks are not held as needed is left to the next claim, which follows at once.
    rows = [*survey.queues, *survey.quarantined]
    is_whole = all(held.covers(row) for row in rows)
    memory.remember(rows)
    if is_whole:
        _advance_cursor(memory, survey)
    queues = [_queue(row) for row in survey.queues if row["head"] is not None and held.covers(row)]
    quarantined = await _quarantined(session, worker_id, [row for row in survey.quarantined if held.covers(row)])
    shares = share_slots(queues, slots, quarantined, load)
    taken: list[Row] = []
    if shares.quarantined:
        ids = session.texts(shares.quarantined)
        taken += await session.write(CLAIM_QUARANTINED, ids=ids, slots=slots, worker_id=worker_id)
    for (lane, tenant), share in shares.queues.items():
        params = {"lane": lane, "slots": share, "worker_id": worker_id, **filters}
        if tenant is None:
            taken += await session.write(CLAIM, **params)
        else:
            taken += await session.write(CLAIM_LIMITED, tenant=tenant, **params)
    taken.sort(key=lambda row: (row["rank"], row["id"]))
    await report_started(session, taken)
    again = not is_whole or memory.lane_after != "" or memory.queue_after != ("", "")
    return ClaimOutcome([_claimed(row) for row in taken], alive=True, again=again)


class _Survey(NamedTuple):
    """The rows that a survey returned."""

    online: bool
    free: Sequence[Row]
    limited: Sequence[Row]
    quarantined: Sequence[Row]

    @property
    def queues(self) -> Sequence[Row]:
        return [*self.free, *self.limited]


async def _survey(session: Session, worker_id: str, filters: Mapping[str, Any], memory: LaneMemory) -> _Survey:
    served = None if memory.only is None else [(name,) for name in sorted(memory.only)]
    some = served is not None
    first = {} if some else {"lane_after": memory.lane_after}
    rows = await session.fetch(LANES_OF_SOME if some else LANES, served, worker_id=worker_id, **first, **filters)
    worker = rows[0]
    memory.poll_seconds = (worker["poll_interval_ms"] or _POLL_MS) / 1000
    limited: Sequence[Row] = ()
    quarantined: Sequence[Row] = ()
    if worker["any_limited"]:
        lane, tenant = memory.queue_after
        after = {"queue_lane": lane, "queue_tenant": tenant}
        limited = await session.fetch(LIMITED_OF_SOME if some else LIMITED, served, **after, **filters)
    if worker["any_quarantined"]:
        quarantined = await session.fetch(QUARANTINED_OF_SOME if some else QUARANTINED, served, **filters)
    return _Survey(bool(worker["online"]), [row for row in rows if row["lane"] is not None], limited, quarantined)


def _advance_cursor(memory: LaneMemory, survey: _Survey) -> None:
    """Let the next survey start after this one if there may be more queues, and from the beginning otherwise."""
    lanes_left = memory.only is None and len(survey.free) == MAX_LANES
    memory.lane_after = max(row["lane"] for row in survey.free) if lanes_left else ""
    queues = [(row["lane"], row["tenant"]) for row in survey.limited]
    memory.queue_after = max(queues) if len(queues) == MAX_QUEUES else ("", "")


def _queue(row: Row) -> Queue:
    lane = SlotCap(row["max_slots"], row["lane_running"])
    if row["tenant"] is None:
        return Queue(QueueKey(row["lane"]), row["head"], bool(row["enabled"]), lane)
    tenant = SlotCap(row["max_running"], row["tenant_running"])
    return Queue(QueueKey(row["lane"], row["tenant"]), row["head"], bool(row["enabled"]), lane, tenant)


async def _quarantined(session: Session, worker_id: str, rows: Sequence[Row]) -> list[Quarantined]:
    overdue = {row["id"] for row in rows if row["waited_us"] > _MAX_WAIT_US}
    online = await session.fetch(_ONLINE) if overdue else ()
    return [
        Quarantined(
            row["id"],
            row["max_neighbors"],
            _queue(row),
            needs_room=row["id"] in overdue and _worker_making_room(row, online) == worker_id,
        )
        for row in rows
    ]


def _worker_making_room(run: Row, online: Sequence[Row]) -> str | None:
    """Return the one worker that claims nothing else until the run fits, while the others continue."""
    able = [worker["id"] for worker in online if _can_execute(worker, run)]
    return min(able, key=lambda worker: sha256(f"{run['id']} {worker}".encode()).digest(), default=None)


def _can_execute(worker: Row, run: Row) -> bool:
    lanes_of, targets = load_json(worker["lanes"]), load_json(worker["targets"] or "null")
    serves = "*" in lanes_of or run["lane"] in lanes_of
    return serves and (targets is None or run["target"] in targets or run["target"].startswith((ORCHESTRATION, AGENT)))


def _claimed(row: Row) -> Claimed:
    return Claimed(
        run_id=row["id"],
        target=row["target"],
        lane=row["lane"],
        attempt=row["attempt"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        ordering_key=row["ordering_key"],
        accepted_at_us=row["accepted_at"],
        claimed_at_us=row["claimed_at"],
        input=row["input"],
        saved=row["saved"],
        notice=Notice(row["id"], row["last_seq"], (_picked_up(row),)),
        tenant=row["tenant"],
        trace=row["trace"],
        plan=row["plan"],
        max_neighbors=row["max_neighbors"],
        losses=row["losses"],
        origin=row["origin"],
    )


def _picked_up(row: Row) -> StoredEvent:
    tries = row["failures"] + row["losses"] + 1
    data = f'{{"worker_id":"{row["worker_id"]}","tries":{tries}}}'
    return StoredEvent(row["last_seq"], EventType.PICKED_UP.value, row["attempt"], row["claimed_at"], data)
