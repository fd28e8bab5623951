"""The toolbox of a step: what can be called by which name, how a model sees it, and what may happen twice.

Definitions of tools come first, then registered tasks, the tools of MCP servers as server__tool, and the agents that an
agent may delegate to as ask_AGENT. What an MCP server offers is stored in the journal: an attempt that takes
the step over continues with the same tools, and opens no connection if nothing has to be called.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent, Effect, McpServer, Tool
from runlane.definitions.schema.step import Step
from runlane.domain.events import EventType
from runlane.domain.task import Task
from runlane.errors import nearest
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import ToolOffer
from runlane.steps.context import StepContext
from runlane.steps.services import RunServices
from runlane.templates.json_schema import misfit

ALL: Final = "all"
BETWEEN: Final = "__"
# A repeated call continues them: an agent by its journal, an orchestration as the same run.
_SAFE: Final = ("agent", "orchestration")
DELEGATE: Final = "ask_"
_TASK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What is to be done, with everything it takes."}},
    "required": ["task"],
    "additionalProperties": False,
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "input": {"type": "object"}},
    "required": ["message"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CallableTool:
    """Something that can be called, by the name that a model uses. Exactly one of the sources is set."""

    offer: ToolOffer
    tool: Tool | None = None
    task: str | None = None
    agent: str | None = None
    server: McpServer | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.offer.name

    @property
    def effect(self) -> Effect:
        """Return what is allowed when it is unknown whether a call had its effect."""
        if self.server is not None:
            return self.server.effects.get(self.plain_name, self.server.effect)
        if self.tool is None or self.tool.tool_type in _SAFE:
            return "repeatable"
        return self.tool.effect

    @property
    def needs_approval(self) -> bool:
        """Whether a person must let every call pass."""
        if self.tool is None:
            return self.effect == "ask"
        return self.tool.effect == "ask" or self.tool.requires_approval

    @property
    def plain_name(self) -> str:
        """What its MCP server calls it."""
        return self.name.removeprefix(f"{self.server.name}{BETWEEN}") if self.server is not None else self.name

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """What arguments have to fit."""
        return {"type": "object", **self.offer.input_schema}

    def misfit(self, arguments: Any) -> str | None:
        """Why these arguments do not fit, if they do not."""
        return misfit(arguments, self.arguments_schema)


class Toolbox:
    """What one step, or one agent in it, may call."""

    def __init__(self, things: Iterable[CallableTool]) -> None:
        self._things = {thing.name: thing for thing in things}

    @property
    def offers(self) -> tuple[ToolOffer, ...]:
        """All of it, as a model sees it."""
        return tuple(thing.offer for thing in self._things.values())

    def find(self, name: str) -> CallableTool | None:
        """What has this name."""
        return self._things.get(name)

    @property
    def names(self) -> list[str]:
        """What can be called."""
        return list(self._things)


async def toolbox_of(context: StepContext[Step], agent: Agent, allowed: list[str] | None, journal: Journal) -> Toolbox:
    """What an agent may call in this step."""
    services = context.services
    names = list(agent.tools)
    if ALL in names:
        names = [
            *sorted({*services.tools, *services.tasks}),
            *(f"{server}{BETWEEN}" for server in sorted(services.servers)),
        ]
    things: list[CallableTool] = []
    for name in dict.fromkeys(names):
        server = _server_of(services, name)
        if server is None:
            if agent.on_missing_tools == "skip" and name not in services.tools and name not in services.tasks:
                await _warn_missing(context, agent, name, journal)
            else:
                things.append(one(services, name))
            continue
        offered = await _offered(context, server, journal)
        things += [thing for thing in offered if name in (thing.name, f"{server.name}{BETWEEN}")]
    things += [_delegate(services, name) for name in agent.delegate_agent_ids if name in services.agents]
    return Toolbox(thing for thing in things if allowed is None or thing.name in allowed)


async def _warn_missing(context: StepContext[Step], agent: Agent, name: str, journal: Journal) -> None:
    # A step that is resumed has its first answer in the journal, and its warning in the events.
    if journal.find_reply("model/0") is None:
        await context.emit(
            EventType.STEP_WARNING,
            message=f'There is no tool "{name}" in this run; the agent "{agent.id}" works without it.',
            code="unknown_tool",
        )


async def find_tool(context: StepContext[Step], name: str, journal: Journal) -> CallableTool:
    """The tool of this name. Raises if there is none."""
    server = _server_of(context.services, name)
    if server is not None:
        found = Toolbox(await _offered(context, server, journal)).find(name)
        if found is not None:
            return found
    return one(context.services, name)


def _server_of(services: RunServices, name: str) -> McpServer | None:
    """The MCP server that a tool of this name belongs to. A server's own name may have the separator in it too."""
    if name in services.tools or name in services.tasks:
        return None
    parts = name.split(BETWEEN)
    candidates = (BETWEEN.join(parts[:end]) for end in range(1, len(parts)))
    return next((services.servers[server] for server in candidates if server in services.servers), None)


def one(services: RunServices, name: str) -> CallableTool:
    """A tool or a task. Raises if there is none of this name."""
    tool = services.tools.get(name)
    if tool is not None:
        task = services.tasks.get(tool.task or "")
        about = tool.description or (task.about if task is not None else "")
        return CallableTool(ToolOffer(name, about, _schema(tool, task)), tool=tool)
    task = services.tasks.get(name)
    if task is not None:
        return CallableTool(ToolOffer(name, task.about or f"The task {name}.", task.input_schema), task=name)
    known = sorted({*services.tools, *services.tasks})
    raise StepFailed(
        "unknown_tool",
        f'There is no tool "{name}" in this run{nearest(name, known)}. Known here: {", ".join(known[:20]) or "none"}.',
    )


def _schema(tool: Tool, task: Task | None) -> dict[str, Any]:
    if tool.input_schema:
        return tool.input_schema
    if task is not None:
        return task.input_schema
    return {"agent": _TASK, "orchestration": _MESSAGE}.get(tool.tool_type, {})


def _delegate(services: RunServices, name: str) -> CallableTool:
    agent = services.agents[name]
    offer = ToolOffer(f"{DELEGATE}{name}", agent.description or f"Let {agent.name or name} do a task.", _TASK)
    return CallableTool(offer, agent=name)


async def _offered(context: StepContext[Step], server: McpServer, journal: Journal) -> list[CallableTool]:
    key = f"tools/{server.name}"
    offers = journal.find_offers(key)
    if offers is None:
        if context.services.mcp is None:
            raise StepFailed("unsupported_tool", f'The MCP server "{server.name}" cannot be reached from here.')
        offers = tuple(await context.services.mcp.tools(server))
        await journal.keep_offers(key, offers)
    return [
        CallableTool(
            ToolOffer(f"{server.name}{BETWEEN}{offer.name}", offer.description, offer.input_schema), server=server
        )
        for offer in offers
        if server.allowed_tools is None or offer.name in server.allowed_tools
    ]
