"""Tools: what performers of steps are given, and all that they can reach.

They know neither the store nor the worker: events, tasks and model calls go through what stands here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runlane.agents.models import Delta, Models, Piece
from runlane.model.definition import Agent, Tool
from runlane.steps.failure import StepFailed
from runlane.steps.sandbox import Sandbox


class ToolCaller(Protocol):
    """Calls tools of one type. `key` is the same when a call is made again after a crash."""

    async def __call__(self, tool: Tool, arguments: Mapping[str, Any], key: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Earlier:
    """A step that was performed before, in this scope."""

    step_id: str
    title: str
    output: Any


async def _no_task(name: str, _arguments: Mapping[str, Any], _path: str, /) -> Any:
    raise StepFailed("unknown_task", f'There are no tasks here, so "{name}" cannot be called.')


async def _no_event(_type: str, _data: Mapping[str, Any], /) -> None: ...


def _no_delta(_piece: Piece, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What one step may use.

    `agents` and `tools` are the definitions that the run has pinned. `tasks` are the names that `call_task` knows;
    they can be called as tools too. `callers` say how tools of a type, such as http, are called. `emit` writes a
    durable event, `delta` shows a piece of an answer to whoever looks on. `history` holds the earlier steps, the last
    one at the end; `budget_usd` is what the run may still spend.
    """

    sandbox: Sandbox
    models: Models
    agents: Mapping[str, Agent] = field(default_factory=dict[str, Agent])
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    tasks: Collection[str] = ()
    call_task: Callable[[str, Mapping[str, Any], str], Awaitable[Any]] = _no_task
    callers: Mapping[str, ToolCaller] = field(default_factory=dict[str, ToolCaller])
    emit: Callable[[str, Mapping[str, Any]], Awaitable[None]] = _no_event
    delta: Delta = _no_delta
    history: Sequence[Earlier] = ()
    budget_usd: float | None = None
