"""Models: the protocol of a model, and the registry that returns a model by name.

A name is a registered prefix, or a prefix, a colon and a rest that the prefix interprets. A model that cannot answer
raises an exception; an error is never returned as an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from runlane.definitions.schema.definition import Agent, ModelSettings, Orchestration
from runlane.domain.model_names import resolve_model
from runlane.errors import ConfigurationError, nearest
from runlane.redaction import Redactor

_DEFAULTS: Final = ModelSettings()
# The only argument of a call whose arguments are not a JSON object. Its value is the string that the model wrote.
INVALID_JSON: Final = "__invalid_json__"


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of an answer. `call_id` and `tool` are set for arguments of a tool call.

    The caller adds the answer to which the piece belongs and the offset. A piece at offset 0 starts the answer again.
    """

    kind: Literal["text", "thinking", "arguments"]
    text: str
    call_id: str | None = None
    tool: str | None = None
    answer: str = ""
    offset: int = 0


Delta = Callable[[ModelDelta], None]


class ModelFailed(Exception):
    """A model call failed. `retryable` means that a retry may succeed.

    `retry_after_seconds` is the time that the provider requested. `throttled` means that all users of the credential
    should slow down.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        throttled: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.throttled = throttled
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model requests. `id` is unique within the conversation.

    Arguments that are not a JSON object are {INVALID_JSON: the string}. The tool is then not called, and the model
    receives an error.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may call."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `calls` are the tool calls of the model. `tool` and `call_id` identify the call of a result; `failed` means that the
    tool failed or was not called. `raw` is the answer in the format of the model's module, with signatures that the
    provider requires in later requests. Only that module reads it. `turn` is the turn of the chat.
    """

    role: Literal["user", "assistant", "tool"]
    text: str
    tool: str | None = None
    call_id: str | None = None
    calls: tuple[ToolCall, ...] = ()
    failed: bool = False
    raw: str | None = None
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    `key` identifies this call within the run and is the same when the call is repeated after a crash. `number` counts
    the calls of the step within the run, from 0, and is also the same after a crash. With `must_call`, the model must
    call one of the tools instead of answering. `waited_seconds` is the elapsed part of the model's own delay, see
    DelayedModel.
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str = ""
    offers: tuple[ToolOffer, ...] = ()
    must_call: bool = False
    settings: ModelSettings = _DEFAULTS
    key: str = ""
    number: int = 0
    waited_seconds: float = 0.0

    @property
    def prompt(self) -> str:
        """The text of the last message: the task, or the newest result of a tool."""
        return self.messages[-1].text if self.messages else ""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of a model and its usage. The cost is None if it is unknown.

    `model` is the full name of the model that answered, as the provider reports it. `raw` is described at Message.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    model: str = ""
    raw: str | None = None


class Model(Protocol):
    """A model answers requests. It does not retry; the caller decides when a retry is allowed."""

    async def credential(self) -> str:
        """Return the credential whose limits apply to a call; empty if there is none.

        It consists of the provider, ":" and a host if it is not the provider's own, and "@" and a tenant if the key is
        that tenant's: "openai", "openai:proxy.example.com", "anthropic@acme". A provider of RUNLANE_PROVIDERS has its
        name in the setting. The credential may change when a secret is set or removed.
        """
        ...

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        """Return the whole answer. `delta` receives its pieces as they arrive. Raise ModelFailed if the call fails."""
        ...


@runtime_checkable
class DelayedModel(Protocol):
    """A model with a known delay before its answer, so that a long delay does not occupy a worker slot."""

    def delay_before_answer(self, request: ModelRequest, /) -> float:
        """Return the seconds before the first piece of the answer. Raise ModelFailed if the call cannot succeed."""
        ...


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The context of a model call: definitions may configure the model, and credentials belong to a tenant.

    `redactor` is the run's redactor. A secret of the tenant that is used for a call is added to it.
    """

    orchestration: Orchestration | None = None
    agent: Agent | None = None
    step_id: str | None = None
    tenant: str = "default"
    redactor: Redactor = field(default_factory=Redactor)


class ModelFactory(Protocol):
    """Creates the model of a name. It raises ModelFailed if the model does not exist."""

    def __call__(self, name: str, context: ModelContext, /) -> Model: ...


class ModelRegistry:
    """The models of this process. Applications can register models: `models.register("acme", acme_model)`."""

    def __init__(self, default: str | None = None) -> None:
        self._default = default
        self._factories: dict[str, ModelFactory] = {}
        self._served: dict[str, Collection[str]] = {}
        self._turned_off: dict[str, str] = {}
        self._adopted: set[str] = set()

    def adopt(self, other: ModelRegistry) -> None:
        """Replace the default and the models that were adopted before with those of `other`.

        Registered models are kept.
        """
        registered = {prefix: made for prefix, made in self._factories.items() if prefix not in self._adopted}
        for prefix in other._factories:
            if prefix in registered:
                raise ConfigurationError(
                    f'The settings name a provider "{prefix}", and models of that name are registered already. '
                    "Rename one of them."
                )
        self._default = other._default
        self._turned_off = other._turned_off
        self._adopted = set(other._factories)
        self._factories = {**other._factories, **registered}
        served = {prefix: models for prefix, models in self._served.items() if prefix in registered}
        self._served = {**other._served, **served}

    def register(self, prefix: str, factory: ModelFactory, *, models: Collection[str] = ()) -> None:
        """Register a factory for `prefix` and every name that begins with it and a colon.

        `models` are names of models of the factory that may be written without the prefix.
        """
        if not prefix or ":" in prefix:
            raise ValueError(f"{prefix!r} is not a valid prefix of models. It must not be empty or contain a colon.")
        if prefix in self._factories:
            raise ValueError(f'Models called "{prefix}:..." are registered already.')
        self._factories[prefix] = factory
        self._served[prefix] = models

    def turn_off(self, prefix: str, setting: str) -> None:
        """Reject models of this prefix with an error that names the setting, unless the prefix is registered."""
        self._turned_off[prefix] = setting

    def find(self, name: str | None, context: ModelContext) -> tuple[str, Model]:
        """Return the full name and the model for a name, or for the default."""
        chosen = name or (context.agent.model if context.agent is not None else None)
        if chosen is not None and name is None and context.agent is not None and context.agent.provider:
            chosen = self._with_provider(chosen, context.agent.provider)
        chosen = chosen or self._default
        if chosen is None:
            raise ModelFailed(
                "unknown_model",
                f"No model is set. Set `model` in the step or its agent, or RUNLANE_DEFAULT_MODEL. {self._known()}",
            )
        resolved = resolve_model(chosen, self._served)
        if resolved.name is None:
            raise ModelFailed("unknown_model", self._unknown(chosen, resolved.candidates))
        return resolved.name, self._factories[resolved.name.partition(":")[0]](resolved.name, context)

    def _unknown(self, name: str, candidates: Collection[str]) -> str:
        if candidates:
            return f'The model "{name}" does not name its provider. Write {" or ".join(candidates)}.'
        prefix = name.partition(":")[0]
        setting = self._turned_off.get(prefix)
        if setting is not None:
            return (
                f'The model "{name}" cannot be used: models called "{prefix}" are disabled. Choose another '
                f"model, or ask an operator to set {setting}=true on the workers."
            )
        return f'No model "{name}" exists{nearest(prefix, self._factories)}. {self._known()}'

    def _with_provider(self, name: str, provider: str) -> str:
        # A colon may belong to the tag of a model, such as llama3:8b.
        return name if name.partition(":")[0] in self._factories else f"{provider}:{name}"

    def _known(self) -> str:
        if not self._factories:
            return "No models are registered in this process."
        return f"Known prefixes: {', '.join(sorted(self._factories))}."
