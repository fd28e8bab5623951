"""The types of webhook messages, with the JSON Schema and an example of each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from runlane.domain.run import Status
from runlane.errors import InvalidRequest, nearest


class WebhookType(StrEnum):
    """The type of a message: the fact that it reports."""

    RUN_STARTED = "run.started"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_WAITING = "run.waiting"
    RUN_ANSWERED = "run.answered"
    RUN_RETRIED = "run.retried"
    DEAD_LETTER_CREATED = "dead_letter.created"
    SCHEDULE_MISSED = "schedule.missed"
    SCHEDULE_FAILED = "schedule.failed"
    BUDGET_WARNING = "budget.warning"
    BUDGET_REACHED = "budget.reached"
    QUOTA_WARNING = "quota.warning"
    CHAT_TURN_COMPLETED = "chat.turn.completed"
    CHAT_TURN_FAILED = "chat.turn.failed"
    ENDPOINT_DISABLED = "endpoint.disabled"
    TEST_PING = "test.ping"


RUN_ENDS: Final[Mapping[Status, WebhookType]] = {
    Status.COMPLETED: WebhookType.RUN_COMPLETED,
    Status.FAILED: WebhookType.RUN_FAILED,
    Status.CANCELLED: WebhookType.RUN_CANCELLED,
}

_TEXT: Final = {"type": "string"}
_OR_NULL: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "number"}
_COUNT: Final = {"type": "integer"}
_TIME: Final = {"type": "string", "format": "date-time"}
_TIME_OR_NULL: Final = {"type": ["string", "null"], "format": "date-time"}
_ERROR: Final = {
    "type": ["object", "null"],
    "properties": {"type": _TEXT, "code": _OR_NULL, "message": _TEXT},
    "required": ["type", "message"],
}
_TAGS: Final = {"type": "array", "items": _TEXT}
_RUN: Final = {"run_id": _TEXT, "target": _TEXT, "lane": _TEXT, "status": _TEXT, "url": _TEXT, "tags": _TAGS}
_ENDED: Final = {
    **_RUN,
    "accepted_at": _TIME,
    "started_at": _TIME_OR_NULL,
    "ended_at": _TIME,
    "tries": _COUNT,
    "cost_usd": _NUMBER,
    "error": _ERROR,
}
_TURN: Final = {**_ENDED, "session_id": _TEXT, "turn": _COUNT}
_ACTION: Final = {
    "type": "object",
    "properties": {"name": _TEXT, "method": _TEXT, "url": _TEXT, "body": {"type": "object"}},
    "required": ["name", "method", "url", "body"],
}
_QUESTION: Final = {
    "run_id": _TEXT, "target": _TEXT, "lane": _TEXT, "path": _TEXT, "url": _TEXT, "tags": _TAGS,
}  # fmt: skip
_SCHEDULE: Final = {
    "schedule_id": _TEXT,
    "slot": _TIME,
    "last_slot": _TIME,
    "count": _COUNT,
    "reason": _OR_NULL,
    "detail": _OR_NULL,
}
_BUDGET: Final = {
    "scope": {"enum": ["tenant", "agent", "run", "step"]},
    "name": _TEXT,
    "limit_usd": _NUMBER,
    "spent_usd": _NUMBER,
    "on_cap": {"enum": ["fail", "ask"]},
    "run_id": _OR_NULL,
    "target": _OR_NULL,
    "lane": _OR_NULL,
    "url": _OR_NULL,
}
_PROPERTIES: Final[Mapping[WebhookType, Mapping[str, Any]]] = {
    WebhookType.RUN_STARTED: {**_RUN, "accepted_at": _TIME, "started_at": _TIME},
    WebhookType.RUN_COMPLETED: _ENDED,
    WebhookType.RUN_FAILED: _ENDED,
    WebhookType.RUN_CANCELLED: _ENDED,
    WebhookType.RUN_WAITING: {
        **_QUESTION,
        "step_id": _TEXT,
        "name": _TEXT,
        "prompt": _OR_NULL,
        "fields": {"type": "array", "items": {"type": "object"}},
        "inbox_url": _TEXT,
        "actions": {"type": "array", "items": _ACTION},
    },
    WebhookType.RUN_ANSWERED: {**_QUESTION, "answered_by": _TEXT},
    WebhookType.RUN_RETRIED: _RUN,
    WebhookType.DEAD_LETTER_CREATED: _ENDED,
    WebhookType.SCHEDULE_MISSED: _SCHEDULE,
    WebhookType.SCHEDULE_FAILED: _SCHEDULE,
    WebhookType.BUDGET_WARNING: _BUDGET,
    WebhookType.BUDGET_REACHED: _BUDGET,
    WebhookType.QUOTA_WARNING: {"quota": _TEXT, "limit": _COUNT, "used": _COUNT},
    WebhookType.CHAT_TURN_COMPLETED: _TURN,
    WebhookType.CHAT_TURN_FAILED: _TURN,
    WebhookType.ENDPOINT_DISABLED: {"endpoint_id": _TEXT, "reason": _TEXT},
    WebhookType.TEST_PING: {"endpoint_id": _TEXT},
}
_DESCRIPTIONS: Final[Mapping[WebhookType, str]] = {
    WebhookType.RUN_STARTED: "A worker has claimed a run for the first time.",
    WebhookType.RUN_COMPLETED: "A run has completed.",
    WebhookType.RUN_FAILED: "A run has failed for good.",
    WebhookType.RUN_CANCELLED: "A run has been cancelled.",
    WebhookType.RUN_WAITING: "A run asks a person a question.",
    WebhookType.RUN_ANSWERED: "A person has answered the question of a run.",
    WebhookType.RUN_RETRIED: "A failed run is retried.",
    WebhookType.DEAD_LETTER_CREATED: "A run that failed for good became a dead letter.",
    WebhookType.SCHEDULE_MISSED: "Slots of a schedule have passed without a run.",
    WebhookType.SCHEDULE_FAILED: "A schedule could not start its run.",
    WebhookType.BUDGET_WARNING: "Four fifths of a budget for model calls are spent.",
    WebhookType.BUDGET_REACHED: "A budget for model calls is spent; further calls fail, or a person is asked.",
    WebhookType.QUOTA_WARNING: "Four fifths of a quota of the tenant are used; at most one message a day.",
    WebhookType.CHAT_TURN_COMPLETED: "The turn of a conversation has its answer.",
    WebhookType.CHAT_TURN_FAILED: "The turn of a conversation has failed.",
    WebhookType.ENDPOINT_DISABLED: "Another endpoint of the tenant has been disabled.",
    WebhookType.TEST_PING: "A test that a person has sent.",
}
_AT: Final = "2026-01-31T12:00:00.000000Z"
_ID: Final = "run_0192f3a1b2c37abc8def0123456789ab"
_EXAMPLES: Final[Mapping[str, Any]] = {
    "run_id": _ID,
    "target": "greet",
    "lane": "default",
    "status": "completed",
    "url": f"/api/v2/runs/{_ID}",
    "tags": ["nightly"],
    "accepted_at": _AT,
    "started_at": _AT,
    "ended_at": _AT,
    "tries": 1,
    "cost_usd": 0.0,
    "error": None,
    "session_id": "sess_0192f3a1b2c37abc8def0123456789ab",
    "turn": 1,
    "path": "approve",
    "step_id": "approve",
    "name": "approve",
    "prompt": "Publish?",
    "fields": [{"name": "ok", "type": "boolean"}],
    "inbox_url": "/api/v2/inbox",
    "actions": [
        {
            "name": "yes",
            "method": "POST",
            "url": f"/api/v2/runs/{_ID}/resume",
            "body": {"step": "approve", "response": {"ok": True}},
        }
    ],
    "answered_by": "mara",
    "schedule_id": "nightly",
    "slot": _AT,
    "last_slot": _AT,
    "count": 1,
    "detail": None,
    "scope": "run",
    "limit_usd": 5.0,
    "spent_usd": 4.25,
    "on_cap": "ask",
    "quota": "runs_per_day",
    "limit": 1000,
    "used": 800,
    "endpoint_id": "we_0192f3a1b2c37abc8def0123456789ab",
    "reason": "410 Gone",
}


def schema_of(kind: WebhookType) -> dict[str, Any]:
    """Return the JSON Schema of a message of this type."""
    properties = _PROPERTIES[kind]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.value,
        "description": _DESCRIPTIONS[kind],
        "type": "object",
        "properties": {
            "type": {"const": kind.value},
            "timestamp": _TIME,
            "data": {"type": "object", "properties": dict(properties), "required": list(properties)},
        },
        "required": ["type", "timestamp", "data"],
    }


def example_of(kind: WebhookType) -> dict[str, Any]:
    """Return an example of a message of this type."""
    data = {name: _EXAMPLES[name] for name in _PROPERTIES[kind]}
    return {"type": kind.value, "timestamp": _AT, "data": data}


def describe_type(kind: WebhookType) -> dict[str, Any]:
    """Return a type with its schema and an example, for readers of the API."""
    return {
        "type": kind.value,
        "description": _DESCRIPTIONS[kind],
        "schema": schema_of(kind),
        "example": example_of(kind),
    }


def check_types(names: list[str]) -> list[str]:
    """Return the types if all of them exist."""
    known = [kind.value for kind in WebhookType]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f'"{name[:100]}" is not a type of webhook messages{nearest(name, known)}. Types: {", ".join(known)}.'
            )
    return sorted(set(names))
