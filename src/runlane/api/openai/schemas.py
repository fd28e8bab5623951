"""Requests and responses of the OpenAI-compatible API: the supported fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import Name, ResponseModel

MAX_MESSAGES = 1000
MAX_METADATA = 16
_CHAT = "chatcmpl-0192f3a1b2c37abc8def0123456789ab"
_RESPONSE = "resp_0192f3a1b2c37abc8def0123456789ab"

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
User = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA)]
Model = Annotated[Name, Field(description="The agent's id.", examples=["helper"])]


class OpenAiRequest(BaseModel):
    """Base class of the requests.

    Other parameters of OpenAI's API are accepted if their value has no effect, else refused.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = Field(default=False, description="Send the usage in a chunk before the end.")
    include_obfuscation: bool = Field(default=False, description="Has no effect: no padding is sent.")


class ChatCompletionRequest(OpenAiRequest):
    """A conversation with an agent that the client sends as a whole."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "helper", "messages": [{"role": "user", "content": "Which orders are late?"}]}]
        }
    )

    model: Model
    messages: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="The conversation. The last message is for the agent; system messages follow its instructions.",
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    reasoning_effort: str | None = None
    user: User | None = Field(default=None, description="Becomes the tag user=VALUE of the run.")
    safety_identifier: User | None = Field(default=None, description="The same as `user`, under its newer name.")
    metadata: Metadata | None = Field(default=None, description="Becomes tags NAME=VALUE of the run.")
    store: bool | None = Field(default=None, description="Has no effect: the run is stored like every run.")


class Reasoning(BaseModel):
    """The reasoning effort of the model."""

    model_config = ConfigDict(strict=True, extra="forbid")

    effort: str | None = None


class ConversationRef(BaseModel):
    """A conversation by its id."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: Name


class ResponseRequest(OpenAiRequest):
    """A message to an agent, in a conversation that later requests can continue."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "helper", "input": "Which orders are late?"}]},
    )

    model: Model
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = Field(
        default=None, description="Appended to the agent's instructions, in this run only."
    )
    previous_response_id: Name | None = None
    conversation: Name | ConversationRef | None = Field(default=None, description="The id of a chat session.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = Field(default=None, description="Return at once; read the response by its id.")
    store: bool | None = Field(default=None, description="False: no conversation begins. The run is stored.")
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_output_tokens: Tokens | None = None
    reasoning: Reasoning | None = None
    user: User | None = Field(default=None, description="Becomes the tag user=VALUE of the run.")
    safety_identifier: User | None = Field(default=None, description="The same as `user`, under its newer name.")
    metadata: Metadata | None = Field(default=None, description="Becomes tags NAME=VALUE of the run.")


class ModelView(ResponseModel):
    """An agent as a model."""

    id: str = Field(examples=["helper"])
    object: str = Field(examples=["model"])
    created: int = Field(description="Seconds since the epoch.")
    owned_by: str = Field(examples=["runlane"])


class ModelList(ResponseModel):
    """The agents of the caller's tenant."""

    object: str = Field(examples=["list"])
    data: list[ModelView]


class ChatCompletion(ResponseModel):
    """The answer of an agent."""

    id: str = Field(examples=[_CHAT])
    object: str = Field(examples=["chat.completion"])
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None


class ResponseView(ResponseModel):
    """A response: its status, its output and its usage."""

    id: str = Field(examples=[_RESPONSE])
    object: str = Field(examples=["response"])
    created_at: int
    status: str = Field(description="queued, in_progress, completed, incomplete, failed or cancelled.")
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    usage: dict[str, Any] | None
