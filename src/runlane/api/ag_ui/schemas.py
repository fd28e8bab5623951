"""The request of AG-UI clients: the supported fields of RunAgentInput."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from runlane.api.schemas.fields import Name

MAX_MESSAGES = 1000
MAX_ENTRIES = 100


class AgUiModel(BaseModel):
    """Base class of the request and its parts. Names of fields are in camel case."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False)


class ContextEntry(AgUiModel):
    """Information about the surroundings of a run."""

    description: str
    value: str


class ResumeAnswer(AgUiModel):
    """The answer to an interrupt."""

    interrupt_id: Name
    status: Literal["resolved", "cancelled"]
    payload: Any = Field(default=None, description="The answer: a string, or an object with the fields of the form.")
    metadata: dict[str, Any] | None = Field(default=None, description="Has no effect.")


class AgUiRequest(AgUiModel):
    """Run an agent, or answer the interrupts of a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "threadId": "thread-1",
                    "runId": "run-1",
                    "messages": [{"id": "1", "role": "user", "content": "Which orders are late?"}],
                }
            ]
        }
    )

    thread_id: Name = Field(description="The client's name for the conversation. The events repeat it.")
    run_id: Name = Field(description="The client's name for the run. A repeated request returns the existing run.")
    messages: list[dict[str, Any]] = Field(
        max_length=MAX_MESSAGES, description="The conversation. The last message of the user is for the agent."
    )
    resume: list[ResumeAnswer] | None = Field(default=None, max_length=MAX_ENTRIES)
    context: list[ContextEntry] | None = Field(default=None, max_length=MAX_ENTRIES)
    protocol_version: str | None = Field(default=None, max_length=20)
    parent_run_id: str | None = Field(default=None, description="Has no effect.")
    tools: list[Any] | None = Field(default=None, description="Must be empty: the agent has its own tools.")
    state: Any = Field(default=None, description="Must be empty: agents share no state with clients.")
    forwarded_props: Any = Field(default=None, description="Must be empty.")
