"""Replies: our own values as JSON, written once and without a detour through models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from runlane.api.error_responses import rate_headers
from runlane.api.sse_encoding import iso
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.lane import Lane
from runlane.domain.run import Accepted, Run, Status
from runlane.store.orchestration.waits import Wait
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


def moment(at_us: int | None) -> str | None:
    """A stored time as text."""
    return None if at_us is None else iso(at_us)


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


def run_json(run: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "run_id": run.id,
        "target": run.target,
        "lane": run.lane,
        "tenant": run.tenant,
        "status": run.status.value,
        "priority": run.priority,
        "attempt": run.attempt,
        "tries": run.tries,
        "failures": run.failures,
        "losses": run.losses,
        "max_attempts": run.max_attempts,
        "ordering_key": run.ordering_key,
        "accepted_at": moment(run.accepted_at_us),
        "due_at": moment(run.due_at_us),
        "started_at": moment(run.started_at_us),
        "claimed_at": moment(run.claimed_at_us),
        "ended_at": moment(run.ended_at_us),
        "cancel_requested_at": moment(run.cancel_requested_at_us),
        "worker_id": run.worker_id,
        "first_seq": run.first_seq,
        "last_seq": run.last_seq,
        "progress": run.progress,
        "progress_note": run.progress_note,
    }


def whole_json(run: Run, waits: Sequence[Wait]) -> dict[str, Any]:
    """A run with everything that is known of it."""
    return run_json(run) | {
        "input": run.input,
        "result": run.result,
        "error": run.error,
        "state": run.state,
        "waiting_for": [question_json(wait) for wait in waits],
        "definition": run.definition,
        "forked_from": run.forked_from,
        "parent": run.parent,
        "children": run.children or [],
        "blocked_by": run.blocked_by,
    }


def question_json(wait: Wait) -> dict[str, Any]:
    """Something that a run waits for."""
    return {
        "run_id": wait.run_id,
        "target": wait.target,
        "tenant": wait.tenant,
        "path": wait.path,
        "step_id": wait.step_id,
        "kind": wait.kind,
        "name": wait.name,
        "prompt": wait.request.get("prompt"),
        "fields": wait.request.get("fields") or [],
        "context": wait.request.get("context"),
        "channel_id": wait.request.get("channel_id"),
        "answerable_by": wait.answerable_by,
        "opened_at": moment(wait.opened_at_us),
        "due_at": moment(wait.due_at_us),
        "answered_at": moment(wait.answered_at_us),
        "answered_by": wait.answered_by,
    }


def step_json(step: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded step."""
    plain = ("path", "kind", "attempt", "step_id", "outcome", "route", "input", "output", "error", "cost_usd")
    taken = step["duration_us"]
    return {
        **{name: step[name] for name in plain},
        "tries": step["tries"] or 0,
        "tokens": step["tokens"] or 0,
        "duration_seconds": None if taken is None else taken / 1_000_000,
        "ended_at": moment(step["ended_at_us"]),
    }


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run of an orchestration has come, and what it has spent. Tasks have no steps and spend no tokens."""

    current_step_id: str | None = None
    waiting_for_human: bool = False
    cost_usd: float | None = 0.0
    tokens: int = 0


def status_json(run: Run, course: RunProgress) -> dict[str, Any]:
    """Where a run stands."""
    return {
        "run_id": run.id,
        "orchestration_id": run.orchestration or run.target,
        "status": run.status.value,
        "current_step_id": course.current_step_id,
        "waiting_for_human": course.waiting_for_human,
        "worker_id": run.worker_id,
        "total_cost_usd": course.cost_usd,
        "total_tokens_used": course.tokens,
        "started_at": moment(run.started_at_us),
        "ended_at": moment(run.ended_at_us),
        "attempt": run.attempt,
        "tries": run.tries,
        "progress": run.progress,
        "progress_note": run.progress_note,
        "blocked_by": run.blocked_by,
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


def log_json(line: StoredEvent) -> dict[str, Any]:
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
    error = data.get("error")
    # Steps tell their error as a text.
    if isinstance(error, dict) and "traceback" in error:
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
            about = [data.get(name) for name in ("path", "status", "error", "prompt", "message", "decision")]
            told = [text for text in about if isinstance(text, str) and text]
            return f"{kind}: {', '.join(told)}" if told else kind


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
