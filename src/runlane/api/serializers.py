"""Replies: our own values as JSON, written once and without a detour through models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from runlane.api.error_responses import rate_headers
from runlane.domain.lane import Lane
from runlane.domain.run import Accepted
from runlane.domain.wire import format_timestamp, to_json
from runlane.store.queue.workers import WorkerRow

ROOT = "/api/v2"
# Where runs of orchestrations have their addresses; both prefixes lead to the same.
ORCHESTRATIONS = f"{ROOT}/orchestrations/runs"
RUNS = f"{ROOT}/runs"


class JsonBody(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), status, headers)


class ValueBody(Response):
    """A value of `runlane.domain` as JSON."""

    media_type = "application/json"

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(value), status, headers)


def moment(at_us: int | None) -> str | None:
    """A stored time as text."""
    return None if at_us is None else format_timestamp(at_us)


def accepted_json(accepted: Accepted, status: str | None = None, *, root: str = RUNS) -> dict[str, Any]:
    """The answer to an accepted request."""
    run_id = accepted.run_id
    return {
        "run_id": run_id,
        "status": status or accepted.status.value,
        "lane": accepted.lane,
        "replayed": accepted.replayed,
        "stream_url": f"{root}/{run_id}/stream",
        "status_url": f"{root}/{run_id}/status",
    }


def accepted_reply(accepted: Accepted, status: str | None = None, *, root: str = RUNS) -> JsonBody:
    """The same as an answer, with what is left of the tenant's rate."""
    return JsonBody(accepted_json(accepted, status, root=root), 202, rate_headers(accepted.quota) or None)


def lane_json(lane: Lane) -> dict[str, Any]:
    """A lane."""
    return {
        "name": lane.name,
        "enabled": lane.enabled,
        "max_slots": lane.max_slots,
        "poll_interval_ms": lane.poll_interval_ms,
        "kinds": list(lane.kinds),
        "running": lane.running,
        "queued": lane.queued,
        "running_jobs": lane.running,
        "queued_jobs": lane.queued,
        "slots_available": None if lane.max_slots is None else max(0, lane.max_slots - lane.running),
        "oldest_queued_at": moment(lane.oldest_queued_at_us),
    }


def worker_json(worker: WorkerRow) -> dict[str, Any]:
    """A worker."""
    return {
        "worker_id": worker.id,
        "hostname": worker.host,
        "pid": worker.pid,
        "status": worker.status,
        "version": worker.version,
        "lanes": list(worker.lanes),
        "targets": None if worker.targets is None else list(worker.targets),
        "active_jobs": worker.active,
        "max_jobs": worker.capacity,
        "started_at": moment(worker.started_at_us),
        "last_heartbeat": moment(worker.heartbeat_at_us),
        "ended_at": moment(worker.ended_at_us),
    }


def tenant_worker_json(worker: WorkerRow, active: int) -> dict[str, Any]:
    """A worker as a tenant sees it: without its host and what it can execute, and with the tenant's own runs."""
    hidden = {"hostname": None, "pid": None, "targets": None}
    return worker_json(worker) | hidden | {"active_jobs": active}
