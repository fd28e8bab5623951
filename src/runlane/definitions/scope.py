"""The scope of definitions: all targets that their references may have."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from runlane.definitions.problem import Location
from runlane.definitions.schema.base import MAX_ID_CHARACTERS
from runlane.definitions.schema.definition import Agent, Definition, Kind, McpServer, Orchestration, Tool
from runlane.definitions.schema.trigger import Trigger
from runlane.definitions.versions import kind_of
from runlane.domain.schedule import ScheduleSettings

ALL_TOOLS = "all"
# Separates the name of a server from the name of its tool.
TOOL_OF_SERVER = "__"


@dataclass(frozen=True, slots=True)
class ParsedDefinition:
    """A definition and its location."""

    definition: Definition
    location: Location

    @property
    def key(self) -> tuple[Kind, str]:
        """The kind and id, which identify a definition."""
        return kind_of(self.definition), self.definition.id


@dataclass(slots=True)
class DefinitionScope:
    """All targets of references. `tasks` is None if the registered tasks are unknown.

    `broken` contains existing definitions with errors. A reference to one of them is not a further error.
    """

    orchestrations: dict[str, Orchestration] = field(default_factory=dict[str, Orchestration])
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    servers: dict[str, McpServer] = field(default_factory=dict[str, McpServer])
    schedules: dict[str, ScheduleSettings] = field(default_factory=dict[str, ScheduleSettings])
    triggers: dict[str, Trigger] = field(default_factory=dict[str, Trigger])
    tasks: Collection[str] | None = None
    broken: Collection[tuple[Kind, str]] = ()

    def add(self, definition: Definition) -> None:
        """Add a definition."""
        match definition:
            case Orchestration():
                self.orchestrations[definition.id] = definition
            case Agent():
                self.agents[definition.id] = definition
            case Tool():
                self.tools[definition.id] = definition
            case McpServer():
                self.servers[definition.id] = definition
            case ScheduleSettings():
                self.schedules[definition.id] = definition
            case Trigger():
                self.triggers[definition.id] = definition

    def find(self, key: tuple[Kind, str]) -> Definition | None:
        """Return a definition by its key."""
        match key:
            case ("orchestration", name):
                return self.orchestrations.get(name)
            case ("agent", name):
                return self.agents.get(name)
            case ("tool", name):
                return self.tools.get(name)
            case ("mcp_server", name):
                return self.servers.get(name)
            case ("schedule", name):
                return self.schedules.get(name)
            case ("trigger", name):
                return self.triggers.get(name)

    def has_tool(self, name: str) -> bool:
        """Return whether a tool, a task or an MCP server provides this tool."""
        return (
            name in self.tools
            or name in (self.tasks or ())
            or self.server_of(name) is not None
            or ("tool", name) in self.broken
        )

    def tools_named(self, names: Iterable[str]) -> list[Tool]:
        """Return the existing tools with these names, without tools of servers and tasks."""
        listed = list(names)
        if ALL_TOOLS in listed:
            return list(self.tools.values())
        return [self.tools[name] for name in listed if name in self.tools]

    def server_of(self, tool: str) -> str | None:
        """Return the server of a tool. Names may contain the separator, so every split is tried."""
        at = tool.find(TOOL_OF_SERVER)
        while 0 < at <= MAX_ID_CHARACTERS:
            if tool[:at] in self.servers or ("mcp_server", tool[:at]) in self.broken:
                return tool[:at]
            at = tool.find(TOOL_OF_SERVER, at + 1)
        return None


def scope_of(definitions: Iterable[Definition], tasks: Collection[str] | None = None) -> DefinitionScope:
    """Return the scope of these definitions."""
    scope = DefinitionScope(tasks=tasks)
    for definition in definitions:
        scope.add(definition)
    return scope
