"""The reason why a run that has not ended does not proceed, in every status, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runlane.domain.events import EventType
from runlane.domain.run import Run, Status, WaitingReason
from runlane.domain.text import load_json
from runlane.domain.timestamps import format_timestamp
from runlane.store.orchestration.waits import Wait
from runlane.store.queue.events import read_page
from runlane.store.queue.queued_reasons import read_queued_reason
from runlane.store.sql.database import Database


async def explain_wait(database: Database, run: Run, waits: Sequence[Wait]) -> WaitingReason | None:
    """Return why a run waits; None if it has ended or proceeds. `waits` are the open waits of a run with steps."""
    if run.waiting_reason is not None:
        return run.waiting_reason
    match run.status:
        case Status.QUEUED:
            return await read_queued_reason(database, run)
        case Status.AWAITING_APPROVAL:
            return _reason("approval", "it is held until a person approves it")
        case Status.SCHEDULED:
            return _due(run)
        case Status.PAUSED:
            return _paused(waits)
        case Status.RUNNING if run.has_steps:
            return await _provider_limit(database, run)
        case _:
            return None


def _due(run: Run) -> WaitingReason:
    due = "later" if run.due_at_us is None else f"at {format_timestamp(run.due_at_us)}"
    if run.attempt == 0:
        return _reason("due", f"it starts {due}")
    return _reason("retry", f"it is retried {due}")


def _paused(waits: Sequence[Wait]) -> WaitingReason:
    waiting = [wait for wait in waits if not wait.answered]
    for wait in sorted(waiting, key=lambda wait: wait.kind != "human"):
        match wait.kind:
            case "human":
                asks = f": {wait.request['prompt']}" if wait.request.get("prompt") else ""
                return _reason("question", f'the step "{wait.step_id}" waits for an answer{asks}', path=wait.path)
            case "event":
                message = f'the step "{wait.step_id}" waits for the event "{wait.name}"'
                return _reason("event", message, path=wait.path, event=wait.name)
            case "time" if wait.due_at_us is not None:
                due = format_timestamp(wait.due_at_us)
                return _reason("time", f'the step "{wait.step_id}" waits until {due}', path=wait.path)
            case _:
                continue
    return _reason("resuming", "what it waited for has arrived, and it continues")


async def _provider_limit(database: Database, run: Run) -> WaitingReason | None:
    """Return the limit that a running agent waits for, if its last event names one."""
    for line in await read_page(database, run.id, run.last_seq - 1, 1):
        if line.type == EventType.WAITING:
            reason = load_json(line.data).get("reason")
            return _reason("provider_limit", str(reason or "a limit of a model provider is reached"))
    return None


def _reason(code: str, message: str, **refs: Any) -> WaitingReason:
    return {"code": code, "message": message, "runs": [], "refs": refs}
