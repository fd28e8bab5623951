"""The demand for workers, in one snapshot: what runs, and what could start. See also the view `runlane_scaling`."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import case, func, null, select, union_all

from runlane.domain.run import Status
from runlane.domain.scaling import Demand, LaneRoom, ReadyRuns, demand_of
from runlane.domain.slots import SlotCap
from runlane.errors import UnknownLane
from runlane.store.queue.claim_survey import READY, READY_LIMITED, READY_QUARANTINED, STARTS
from runlane.store.queue.overview import use_one_snapshot
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import lanes, runs, tenants
from runlane.store.sql.statement import Statement

_SINCE = func.coalesce(runs.c.due_at, runs.c.accepted_at)
_of_tenant = case((runs.c.limited, runs.c.tenant), else_=null())
_READY_RUNS = Statement(
    "ready_by_lane_and_tenant",
    union_all(
        *(
            select(
                runs.c.lane, _of_tenant.label("tenant"), func.count().label("count"), func.min(_SINCE).label("since")
            )
            .where(ready)
            .group_by(runs.c.lane, _of_tenant)
            for ready in (READY, READY_LIMITED, READY_QUARANTINED)
        )
    ),
    purpose="Count the ready runs by lane, and by tenant where it has limits.",
)
_RUNNING = Statement(
    "running_by_lane",
    select(runs.c.lane, func.count().label("count")).where(runs.c.status == lit(Status.RUNNING)).group_by(runs.c.lane),
    purpose="Count the running runs by lane.",
)
_LANES = Statement(
    "lanes_that_start",
    select(lanes.c.name, lanes.c.max_slots, STARTS.label("starts"), now_us().label("now")).order_by(lanes.c.name),
    purpose="Read which lanes start runs, and their caps.",
)
_TENANTS = Statement(
    "room_of_tenants",
    select(
        tenants.c.id,
        tenants.c.max_running,
        select(func.count())
        .where(runs.c.tenant == tenants.c.id, runs.c.status == lit(Status.RUNNING), runs.c.limited)
        .scalar_subquery()
        .label("running"),
    ).where(tenants.c.max_running.is_not(None)),
    purpose="Read the bounds of tenants, and how many of their runs are running.",
)


async def read_demand(database: Database, names: Collection[str] | None = None, concurrency: int = 1) -> Demand:
    """Return the demand of workers that serve these lanes, or all of them. UnknownLane for one that does not exist."""

    async def work(session: Session) -> Demand:
        await use_one_snapshot(session)
        settings = {row["name"]: row for row in await session.fetch(_LANES)}
        for name in sorted(names or ()):
            if name not in settings:
                raise UnknownLane(name, set(settings))
        ready = [
            ReadyRuns(row["lane"], row["tenant"], row["count"], row["since"])
            for row in await session.fetch(_READY_RUNS)
        ]
        running = {row["lane"]: row["count"] for row in await session.fetch(_RUNNING)}
        rooms = {row["id"]: SlotCap(row["max_running"], row["running"]) for row in await session.fetch(_TENANTS)}
        shown = [
            LaneRoom(name, bool(row["starts"]), SlotCap(row["max_slots"], running.get(name, 0)))
            for name, row in settings.items()
            if names is None or name in names
        ]
        now = next((row["now"] for row in settings.values()), 0)
        return demand_of(shown, ready, rooms, now_us=now, concurrency=concurrency)

    return await database.transact(work)
