"""The toolbox of a step: the tools by name, their descriptions for the model, and which calls may be repeated.

Definitions of tools come first, then registered tasks, the tools of MCP servers as server__tool, and the agents that an
agent may delegate to as ask_AGENT. The tools of an MCP server are stored in the journal, so an attempt that takes the
step over continues with the same tools, and opens no connection if no tool has to be called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runlane.agents.journal import Journal
from runlane.definitions.schema.base import MAX_ID_CHARACTERS
from runlane.definitions.schema.definition import Agent, Effect, McpServer, Tool
from runlane.definitions.schema.step import Step
from runlane.domain.events import EventType
from runlane.domain.task import Task
from runlane.errors import nearest
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import ToolOffer
from runlane.steps.context import StepContext
from runlane.steps.run_services import RunServices
from runlane.templates.json_schema import misfit

ALL: Final = "all"
BETWEEN: Final = "__"
# A repeated call of these continues the first one: an agent by its journal, an orchestration as the same run.
_SAFE: Final = ("agent", "orchestration")
DELEGATE: Final = "ask_"
_TASK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "The task, with all the information it needs."}},
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
    """A tool, task or agent that a model can call. Exactly one of the sources is set.

    `own` is a function of Runlane itself; it gets the arguments and an idempotency key, so a call may be repeated.
    """

    offer: ToolOffer
    tool: Tool | None = None
    task: str | None = None
    agent: str | None = None
    server: McpServer | None = None
    own: Callable[[Mapping[str, Any], str], Awaitable[Any]] | None = None

    @property
    def name(self) -> str:
        return self.offer.name

    @property
    def effect(self) -> Effect:
        """Return the policy for a call whose outcome is unknown."""
        if self.server is not None:
            return self.server.effects.get(self.plain_name, self.server.effect)
        if self.tool is None or self.tool.tool_type in _SAFE:
            return "repeatable"
        return self.tool.effect

    @property
    def needs_approval(self) -> bool:
        """Whether a person must approve every call."""
        if self.tool is None:
            return self.effect == "ask"
        return self.tool.effect == "ask" or self.tool.requires_approval

    @property
    def plain_name(self) -> str:
        """The name of the tool on its MCP server."""
        return self.name.removeprefix(f"{self.server.name}{BETWEEN}") if self.server is not None else self.name

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The schema of the arguments."""
        return {"type": "object", **self.offer.input_schema}

    def misfit(self, arguments: Any) -> str | None:
        """Return why these arguments do not match, or None."""
        return misfit(arguments, self.arguments_schema)


class Toolbox:
    """The tools of a step, or of an agent within it."""

    def __init__(self, tools: Iterable[CallableTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def add(self, tools: Iterable[CallableTool], allowed: list[str] | None) -> None:
        """Add the tools that the step allows."""
        self._tools |= {tool.name: tool for tool in tools if allowed is None or tool.name in allowed}

    @property
    def offers(self) -> tuple[ToolOffer, ...]:
        """All tools, as a model sees them."""
        return tuple(tool.offer for tool in self._tools.values())

    def find(self, name: str) -> CallableTool | None:
        return self._tools.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._tools)


async def toolbox_of(context: StepContext[Step], agent: Agent, allowed: list[str] | None, journal: Journal) -> Toolbox:
    """Return the tools that an agent may call in this step."""
    services = context.services
    names = list(agent.tools)
    if ALL in names:
        names = [
            *sorted({*services.tools, *services.tasks}),
            *(f"{server}{BETWEEN}" for server in sorted(services.servers)),
        ]
    found: list[CallableTool] = []
    for name in dict.fromkeys(names):
        server = _server_of(services, name)
        if server is None:
            if agent.on_missing_tools == "skip" and name not in services.tools and name not in services.tasks:
                await _warn_missing(context, agent, name, journal)
            else:
                found.append(one(services, name))
            continue
        offered = await _offered(context, server, journal)
        found += [tool for tool in offered if name in (tool.name, f"{server.name}{BETWEEN}")]
    found += [_delegate(services, name) for name in agent.delegate_agent_ids if name in services.agents]
    return Toolbox(tool for tool in found if allowed is None or tool.name in allowed)


async def _warn_missing(context: StepContext[Step], agent: Agent, name: str, journal: Journal) -> None:
    # A resumed step has its first answer in the journal and has emitted its warning already.
    if journal.find_reply("model/0") is None:
        await context.emit(
            EventType.STEP_WARNING,
            message=f'No tool "{name}" exists in this run; the agent "{agent.id}" continues without it.',
            code="unknown_tool",
        )


async def find_tool(context: StepContext[Step], name: str, journal: Journal) -> CallableTool:
    """Return the tool of this name. Raises StepFailed if it does not exist."""
    server = _server_of(context.services, name)
    if server is not None:
        found = Toolbox(await _offered(context, server, journal)).find(name)
        if found is not None:
            return found
    return one(context.services, name)


def _server_of(services: RunServices, name: str) -> McpServer | None:
    """Return the MCP server of a tool's name. The name of a server may contain the separator too."""
    if name in services.tools or name in services.tasks:
        return None
    parts = name[: MAX_ID_CHARACTERS + len(BETWEEN)].split(BETWEEN)
    candidates = (BETWEEN.join(parts[:end]) for end in range(1, len(parts)))
    return next((services.servers[server] for server in candidates if server in services.servers), None)


def one(services: RunServices, name: str) -> CallableTool:
    """Return a tool or a task. Raises StepFailed if it does not exist."""
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
        f'No tool "{name}" exists in this run{nearest(name, known)}. Known tools: {", ".join(known[:20]) or "none"}.',
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
