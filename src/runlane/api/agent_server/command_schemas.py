"""Commands and subscriptions of the thread protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from runlane.api.agent_server.assistant_schemas import Json
from runlane.api.agent_server.event_channels import MAX_NUMBER, EventSelection
from runlane.api.schemas.fields import Name, RequestModel

MAX_CHANNELS = 100
MAX_NAMESPACES = 100
MAX_ANSWERS = 100

Channel = (
    Literal["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"]
    | Annotated[str, StringConstraints(pattern=r"^custom:.", max_length=200)]
)
Namespace = Annotated[list[Annotated[str, StringConstraints(max_length=500)]], Field(max_length=20)]


class CommandMessage(RequestModel):
    """A command. The response has the same id."""

    id: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    method: Name
    params: Json = Field(default_factory=dict[str, Any])


class EventsBody(RequestModel):
    """The events that a reader of a thread receives."""

    channels: Annotated[list[Channel], Field(min_length=1, max_length=MAX_CHANNELS)]
    namespaces: Annotated[list[Namespace], Field(max_length=MAX_NAMESPACES)] | None = None
    depth: Annotated[int, Field(ge=0, le=100)] | None = None
    since: Annotated[int, Field(ge=0, le=MAX_NUMBER, description="Events after this number.")] | None = None

    @property
    def subscription(self) -> EventSelection:
        """Return which events the reader receives."""
        return EventSelection(frozenset(self.channels), self.namespaces, self.depth)


class ResponseEntry(RequestModel):
    """The answer to one question."""

    interrupt_id: Name
    namespace: Namespace = Field(default_factory=list[str])
    response: Any = None


class RespondParams(RequestModel):
    """Answers to questions: one, or several at once."""

    interrupt_id: Name | None = None
    namespace: Namespace | None = None
    response: Any = None
    responses: Annotated[list[ResponseEntry], Field(min_length=1, max_length=MAX_ANSWERS)] | None = None
    update: Any = None
    goto: Any = None
    config: Json | None = None
    metadata: Json | None = None

    @model_validator(mode="after")
    def _check(self) -> RespondParams:
        if (self.interrupt_id is None) == (self.responses is None):
            raise ValueError("send either interrupt_id with response, or responses")
        return self

    def by_interrupt(self) -> dict[str, Any]:
        """Return the answers by the ids of their questions."""
        if self.responses is not None:
            return {entry.interrupt_id: entry.response for entry in self.responses}
        return {} if self.interrupt_id is None else {self.interrupt_id: self.response}

    def command(self, answered: Json) -> Json:
        """Return the command for the graph."""
        more = {"update": self.update, "goto": self.goto}
        return {"resume": answered, **{name: value for name, value in more.items() if value is not None}}

    def options(self) -> Json:
        """Return the options of the run, without the command."""
        given = {"config": self.config, "metadata": self.metadata}
        return {name: value for name, value in given.items() if value is not None}
