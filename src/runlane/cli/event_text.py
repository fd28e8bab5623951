"""The events of a run as lines: text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from runlane.cli.output import format_time, shorten
from runlane.domain.events import Event, EventType, LiveType
from runlane.domain.text import dump_json
from runlane.domain.timestamps import format_timestamp

if TYPE_CHECKING:
    from runlane.domain.views import LiveEvent

_MAX_TEXT: Final = 200


def tries_of(event: Event) -> int:
    """Return the number of tries of a claimed run. Events without it are from an older version."""
    return int(event.data.get("tries", event.attempt))


def describe_event(event: Event) -> str:
    """Return what happened, for people."""
    data = event.data
    match event.type:
        case EventType.QUEUED:
            return f"accepted, {data.get('status', 'queued')}"
        case EventType.APPROVED | EventType.REVIVED | EventType.KEY_FREE:
            return f"status {data.get('status', '')}"
        case EventType.PICKED_UP:
            return f"attempt {tries_of(event)} runs on {data.get('worker_id')}"
        case EventType.LOG:
            return f"{data.get('message', '')}{_fields(data)}"
        case EventType.ATTEMPT_FAILED:
            return f"the attempt failed: {_error(data)}"
        case EventType.RETRY_LATER:
            return f"the attempt asked for a retry: {_error(data)}"
        case EventType.WORKER_LOST:
            return f"worker {data.get('worker_id')} was lost; the run is {data.get('status')}"
        case EventType.DONE:
            return str(data.get("status", "done"))
        case _ if "path" in data or event.type in (EventType.PAUSED, EventType.ORCHESTRATION_START):
            return _describe_step(event.type, data)
        case _:
            return dump_json(data) if data else ""


def plain_line(event: Event | LiveEvent) -> str | None:
    """Return an event as one line of text; None for live events, which only a live view shows."""
    if not isinstance(event, Event):
        return (
            f"events before {event.data.get('first_seq')} are no longer kept"
            if event.type == LiveType.TRUNCATED
            else None
        )
    return f"{format_time(event.at_us)}  {event.seq:>5}  {event.type:<22} {describe_event(event)}".rstrip()


def json_line(event: Event | LiveEvent) -> str:
    """Return an event as one line of JSON, with the fields of the HTTP stream."""
    head: dict[str, Any] = {"type": event.type, "run_id": event.run_id, "attempt": event.attempt}
    if isinstance(event, Event):
        head = {"type": event.type, "seq": event.seq, **head, "at": format_timestamp(event.at_us)}
    return dump_json(head | event.data)


def _fields(data: Mapping[str, Any]) -> str:
    fields: Mapping[str, Any] = data.get("fields") or {}
    return "".join(f"  {name}={value}" for name, value in fields.items())


def _error(data: Mapping[str, Any]) -> str:
    error: Mapping[str, Any] = data.get("error") or {}
    return f"{error.get('type', 'error')}: {error.get('message', '')}"


def _describe_step(kind: str, data: Mapping[str, Any]) -> str:
    """Return what happened in an orchestration, with the path of the step first."""
    path = str(data.get("path", ""))
    match kind:
        case EventType.ORCHESTRATION_START:
            return str(data.get("orchestration_name") or data.get("orchestration_id"))
        case EventType.PAUSED:
            return f"waits at {', '.join(data.get('waiting_for') or [])}"
        case EventType.STEP_START:
            return f"{path}  {data.get('step_type')}"
        case EventType.STEP_COMPLETE:
            cost = f"  ${data['cost_usd']:.4f}" if data.get("cost_usd") else ""
            seconds = data.get("duration_seconds")
            return f"{path}{'' if seconds is None else f'  {float(seconds):.3f} s'}{cost}"
        case EventType.STEP_RETRY:
            return f"{path}  try {int(data.get('tries', 0)) + 1} in {data.get('delay_seconds')} s: {data.get('error')}"
        case EventType.STEP_ERROR:
            return f"{path}  {data.get('code')}: {data.get('error')}"
        case EventType.HUMAN_INPUT_REQUIRED:
            return f"{path}  {data.get('prompt')}"
        case EventType.RESUMED:
            by = data.get("by")
            return f"{path}  answered{f' by {by}' if by else ''}"
        case EventType.ROUTING_DECISION | EventType.IF_DECISION | EventType.SWITCH_DECISION:
            return f"{path}  -> {data.get('target_step_id') or 'end'}"
        case EventType.PARALLEL_START | EventType.PARALLEL_COMPLETE:
            return f"{path}  {data.get('branch_count')} branches"
        case EventType.BRANCH_START:
            return f"{path}  {int(data.get('branch_index', 0)) + 1} of {data.get('branch_count')}"
        case EventType.LOOP_ITERATION:
            total = data.get("total")
            return f"{path}  {data.get('iteration')}{f' of {total}' if total else ''}"
        case EventType.MODEL_REQUEST:
            return f"{path}  {data.get('message')}, turn {data.get('turn')}"
        case EventType.MODEL_RESPONSE:
            calls = cast("list[Mapping[str, Any]]", data.get("tool_calls") or [])
            names = ", ".join(str(call.get("name")) for call in calls)
            return f"{path}  {_short(data.get('text')) or f'calls {names}'}"
        case EventType.TOOL_EXECUTION:
            return f"{path}  {data.get('tool_name')} {_short(dump_json(data.get('args')))}"
        case EventType.TOOL_RESULT:
            failed = "failed: " if data.get("failed") else ""
            return f"{path}  {data.get('tool_name')} {failed}{_short(data.get('preview'))}"
        case EventType.WAITING:
            return f"{path}  {data.get('reason')}"
        case EventType.STEP_WARNING:
            return f"{path}  {data.get('message')}"
        case EventType.FINAL:
            response = data.get("response")
            return f"{path}  {response if isinstance(response, str) else dump_json(response)}"
        case _:
            rest = {key: value for key, value in data.items() if key not in ("path", "orch_step_id", "step_name")}
            return f"{path}  {dump_json(rest) if rest else ''}".rstrip()


def _short(text: Any) -> str:
    return shorten(text or "", _MAX_TEXT)
