"""Tools: what performers of steps are given, and all that they can reach.

They know neither the store nor the worker: events, tasks and model calls go through what stands here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from runlane.agents.inflight import InflightCalls
from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent, McpServer, Tool
from runlane.domain.task import Task
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import Delta, Message, ModelDelta, ModelRegistry
from runlane.rate_limits.limiter import Limiter, NoLimits
from runlane.redaction import Redactor
from runlane.sandbox.sandbox import Sandbox
from runlane.steps.memory import StepMemory, UnlimitedMemory
from runlane.templates.template import MAX_BYTES
from runlane.tools.caller import McpCaller, ToolCaller

Check = Callable[[Agent | None, float | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PreviousStep:
    """A step that was performed before, in this scope."""

    step_id: str
    title: str
    output: Any


@dataclass(frozen=True, slots=True)
class ModelRetryPolicy:
    """How often and how long a model is asked again before the next model, or the step's own retry, has its turn.

    A wait longer than `hold_seconds` gives the worker's slot back.
    """

    tries: int = 4
    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 60.0
    hold_seconds: float = 10.0


async def _no_task(name: str, _arguments: Mapping[str, Any], _path: str, /) -> Any:
    raise StepFailed("unknown_task", f'There are no tasks here, so "{name}" cannot be called.')


async def _no_orchestration(name: str, _arguments: Mapping[str, Any], _key: str, /) -> Any:
    raise StepFailed("unsupported_tool", f'The orchestration "{name}" cannot be started from here.')


async def _no_event(_type: str, _data: Mapping[str, Any], /) -> None: ...


async def _no_cap(_agent: Agent | None, _step_cap: float | None, /) -> None: ...


async def _no_doubt(_model: str, /) -> str | None: ...


def _no_note(_type: str, _data: Mapping[str, Any], /) -> None: ...


def _no_delta(_piece: ModelDelta, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """What one step may use.

    `agents`, `tools` and `servers` are the definitions that the run has pinned. `tasks` are those that `call_task`
    knows; they can be called as tools too. `callers` say how tools of a type, such as http, are called, and `mcp` how
    those of MCP servers are. `connection` waits for a connection of the tenant's share and holds it. `emit` writes a
    durable event, `note` one that is stored together with what the journal keeps next, and `delta` shows a piece of an
    answer to whoever looks on. `redactor` knows the secrets that the run has used, and takes them out of what a step
    gives. `history` holds the earlier steps, the last one at the end; `conversation` what was said before in a chat.
    `check_budget` is asked before each call of a model and raises if it may not be made; `flights` makes the call;
    `doubt_budget` is asked when one has answered whose price nobody knows, and says what to warn of, if anything.
    `room` is the memory for what the step renders, and `max_step_bytes` bounds each rendered value and each output.
    """

    sandbox: Sandbox
    models: ModelRegistry
    tenant: str = DEFAULT_TENANT
    agents: Mapping[str, Agent] = field(default_factory=dict[str, Agent])
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    servers: Mapping[str, McpServer] = field(default_factory=dict[str, McpServer])
    tasks: Mapping[str, Task] = field(default_factory=dict[str, Task])
    call_task: Callable[[str, Mapping[str, Any], str], Awaitable[Any]] = _no_task
    call_orchestration: Callable[[str, Mapping[str, Any], str], Awaitable[Any]] = _no_orchestration
    callers: Mapping[str, ToolCaller] = field(default_factory=dict[str, ToolCaller])
    connection: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    mcp: McpCaller | None = None
    emit: Callable[[str, Mapping[str, Any]], Awaitable[None]] = _no_event
    note: Callable[[str, Mapping[str, Any]], None] = _no_note
    delta: Delta = _no_delta
    redactor: Redactor = field(default_factory=Redactor)
    history: Sequence[PreviousStep] = ()
    conversation: Sequence[Message] = ()
    journal: Journal = field(default_factory=Journal)
    limiter: Limiter = field(default_factory=NoLimits)
    patience: ModelRetryPolicy = field(default_factory=ModelRetryPolicy)
    check_budget: Check = _no_cap
    doubt_budget: Callable[[str], Awaitable[str | None]] = _no_doubt
    flights: InflightCalls = field(default_factory=InflightCalls)
    room: StepMemory = field(default_factory=UnlimitedMemory)
    max_step_bytes: int = MAX_BYTES
