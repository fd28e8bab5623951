"""RunServices: what the steps of an attempt share.

A step performer depends on neither the store nor the worker. Everything that it reaches is here or in its StepContext.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from runlane.agents.inflight import InflightCalls
from runlane.agents.memory_access import MemoryAccess
from runlane.definitions.schema.definition import Agent, McpServer, Tool
from runlane.domain.task import Task
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import Message, ModelRegistry
from runlane.rate_limits.limiter import Limiter, NoLimits
from runlane.redaction import Redactor
from runlane.sandbox.sandbox import Sandbox
from runlane.templates.template import MAX_BYTES
from runlane.tools.caller import McpCaller, ToolCaller


@dataclass(frozen=True, slots=True)
class ModelRetryPolicy:
    """How often and how long a model call is retried before the next model, or the retry of the step, is used.

    A wait longer than `hold_seconds` releases the worker slot.
    """

    tries: int = 4
    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 60.0
    hold_seconds: float = 10.0


async def _no_task(name: str, _arguments: Mapping[str, Any], _path: str, /) -> Any:
    raise StepFailed("unknown_task", f'No tasks are registered here, so "{name}" cannot be called.')


async def _no_orchestration(name: str, _arguments: Mapping[str, Any], _key: str, /) -> Any:
    raise StepFailed("unsupported_tool", f'The orchestration "{name}" cannot be started from here.')


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """Services for the steps of one attempt; created once per attempt.

    `agents`, `tools` and `servers` are the definitions that the run has pinned. `tasks` are those that `call_task`
    accepts; they can be called as tools too. `callers` call tools of a type, such as http, and `mcp` those of MCP
    servers. `connection` waits for and holds one of the connections that the tenant may use at once. `redactor`
    removes the secrets that the run has used. `conversation` are the earlier messages of a chat or of the request, and
    `request_tokens` the size of the last request in the chat, as its provider counted it; `instructions` and
    `model_settings` are what the request adds to those of agents. `inflight` makes model calls.
    `max_step_bytes` bounds each rendered value and each output. `session_id` and `chat_turn` are those of the run, and
    `memories` is the memory of agents.
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
    redactor: Redactor = field(default_factory=Redactor)
    conversation: Sequence[Message] = ()
    request_tokens: int = 0
    session_id: str | None = None
    chat_turn: int = 0
    memories: MemoryAccess | None = None
    instructions: str = ""
    model_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limiter: Limiter = field(default_factory=NoLimits)
    retry_policy: ModelRetryPolicy = field(default_factory=ModelRetryPolicy)
    inflight: InflightCalls = field(default_factory=InflightCalls)
    max_step_bytes: int = MAX_BYTES
