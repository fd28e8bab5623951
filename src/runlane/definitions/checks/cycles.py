"""Nested execution: an orchestration or agent must not start itself, directly or indirectly.

Orchestrations start other orchestrations by their steps, by agents and by tools; agents call each other by tools. A
cycle would continue until a cost limit stops it, so it is refused before it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from runlane.definitions.problem import Problems
from runlane.definitions.schema.definition import Agent, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, OrchestrationStep, ToolStep
from runlane.definitions.scope import ALL_TOOLS, DefinitionScope, ParsedDefinition

# A definition is refused because of its first cycle; to find a cycle takes time for every link.
_MAX_CYCLES: Final = 50
# "all" is a node of its own, which no tool has; otherwise each agent would have a link to every tool.
_ALL: Final = ALL_TOOLS

# The links of each definition, by kind and name. A link of an orchestration has the step that makes it.
Links = Mapping[str, Mapping[str, str]]


def check_nesting(given: Sequence[ParsedDefinition], scope: DefinitionScope, problems: Problems) -> None:
    """Report cycles that contain the given definitions."""
    inner = _links_of_agents(scope)
    whole = {**inner, **_links_of_orchestrations(scope)}
    for agent in scope.agents.values():
        called = [f"agent:{name}" for name in agent.delegate_agent_ids]
        called += [] if agent.orchestration_id is None else [f"orchestration:{agent.orchestration_id}"]
        whole[f"agent:{agent.id}"] = {**inner[f"agent:{agent.id}"], **dict.fromkeys(called, "")}
    for tool in scope.tools.values():
        if tool.called_orchestration is not None:
            whole[f"tool:{tool.name}"] = {f"orchestration:{tool.called_orchestration}": ""}
    whole[_ALL] = {name: "" for name in whole if name.startswith("tool:")}
    _check_orchestrations(given, whole, problems)
    _check_agents(given, inner, problems)


def _links_of_orchestrations(scope: DefinitionScope) -> dict[str, Mapping[str, str]]:
    links: dict[str, Mapping[str, str]] = {}
    for orchestration in scope.orchestrations.values():
        found: dict[str, str] = {}
        for step in orchestration.steps:
            if isinstance(step, OrchestrationStep):
                found.setdefault(f"orchestration:{step.orchestration_id}", step.id)
            elif isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id is not None:
                found.setdefault(f"agent:{step.agent_id}", step.id)
            if isinstance(step, ToolStep):
                found.setdefault(f"tool:{step.forced_tool}", step.id)
        links[f"orchestration:{orchestration.id}"] = found
    return links


def _links_of_agents(scope: DefinitionScope) -> dict[str, Mapping[str, str]]:
    """Return the links between agents and tools of type agent. Other tools do not call a definition.

    Delegation is not among them, because an attempt refuses to delegate in a circle.
    """
    links: dict[str, Mapping[str, str]] = {
        f"tool:{tool.name}": {f"agent:{tool.called_agent}": ""} for tool in scope.tools.values() if tool.called_agent
    }
    links[_ALL] = dict.fromkeys(links, "")
    for agent in scope.agents.values():
        names = [_ALL] if ALL_TOOLS in agent.tools else [f"tool:{name}" for name in agent.tools]
        links[f"agent:{agent.id}"] = dict.fromkeys(names, "")
    return links


def _check_orchestrations(given: Sequence[ParsedDefinition], links: Links, problems: Problems) -> None:
    on_cycles = _on_cycles(links)
    found = 0
    for parsed in given:
        start = f"orchestration:{parsed.definition.id}"
        if not isinstance(parsed.definition, Orchestration) or start not in on_cycles:
            continue
        cycle = _find_cycle(start, links, on_cycles)
        names = [name.partition(":")[2] for name in cycle if name.startswith("orchestration:")]
        problems.error(
            parsed.location.at(step=links[start][cycle[1]]),
            f"The orchestration would start itself endlessly: {' -> '.join(names)}. Break the cycle.",
        )
        found += 1
        if found == _MAX_CYCLES:
            return


def _check_agents(given: Sequence[ParsedDefinition], links: Links, problems: Problems) -> None:
    """Report cycles of agents and tools of type agent."""
    on_cycles = _on_cycles(links)
    reported: set[frozenset[str]] = set()
    found = 0
    for parsed in given:
        match parsed.definition:
            case Agent(id=name):
                start, field = f"agent:{name}", "tools"
            case Tool(name=name):
                start, field = f"tool:{name}", "agent_id"
            case _:
                continue
        if start not in on_cycles or found == _MAX_CYCLES:
            continue
        cycle = _find_cycle(start, links, on_cycles)
        found += 1
        if frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            fix = 'Name the tools of the agent instead of "all".' if _ALL in cycle else "Break the cycle."
            path = " -> ".join(item.replace(":", " ") for item in cycle)
            problems.error(parsed.location.at(field=field), f"The agent would call itself endlessly: {path}. {fix}")


def _on_cycles(links: Links) -> set[str]:
    """Return the names that are on a cycle: the components of more than one name, and names that link to themselves.

    The algorithm is Tarjan's, without recursion.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: set[str] = set()
    for root in links:
        work = [] if root in order else [(root, iter(links[root]))]
        while work:
            name, targets = work[-1]
            if name not in order:
                order[name] = low[name] = len(order)
                path.append(name)
                on_path.add(name)
            following = next((target for target in targets if target in links), None)
            if following is not None:
                if following not in order:
                    work.append((following, iter(links[following])))
                elif following in on_path:
                    low[name] = min(low[name], order[following])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == order[name]:
                component = _cut(path, name)
                on_path.difference_update(component)
                if len(component) > 1 or name in links[name]:
                    found.update(component)
    return found


def _cut(path: list[str], name: str) -> list[str]:
    """Remove the end of a path from this name on, and return it."""
    removed: list[str] = []
    while not removed or removed[-1] != name:
        removed.append(path.pop())
    return removed


def _find_cycle(start: str, links: Links, on_cycles: Collection[str]) -> list[str]:
    """Return the shortest path from a name on a cycle back to itself."""
    came_from: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in links[name]:
            if target == start:
                path = [start, name]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target in on_cycles and target not in came_from:
                came_from[target] = name
                waiting.append(target)
    raise AssertionError(f"{start} is not on a cycle")
