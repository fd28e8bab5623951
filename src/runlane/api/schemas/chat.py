"""Chat requests and responses: sessions, turns, messages and their events."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import (
    Delay,
    FairnessKey,
    Key,
    Name,
    Priority,
    ResponseModel,
    Tags,
    WebhookSecretText,
    WebhookUrl,
)
from runlane.api.schemas.tasks import OptionsBody, RunBody
from runlane.domain.run import Status

_SESSION = "sess_0192f3a1b2c37abc8def0123456789ab"
_RUN = "run_0192f3a1b2c37abc8def0123456789ab"


class AgentRequest(RunBody):
    """Run an agent once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "Which orders are late?"}]})

    message: str = Field(min_length=1, description="The message to the agent.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="Further values for the agent.")


class ChatBody(OptionsBody):
    """Send a message to an agent."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "helper", "message": "Which orders are late?", "priority": 5}]}
    )

    agent: Name = Field(description="The agent's id.")
    message: str = Field(min_length=1, description="The message to the agent.")
    session_id: Key | None = Field(default=None, description="The conversation. Default: a new one.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="Further values for the agent.")
    priority: Priority = 0
    delay_seconds: Delay = 0.0
    fairness_key: FairnessKey | None = None
    webhook_url: WebhookUrl | None = None
    tags: Tags = ()
    webhook_secret: WebhookSecretText | None = None


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
    run_id: str = Field(description="The run of the turn, which has all the endpoints of a run.")
    turn: int = Field(description="The number of the turn in the conversation, from 1.")
    status: Status
    replayed: bool = Field(description="The Idempotency-Key was used before; the response names that turn.")
    stream_url: str
    status_url: str


class ChatEvents(ResponseModel):
    """Events of a conversation in order, as in its stream."""

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
    next_after: str = Field(description="Pass it as `after` to get the next page.", examples=["1.17"])


class ChatCancelled(ResponseModel):
    """The cancelled runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"session_id": _SESSION, "status": "cancellation_requested", "run_ids": [_RUN]}]
        }
    )

    session_id: str
    status: str = Field(description="`cancellation_requested`, or `idle` when no turn was open.")
    run_ids: list[str]


class ChatDeleted(ResponseModel):
    """A deleted conversation."""

    session_id: str
    deleted: bool
