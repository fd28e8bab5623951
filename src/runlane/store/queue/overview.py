"""Running and waiting runs, workers and lanes in one snapshot, for the whole platform or for one tenant.

A tenant sees only its own runs: the counts of a lane are its own, and lanes used only by other tenants are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select, text

from runlane.domain.lane import Lane
from runlane.domain.run import Run, Status
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
_OPEN = (Status.QUEUED, Status.RUNNING)
_OF_TENANT = Statement(
    "open_runs_of_tenant",
    select(runs.c.lane, runs.c.status, func.count().label("count"), func.min(runs.c.accepted_at).label("oldest"))
    .where(runs.c.tenant == bindparam("tenant"), runs.c.status.in_([lit(status) for status in _OPEN]))
    .group_by(runs.c.lane, runs.c.status),
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
    """Lanes, the longest-running runs, what is ready by target, and the slots of the live workers."""

    lanes: Sequence[Lane]
    running: Sequence[Run]
    queued: Sequence[QueuedTarget]
    worker_slots: int


async def read_overview(database: Database, tenant: str | None, common: Collection[str], limit: int) -> Overview:
    """Read everything in one snapshot; `common` are the lanes that every tenant sees."""

    async def work(session: Session) -> Overview:
        if session.dialect == "postgresql":
            await session.fetch(_SAME_MOMENT)
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
    return [
        _lane(row, counted.get((row["name"], Status.RUNNING)), counted.get((row["name"], Status.QUEUED)))
        for row in await session.fetch(_SETTINGS)
        if row["name"] in used or row["name"] in common
    ]


def _lane(row: Row, running: Row | None, queued: Row | None) -> Lane:
    return Lane(
        name=row["name"],
        enabled=bool(row["enabled"]),
        max_slots=row["max_slots"],
        poll_interval_ms=row["poll_interval_ms"],
        running=0 if running is None else running["count"],
        queued=0 if queued is None else queued["count"],
        oldest_queued_at_us=None if queued is None else queued["oldest"],
    )
