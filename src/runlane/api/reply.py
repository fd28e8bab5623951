"""Replies: our own values as JSON, written once and without a detour through models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from runlane.api.frame import iso
from runlane.model.event import EventType, Line
from runlane.model.lane import Lane
from runlane.model.run import Accepted, Run, Status
from runlane.store.workers import WorkerRow

ROOT = "/api/v2"


class Reply(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), status, headers)


def moment(at_us: int | None) -> str | None:
    """A stored time as text."""
    return None if at_us is None else iso(at_us)


def accepted_json(accepted: Accepted, status: str | None = None) -> dict[str, Any]:
    """The answer to an accepted request."""
    run_id = accepted.run_id
    return {
        "run_id": run_id,
        "status": status or accepted.status.value,
        "lane": accepted.lane,
        "replayed": accepted.replayed,
        "stream_url": f"{ROOT}/runs/{run_id}/stream",
        "status_url": f"{ROOT}/runs/{run_id}/status",
    }


def run_json(run: Run, *, whole: bool) -> dict[str, Any]:
    """A run."""
    body: dict[str, Any] = {
        "run_id": run.id,
        "target": run.target,
        "lane": run.lane,
        "tenant": run.tenant,
        "status": run.status.value,
        "priority": run.priority,
        "attempt": run.attempt,
        "failures": run.failures,
        "losses": run.losses,
        "max_attempts": run.max_attempts,
        "ordering_key": run.ordering_key,
        "accepted_at": moment(run.accepted_at_us),
        "due_at": moment(run.due_at_us),
        "started_at": moment(run.claimed_at_us),
        "ended_at": moment(run.ended_at_us),
        "cancel_requested_at": moment(run.cancel_requested_at_us),
        "worker_id": run.worker_id,
        "first_seq": run.first_seq,
        "last_seq": run.last_seq,
        "progress": run.progress,
        "progress_note": run.progress_note,
    }
    if whole:
        body |= {"input": run.input, "result": run.result, "error": run.error}
    return body


def status_json(run: Run) -> dict[str, Any]:
    """Where a run stands. Tasks have no steps of their own and spend no tokens."""
    return {
        "run_id": run.id,
        "orchestration_id": run.target,
        "status": run.status.value,
        "current_step_id": None,
        "waiting_for_human": run.status is Status.PAUSED,
        "worker_id": run.worker_id,
        "total_cost_usd": 0.0,
        "total_tokens_used": 0,
        "started_at": moment(run.claimed_at_us),
        "ended_at": moment(run.ended_at_us),
        "attempt": run.attempt,
        "progress": run.progress,
        "progress_note": run.progress_note,
    }


def attempts_json(run: Run, ended: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ended attempts, and the one that runs."""
    found = [
        {
            "attempt": attempt["attempt"],
            "worker_id": attempt["worker_id"],
            "started_at": moment(attempt["started_at_us"]),
            "ended_at": moment(attempt["ended_at_us"]),
            "outcome": attempt["outcome"],
            "error": attempt["error"],
        }
        for attempt in ended
    ]
    if run.status is Status.RUNNING and all(attempt["attempt"] != run.attempt for attempt in found):
        found.append(
            {
                "attempt": run.attempt,
                "worker_id": run.worker_id,
                "started_at": moment(run.claimed_at_us),
                "ended_at": None,
                "outcome": None,
                "error": None,
            }
        )
    return found


def log_json(line: Line) -> dict[str, Any]:
    """An event as a log line: its index is its number less one."""
    data: dict[str, Any] = orjson.loads(line.data)
    entry: dict[str, Any] = {
        "index": line.seq - 1,
        "event": line.type,
        "message": _message(line.type, data),
        "at": iso(line.at_us),
        "attempt": line.attempt,
    }
    if isinstance(data.get("fields"), dict):
        entry["fields"] = data["fields"]
    error: dict[str, Any] = data.get("error") or {}
    if "traceback" in error:
        entry["traceback"] = error["traceback"]
    return entry


def _message(kind: str, data: Mapping[str, Any]) -> str:
    match kind:
        case EventType.LOG:
            return str(data.get("message", ""))
        case EventType.PICKED_UP:
            return f"picked up by {data.get('worker_id')}"
        case EventType.WORKER_LOST:
            return f"worker {data.get('worker_id')} was lost"
        case EventType.ATTEMPT_FAILED | EventType.RETRY_LATER:
            error: Mapping[str, Any] = data.get("error") or {}
            return f"{error.get('type', 'error')}: {error.get('message', '')}"
        case _:
            status = data.get("status")
            return kind if status is None else f"{kind}: {status}"


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
