"""Claiming: as many ready runs as a worker has free slots, within what their lanes allow.

The lanes' locks make caps and drains exact: a claim holds them shared, or alone where a lane has a cap, while it
looks at the lane and takes runs; whoever changes a lane holds its lock alone. The worker's lock keeps the reaper
from declaring the worker gone in the middle of its claim, which would leave runs that nobody looks for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.model.event import EventType, Line, Notice
from runlane.model.ids import lock_key
from runlane.model.lane import LaneView, share_slots
from runlane.model.run import AGENT, ORCHESTRATION, Status
from runlane.store.chain import Chain
from runlane.store.database import Session
from runlane.store.expressions import MARK, json_of, lit, member, now_us
from runlane.store.schema import lanes, run_events, run_inputs, run_steps, runs, workers
from runlane.store.statement import Row, Statement
from runlane.store.steps import CHECKPOINT_PATH


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this worker now owns, until it finishes or the fence says otherwise."""

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


@dataclass(slots=True)
class LaneMemory:
    """What a worker remembers of the lanes between claims: their locks are taken before they are read."""

    only: frozenset[str] | None = None
    names: set[str] = field(default_factory=set[str])
    capped: set[str] = field(default_factory=set[str])
    poll_seconds: float = 0.25


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """`alive` is False when the worker has been declared gone; `again` when a lane could not be served yet."""

    claims: Sequence[Claimed]
    alive: bool
    again: bool


def lane_lock(name: str) -> int:
    """The lock of a lane."""
    return lock_key("lane", name)


def worker_lock(worker_id: str) -> int:
    """The lock between a worker's claims and the reaper."""
    return lock_key("worker", worker_id)


# Tasks by name; orchestrations and agents have no end of names, so they are known by how their targets begin.
_ours = or_(
    member(runs.c.target, "targets"),
    func.substr(runs.c.target, lit(1), lit(len(ORCHESTRATION))) == bindparam("orchestrations", type_=Text()),
    func.substr(runs.c.target, lit(1), lit(len(AGENT))) == bindparam("agents", type_=Text()),
)
_ready = (
    runs.c.lane == lanes.c.name,
    runs.c.status == lit(Status.QUEUED),
    _ours,
)
_SURVEY = Statement(
    "survey_lanes",
    select(
        lanes.c.name,
        lanes.c.enabled,
        lanes.c.max_slots,
        lanes.c.poll_interval_ms,
        select(runs.c.rank).where(*_ready).order_by(runs.c.rank).limit(lit(1)).scalar_subquery().label("head"),
        case(
            (
                lanes.c.max_slots.is_not(None),
                select(func.count())
                .where(runs.c.lane == lanes.c.name, runs.c.status == lit(Status.RUNNING))
                .scalar_subquery(),
            ),
            else_=lit(0),
        ).label("running"),
        exists()
        .where(
            workers.c.id == bindparam("worker_id"),
            workers.c.status == lit("online"),
            workers.c.lease_until > now_us(),
        )
        .label("alive"),
    )
    .select_from(lanes)
    .where(or_(bindparam("every_lane", type_=Boolean()), member(lanes.c.name, "lanes"))),
)

_CLAIMED = {
    "id": Text(),
    "target": Text(),
    "lane": Text(),
    "rank": BigInteger(),
    "attempt": Integer(),
    "failures": Integer(),
    "max_attempts": Integer(),
    "ordering_key": Text(),
    "accepted_at": BigInteger(),
    "claimed_at": BigInteger(),
    "last_seq": Integer(),
    "worker_id": Text(),
    "tenant": Text(),
}
_picked = (
    select(runs.c.id)
    .where(
        runs.c.lane == bindparam("lane"),
        runs.c.status == lit(Status.QUEUED),
        _ours,
    )
    .order_by(runs.c.rank)
    .limit(bindparam("slots", type_=Integer()))
    .with_for_update(skip_locked=True)
    .cte("picked")
)
_claim = (
    update(runs)
    .where(runs.c.id == _picked.c.id)
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


def _tell(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    return insert(run_events).from_select(
        ["run_id", "seq", "attempt", "type", "at", "data"],
        select(
            c.id, c.last_seq, c.attempt, lit(EventType.PICKED_UP), c.claimed_at, json_of(worker_id=c.worker_id)
        ).select_from(changed),
    )


def _load(changed: FromClause) -> Select[Any]:
    saved = run_steps.c.output.label("saved")
    checkpoint = and_(run_steps.c.run_id == changed.c.id, run_steps.c.path == lit(CHECKPOINT_PATH))
    return select(changed, run_inputs.c.input, run_inputs.c.trace, run_inputs.c.plan, saved).select_from(
        changed.join(run_inputs, run_inputs.c.run_id == changed.c.id).outerjoin(run_steps, checkpoint)
    )


CLAIM = Chain("claim_lane", _claim, returns={**_CLAIMED, "mark": Text()}, links=[_tell], final=_load)


async def claim(
    session: Session, worker_id: str, targets: Collection[str], slots: int, memory: LaneMemory
) -> ClaimOutcome:
    """Take up to `slots` ready runs of these targets; ORCHESTRATION and AGENT stand for all of their kind."""
    locked = memory.names
    alone = locked & memory.capped
    await session.lock(
        exclusive=[lane_lock(name) for name in alone],
        shared=[*(lane_lock(name) for name in locked - alone), worker_lock(worker_id)],
    )
    wanted = {
        "targets": session.texts(sorted({*targets} - {ORCHESTRATION, AGENT})),
        "orchestrations": ORCHESTRATION if ORCHESTRATION in targets else "",
        "agents": AGENT if AGENT in targets else "",
    }
    rows = await session.fetch(
        _SURVEY,
        worker_id=worker_id,
        **wanted,
        every_lane=memory.only is None,
        lanes=session.texts(sorted(memory.only or ())),
    )
    if rows and not rows[0]["alive"]:
        return ClaimOutcome((), alive=False, again=False)
    memory.names = {row["name"] for row in rows}
    memory.capped = {row["name"] for row in rows if row["max_slots"] is not None}
    memory.poll_seconds = min((row["poll_interval_ms"] for row in rows), default=250) / 1000
    views = [
        LaneView(row["name"], bool(row["enabled"]), row["max_slots"], row["running"], row["head"])
        for row in rows
        # A lane whose lock we do not hold in the right way is left for the next round, which follows at once.
        if session.dialect == "sqlite" or row["name"] in (alone if row["max_slots"] is not None else locked)
    ]
    again = len(views) < len(rows)
    taken: list[Row] = []
    for lane, share in share_slots(views, slots).items():
        taken += await session.chain(CLAIM, lane=lane, slots=share, worker_id=worker_id, **wanted)
    taken.sort(key=lambda row: (row["rank"], row["id"]))
    return ClaimOutcome([_claimed(row) for row in taken], alive=True, again=again)


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
    )


def _picked_up(row: Row) -> Line:
    data = f'{{"worker_id":"{row["worker_id"]}"}}'
    return Line(row["last_seq"], EventType.PICKED_UP.value, row["attempt"], row["claimed_at"], data)
