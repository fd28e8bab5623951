"""Checks over definitions as a whole: names are taken once, references lead somewhere, nothing nests for ever.

What is given is checked; what is known already serves as the other end of references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from runlane.definitions.checks.conditions import check_conditions
from runlane.definitions.checks.cycles import check_nesting
from runlane.definitions.checks.environment import Environment, check_environment
from runlane.definitions.checks.flow import check_flow
from runlane.definitions.checks.placeholders import check_instructions, check_places
from runlane.definitions.checks.scripted_answers import check_agent_answers, check_answers
from runlane.definitions.checks.tools import check_schemas, check_server, check_tool
from runlane.definitions.problem import KIND_WORDS, Location, Problems, listing, near
from runlane.definitions.schema.definition import Agent, Kind, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, OrchestrationStep, Step, TaskStep, ToolStep
from runlane.definitions.scope import ALL_TOOLS, TOOL_OF_SERVER, DefinitionScope, ParsedDefinition
from runlane.definitions.secret_references import check_secrets
from runlane.domain.failure_codes import FAILURE_CODES, RUN_FAILURE_CODES


def check(
    given: Sequence[ParsedDefinition],
    scope: DefinitionScope,
    problems: Problems,
    *,
    environment: Environment | None = None,
) -> None:
    """Note what is wrong with the given definitions, which are in the scope."""
    _check_twice(given, problems)
    inputs = _inputs(scope)
    for parsed in given:
        definition, place = parsed.definition, parsed.place
        check_secrets(definition, definition.model_dump(mode="json"), place, problems)
        check_schemas(definition, place, problems)
        if environment is not None:
            check_environment(definition, environment, place, problems)
        match definition:
            case Orchestration():
                check_flow(definition, place, problems)
                check_places(definition, inputs.get(definition.id, ()), place, problems)
                check_conditions(definition, inputs.get(definition.id, ()), place, problems)
                check_answers(definition, scope, place, problems)
                _check_orchestration(definition, scope, place, problems)
            case Agent():
                check_instructions(definition, place, problems)
                check_agent_answers(definition, scope, place, problems)
                _check_agent(definition, scope, place, problems)
            case Tool():
                check_tool(definition, place, problems)
                _check_called(definition, scope, place, problems)
            case McpServer():
                check_server(definition, place, problems)
    check_nesting(given, scope, problems)


def _check_twice(given: Sequence[ParsedDefinition], problems: Problems) -> None:
    first: dict[tuple[Kind, str], ParsedDefinition] = {}
    for parsed in given:
        earlier = first.setdefault(parsed.key, parsed)
        if earlier is not parsed:
            where = f" by {earlier.place.file}" if earlier.place.file else ""
            problems.error(parsed.place, f"The name is taken{where} already. Give it another, or remove one of them.")


def _check_orchestration(
    definition: Orchestration, scope: DefinitionScope, place: Location, problems: Problems
) -> None:
    for step in definition.steps:
        here = place.at(step=step.id)
        _check_retry(step, here, problems)
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
            case TaskStep():
                _check_task(step.task, scope, here.at(field="task"), problems)
            case _:
                pass


def _check_retry(step: Step, place: Location, problems: Problems) -> None:
    for code in step.retry.on if step.retry is not None else ():
        if code in RUN_FAILURE_CODES:
            problems.error(
                place.at(field="retry.on"),
                f'"{code}" ends the run as a whole, so a step cannot be tried again after it. Remove it.',
            )
        elif code not in FAILURE_CODES:
            problems.error(
                place.at(field="retry.on"),
                f'"{code}" is not the code of a failure{near(code, FAILURE_CODES)}. Name codes of the reference, such '
                'as "timeout" or "model_error".',
            )


def _check_agent(definition: Agent, scope: DefinitionScope, place: Location, problems: Problems) -> None:
    _check_tools(definition.tools, scope, place.at(field="tools"), problems, skip=definition.on_missing_tools == "skip")
    for agent in definition.delegate_agent_ids:
        _check_known("agent", agent, scope, place.at(field="delegate_agent_ids"), problems)
    if definition.orchestration_id is not None:
        at = place.at(field="orchestration_id")
        _check_known("orchestration", definition.orchestration_id, scope, at, problems)


def _check_called(definition: Tool, scope: DefinitionScope, place: Location, problems: Problems) -> None:
    """What a tool calls, if that is something of ours."""
    if definition.called_agent is not None:
        _check_known("agent", definition.called_agent, scope, place.at(field="agent_id"), problems)
    if definition.called_orchestration is not None:
        at = place.at(field="orchestration_id")
        _check_known("orchestration", definition.called_orchestration, scope, at, problems)
    if definition.tool_type == "task" and definition.task is not None:
        _check_task(definition.task, scope, place.at(field="task"), problems)


def _check_task(name: str, scope: DefinitionScope, place: Location, problems: Problems) -> None:
    if scope.tasks is not None and name not in scope.tasks:
        problems.error(
            place,
            f'No task "{name}" is registered{near(name, scope.tasks)}. Registered: {listing(sorted(scope.tasks))}.',
            loose=True,
        )


def _check_tools(
    names: Iterable[str], scope: DefinitionScope, place: Location, problems: Problems, *, skip: bool = False
) -> None:
    """Note tools that do not exist; with `skip` the agent works without them, so each is only a warning."""

    def report(message: str) -> None:
        if skip:
            problems.warn(place, f"{message} The agent works without it.")
        else:
            problems.error(place, message, loose=True)

    for name in names:
        if name == ALL_TOOLS:
            continue
        server = None if name in scope.tools else scope.servers.get(scope.server_of(name) or "")
        if server is not None and server.allowed_tools is not None:
            wanted = name.removeprefix(f"{server.name}{TOOL_OF_SERVER}")
            # Without a tool's name it means all that the server brings.
            if wanted and wanted not in server.allowed_tools:
                report(
                    f'The MCP server "{server.name}" does not allow "{wanted}"{near(wanted, server.allowed_tools)}. '
                    f"Its allowed_tools: {listing(server.allowed_tools)}."
                )
        elif not scope.has_tool(name):
            known = sorted(scope.tools)
            report(
                f'There is no tool "{name}"{near(name, known)}, and no MCP server whose name it begins with. '
                f"Tools: {listing(known)}. Servers: {listing(sorted(scope.servers))}."
            )


def _check_known(kind: Kind, name: str, scope: DefinitionScope, place: Location, problems: Problems) -> None:
    known = scope.agents if kind == "agent" else scope.orchestrations
    if name not in known and (kind, name) not in scope.broken:
        problems.error(
            place,
            f'There is no {KIND_WORDS[kind]} "{name}"{near(name, known)}. Known: {listing(sorted(known))}.',
            loose=True,
        )


def _inputs(scope: DefinitionScope) -> dict[str, set[str]]:
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
    for tool in scope.tools.values():
        if tool.called_orchestration is not None:
            found.setdefault(tool.called_orchestration, set()).update(_input_properties(tool))
    return found


def _input_properties(tool: Tool) -> Iterable[str]:
    """The keys that a tool of type orchestration passes on, as far as its schema names them."""
    schema: Any = tool.input_schema
    for name in ("properties", "input", "properties"):
        schema = cast("Mapping[str, Any]", schema).get(name) if isinstance(schema, Mapping) else None
    return cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else ()
