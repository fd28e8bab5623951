"""What a definition reaches: everything that a run of it may use, so that the run can pin it at its start."""

from __future__ import annotations

from collections.abc import Iterable

from runlane.definitions.check import ALL_TOOLS, Scope, agents_from, nested_in
from runlane.model.definition import AgentStep, EvaluatorStep, Kind, Orchestration, ToolStep

Key = tuple[Kind, str]


def reach(orchestration_id: str, scope: Scope) -> set[Key]:
    """The orchestration and all that it leads to, as far as it is there."""
    found: set[Key] = set()
    waiting = [orchestration_id]
    while waiting:
        name = waiting.pop()
        orchestration = scope.orchestrations.get(name)
        if orchestration is None or ("orchestration", name) in found:
            continue
        found.add(("orchestration", name))
        found |= _used_by(orchestration, scope)
        waiting += nested_in(orchestration, scope)
    return found


def reach_of_agent(agent_id: str, scope: Scope) -> set[Key]:
    """The agent and all that it leads to, as far as it is there."""
    found: set[Key] = set()
    for agent in agents_from([agent_id], scope):
        found |= {("agent", agent.id), *_tools(agent.tools, scope)}
        if agent.orchestration_id is not None:
            found |= reach(agent.orchestration_id, scope)
    return found


def _used_by(orchestration: Orchestration, scope: Scope) -> set[Key]:
    found: set[Key] = set()
    agents: set[str] = set()
    for step in orchestration.steps:
        if isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id is not None:
            agents.add(step.agent_id)
        if isinstance(step, ToolStep):
            found |= _tools([step.forced_tool], scope)
        if isinstance(step, AgentStep) and step.allowed_tools is not None:
            found |= _tools(step.allowed_tools, scope)
    for agent in agents_from(agents, scope):
        found |= {("agent", agent.id), *_tools(agent.tools, scope)}
    return found


def _tools(names: Iterable[str], scope: Scope) -> set[Key]:
    found: set[Key] = set()
    for name in names:
        if name == ALL_TOOLS:
            found.update(("tool", tool) for tool in scope.tools)
            found.update(("mcp_server", server) for server in scope.servers)
        elif name in scope.tools:
            found.add(("tool", name))
        elif (server := scope.server_of(name)) in scope.servers:
            found.add(("mcp_server", server))
    return found
