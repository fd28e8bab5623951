"""Read one worker with its runs and losses, and drain workers: they finish their runs and claim no more until resumed.

The request is a column of the worker's row, which its next heartbeat reads. The status stays `online` for the claim,
which would otherwise count the worker as lost; readers see `draining`.
"""

from __future__ import annotations

from sqlalchemy import Text, bindparam, func, select, update

from runlane.domain.run import Status
from runlane.domain.views import WorkerInfo, WorkerLoss
from runlane.errors import Conflict, NotFound
from runlane.store.access.audit import append_audit
from runlane.store.queue.workers import LIVE, worker_of
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import run_attempts, runs, workers
from runlane.store.sql.statement import Statement

_by_id = workers.c.id == bindparam("worker_id")
_MAX_RUNS = 100
_REQUEST = Statement(
    "request_drain",
    update(workers)
    .where(_by_id, workers.c.status.in_(LIVE))
    .values(drain_requested_at=func.coalesce(workers.c.drain_requested_at, now_us()))
    .returning(workers),
    purpose="Request that a worker claims no more runs.",
)
_CANCEL = Statement(
    "cancel_drain",
    update(workers).where(_by_id, workers.c.status.in_(LIVE)).values(drain_requested_at=None).returning(workers),
    purpose="Let a worker claim runs again.",
)
_of_version = workers.c.version == bindparam("version", type_=Text())
_REQUEST_VERSION = Statement(
    "request_drain_of_version",
    update(workers)
    .where(_of_version, workers.c.status.in_(LIVE), workers.c.drain_requested_at.is_(None))
    .values(drain_requested_at=now_us())
    .returning(workers),
    purpose="Request that the workers of a version claim no more runs.",
)
_CANCEL_VERSION = Statement(
    "cancel_drain_of_version",
    update(workers)
    .where(_of_version, workers.c.status.in_(LIVE), workers.c.drain_requested_at.is_not(None))
    .values(drain_requested_at=None)
    .returning(workers),
    purpose="Let the drained workers of a version claim runs again.",
)
_FIND = Statement("find_worker", select(workers).where(_by_id), purpose="Read one worker.")
_RUNS = Statement(
    "running_of_worker",
    select(runs.c.id, runs.c.tenant)
    .where(runs.c.worker_id == bindparam("worker_id"), runs.c.status == lit("running"))
    .order_by(runs.c.id)
    .limit(lit(_MAX_RUNS)),
    purpose="Read some of the runs that a worker executes.",
)


_LOSSES = Statement(
    "losses_of_worker",
    select(
        run_attempts.c.run_id,
        run_attempts.c.attempt,
        run_attempts.c.started_at,
        run_attempts.c.ended_at,
        runs.c.target,
        runs.c.status,
    )
    .select_from(run_attempts.join(runs, runs.c.id == run_attempts.c.run_id))
    .where(
        run_attempts.c.worker_id == bindparam("worker_id"),
        run_attempts.c.outcome == lit("lost"),
        optional("tenant", runs.c.tenant),
    )
    .order_by(run_attempts.c.ended_at.desc(), run_attempts.c.run_id)
    .limit(lit(_MAX_RUNS)),
    purpose="Read the latest attempts that ended with a worker.",
)


async def set_draining(database: Database, worker_id: str, *, draining: bool, actor: str, tenant: str) -> WorkerInfo:
    """Drain a worker, so that it claims no more runs, or resume it. Repeating is harmless."""

    async def work(session: Session) -> WorkerInfo:
        for row in await session.fetch(_REQUEST if draining else _CANCEL, worker_id=worker_id):
            action = "worker.drain" if draining else "worker.resume"
            await append_audit(session, actor=actor, tenant=tenant, action=action, subject=worker_id)
            return worker_of(row)
        for row in await session.fetch(_FIND, worker_id=worker_id):
            raise Conflict(f"The worker {worker_id} is {row['status']}. Only a live worker can be drained.")
        raise _no_worker(worker_id)

    return await database.transact(work)


async def set_draining_of_version(
    database: Database, version: str, *, draining: bool, actor: str, tenant: str
) -> list[WorkerInfo]:
    """Drain or resume the live workers of a version; return those that this changes. Repeating is harmless."""

    async def work(session: Session) -> list[WorkerInfo]:
        rows = await session.fetch(_REQUEST_VERSION if draining else _CANCEL_VERSION, version=version)
        changed = sorted((worker_of(row) for row in rows), key=lambda worker: worker.id)
        action = "worker.drain" if draining else "worker.resume"
        for worker in changed:
            await append_audit(session, actor=actor, tenant=tenant, action=action, subject=worker.id)
        return changed

    return await database.transact(work)


async def find_worker(database: Database, worker_id: str) -> WorkerInfo:
    """Return a worker, even one that ended recently."""
    for row in await database.query(_FIND, worker_id=worker_id):
        return worker_of(row)
    raise _no_worker(worker_id)


async def running_of_worker(database: Database, worker_id: str, tenant: str | None) -> list[str]:
    """Return up to 100 runs that a worker executes, of a tenant if given."""
    rows = await database.query(_RUNS, worker_id=worker_id)
    return [row["id"] for row in rows if tenant is None or row["tenant"] == tenant]


async def losses_of_worker(database: Database, worker_id: str, tenant: str | None) -> list[WorkerLoss]:
    """Return up to 100 attempts that ended because this worker died or was cut off, newest first."""
    rows = await database.query(_LOSSES, worker_id=worker_id, tenant=tenant)
    return [from_row(WorkerLoss, row, status=Status(row["status"])) for row in rows]


def _no_worker(worker_id: str) -> NotFound:
    return NotFound(f'No worker "{worker_id[:100]}" exists. See: runlane workers')
