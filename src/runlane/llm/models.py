"""Models: one small protocol for whatever answers a prompt, and the registry that finds one by name.

A name is a registered prefix, or the prefix, a colon and a rest that the prefix interprets. A model
that cannot answer raises; no error is ever handed on as if it were an answer.
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
# The only argument of a call whose arguments are no JSON object: what the model wrote instead.
INVALID_JSON: Final = "__invalid_json__"


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of an answer while it comes in. `call_id` and `tool` belong to arguments of a tool call.

    The caller adds the answer that it belongs to and its offset; one at offset 0 starts the answer again.
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

    `retry_after_seconds` is what the provider asked for; `throttled` means that everybody who uses the same
    credential should slow down.
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
    """A model wants a tool to be called. `id` is unique within the answer's conversation.

    Arguments that are no JSON object come as {INVALID_JSON: what was written}: there is nothing to call with, and the
    model has to be told.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may ask for."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Message:
    """One line of a conversation.

    `calls` are what the model asked for; `tool` and `call_id` say whose result a line is, and `failed` that the tool
    was not called or has failed. `raw` is the answer as its model's own module wrote it: signatures of thoughts and
    the like, which a provider wants back. Nobody else reads it.
    """

    role: Literal["user", "assistant", "tool"]
    text: str
    tool: str | None = None
    call_id: str | None = None
    calls: tuple[ToolCall, ...] = ()
    failed: bool = False
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    `key` names this very call within the run and is the same when it is made again after a crash. `number` counts
    the calls of the step within the run, from 0, and is as stable. With `must_call` the model has to ask for one of
    the tools instead of answering. `waited_seconds` is the part of the model's own delay that is over already, see
    Delayed.
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
        """What was said last: the task, or the newest result of a tool."""
        return self.messages[-1].text if self.messages else ""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of a model and its usage. The cost is None if it is unknown.

    `model` is the full name of the model that answered, as the provider reports it; `raw` is described at Message.
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
    """Answers requests. It does not retry by itself: the caller decides when that is allowed."""

    async def credential(self) -> str:
        """Return the credential whose limits a call counts against; empty if there is none.

        A provider, ":" and a host if it is not the provider's own, "@" and a tenant if the key is that tenant's:
        "openai", "openai:proxy.example.com", "anthropic@acme". A provider of RUNLANE_PROVIDERS has the name that it has
        there. It may change when a secret is set or removed.
        """
        ...

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        """Return the whole answer; `delta` gets its pieces as they arrive. Raise ModelFailed."""
        ...


@runtime_checkable
class DelayedModel(Protocol):
    """A model that knows how long it delays an answer, so that a long delay can be waited for without a worker slot."""

    def delay_before_answer(self, request: ModelRequest, /) -> float:
        """Return the seconds before the first piece of the answer. Raises ModelFailed."""
        ...


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Where a model is called: definitions may configure it, and credentials belong to a tenant.

    `redactor` is the run's: a secret of the tenant that is used for a call is added to it.
    """

    orchestration: Orchestration | None = None
    agent: Agent | None = None
    step_id: str | None = None
    tenant: str = "default"
    redactor: Redactor = field(default_factory=Redactor)


class ModelFactory(Protocol):
    """Makes the model of a name. Raises ModelFailed if it knows none."""

    def __call__(self, name: str, scene: ModelContext, /) -> Model: ...


class ModelRegistry:
    """The models of this process. Others add theirs: `models.register("acme", acme_model)`."""

    def __init__(self, default: str | None = None) -> None:
        self._default = default
        self._factories: dict[str, ModelFactory] = {}
        self._served: dict[str, Collection[str]] = {}
        self._turned_off: dict[str, str] = {}
        self._adopted: set[str] = set()

    def adopt(self, other: ModelRegistry) -> None:
        """Take the default and the models of `other` in place of those adopted before; registered models stay."""
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
        """Answer for `prefix` and every name that begins with it and a colon.

        `models` are names of models that it is known to serve; they may be written without the prefix.
        """
        if not prefix or ":" in prefix:
            raise ValueError(f"{prefix!r} cannot begin the name of a model: it is empty or has a colon in it.")
        if prefix in self._factories:
            raise ValueError(f'Models called "{prefix}:..." are registered already.')
        self._factories[prefix] = factory
        self._served[prefix] = models

    def turn_off(self, prefix: str, setting: str) -> None:
        """Refuse models of this prefix with an error that names the setting, unless the prefix is registered."""
        self._turned_off[prefix] = setting

    def find(self, name: str | None, scene: ModelContext) -> tuple[str, Model]:
        """The model of this name, or the default one; and its full name."""
        chosen = name or (scene.agent.model if scene.agent is not None else None)
        if chosen is not None and name is None and scene.agent is not None and scene.agent.provider:
            chosen = self._with_provider(chosen, scene.agent.provider)
        chosen = chosen or self._default
        if chosen is None:
            raise ModelFailed(
                "unknown_model",
                f"No model is set. Give the step or its agent a model, or set RUNLANE_DEFAULT_MODEL. {self._known()}",
            )
        resolved = resolve_model(chosen, self._served)
        if resolved.name is None:
            raise ModelFailed("unknown_model", self._unknown(chosen, resolved.candidates))
        return resolved.name, self._factories[resolved.name.partition(":")[0]](resolved.name, scene)

    def _unknown(self, name: str, candidates: Collection[str]) -> str:
        if candidates:
            return f'The model "{name}" does not name its provider. Write {" or ".join(candidates)}.'
        prefix = name.partition(":")[0]
        setting = self._turned_off.get(prefix)
        if setting is not None:
            return (
                f'The model "{name}" cannot be used: models called "{prefix}" are turned off here. Choose another '
                f"model, or let the operator set {setting}=true on the workers."
            )
        return f'There is no model "{name}" here{nearest(prefix, self._factories)}. {self._known()}'

    def _with_provider(self, name: str, provider: str) -> str:
        # A colon may belong to the model's tag, as in llama3:8b.
        return name if name.partition(":")[0] in self._factories else f"{provider}:{name}"

    def _known(self) -> str:
        if not self._factories:
            return "No models are registered in this process."
        return f"Names here begin with: {', '.join(sorted(self._factories))}."
