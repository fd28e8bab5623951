"""A run's events in words, for people who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from runlane.cli.show import clock
from runlane.domain.events import Event, EventType
from runlane.domain.text import dump_json
from runlane.domain.wire import format_timestamp

if TYPE_CHECKING:
    from runlane.client import LiveEvent


_SHOWN: Final = 200


def tries_of(event: Event) -> int:
    """Which try a claimed run is at. Events without the number are from an older version."""
    return int(event.data.get("tries", event.attempt))


def sentence(event: Event) -> str:
    """What happened."""
    data = event.data
    match event.type:
        case "queued":
            return f"accepted, {data.get('status', 'queued')}"
        case "approved" | "revived" | "key_free":
            return f"it is {data.get('status', '')} now"
        case "worker_picked_up":
            return f"attempt {tries_of(event)} runs on {data.get('worker_id')}"
        case "log":
            return f"{data.get('message', '')}{_fields(data)}"
        case "attempt_failed":
            return f"the attempt failed: {_error(data)}"
        case "retry_later":
            return f"the attempt asked to be repeated: {_error(data)}"
        case "worker_lost":
            return f"worker {data.get('worker_id')} is gone; the run is {data.get('status')}"
        case "done":
            return str(data.get("status", "done"))
        case _ if "path" in data or event.type in (EventType.PAUSED, EventType.ORCHESTRATION_START):
            return _of_step(event.type, data)
        case _:
            return dump_json(data) if data else ""


def plain_line(event: Event | LiveEvent) -> str | None:
    """An event as one line of text; None for what is only worth showing where it can be painted over."""
    if not isinstance(event, Event):
        return f"events before {event.data.get('first_seq')} are no longer kept" if event.type == "truncated" else None
    return f"{clock(event.at_us)}  {event.seq:>5}  {event.type:<22} {sentence(event)}".rstrip()


def wire_line(event: Event | LiveEvent) -> str:
    """An event as one line of JSON, with the fields that the stream itself sends."""
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


def _of_step(kind: str, data: Mapping[str, Any]) -> str:
    """What happened in an orchestration; the path of a step comes first."""
    path = str(data.get("path", ""))
    match kind:
        case "orchestration_start":
            return str(data.get("orchestration_name") or data.get("orchestration_id"))
        case EventType.PAUSED:
            return f"waits at {', '.join(data.get('waiting_for') or [])}"
        case "step_start":
            return f"{path}  {data.get('step_type')}"
        case "step_complete":
            cost = f"  ${data['cost_usd']:.4f}" if data.get("cost_usd") else ""
            seconds = data.get("duration_seconds")
            return f"{path}{'' if seconds is None else f'  {float(seconds):.3f} s'}{cost}"
        case "step_retry":
            return f"{path}  try {int(data.get('tries', 0)) + 1} in {data.get('delay_seconds')} s: {data.get('error')}"
        case "step_error":
            return f"{path}  {data.get('code')}: {data.get('error')}"
        case "human_input_required":
            return f"{path}  {data.get('prompt')}"
        case "resumed":
            return f"{path}  answered by {data.get('by') or 'somebody'}"
        case EventType.ROUTING_DECISION | EventType.IF_DECISION | "switch_decision":
            return f"{path}  -> {data.get('target_step_id') or 'end'}"
        case "branch_start":
            return f"{path}  {int(data.get('branch_index', 0)) + 1} of {data.get('branch_count')}"
        case "loop_iteration":
            total = data.get("total")
            return f"{path}  {data.get('iteration')}{f' of {total}' if total else ''}"
        case EventType.MODEL_REQUEST:
            return f"{path}  {data.get('message')}, turn {data.get('turn')}"
        case "model_response":
            wanted = cast("list[Mapping[str, Any]]", data.get("tool_calls") or [])
            calls = [str(call.get("name")) for call in wanted]
            said = _short(data.get("text")) or f"wants {', '.join(calls)}"
            return f"{path}  {said}"
        case "tool_execution":
            return f"{path}  {data.get('tool_name')} {_short(dump_json(data.get('args')))}"
        case "tool_result":
            failed = "failed: " if data.get("failed") else ""
            return f"{path}  {data.get('tool_name')} {failed}{_short(data.get('preview'))}"
        case EventType.WAITING:
            return f"{path}  {data.get('reason')}"
        case "step_warning":
            return f"{path}  {data.get('message')}"
        case "final":
            response = data.get("response")
            return f"{path}  {response if isinstance(response, str) else dump_json(response)}"
        case _:
            left = {key: value for key, value in data.items() if key not in ("path", "orch_step_id", "step_name")}
            return f"{path}  {dump_json(left) if left else ''}".rstrip()


def _short(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
