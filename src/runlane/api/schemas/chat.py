"""Chat as it is asked for and told: sessions, turns, messages and their events."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Delay, Key, Name, Priority, ResponseModel, WebhookUrl
from runlane.api.schemas.tasks import OptionsBody, RunBody
from runlane.domain.run import Status

_SESSION = "sess_0192f3a1b2c37abc8def0123456789ab"
_RUN = "run_0192f3a1b2c37abc8def0123456789ab"


class AgentRequest(RunBody):
    """Ask an agent once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "Which orders are late?"}]})

    message: str = Field(min_length=1, description="What it is asked.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="Values that it is told as well.")
    webhook_url: WebhookUrl | None = None


class ChatBody(OptionsBody):
    """Say something to an agent."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "helper", "message": "Which orders are late?", "priority": 5}]}
    )

    agent: Name = Field(description="The agent's id.")
    message: str = Field(min_length=1, description="What is said.")
    session_id: Key | None = Field(default=None, description="The conversation; without it a new one begins.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="Values that the agent is told as well.")
    priority: Priority = 0
    delay_seconds: Delay = 0.0
    webhook_url: WebhookUrl | None = None


class ChatLinks(ResponseModel):
    """An accepted turn."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session_id": _SESSION,
                    "run_id": _RUN,
                    "turn": 1,
                    "status": "queued",
                    "replayed": False,
                    "stream_url": f"/api/v2/chat/{_SESSION}/stream",
                    "status_url": f"/api/v2/chat/{_SESSION}/status",
                }
            ]
        }
    )

    session_id: str
    run_id: str = Field(description="The run that answers; everything that runs have is there for it, too.")
    turn: int = Field(description="Its place in the conversation, from 1.")
    status: Status
    replayed: bool = Field(description="The Idempotency-Key had been used before; this is that turn.")
    stream_url: str
    status_url: str


class ChatEvents(ResponseModel):
    """Events of a conversation in order, as its stream gives them."""

    session_id: str
    count: int
    events: list[dict[str, Any]] = Field(
        examples=[
            [
                {
                    "chat_turn": 1,
                    "type": "queued",
                    "seq": 1,
                    "run_id": "run_1",
                    "attempt": 0,
                    "at": "2026-01-31T12:00:00.000000Z",
                }
            ]
        ]
    )
    next_after: str = Field(description="Pass it as `after` for what follows.", examples=["1.17"])


class ChatCancelled(ResponseModel):
    """What was cancelled."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"session_id": _SESSION, "status": "cancellation_requested", "run_ids": [_RUN]}]
        }
    )

    session_id: str
    status: str = Field(description="`cancellation_requested`, or `idle` when no turn was open.")
    run_ids: list[str]


class ChatDeleted(ResponseModel):
    """A conversation that is gone."""

    session_id: str
    deleted: bool
