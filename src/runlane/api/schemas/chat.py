"""Chat as it is asked for and told: sessions, turns, messages and their events."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from runlane.api.schemas.fields import At, Delay, Key, Name, Priority, ResponseModel, WebhookUrl
from runlane.api.schemas.tasks import OptionsBody, RunBody
from runlane.domain.run import Status

_SESSION = "sess_0192f3a1b2c37abc8def0123456789ab"
_RUN = "run_0192f3a1b2c37abc8def0123456789ab"
_MESSAGE: JsonDict = {
    "turn": 1,
    "role": "user",
    "content": "Which orders are late?",
    "status": "completed",
    "run_id": _RUN,
    "at": "2026-01-31T12:00:00.000000Z",
    "error": None,
}
_SUMMARY: JsonDict = {
    "session_id": _SESSION,
    "agent_id": "helper",
    "tenant": "default",
    "status": "completed",
    "turns": 1,
    "created_at": "2026-01-31T12:00:00.000000Z",
    "last_message_at": "2026-01-31T12:00:03.000000Z",
    "worker_id": None,
}
_WHOLE: JsonDict = {**_SUMMARY, "messages": [_MESSAGE]}
_STATUS = "Of the turn that is at work or next; if none is open, of the last one."


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


class MessageView(ResponseModel):
    """Something that was said. A failed or cancelled turn has a message and no answer."""

    model_config = ConfigDict(json_schema_extra={"examples": [_MESSAGE]})

    turn: int
    role: Literal["user", "assistant"]
    content: Any = Field(description="A text; an object if the agent answers with one.")
    status: Status = Field(description="What became of the turn.")
    run_id: str
    at: At
    error: dict[str, Any] | None = Field(description="Why a failed turn has no answer; with the user's message.")


class ChatSummary(ResponseModel):
    """A conversation in a list."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SUMMARY]})

    session_id: str
    agent_id: str
    tenant: str
    status: Status = Field(description=_STATUS)
    turns: int
    created_at: At
    last_message_at: At
    worker_id: str | None = Field(description="Who works on the turn that is open.")


class ChatStatus(ChatSummary):
    """Where a conversation stands, with its newest messages."""

    model_config = ConfigDict(json_schema_extra={"examples": [_WHOLE]})

    messages: list[MessageView] = Field(description="The newest ones, oldest first; all of them: /messages.")


class ChatPage(ResponseModel):
    """A page of conversations, newest first."""

    sessions: list[ChatSummary]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


class Messages(ResponseModel):
    """A page of what was said, oldest first."""

    session_id: str
    messages: list[MessageView]
    next_after: int = Field(description="The last turn here. Pass it as `after` for what follows.")
    last_turn: int


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
