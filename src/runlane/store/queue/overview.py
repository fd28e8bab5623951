"""Running and waiting runs, workers and lanes in one snapshot, for the whole platform or for one tenant.

A tenant sees only its own runs: the counts of a lane are its own, and lanes used only by other tenants are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select, text, union_all

from runlane.domain.lane import Lane
from runlane.domain.run import Run, Status
from runlane.domain.timestamps import format_timestamp
from runlane.store.queue.lane_holds import holds_in
from runlane.store.queue.lanes import lanes_in
from runlane.store.queue.search import QueuedTarget, queued_in, running_in
from runlane.store.queue.workers import CAPACITY
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import lanes, runs
from runlane.store.sql.statement import Row, Statement

# On Postgres, statements of a transaction share a snapshot only with this setting; on SQLite they always do.
_SAME_MOMENT = Statement(
    "use_one_snapshot",
    text("set transaction isolation level repeatable read, read only"),
    purpose="Let all reads of a transaction use one snapshot.",
)
_SETTINGS = Statement(
    "list_lane_settings", select(lanes).order_by(lanes.c.name), purpose="Read the settings of all lanes."
)


def _open_runs(status: Status, *conditions: ColumnElement[bool]) -> Select[Any, Any, Any]:
    # One part for each index.
    return select(runs.c.lane, runs.c.status, runs.c.accepted_at).where(
        runs.c.tenant == bindparam("tenant"), runs.c.status == lit(status), *conditions
    )


_open = union_all(
    _open_runs(Status.QUEUED, runs.c.ended_at.is_(None), runs.c.status != lit(Status.RUNNING)),
    _open_runs(Status.RUNNING),
).subquery("open_runs")
_OF_TENANT = Statement(
    "open_runs_of_tenant",
    select(
        _open.c.lane, _open.c.status, func.count().label("count"), func.min(_open.c.accepted_at).label("oldest")
    ).group_by(_open.c.lane, _open.c.status),
    purpose="Count a tenant's ready and running runs by lane.",
)
_BY_WORKER = Statement(
    "running_by_worker",
    select(runs.c.worker_id, func.count().label("count"))
    .where(runs.c.tenant == bindparam("tenant"), runs.c.status == lit(Status.RUNNING))
    .group_by(runs.c.worker_id),
    purpose="Count a tenant's running runs by worker.",
)


@dataclass(frozen=True, slots=True)
class Overview:
    """Lanes, the longest-running runs, the ready runs by target, and the slots of the live workers."""

    lanes: Sequence[Lane]
    running: Sequence[Run]
    queued: Sequence[QueuedTarget]
    worker_slots: int


def overview_body(found: Overview) -> dict[str, Any]:
    """Return an overview as JSON, with the names that worker consoles use."""
    capped = [lane.max_slots for lane in found.lanes if lane.enabled and lane.max_slots is not None]
    all_capped = len(capped) == sum(lane.enabled for lane in found.lanes)
    return {
        "running_jobs": [
            {
                "job_id": run.id,
                "job_type": run.target,
                "claimed_by": run.worker_id,
                "claimed_at": _moment(run.claimed_at_us),
                "started_at": _moment(run.started_at_us),
                "priority": run.priority,
            }
            for run in found.running
        ],
        "running_count": sum(lane.running for lane in found.lanes),
        "queued_by_type": [
            {"job_type": kind.target, "count": kind.count, "oldest": _moment(kind.oldest_at_us)}
            for kind in found.queued
        ],
        "total_queued": sum(lane.queued for lane in found.lanes),
        "lanes": [{"name": lane.name, "max_slots": lane.max_slots, "enabled": lane.enabled} for lane in found.lanes],
        # A lane without a cap can use every slot of the workers.
        "total_slots": min(sum(capped), found.worker_slots) if all_capped else found.worker_slots,
        "slots_in_use": sum(lane.running for lane in found.lanes),
    }


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else format_timestamp(at_us)


async def use_one_snapshot(session: Session) -> None:
    """Let all reads of the transaction see the same moment. Must come first."""
    if session.dialect == "postgresql":
        await session.fetch(_SAME_MOMENT)


async def read_overview(database: Database, tenant: str | None, common: Collection[str], limit: int) -> Overview:
    """Read everything in one snapshot; `common` are the lanes that every tenant sees."""

    async def work(session: Session) -> Overview:
        await use_one_snapshot(session)
        shown = await lanes_in(session) if tenant is None else await _lanes_of(session, tenant, common)
        capacity = await session.fetch(CAPACITY)
        return Overview(
            shown,
            await running_in(session, tenant, limit),
            await queued_in(session, tenant),
            int(capacity[0]["slots"]),
        )

    return await database.transact(work)


async def list_tenant_lanes(database: Database, tenant: str, common: Collection[str]) -> list[Lane]:
    """Return the lanes that a tenant uses now, and those in `common`, with its own counts."""

    async def work(session: Session) -> list[Lane]:
        return await _lanes_of(session, tenant, common)

    return await database.transact(work)


async def count_by_worker(database: Database, tenant: str) -> dict[str, int]:
    """Return how many runs of a tenant each worker executes."""
    return {row["worker_id"]: row["count"] for row in await database.query(_BY_WORKER, tenant=tenant)}


async def _lanes_of(session: Session, tenant: str, common: Collection[str]) -> list[Lane]:
    counted = {(row["lane"], Status(row["status"])): row for row in await session.fetch(_OF_TENANT, tenant=tenant)}
    used = {lane for lane, _ in counted}
    holds = await holds_in(session)
    return [
        _lane(
            row,
            row["name"] in holds,
            counted.get((row["name"], Status.RUNNING)),
            counted.get((row["name"], Status.QUEUED)),
        )
        for row in await session.fetch(_SETTINGS)
        if row["name"] in used or row["name"] in common
    ]


def _lane(row: Row, held: bool, running: Row | None, queued: Row | None) -> Lane:
    return Lane(
        name=row["name"],
        enabled=bool(row["enabled"]),
        max_slots=row["max_slots"],
        poll_interval_ms=row["poll_interval_ms"],
        fair=bool(row["fair"]),
        priority_seconds=row["priority_seconds"],
        stale_timeout_minutes=row["stale_timeout_minutes"],
        running=0 if running is None else running["count"],
        queued=0 if queued is None else queued["count"],
        oldest_queued_at_us=None if queued is None else queued["oldest"],
        held=held,
    )
