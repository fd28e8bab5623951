"""Parameters of A2A requests. Fields that have no effect here are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel

from runlane.api.a2a.errors import CONTENT_TYPE_NOT_SUPPORTED, INVALID_PARAMS, PUSH_NOT_SUPPORTED, ProtocolRefusal
from runlane.api.schemas.fields import Name, RequestModel
from runlane.domain.text import dump_json

# Clients send an empty string for an id that they do not have.
OptionalId = Name | Literal[""]
MAX_TASKS = 100


class Params(RequestModel):
    """Parameters with the names of the protocol's JSON."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    # The key determines the tenant; clients send an empty string.
    tenant: str = ""


class PartParams(Params):
    """A part of a message. `data` is JSON that the agent receives as text."""

    text: str | None = None
    data: JsonValue = None
    raw: str | None = None
    url: str | None = None
    metadata: dict[str, Any] | None = None
    filename: str | None = None
    media_type: str | None = None

    def content(self) -> str:
        """Return the part as text."""
        if self.text is not None:
            return self.text
        if self.raw is not None or self.url is not None:
            raise ProtocolRefusal(CONTENT_TYPE_NOT_SUPPORTED, "Files are not accepted. Send text or data.")
        return dump_json(self.data)


class MessageParams(Params):
    """A message of a user or of another agent."""

    message_id: Name
    role: str = "ROLE_USER"
    parts: Annotated[list[PartParams], Field(min_length=1, max_length=100)]
    context_id: OptionalId | None = None
    task_id: OptionalId | None = None
    metadata: dict[str, Any] | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None

    def content(self) -> str:
        """Return the text of the message."""
        if self.reference_task_ids:
            raise ProtocolRefusal(INVALID_PARAMS, "referenceNames is not supported. Send what the agent needs.")
        text = "\n\n".join(part.content() for part in self.parts)
        if not text.strip():
            raise ProtocolRefusal(INVALID_PARAMS, "The message is empty. Send text.")
        return text


class PushParams(Params):
    """The URL that receives a notification when a task ends. A task has at most one, with the id of the task."""

    id: str = ""
    task_id: OptionalId = ""
    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)]
    token: str | None = None
    authentication: dict[str, Any] | None = None

    def checked_url(self) -> str:
        """Return the URL. Raise ProtocolRefusal if the client sent credentials: notifications are signed instead."""
        if self.token or self.authentication:
            raise ProtocolRefusal(
                PUSH_NOT_SUPPORTED,
                "token and authentication are not supported. Check the signature of the notification instead.",
            )
        return self.url


class SendConfiguration(Params):
    """Options of the response to a message."""

    accepted_output_modes: list[str] | None = None
    task_push_notification_config: PushParams | None = None
    history_length: Annotated[int, Field(ge=0)] | None = None
    return_immediately: bool = False


class SendParams(Params):
    """A message to send."""

    message: MessageParams
    configuration: SendConfiguration = Field(default_factory=SendConfiguration)
    metadata: dict[str, Any] | None = None


class TaskParams(Params):
    """Parameters of the methods for one task."""

    id: Name
    history_length: Annotated[int, Field(ge=0)] | None = None
    metadata: dict[str, Any] | None = None


class ListParams(Params):
    """The filters and the page of a task list."""

    context_id: OptionalId | None = None
    status: str | None = None
    page_size: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 50
    page_token: OptionalId | None = None
    history_length: Annotated[int, Field(ge=0)] | None = None
    include_artifacts: bool = False


class PushOfTask(Params):
    """Parameters that name the push notification config of a task."""

    task_id: Name
    id: str = ""
    page_size: int | None = None
    page_token: OptionalId | None = None
