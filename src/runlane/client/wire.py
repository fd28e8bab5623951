"""From the API's JSON to values and errors, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import orjson

from runlane.client.values import (
    Attempt,
    ChatMessage,
    ChatPost,
    ChatState,
    LiveEvent,
    LogLine,
    Logs,
    Question,
    Step,
    WorkerInfo,
)
from runlane.domain.events import Event
from runlane.domain.lane import Lane
from runlane.domain.run import Accepted, Run, Status
from runlane.errors import (
    Conflict,
    InputTooLarge,
    InvalidDefinitions,
    InvalidInput,
    InvalidRequest,
    RunlaneError,
    Unavailable,
    UnexpectedAnswer,
)

_OWN = frozenset({"type", "seq", "run_id", "attempt", "at"})
_SHOWN = 200


def ownership(source: str | None, take_over: bool) -> dict[str, Any]:
    """Return the fields that differ from the server's defaults, because an older server does not have them."""
    return {**({} if source is None else {"source": source}), **({"take_over": True} if take_over else {})}


def load(content: bytes, what: str) -> Any:
    """The JSON of an answer."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content[:_SHOWN].decode("utf-8", "replace")
        raise UnexpectedAnswer(f"{what} answered with something that is not JSON: {text!r}") from None


def load_event(text: str, what: str) -> dict[str, Any]:
    """The JSON of a stream's frame."""
    told = load(text.encode(), what)
    if not isinstance(told, dict) or "type" not in told:
        raise UnexpectedAnswer(f"{what} sent an event without a type: {text[:_SHOWN]!r}")
    return cast("dict[str, Any]", told)


def event_from(told: Mapping[str, Any]) -> Event | LiveEvent:
    """An event of a stream or a page: with a number it is stored, without one it is live."""
    data = {key: value for key, value in told.items() if key not in _OWN}
    run_id, kind, attempt = str(told.get("run_id", "")), str(told["type"]), int(told.get("attempt", 0))
    if told.get("seq") is None:
        return LiveEvent(run_id, kind, attempt, data)
    return Event(run_id, int(told["seq"]), kind, attempt, micros(told.get("at")) or 0, data)


def accepted_from(told: Mapping[str, Any]) -> Accepted:
    """The answer to an accepted request."""
    return Accepted(
        run_id=told["run_id"],
        status=Status(told["status"]),
        lane=told.get("lane", ""),
        replayed=bool(told.get("replayed", False)),
    )


def run_from(told: Mapping[str, Any]) -> Run:
    """A run."""
    return Run(
        id=told["run_id"],
        target=told["target"],
        lane=told["lane"],
        status=Status(told["status"]),
        priority=told["priority"],
        attempt=told["attempt"],
        failures=told["failures"],
        losses=told["losses"],
        max_attempts=told["max_attempts"],
        ordering_key=told["ordering_key"],
        accepted_at_us=micros(told["accepted_at"]) or 0,
        due_at_us=micros(told["due_at"]),
        # A server that does not send `claimed_at` sends the start of the latest attempt as `started_at`.
        claimed_at_us=micros(told.get("claimed_at", told["started_at"])),
        ended_at_us=micros(told["ended_at"]),
        cancel_requested_at_us=micros(told["cancel_requested_at"]),
        worker_id=told["worker_id"],
        last_seq=told["last_seq"],
        tenant=told["tenant"],
        first_seq=told["first_seq"],
        progress=told.get("progress"),
        progress_note=told.get("progress_note"),
        input=told.get("input"),
        result=told.get("result"),
        error=told.get("error"),
        state=told.get("state"),
        plan=_plan_from(told),
        children=told.get("children"),
        blocked_by=told.get("blocked_by"),
        started_at_us=micros(told["started_at"]),
    )


def attempt_from(told: Mapping[str, Any]) -> Attempt:
    """An attempt."""
    return Attempt(
        attempt=told["attempt"],
        worker_id=told["worker_id"],
        started_at_us=micros(told["started_at"]),
        ended_at_us=micros(told["ended_at"]),
        outcome=told["outcome"],
        error=told["error"],
    )


def step_from(told: Mapping[str, Any]) -> Step:
    """A recorded step."""
    seconds: float | None = told["duration_seconds"]
    return Step(
        path=told["path"],
        kind=told["kind"],
        attempt=told["attempt"],
        output=told["output"],
        ended_at_us=micros(told["ended_at"]) or 0,
        step_id=told["step_id"],
        outcome=told["outcome"],
        route=told["route"],
        input=told["input"],
        error=told["error"],
        tries=told["tries"],
        cost_usd=told["cost_usd"],
        tokens=told["tokens"],
        duration_us=None if seconds is None else round(seconds * 1_000_000),
    )


def question_from(told: Mapping[str, Any]) -> Question:
    """Something that a run waits for."""
    return Question(
        run_id=told["run_id"],
        target=told["target"],
        tenant=told["tenant"],
        path=told["path"],
        step_id=told["step_id"],
        kind=told["kind"],
        name=told["name"],
        prompt=told["prompt"],
        fields=tuple(told["fields"]),
        context=told["context"],
        opened_at_us=micros(told["opened_at"]) or 0,
        due_at_us=micros(told["due_at"]),
        answered_at_us=micros(told["answered_at"]),
        answered_by=told["answered_by"],
        answerable_by=told.get("answerable_by", "tenant"),
    )


def chat_post_from(told: Mapping[str, Any]) -> ChatPost:
    """The answer to a posted message."""
    return ChatPost(told["session_id"], told["turn"], told["run_id"], Status(told["status"]), told["replayed"])


def chat_message_from(told: Mapping[str, Any]) -> ChatMessage:
    """Something that was said."""
    return ChatMessage(
        turn=told["turn"],
        role=told["role"],
        content=told["content"],
        status=Status(told["status"]),
        run_id=told["run_id"],
        at_us=micros(told["at"]) or 0,
        error=told["error"],
    )


def chat_state_from(told: Mapping[str, Any]) -> ChatState:
    """A conversation, with messages if they are told."""
    return ChatState(
        session_id=told["session_id"],
        agent_id=told["agent_id"],
        tenant=told["tenant"],
        status=Status(told["status"]),
        turns=told["turns"],
        created_at_us=micros(told["created_at"]) or 0,
        last_message_at_us=micros(told["last_message_at"]) or 0,
        worker_id=told["worker_id"],
        messages=tuple(chat_message_from(message) for message in told.get("messages", ())),
    )


def _plan_from(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """As much of a run's plan as the API tells: its own version, what it was forked from, who called it."""
    plan: dict[str, Any] = {}
    if told.get("definition") is not None:
        plan["pins"] = {told["target"]: told["definition"]}
    origin = told.get("forked_from")
    if origin is not None:
        plan["fork"] = {"run_id": origin["run_id"], "path": origin["from_step"]}
    if told.get("parent") is not None:
        plan["parent"] = told["parent"]
    return plan or None


def logs_from(told: Mapping[str, Any]) -> Logs:
    """A page of a run's log."""
    return Logs(
        lines=tuple(
            LogLine(
                index=line["index"],
                event=line["event"],
                message=line["message"],
                at=line["at"],
                attempt=line["attempt"],
                fields=line.get("fields") or {},
                traceback=line.get("traceback"),
            )
            for line in told["logs"]
        ),
        next_index=told["next_index"],
        first_index=told["first_index"],
        status=Status(told["status"]),
        expected_log_count=told["expected_log_count"],
        truncated=told["truncated"],
        runner_id=told["runner_id"],
    )


def lane_from(told: Mapping[str, Any]) -> Lane:
    """A lane."""
    return Lane(
        name=told["name"],
        enabled=told["enabled"],
        max_slots=told["max_slots"],
        poll_interval_ms=told["poll_interval_ms"],
        running=told["running"],
        queued=told["queued"],
        oldest_queued_at_us=micros(told["oldest_queued_at"]),
        kinds=tuple(told["kinds"]),
    )


def worker_from(told: Mapping[str, Any]) -> WorkerInfo:
    """A worker."""
    return WorkerInfo(
        id=told["worker_id"],
        status=told["status"],
        host=told["hostname"],
        pid=told["pid"],
        version=told["version"],
        lanes=tuple(told["lanes"]),
        capacity=told["max_jobs"],
        active=told["active_jobs"],
        started_at_us=micros(told["started_at"]) or 0,
        heartbeat_at_us=micros(told["last_heartbeat"]) or 0,
        ended_at_us=micros(told["ended_at"]),
        targets=None if told["targets"] is None else tuple(told["targets"]),
    )


def micros(at: str | int | None) -> int | None:
    """A time as the API writes it, in microseconds since the epoch."""
    if at is None or isinstance(at, int):
        return at
    moment = datetime.fromisoformat(at)
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + moment.microsecond


def error_from(status: int, content: bytes, retry_after_seconds: float | None, what: str) -> RunlaneError:
    """The error class that the answer's code names, with the server's words."""
    try:
        told: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict) or "code" not in told:
        text = content[:_SHOWN].decode("utf-8", "replace")
        return UnexpectedAnswer(
            f"{what} answered {status} with {text!r}, which is no answer of a Runlane server. "
            "Check the URL, and what stands between you and the server."
        )
    body = cast("dict[str, Any]", told)
    kind = _BY_CODE.get(str(body["code"])) or _BY_STATUS.get(status, RunlaneError)
    message = str(body.get("message") or body.get("detail") or body["code"])
    # Not through __init__: that makes the message from facts which only the server has.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    said: dict[str, Any] = {
        "code": str(body["code"]),
        "retry_after_seconds": retry_after_seconds,
        "run_id": body.get("run_id"),
    }
    if kind is InvalidDefinitions:
        said["problems"] = [(str(item["field"]), str(item["message"])) for item in body.get("fields") or ()]
    if isinstance(error, InvalidInput):
        told_fields: list[dict[str, str]] = body.get("fields") or []
        said["fields"] = {item["field"].removeprefix("body.response."): item["message"] for item in told_fields}
    vars(error).update({name: value for name, value in said.items() if value is not None})
    return error


def _kinds(kind: type[RunlaneError]) -> Iterator[type[RunlaneError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


# For codes that only the API has, such as one for a body that is not JSON.
_BY_STATUS: dict[int, type[RunlaneError]] = {
    400: InvalidRequest,
    409: Conflict,
    413: InputTooLarge,
    422: InvalidRequest,
    503: Unavailable,
}
_BY_CODE = {kind.code: kind for kind in _kinds(RunlaneError) if kind.__module__ == RunlaneError.__module__}
