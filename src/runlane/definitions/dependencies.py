"""The definitions that a definition uses, directly and indirectly.

A run uses the versions that are current at its start.
"""

from __future__ import annotations

from collections.abc import Iterable

from runlane.definitions.schema.definition import Agent, Definition, Kind, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, OrchestrationStep, ToolStep
from runlane.definitions.schema.trigger import Trigger
from runlane.definitions.scope import ALL_TOOLS, DefinitionScope
from runlane.domain.schedule import ScheduleSettings

Key = tuple[Kind, str]


def uses(definition: Definition, scope: DefinitionScope) -> set[Key]:
    """Return the existing definitions that a definition refers to."""
    found: set[Key] = set()
    tools: list[str] = []
    match definition:
        case Orchestration():
            for step in definition.steps:
                if isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id in scope.agents:
                    found.add(("agent", step.agent_id))
                match step:
                    case ToolStep():
                        tools.append(step.forced_tool)
                    case AgentStep() if step.allowed_tools is not None:
                        tools += step.allowed_tools
                    case OrchestrationStep() if step.orchestration_id in scope.orchestrations:
                        found.add(("orchestration", step.orchestration_id))
                    case _:
                        pass
        case Agent():
            tools += definition.tools
            found.update(("agent", agent) for agent in definition.delegate_agent_ids if agent in scope.agents)
            if definition.orchestration_id in scope.orchestrations:
                found.add(("orchestration", definition.orchestration_id))
        case Tool():
            if definition.called_agent in scope.agents:
                found.add(("agent", definition.called_agent))
            if definition.called_orchestration in scope.orchestrations:
                found.add(("orchestration", definition.called_orchestration))
        case ScheduleSettings():
            target = definition.target
            if target.kind == "orchestration" and target.name in scope.orchestrations:
                found.add(("orchestration", target.name))
            if target.kind in ("agent", "chat") and target.name in scope.agents:
                found.add(("agent", target.name))
        case Trigger():
            if definition.agent_id in scope.agents:
                found.add(("agent", definition.agent_id))
            if definition.orchestration_id in scope.orchestrations:
                found.add(("orchestration", definition.orchestration_id))
        case McpServer():
            pass
    return found | _tools(tools, scope)


def find_dependencies(start: Key, scope: DefinitionScope) -> set[Key]:
    """Return the starting definition and all existing definitions that its runs may use."""
    found: set[Key] = set() if scope.find(start) is None else {start}
    waiting = list(found)
    while waiting:
        definition = scope.find(waiting.pop())
        if definition is not None:
            # Many definitions may use the same ones, so each waits once.
            new = uses(definition, scope) - found
            found |= new
            waiting += new
    return found


def _tools(names: Iterable[str], scope: DefinitionScope) -> set[Key]:
    found: set[Key] = set()
    for name in dict.fromkeys(names):
        if name == ALL_TOOLS:
            found.update(("tool", tool) for tool in scope.tools)
            found.update(("mcp_server", server) for server in scope.servers)
        elif name in scope.tools:
            found.add(("tool", name))
        elif (server := scope.server_of(name)) in scope.servers:
            found.add(("mcp_server", server))
    return found
