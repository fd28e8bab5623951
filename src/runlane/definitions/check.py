"""Checks over definitions as a whole: names are taken once, references lead somewhere, nothing nests for ever.

What is given is checked; what is known already serves as the other end of references.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runlane.definitions.flow import check_flow
from runlane.definitions.places import check_places
from runlane.definitions.problem import KIND_WORDS, Place, Problems, listing, near
from runlane.definitions.secrets import check_secrets
from runlane.definitions.version import kind_of
from runlane.model.definition import Agent, Definition, Kind, McpServer, Orchestration, Tool
from runlane.model.step import AgentStep, EvaluatorStep, OrchestrationStep, TaskStep, ToolStep

ALL_TOOLS = "all"
# Between a server's name and its tool's.
TOOL_OF_SERVER = "__"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A definition and where it comes from."""

    definition: Definition
    place: Place

    @property
    def key(self) -> tuple[Kind, str]:
        """What tells definitions apart."""
        return kind_of(self.definition), self.definition.id


@dataclass(slots=True)
class Scope:
    """Everything that references may lead to. `tasks` is None where nobody knows the registered tasks.

    `broken` are definitions that are there and have errors of their own: a reference to one is not another error.
    """

    orchestrations: dict[str, Orchestration] = field(default_factory=dict[str, Orchestration])
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    servers: dict[str, McpServer] = field(default_factory=dict[str, McpServer])
    tasks: Collection[str] | None = None
    broken: Collection[tuple[Kind, str]] = ()

    def add(self, definition: Definition) -> None:
        """Make a definition known."""
        match definition:
            case Orchestration():
                self.orchestrations[definition.id] = definition
            case Agent():
                self.agents[definition.id] = definition
            case Tool():
                self.tools[definition.id] = definition
            case McpServer():
                self.servers[definition.id] = definition

    def find(self, key: tuple[Kind, str]) -> Definition | None:
        """A definition by what tells it apart."""
        match key:
            case ("orchestration", name):
                return self.orchestrations.get(name)
            case ("agent", name):
                return self.agents.get(name)
            case ("tool", name):
                return self.tools.get(name)
            case ("mcp_server", name):
                return self.servers.get(name)

    def has_tool(self, name: str) -> bool:
        """Whether there is such a tool, a task that is called as one, or a server that may bring it."""
        return (
            name in self.tools
            or name in (self.tasks or ())
            or self.server_of(name) is not None
            or ("tool", name) in self.broken
        )

    def server_of(self, tool: str) -> str | None:
        """The server that brings a tool of this name. Names may contain what stands between both, so all are tried."""
        at = tool.find(TOOL_OF_SERVER)
        while at > 0:
            if tool[:at] in self.servers or ("mcp_server", tool[:at]) in self.broken:
                return tool[:at]
            at = tool.find(TOOL_OF_SERVER, at + 1)
        return None


def scope_of(definitions: Iterable[Definition], tasks: Collection[str] | None = None) -> Scope:
    """The scope of these definitions."""
    scope = Scope(tasks=tasks)
    for definition in definitions:
        scope.add(definition)
    return scope


def check(given: Sequence[Parsed], scope: Scope, problems: Problems) -> None:
    """Note what is wrong with the given definitions, which are in the scope."""
    _check_twice(given, problems)
    inputs = _inputs(scope)
    for parsed in given:
        definition, place = parsed.definition, parsed.place
        check_secrets(definition, definition.model_dump(mode="json"), place, problems)
        match definition:
            case Orchestration():
                check_flow(definition, place, problems)
                check_places(definition, inputs.get(definition.id, ()), place, problems)
                _check_orchestration(definition, scope, place, problems)
            case Agent():
                _check_agent(definition, scope, place, problems)
            case _:
                pass
    _check_nesting(given, scope, problems)


def _check_twice(given: Sequence[Parsed], problems: Problems) -> None:
    first: dict[tuple[Kind, str], Parsed] = {}
    for parsed in given:
        earlier = first.setdefault(parsed.key, parsed)
        if earlier is not parsed:
            where = f" by {earlier.place.file}" if earlier.place.file else ""
            problems.error(parsed.place, f"The name is taken{where} already. Give it another, or remove one of them.")


def _check_orchestration(definition: Orchestration, scope: Scope, place: Place, problems: Problems) -> None:
    for step in definition.steps:
        here = place.at(step=step.id)
        if isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id is not None:
            _check_known("agent", step.agent_id, scope, here.at(field="agent_id"), problems)
        match step:
            case AgentStep() if step.allowed_tools is not None:
                _check_tools(step.allowed_tools, scope, here.at(field="allowed_tools"), problems)
            case ToolStep():
                _check_tools([step.forced_tool], scope, here.at(field="forced_tool"), problems)
            case OrchestrationStep():
                at = here.at(field="orchestration_id")
                _check_known("orchestration", step.orchestration_id, scope, at, problems)
            case TaskStep() if scope.tasks is not None and step.task not in scope.tasks:
                problems.error(
                    here.at(field="task"),
                    f'No task "{step.task}" is registered{near(step.task, scope.tasks)}. '
                    f"Registered: {listing(sorted(scope.tasks))}.",
                    loose=True,
                )
            case _:
                pass


def _check_agent(definition: Agent, scope: Scope, place: Place, problems: Problems) -> None:
    _check_tools(definition.tools, scope, place.at(field="tools"), problems)
    for agent in definition.delegate_agent_ids:
        _check_known("agent", agent, scope, place.at(field="delegate_agent_ids"), problems)
    if definition.orchestration_id is not None:
        at = place.at(field="orchestration_id")
        _check_known("orchestration", definition.orchestration_id, scope, at, problems)


def _check_tools(names: Iterable[str], scope: Scope, place: Place, problems: Problems) -> None:
    for name in names:
        if name != ALL_TOOLS and not scope.has_tool(name):
            known = sorted(scope.tools)
            problems.error(
                place,
                f'There is no tool "{name}"{near(name, known)}, and no MCP server whose name it begins with. '
                f"Tools: {listing(known)}. Servers: {listing(sorted(scope.servers))}.",
                loose=True,
            )


def _check_known(kind: Kind, name: str, scope: Scope, place: Place, problems: Problems) -> None:
    known = scope.agents if kind == "agent" else scope.orchestrations
    if name not in known and (kind, name) not in scope.broken:
        problems.error(
            place,
            f'There is no {KIND_WORDS[kind]} "{name}"{near(name, known)}. Known: {listing(sorted(known))}.',
            loose=True,
        )


def _inputs(scope: Scope) -> dict[str, set[str]]:
    """What is known to be passed to each orchestration by others."""
    found: dict[str, set[str]] = {}
    for orchestration in scope.orchestrations.values():
        for step in orchestration.steps:
            match step:
                case OrchestrationStep():
                    found.setdefault(step.orchestration_id, set()).update(step.input, step.input_keys)
                case AgentStep():
                    agent = scope.agents.get(step.agent_id)
                    if agent is not None and agent.orchestration_id is not None:
                        found.setdefault(agent.orchestration_id, set()).update(step.input_keys)
                case _:
                    pass
    return found


def nested_in(orchestration: Orchestration, scope: Scope) -> dict[str, str]:
    """The orchestrations that a run of this one may start, with the step that does."""
    found: dict[str, str] = {}
    users: dict[str, str] = {}
    for step in orchestration.steps:
        if isinstance(step, OrchestrationStep):
            found.setdefault(step.orchestration_id, step.id)
        elif isinstance(step, (AgentStep, ToolStep, EvaluatorStep)) and step.agent_id is not None:
            users.setdefault(step.agent_id, step.id)
    for name, step_id in users.items():
        for agent in agents_from([name], scope):
            if agent.orchestration_id is not None:
                found.setdefault(agent.orchestration_id, step_id)
    return found


def agents_from(names: Iterable[str], scope: Scope) -> list[Agent]:
    """These agents and all that they may call."""
    waiting, seen = list(names), set[str]()
    found: list[Agent] = []
    while waiting:
        name = waiting.pop()
        agent = scope.agents.get(name)
        if name in seen or agent is None:
            continue
        seen.add(name)
        found.append(agent)
        waiting += agent.delegate_agent_ids
    return found


def _check_nesting(given: Sequence[Parsed], scope: Scope, problems: Problems) -> None:
    nested = {name: nested_in(orchestration, scope) for name, orchestration in scope.orchestrations.items()}
    # What is left when those that nest nothing are taken away, again and again, is on a circle or leads to one.
    users: dict[str, list[str]] = {}
    open_ends: dict[str, int] = {}
    for name, inner in nested.items():
        known = [target for target in inner if target in nested]
        open_ends[name] = len(known)
        for target in known:
            users.setdefault(target, []).append(name)
    done = [name for name, count in open_ends.items() if count == 0]
    while done:
        for user in users.get(done.pop(), ()):
            open_ends[user] -= 1
            if open_ends[user] == 0:
                done.append(user)
    suspects = {name for name, count in open_ends.items() if count > 0}
    for parsed in given:
        if isinstance(parsed.definition, Orchestration) and parsed.definition.id in suspects:
            circle = _circle(parsed.definition.id, nested, suspects)
            if circle:
                step = nested[parsed.definition.id].get(circle[1])
                problems.error(
                    parsed.place.at(step=step),
                    f"The orchestration would start itself, without an end: {' -> '.join(circle)}. Break the circle.",
                )


def _circle(start: str, nested: Mapping[str, Mapping[str, str]], suspects: Collection[str]) -> list[str]:
    """The shortest way from an orchestration back to itself, or nothing."""
    came_from: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in nested[name]:
            if target == start:
                way = [start, name]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if target in suspects and target not in came_from:
                came_from[target] = name
                waiting.append(target)
    return []
