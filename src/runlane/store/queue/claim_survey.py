"""The survey of a claim: which queues have ready runs, what bounds them, and whether the worker is still online.

One statement is enough where no tenant has limits and no run is quarantined. Lanes and tenants with ready runs are
found by jumping from one to the next in the indexes of ready runs. Those without ready runs cost nothing, however many
there are. A survey reads a bounded number of queues, and the next survey continues after them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    null,
    or_,
    select,
    true,
    union_all,
)

from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import lanes, runs, tenants, workers
from runlane.store.sql.statement import Statement

# How many lanes, queues of tenants and quarantined runs one survey reads at most.
MAX_LANES = 64
MAX_QUEUES = 64
MAX_QUARANTINED = 16

# Tasks by name; the names of orchestrations and agents are unbounded, so they are identified by their prefix.
OURS = or_(
    member(runs.c.target, "targets"),
    func.substr(runs.c.target, lit(1), lit(len(ORCHESTRATION))) == bindparam("orchestrations", type_=Text()),
    func.substr(runs.c.target, lit(1), lit(len(AGENT))) == bindparam("agents", type_=Text()),
)
# The conditions of the three indexes of ready runs, written as in the indexes.
_queued = runs.c.status == lit(Status.QUEUED)
READY = and_(_queued, ~runs.c.limited, runs.c.max_neighbors.is_(None))
READY_LIMITED = and_(_queued, runs.c.limited, runs.c.max_neighbors.is_(None))
READY_QUARANTINED = and_(_queued, runs.c.max_neighbors.is_not(None))


def all_ready(*columns: ColumnElement[Any]) -> FromClause:
    """Return every ready run, through the three indexes."""
    parts = [select(*columns).where(ready) for ready in (READY, READY_LIMITED, READY_QUARANTINED)]
    return union_all(*parts).subquery("ready_runs")


def _next_lane(ready: ColumnElement[bool], after: ColumnElement[bool]) -> ColumnElement[str]:
    return select(runs.c.lane).where(ready, after).order_by(runs.c.lane).limit(lit(1)).scalar_subquery()


def _lanes_in_use(name: str, ready: ColumnElement[bool], begin: ColumnElement[bool]) -> FromClause:
    """Return the lanes that have such runs, in the order of their names."""
    found = select(_next_lane(ready, begin).label("lane"), lit(1).label("n")).cte(name, recursive=True)
    following = select(_next_lane(ready, runs.c.lane > found.c.lane), found.c.n + lit(1)).where(
        found.c.lane.is_not(None), found.c.n < lit(MAX_LANES)
    )
    return found.union_all(following)


def _next_tenant(lane: ColumnElement[str], after: ColumnElement[str]) -> ColumnElement[str]:
    return (
        select(runs.c.tenant)
        .where(READY_LIMITED, runs.c.lane == lane, runs.c.tenant > after)
        .order_by(runs.c.tenant)
        .limit(lit(1))
        .scalar_subquery()
    )


def _tenants_in_use(source: FromClause, lane: ColumnElement[str]) -> FromClause:
    """Return the tenants with limits that have ready runs, lane by lane."""
    begin = case(
        (lane == bindparam("queue_lane", type_=Text()), bindparam("queue_tenant", type_=Text())),
        else_=cast("", Text()),
    )
    found = (
        select(lane.label("lane"), _next_tenant(lane, begin).label("tenant"))
        .select_from(source)
        .where(lane >= bindparam("queue_lane", type_=Text()))
        .cte("queues", recursive=True)
    )
    following = select(found.c.lane, _next_tenant(found.c.lane, found.c.tenant)).where(found.c.tenant.is_not(None))
    queues = found.union_all(following)
    return select(queues).where(queues.c.tenant.is_not(None)).limit(lit(MAX_QUEUES)).subquery("limited_queues")


def _count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    return select(func.count()).where(*conditions).select_from(runs).scalar_subquery()


def _first_rank(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    return select(runs.c.rank).where(*conditions, OURS).order_by(runs.c.rank).limit(lit(1)).scalar_subquery()


# The lane is enabled and no hold is active.
STARTS = and_(lanes.c.enabled, func.coalesce(lanes.c.held_until, lit(0)) <= now_us())


def _lane_columns(lane: ColumnElement[str]) -> list[ColumnElement[Any]]:
    """Return the settings of a lane and the number of its running runs.

    Subqueries look up each lane by its name. With a join the planner might read the whole table of lanes.
    """
    running = _count(runs.c.lane == lane, runs.c.status == lit(Status.RUNNING))
    max_slots = _one(lanes.c.max_slots, lanes.c.name == lane)
    return [
        # A lane without a row has no settings of its own.
        func.coalesce(_one(STARTS, lanes.c.name == lane), true()).label("enabled"),
        max_slots.label("max_slots"),
        case((max_slots.is_not(None), running), else_=lit(0)).label("lane_running"),
    ]


def _one(column: ColumnElement[Any], *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
    return select(column).where(*conditions).scalar_subquery()


def _tenant_columns(tenant: ColumnElement[str], *conditions: ColumnElement[bool]) -> list[ColumnElement[Any]]:
    """Return the limit of a tenant and the number of its running runs."""
    running = _count(runs.c.tenant == tenant, runs.c.status == lit(Status.RUNNING), runs.c.limited)
    max_running = _one(tenants.c.max_running, tenants.c.id == tenant, *conditions)
    return [
        max_running.label("max_running"),
        case((max_running.is_not(None), running), else_=lit(0)).label("tenant_running"),
    ]


def _is_online() -> ColumnElement[bool]:
    return exists().where(
        workers.c.id == bindparam("worker_id"),
        workers.c.status == lit("online"),
        workers.c.lease_until > now_us(),
    )


def _free_queues(source: FromClause, poll: Select[Any]) -> Select[Any]:
    """Return a row for each lane with ready runs, and at least one for the columns about the worker."""
    lane = source.c.lane
    return select(
        lane,
        case((lane.is_not(None), _first_rank(READY, runs.c.lane == lane))).label("head"),
        *_lane_columns(lane),
        # The queue belongs to all tenants without limits.
        null().label("tenant"),
        null().label("max_running"),
        _is_online().label("online"),
        poll.scalar_subquery().label("poll_interval_ms"),
        exists().where(READY_LIMITED).label("any_limited"),
        exists().where(READY_QUARANTINED).label("any_quarantined"),
    ).select_from(source)


def _limited_queues(queues: FromClause) -> Select[Any]:
    q = queues.c
    return select(
        q.lane,
        q.tenant,
        _first_rank(READY_LIMITED, runs.c.lane == q.lane, runs.c.tenant == q.tenant).label("head"),
        *_lane_columns(q.lane),
        *_tenant_columns(q.tenant),
    )


def _quarantined(*only: ColumnElement[bool]) -> Select[Any]:
    first = (
        select(
            runs.c.id,
            runs.c.lane,
            runs.c.tenant,
            runs.c.limited,
            runs.c.rank,
            runs.c.target,
            runs.c.max_neighbors,
            runs.c.due_at,
            runs.c.accepted_at,
        )
        .where(READY_QUARANTINED, OURS, *only)
        .order_by(runs.c.rank)
        .limit(lit(MAX_QUARANTINED))
        .subquery("first_quarantined")
    )
    r = first.c
    return select(
        r.id,
        r.target,
        r.max_neighbors,
        r.lane,
        case((r.limited, r.tenant), else_=null()).label("tenant"),
        r.rank.label("head"),
        (now_us() - func.coalesce(r.due_at, r.accepted_at)).label("waited_us"),
        *_lane_columns(r.lane),
        *_tenant_columns(r.tenant, r.limited),
    )


def _served(batch: FromClause) -> tuple[FromClause, ColumnElement[bool]]:
    """Return the lanes of a worker that serves only some, and the condition that a run is in one of them."""
    served = select(batch.c.served.label("lane")).cte("served_lanes")
    return served, exists().where(served.c.lane == runs.c.lane)


def _every_lane() -> Select[Any]:
    free = _lanes_in_use("free_lanes", READY, runs.c.lane > bindparam("lane_after", type_=Text()))
    return _free_queues(free, select(func.min(lanes.c.poll_interval_ms)))


def _some_lanes(batch: FromClause) -> Select[Any]:
    served, _ = _served(batch)
    poll = select(func.min(lanes.c.poll_interval_ms)).select_from(served.join(lanes, lanes.c.name == served.c.lane))
    # The flags decide whether another statement is worth its round trip, so they need not be exact about lanes.
    return _free_queues(served, poll)


def _every_limited() -> Select[Any]:
    found = _lanes_in_use("limited_lanes", READY_LIMITED, runs.c.lane >= bindparam("queue_lane", type_=Text()))
    return _limited_queues(_tenants_in_use(found, found.c.lane))


def _some_limited(batch: FromClause) -> Select[Any]:
    served, _ = _served(batch)
    return _limited_queues(_tenants_in_use(served, served.c.lane))


def _some_quarantined(batch: FromClause) -> Select[Any]:
    _, is_served = _served(batch)
    return _quarantined(is_served)


_SERVED = {"served": Text()}
# The statement of every claim, then the one for tenants with limits or quarantined runs; each first for a worker of all
# lanes, then for a worker of some lanes.
LANES = Statement(
    "survey_lanes", _every_lane(), purpose="Find the oldest ready run of each lane, for tenants without limits."
)
LANES_OF_SOME = Statement(
    "survey_some_lanes",
    _some_lanes,
    _SERVED,
    purpose="Find the oldest ready run of each served lane, for tenants without limits.",
)
LIMITED = Statement(
    "survey_limited",
    _every_limited(),
    purpose="Find the oldest ready run of each lane and tenant, for tenants with limits.",
)
LIMITED_OF_SOME = Statement(
    "survey_some_limited",
    _some_limited,
    _SERVED,
    purpose="Find the oldest ready run of each served lane and tenant, for tenants with limits.",
)
QUARANTINED = Statement("survey_quarantined", _quarantined(), purpose="Find the oldest quarantined run.")
QUARANTINED_OF_SOME = Statement(
    "survey_some_quarantined",
    _some_quarantined,
    _SERVED,
    purpose="Find the oldest quarantined run of the served lanes.",
)
