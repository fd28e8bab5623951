"""Nested execution: an orchestration or agent must not start itself, directly or indirectly.

Orchestrations start other orchestrations by their steps, by agents and by tools; agents call each other by tools. A
cycle would continue until a cost limit stops it, so it is refused before it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from runlane.definitions.problem import Problems
from runlane.definitions.schema.definition import Agent, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, OrchestrationStep, ToolStep
from runlane.definitions.scope import ALL_TOOLS, DefinitionScope, ParsedDefinition


def check_nesting(given: Sequence[ParsedDefinition], scope: DefinitionScope, problems: Problems) -> None:
    """Report cycles that contain the given definitions."""
    # Most tools do not call a definition, so they cannot be part of a cycle.
    calling = {name: tool for name, tool in scope.tools.items() if tool.tool_type in ("agent", "orchestration")}
    lean = DefinitionScope(scope.orchestrations, scope.agents, calling)
    _check_orchestrations(given, lean, problems)
    _check_agents(given, lean, problems)


def nested_in(orchestration: Orchestration, scope: DefinitionScope) -> dict[str, str]:
    """Return the orchestrations that a run of this orchestration may start, each with the step that starts it."""
    found: dict[str, str] = {}
    users: dict[str, str] = {}
    for step in orchestration.steps:
        if isinstance(step, OrchestrationStep):
            found.setdefault(step.orchestration_id, step.id)
        elif isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id is not None:
            users.setdefault(step.agent_id, step.id)
        if isinstance(step, ToolStep):
            for tool in scope.tools_named([step.forced_tool]):
                if tool.called_orchestration is not None:
                    found.setdefault(tool.called_orchestration, step.id)
                if tool.called_agent is not None:
                    users.setdefault(tool.called_agent, step.id)
    for agent, step_id in _agents_from(users, scope):
        if agent.orchestration_id is not None:
            found.setdefault(agent.orchestration_id, step_id)
        for tool in scope.tools_named(agent.tools):
            if tool.called_orchestration is not None:
                found.setdefault(tool.called_orchestration, step_id)
    return found


def _agents_from(users: Mapping[str, str], scope: DefinitionScope) -> Iterator[tuple[Agent, str]]:
    """Yield these agents and all agents that they may call, each once, with a step that leads to it."""
    steps = dict(users)
    waiting = list(users)
    while waiting:
        name = waiting.pop()
        agent = scope.agents.get(name)
        if agent is None:
            continue
        yield agent, steps[name]
        called = (tool.called_agent for tool in scope.tools_named(agent.tools))
        for other in (*agent.delegate_agent_ids, *called):
            if other is not None and other not in steps:
                steps[other] = steps[name]
                waiting.append(other)


def _check_orchestrations(given: Sequence[ParsedDefinition], scope: DefinitionScope, problems: Problems) -> None:
    nested = {name: nested_in(orchestration, scope) for name, orchestration in scope.orchestrations.items()}
    suspects = _suspects(nested)
    for parsed in given:
        if isinstance(parsed.definition, Orchestration) and parsed.definition.id in suspects:
            cycle = _find_cycle(parsed.definition.id, nested, suspects)
            if cycle:
                step = nested[parsed.definition.id].get(cycle[1])
                problems.error(
                    parsed.location.at(step=step),
                    f"The orchestration would start itself endlessly: {' -> '.join(cycle)}. Break the cycle.",
                )


def _check_agents(given: Sequence[ParsedDefinition], scope: DefinitionScope, problems: Problems) -> None:
    """Report cycles of agents and tools of type agent.

    "all" is a separate node; otherwise each agent would have a link to every tool.
    """
    links: dict[str, dict[str, str]] = {
        f"tool:{tool.name}": {f"agent:{tool.called_agent}": ""} for tool in scope.tools.values() if tool.called_agent
    }
    links[ALL_TOOLS] = dict.fromkeys(links, "")
    for agent in scope.agents.values():
        named = {f"tool:{name}": "" for name in agent.tools if f"tool:{name}" in links}
        links[f"agent:{agent.id}"] = {ALL_TOOLS: ""} if ALL_TOOLS in agent.tools else named
    suspects = _suspects(links)
    reported: set[frozenset[str]] = set()
    for parsed in given:
        match parsed.definition:
            case Agent(id=name):
                start, field = f"agent:{name}", "tools"
            case Tool(name=name):
                start, field = f"tool:{name}", "agent_id"
            case _:
                continue
        cycle = _find_cycle(start, links, suspects) if start in suspects else []
        if cycle and frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            fix = 'Name the tools of the agent instead of "all".' if ALL_TOOLS in cycle else "Break the cycle."
            path = " -> ".join(item.replace(":", " ") for item in cycle)
            problems.error(parsed.location.at(field=field), f"The agent would call itself endlessly: {path}. {fix}")


def _suspects(links: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the names that are on a cycle or lead to one.

    These names remain when names without links have been removed repeatedly.
    """
    users: dict[str, list[str]] = {}
    open_ends: dict[str, int] = {}
    for name, inner in links.items():
        known = [target for target in inner if target in links]
        open_ends[name] = len(known)
        for target in known:
            users.setdefault(target, []).append(name)
    done = [name for name, count in open_ends.items() if count == 0]
    while done:
        for user in users.get(done.pop(), ()):
            open_ends[user] -= 1
            if open_ends[user] == 0:
                done.append(user)
    return {name for name, count in open_ends.items() if count > 0}


def _find_cycle(start: str, nested: Mapping[str, Mapping[str, str]], suspects: Collection[str]) -> list[str]:
    """Return the shortest path from a name back to itself, or an empty list."""
    came_from: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in nested[name]:
            if target == start:
                path = [start, name]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target in suspects and target not in came_from:
                came_from[target] = name
                waiting.append(target)
    return []
