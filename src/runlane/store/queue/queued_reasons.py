"""The reason why a ready run has not started: its lane, its tenant, or the workers, in the order of a claim's checks.

The reason names nothing of other tenants: neither their runs nor their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, func, select

from runlane.domain.run import AGENT, ORCHESTRATION, Run, Status, WaitingReason
from runlane.domain.views import WorkerInfo
from runlane.store.queue.waiting_reasons import MAX_SHOWN
from runlane.store.queue.workers import list_workers
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import lanes, runs, tenants
from runlane.store.sql.statement import Row, Statement

_of_tenant = runs.c.tenant == bindparam("tenant")
_running = runs.c.status == lit(Status.RUNNING)
_LANE = Statement(
    "read_lane_of_queued_run",
    select(
        lanes.c.enabled,
        lanes.c.max_slots,
        (func.coalesce(lanes.c.held_until, lit(0)) > now_us()).label("held"),
        select(func.count()).where(runs.c.lane == lanes.c.name, _running).scalar_subquery().label("running"),
        select(tenants.c.max_running).where(tenants.c.id == bindparam("tenant")).scalar_subquery().label("max_running"),
        select(func.count()).where(_of_tenant, _running).scalar_subquery().label("tenant_running"),
    ).where(lanes.c.name == bindparam("lane")),
    purpose="Read what may keep a lane and a tenant from starting a ready run.",
)
_HOLDERS = Statement(
    "read_running_of_lane",
    select(runs.c.id).where(runs.c.lane == bindparam("lane"), _of_tenant, _running).limit(lit(MAX_SHOWN)),
    purpose="Read some running runs of a tenant in a lane.",
)


async def read_queued_reason(database: Database, run: Run) -> WaitingReason:
    """Return why a queued run has not started."""
    rows = await database.query(_LANE, lane=run.lane, tenant=run.tenant)
    if not rows:
        return _reason("no_lane", f'the lane "{run.lane}" does not exist', lane=run.lane)
    blocked = _lane_reason(rows[0], run.lane)
    if blocked is not None:
        if blocked["code"] == "lane_full":
            holders = await database.query(_HOLDERS, lane=run.lane, tenant=run.tenant)
            blocked["runs"] = [row["id"] for row in holders]
        return blocked
    row = rows[0]
    if row["max_running"] is not None and row["tenant_running"] >= row["max_running"]:
        message = f"the tenant already runs {row['tenant_running']} of at most {row['max_running']} runs"
        return _reason("tenant_limit", message, tenant=run.tenant)
    return worker_reason(run.lane, run.target, await list_workers(database))


def _lane_reason(row: Row, lane: str) -> WaitingReason | None:
    if not row["enabled"]:
        return _reason("lane_disabled", f'the lane "{lane}" is disabled', lane=lane)
    if row["held"]:
        return _reason("lane_held", f'the lane "{lane}" is held', lane=lane)
    if row["max_slots"] == 0:
        return _reason("lane_paused", f'the lane "{lane}" is paused: it has 0 slots', lane=lane)
    if row["max_slots"] is not None and row["running"] >= row["max_slots"]:
        return _reason("lane_full", f'all {row["max_slots"]} slots of the lane "{lane}" are in use', lane=lane)
    return None


def worker_reason(lane: str, target: str, workers: Sequence[WorkerInfo]) -> WaitingReason:
    """Return why no worker has claimed a ready run that its lane and its tenant allow to start."""
    live = [worker for worker in workers if worker.status == "online"]
    serving = [worker for worker in live if "*" in worker.lanes or lane in worker.lanes]
    able = [worker for worker in serving if executes(worker, target)]
    if not live:
        return _reason("no_worker", "no worker is online", lane=lane)
    if not serving:
        return _reason("no_worker_for_lane", f'no live worker serves the lane "{lane}"', lane=lane)
    if not able:
        message = f'no live worker of the lane "{lane}" can execute "{target}"'
        return _reason("no_worker_for_target", message, lane=lane, target=target)
    if all(worker.active >= worker.capacity for worker in able):
        return _reason("workers_busy", "every worker that can execute it is busy", lane=lane)
    return _reason("next", "it is ready, and the next free worker takes it in its turn", lane=lane)


def executes(worker: WorkerInfo, target: str) -> bool:
    """Return whether a worker can execute a target. Every worker executes orchestrations and agents."""
    return worker.targets is None or target in worker.targets or target.startswith((ORCHESTRATION, AGENT))


def _reason(code: str, message: str, **refs: Any) -> WaitingReason:
    return {"code": code, "message": message, "runs": [], "refs": refs}
