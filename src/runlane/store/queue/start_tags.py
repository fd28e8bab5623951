"""The start tags of runs in lanes that tenants share, assigned in the transaction that makes the runs ready.

Two statements assign the tags of any number of runs: one reads the virtual time of their lanes, one moves the last
finish tag of each tenant and fairness key, whose rows are locked until the commit. So the accepts of one tenant wait
for each other, and never for those of another tenant. A claim neither reads nor writes any of this: it takes runs by
rank. The rules are in `domain/start_tags.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSet, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Select,
    Text,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import lock_key
from runlane.domain.run import Status
from runlane.domain.start_tags import (
    CLOCK_SECONDS,
    PRIORITY_SECONDS,
    RUN_COST_NS,
    ClockReading,
    fair_rank,
    pace,
    priority_point,
    tag_at,
    virtual_time,
)
from runlane.store.access.tenants import FREE
from runlane.store.queue.claim_survey import READY, READY_LIMITED
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once, now_us
from runlane.store.sql.schema import lane_clocks, lane_kinds, lane_shares, lanes, runs, tenants
from runlane.store.sql.statement import Row, Statement

# The virtual time is the earliest start tag among this many runs at the head of the queue, because a run of high
# priority with a later tag may be the first.
_HEAD = 16
# How many running runs, and fairness keys of a tenant, are read at most.
_MOST_RUNNING = 256
_MOST_KEYS = 1000
_KEEP_SECONDS = 7 * 86400


class TagRequest(NamedTuple):
    """A run that needs a start tag. `limited`: its tenant has limits, and they admit the run.

    A run that is delayed or held gets its tag when it becomes ready.
    """

    run_id: str
    target: str
    lane: str
    tenant: str
    fairness_key: str
    priority: int
    limited: bool
    is_ready: bool = True


class Placement(NamedTuple):
    """The place of a run in its lane. Both are None where the time of acceptance decides."""

    rank: int | None
    start_tag: int | None


NO_TAG = Placement(None, None)


def _next_tag(lane: ColumnElement[str], point_us: ColumnElement[int], *sources: FromClause) -> ColumnElement[int]:
    """Return the start tag of the run that is next; null if none is ready."""
    # The tag of a run without a start tag is computed from its time of acceptance.
    tag = func.coalesce(runs.c.start_tag, runs.c.rank + cast(runs.c.priority, BigInteger) * point_us).label("start_tag")

    def best(which: Callable[[Any], Any], found: Select[Any]) -> ColumnElement[int]:
        inner = found.correlate(*sources).subquery()
        return select(which(inner.c.start_tag)).scalar_subquery()

    in_lane = runs.c.lane == lane
    free = select(tag).where(READY, in_lane).order_by(runs.c.rank).limit(lit(_HEAD))
    # Tenants with limits have queues of their own, and the queue of a tenant at its limit does not advance. The latest
    # tag that has started is therefore used.
    running = select(tag).where(runs.c.status == lit(Status.RUNNING), in_lane).limit(lit(_MOST_RUNNING))
    limited = select(tag).where(READY_LIMITED, in_lane).order_by(runs.c.tenant, runs.c.rank).limit(lit(1))
    any_limited = exists().where(READY_LIMITED, in_lane).correlate(*sources)
    return func.coalesce(
        best(func.min, free),
        case((any_limited, func.coalesce(best(func.max, running), best(func.min, limited)))),
    )


def lane_times(batch: FromClause) -> Select[Any]:
    """Return the virtual time of the lane of each target, which is given with its declared lane."""
    moved = select(lane_kinds.c.lane).where(lane_kinds.c.kind == batch.c.target).scalar_subquery()
    found = select(batch.c.target, batch.c.lane.label("declared"), func.coalesce(moved, batch.c.lane).label("lane"))
    resolved = found.select_from(batch).cte("resolved")
    seconds = func.coalesce(lanes.c.priority_seconds, lit(PRIORITY_SECONDS))
    return select(
        resolved,
        func.coalesce(lanes.c.fair, true()).label("fair"),
        seconds.label("priority_seconds"),
        _next_tag(resolved.c.lane, seconds * lit(1_000_000), resolved, lanes).label("next_tag"),
        now_once().label("now"),
        lane_clocks.c.read_at,
        lane_clocks.c.earlier_at,
        lane_clocks.c.earlier_virtual,
    ).select_from(
        resolved.outerjoin(lanes, lanes.c.name == resolved.c.lane).outerjoin(
            lane_clocks, lane_clocks.c.lane == resolved.c.lane
        )
    )


def _later(one: ColumnElement[int], other: ColumnElement[int]) -> ColumnElement[int]:
    return case((one > other, one), else_=other)


def take_tags(batch: FromClause) -> Any:
    """Return the statement that moves the last finish tags of tenants in lanes, and returns them."""
    b = batch.c
    other = lane_shares.alias("other")
    others = (
        select(other.c.finish_tag)
        .where(other.c.lane == b.lane, other.c.tenant == b.tenant, other.c.fairness_key != b.fairness_key)
        .limit(lit(_MOST_KEYS))
        .correlate(batch)
        .subquery("others")
    )
    waiting = select(func.count()).select_from(others).where(others.c.finish_tag > b.virtual_ns).correlate(batch)
    keys = lit(1) + waiting.scalar_subquery()
    charge = cast(cast(b.count * lit(RUN_COST_NS) * keys, Float) / tenants.c.weight, BigInteger)
    charged = (
        select(b.lane, b.tenant, b.fairness_key, b.virtual_ns, charge.label("charge"))
        .select_from(batch.join(tenants, tenants.c.id == b.tenant))
        .where(tenants.c.shares_lanes, or_(b.limited, FREE))
        .cte("charged")
    )
    c = charged.c
    new = insert(lane_shares).from_select(
        ["lane", "tenant", "fairness_key", "finish_tag", "charge"],
        # In the order of the key, so that two transactions with the same tenants wait and do not deadlock.
        select(c.lane, c.tenant, c.fairness_key, c.virtual_ns + c.charge, c.charge)
        .where(true())
        .order_by(c.lane, c.tenant, c.fairness_key),
    )
    return new.on_conflict_do_update(
        index_elements=["lane", "tenant", "fairness_key"],
        set_={
            "finish_tag": _later(new.excluded.finish_tag, lane_shares.c.finish_tag + new.excluded.charge),
            "charge": new.excluded.charge,
        },
    ).returning(lane_shares)


def _read_clocks(batch: FromClause) -> Executable:
    b = batch.c
    new = insert(lane_clocks).from_select(
        ["lane", "read_at", "virtual", "earlier_at", "earlier_virtual"],
        select(b.lane, b.at, b.virtual, b.at, b.virtual).select_from(batch).where(true()).order_by(b.lane),
    )
    return new.on_conflict_do_update(
        index_elements=["lane"],
        set_={
            "earlier_at": lane_clocks.c.read_at,
            "earlier_virtual": lane_clocks.c.virtual,
            "read_at": new.excluded.read_at,
            "virtual": new.excluded.virtual,
        },
        where=lane_clocks.c.read_at <= new.excluded.read_at - lit(CLOCK_SECONDS * 1_000_000),
    )


def _place(batch: FromClause) -> Executable:
    return (
        update(runs)
        .where(runs.c.id == batch.c.id)
        .values(rank=batch.c.rank, start_tag=batch.c.start_tag)
        .returning(runs.c.id)
    )


_LANE_TIMES = Statement(
    "read_lane_times",
    lane_times,
    {"target": Text(), "lane": Text()},
    purpose="Read the virtual time of lanes: the start tag of the run that is next.",
)
_TAKE = Statement(
    "assign_start_tags",
    take_tags,
    {
        "lane": Text(),
        "tenant": Text(),
        "fairness_key": Text(),
        "count": BigInteger(),
        "virtual_ns": BigInteger(),
        "limited": Boolean(),
    },
    purpose="Assign the next start tags of tenants in lanes.",
)
_READ_CLOCKS = Statement(
    "read_lane_clocks",
    _read_clocks,
    {"lane": Text(), "at": BigInteger(), "virtual": BigInteger()},
    purpose="Note the virtual time of lanes once a minute.",
)
_SHARE = Statement(
    "use_fair_shares",
    update(tenants).where(member(tenants.c.id, "ids"), ~tenants.c.shares_lanes).values(shares_lanes=True),
    purpose="Let all runs of a tenant that uses fairness keys get start tags.",
)
_of_sharing_tenant = (
    select(
        runs.c.id.label("run_id"),
        runs.c.lane,
        runs.c.tenant,
        runs.c.fairness_key,
        runs.c.priority,
        runs.c.due_at,
    )
    .where(exists().where(tenants.c.id == runs.c.tenant, tenants.c.shares_lanes))
    .with_for_update(skip_locked=True, of=runs)
)
_DUE = Statement(
    "due_without_tag",
    _of_sharing_tenant.where(
        runs.c.status == lit(Status.SCHEDULED),
        runs.c.due_at.is_not(None),
        runs.c.due_at <= now_once(),
        runs.c.attempt == lit(0),
        runs.c.start_tag.is_(None),
    )
    .order_by(runs.c.due_at)
    .limit(bindparam("most", type_=BigInteger())),
    purpose="Find due runs that have waited for their time and get their start tag now.",
)
_ONE = Statement(
    "run_to_place",
    _of_sharing_tenant.where(runs.c.id == bindparam("run_id"), runs.c.status != lit(Status.RUNNING)),
    purpose="Find a run that gets a new start tag.",
)
_ADMITTED = Statement(
    "admitted_to_place",
    _of_sharing_tenant.where(member(runs.c.id, "ids")),
    purpose="Find admitted runs that get their start tags.",
)
_PLACE = Statement(
    "place_runs",
    _place,
    {"id": Text(), "rank": BigInteger(), "start_tag": BigInteger()},
    purpose="Store the start tags of waiting runs.",
)
_FORGET = Statement(
    "forget_shares",
    delete(lane_shares).where(lane_shares.c.finish_tag < (now_us() - lit(_KEEP_SECONDS * 1_000_000)) * lit(1000)),
    purpose="Delete the finish tags of tenants and keys without new runs for a week.",
)


class LaneTime(NamedTuple):
    """The clock of a lane in one transaction: its virtual time, and how much time a point of priority is worth."""

    lane: str
    fair: bool
    virtual_us: int
    point_us: int
    priority_seconds: int


async def assign_tags(
    session: Session, new: Sequence[TagRequest], known: MutableSet[str] | None = None
) -> Mapping[str, Placement]:
    """Return the places of those runs whose tenants share lanes, by run.

    `known` are tenants that are known to share lanes; the set is kept up to date.
    """
    if not new:
        return {}
    known = set() if known is None else known
    keyed = {run.tenant for run in new if run.fairness_key} - known
    if keyed:
        await session.fetch(_SHARE, ids=session.texts(sorted(keyed)))
    times = await _lane_times_of(session, {(run.target, run.lane) for run in new})
    groups: dict[tuple[str, str, str], list[TagRequest]] = {}
    places: dict[str, Placement] = {}
    for run in new:
        time = times[run.target, run.lane]
        if time.fair and run.is_ready:
            groups.setdefault((time.lane, run.tenant, run.fairness_key), []).append(run)
        else:
            places[run.run_id] = NO_TAG
    virtual_us = {time.lane: time.virtual_us for time in times.values()}
    members = [(*key, len(group), virtual_us[key[0]] * 1000, group[0].limited) for key, group in groups.items()]
    taken = await session.fetch(_TAKE, sorted(members)) if members else ()
    for row in taken:
        group = groups[row["lane"], row["tenant"], row["fairness_key"]]
        places |= _tags_of(row, group, times)
    shared = {row["tenant"] for row in taken}
    known |= shared
    known -= {run.tenant for run in new if run.run_id not in places} - shared
    return places


def _tags_of(row: Row, group: Sequence[TagRequest], times: Mapping[tuple[str, str], LaneTime]) -> dict[str, Placement]:
    start = row["finish_tag"] - row["charge"]
    places: dict[str, Placement] = {}
    for position, run in enumerate(group):
        tag = tag_at(start, row["charge"], len(group), position)
        places[run.run_id] = Placement(fair_rank(tag, run.priority, times[run.target, run.lane].point_us), tag)
    return places


async def _lane_times_of(session: Session, kinds: set[tuple[str, str]]) -> dict[tuple[str, str], LaneTime]:
    """Return the clocks of the lanes for pairs of a target and its declared lane; store them once a minute."""
    rows = await session.fetch(_LANE_TIMES, sorted(kinds))
    times = {(row["target"], row["declared"]): _lane_time(row) for row in rows}
    # A clock is read once per lane, however many kinds use the lane.
    due = {
        row["lane"]: (row["lane"], row["now"], virtual_time(row["next_tag"], row["now"]))
        for row in rows
        if row["fair"] and (row["read_at"] is None or row["now"] - row["read_at"] >= CLOCK_SECONDS * 1_000_000)
    }
    # One process at a time stores a clock, and the others do not wait for it.
    noted = [reading for lane, reading in sorted(due.items()) if await session.try_lock(lock_key("clock", lane))]
    if noted:
        await session.fetch(_READ_CLOCKS, noted)
    return times


def _lane_time(row: Row) -> LaneTime:
    virtual = virtual_time(row["next_tag"], row["now"])
    earlier = None if row["earlier_at"] is None else ClockReading(row["earlier_at"], row["earlier_virtual"])
    point = priority_point(row["priority_seconds"], pace(earlier, virtual, row["now"]))
    return LaneTime(row["lane"], bool(row["fair"]), virtual, point, row["priority_seconds"])


async def point_in_lane(session: Session, lane: str, *, has_tag: bool) -> int:
    """Return the microseconds that a point of priority is worth in a lane now, for a run with or without a tag."""
    time = (await _lane_times_of(session, {("", lane)}))["", lane]
    return time.point_us if has_tag else time.priority_seconds * 1_000_000


async def place_due(session: Session, most: int) -> None:
    """Assign tags to due runs before they become ready: with earlier tags they would overtake all others."""
    await _place_rows(session, await session.fetch(_DUE, most=most))


async def place_run(session: Session, run_id: str) -> None:
    """Assign a current tag to a run that an operator approves or retries: the old tag would overtake all others."""
    await _place_rows(session, await session.fetch(_ONE, run_id=run_id))


async def place_admitted(session: Session, run_ids: Sequence[str]) -> None:
    """Assign a current tag to runs that were admitted after they had waited for a concurrency limit."""
    if run_ids:
        await _place_rows(session, await session.fetch(_ADMITTED, ids=session.texts(sorted(run_ids))))


async def _place_rows(session: Session, rows: Sequence[Row]) -> None:
    new = [
        TagRequest(
            row["run_id"], "", row["lane"], row["tenant"], row["fairness_key"] or "", row["priority"], limited=True
        )
        for row in sorted(rows, key=lambda row: (row["due_at"] or 0, row["run_id"]))
    ]
    places = await assign_tags(session, new)
    placed = sorted((run_id, place.rank, place.start_tag) for run_id, place in places.items() if place.rank is not None)
    if placed:
        await session.fetch(_PLACE, placed)


async def forget_shares(session: Session) -> None:
    """Delete the finish tags that no longer affect any start tag."""
    await session.fetch(_FORGET)
