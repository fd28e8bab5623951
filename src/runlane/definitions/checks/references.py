"""Checks across definitions: unique names, existing targets of references, no cycles.

Only the given definitions are checked. Other known definitions are only targets of references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from runlane.definitions.checks.conditions import check_conditions
from runlane.definitions.checks.cycles import check_nesting
from runlane.definitions.checks.environment import Environment, check_environment
from runlane.definitions.checks.flow import check_flow
from runlane.definitions.checks.flow_control import check_flow_control
from runlane.definitions.checks.placeholders import check_instructions, check_placeholders
from runlane.definitions.checks.schedules import check_schedule
from runlane.definitions.checks.scripted_answers import check_agent_answers, check_answers
from runlane.definitions.checks.tools import check_schemas, check_server, check_tool
from runlane.definitions.checks.triggers import check_trigger
from runlane.definitions.problem import KIND_WORDS, Location, Problems, listing, near
from runlane.definitions.schema.definition import Agent, Kind, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, OrchestrationStep, Step, TaskStep, ToolStep
from runlane.definitions.schema.trigger import Trigger
from runlane.definitions.scope import ALL_TOOLS, TOOL_OF_SERVER, DefinitionScope, ParsedDefinition
from runlane.definitions.secret_references import check_secrets
from runlane.domain.failure_codes import FAILURE_CODES, RUN_FAILURE_CODES
from runlane.domain.schedule import CRONS_ONLY, ScheduleSettings


def check(
    given: Sequence[ParsedDefinition],
    scope: DefinitionScope,
    problems: Problems,
    *,
    environment: Environment | None = None,
) -> None:
    """Report all problems of the given definitions, which the scope contains."""
    _check_twice(given, problems)
    inputs = _inputs(scope)
    for parsed in given:
        definition, location = parsed.definition, parsed.location
        check_secrets(definition, definition.model_dump(mode="json"), location, problems)
        check_schemas(definition, location, problems)
        check_flow_control(definition, location, problems)
        if environment is not None:
            check_environment(definition, environment, location, problems)
        match definition:
            case Orchestration():
                check_flow(definition, location, problems)
                check_placeholders(definition, inputs.get(definition.id, ()), location, problems)
                check_conditions(definition, inputs.get(definition.id, ()), location, problems)
                check_answers(definition, scope, location, problems)
                _check_orchestration(definition, scope, location, problems)
            case Agent():
                check_instructions(definition, location, problems)
                check_agent_answers(definition, scope, location, problems)
                _check_agent(definition, scope, location, problems)
            case Tool():
                check_tool(definition, location, problems)
                _check_called(definition, scope, location, problems)
            case McpServer():
                check_server(definition, location, problems)
            case ScheduleSettings():
                check_schedule(definition, location, problems)
                _check_schedule_target(definition, scope, location, problems)
            case Trigger():
                check_trigger(definition, location, problems)
                _check_target(definition, scope, location, problems)
    check_nesting(given, scope, problems)


def _check_twice(given: Sequence[ParsedDefinition], problems: Problems) -> None:
    first: dict[tuple[Kind, str], ParsedDefinition] = {}
    for parsed in given:
        earlier = first.setdefault(parsed.key, parsed)
        if earlier is not parsed:
            where = f" by {earlier.location.file}" if earlier.location.file else ""
            problems.error(parsed.location, f"The name is already used{where}. Rename or remove one of them.")


def _check_orchestration(
    definition: Orchestration, scope: DefinitionScope, location: Location, problems: Problems
) -> None:
    for step in definition.steps:
        here = location.at(step=step.id)
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


def _check_retry(step: Step, location: Location, problems: Problems) -> None:
    for code in step.retry.on if step.retry is not None else ():
        if code in RUN_FAILURE_CODES:
            problems.error(
                location.at(field="retry.on"),
                f'"{code}" ends the run as a whole, so a step cannot be retried after it. Remove it.',
            )
        elif code not in FAILURE_CODES:
            problems.error(
                location.at(field="retry.on"),
                f'"{code}" is not a failure code{near(code, FAILURE_CODES)}. Use a code of the reference, such as '
                '"timeout" or "model_error".',
            )


def _check_agent(definition: Agent, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    _check_tools(
        definition.tools, scope, location.at(field="tools"), problems, skip=definition.on_missing_tools == "skip"
    )
    for agent in definition.delegate_agent_ids:
        _check_known("agent", agent, scope, location.at(field="delegate_agent_ids"), problems)
    if definition.orchestration_id is not None:
        at = location.at(field="orchestration_id")
        _check_known("orchestration", definition.orchestration_id, scope, at, problems)


def _check_called(definition: Tool, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    """Check the definition or task that a tool calls."""
    if definition.called_agent is not None:
        _check_known("agent", definition.called_agent, scope, location.at(field="agent_id"), problems)
    if definition.called_orchestration is not None:
        at = location.at(field="orchestration_id")
        _check_known("orchestration", definition.called_orchestration, scope, at, problems)
    if definition.tool_type == "task" and definition.task is not None:
        _check_task(definition.task, scope, location.at(field="task"), problems)


def _check_schedule_target(
    definition: ScheduleSettings, scope: DefinitionScope, location: Location, problems: Problems
) -> None:
    at, target = location.at(field="target.name"), definition.target
    if target.kind == "task":
        _check_task(target.name, scope, at, problems)
    elif target.kind == "assistant":
        problems.error(location.at(field="target.kind"), CRONS_ONLY)
    else:
        _check_known("orchestration" if target.kind == "orchestration" else "agent", target.name, scope, at, problems)


def _check_target(definition: Trigger, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    """Check the task or definition that a trigger starts."""
    if definition.agent_id is not None:
        _check_known("agent", definition.agent_id, scope, location.at(field="agent_id"), problems)
    if definition.orchestration_id is not None:
        at = location.at(field="orchestration_id")
        _check_known("orchestration", definition.orchestration_id, scope, at, problems)
    if definition.task is not None:
        _check_task(definition.task, scope, location.at(field="task"), problems)


def _check_task(name: str, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    if scope.tasks is not None and name not in scope.tasks:
        problems.error(
            location,
            f'No task "{name}" is registered{near(name, scope.tasks)}. Registered: {listing(sorted(scope.tasks))}.',
            tolerable=True,
        )


def _check_tools(
    names: Iterable[str], scope: DefinitionScope, location: Location, problems: Problems, *, skip: bool = False
) -> None:
    """Report tools that do not exist. With `skip`, the agent works without them, so each is a warning."""

    def report(message: str) -> None:
        if skip:
            problems.warn(location, f"{message} The agent works without it.")
        else:
            problems.error(location, message, tolerable=True)

    for name in names:
        if name == ALL_TOOLS:
            continue
        server = None if name in scope.tools else scope.servers.get(scope.server_of(name) or "")
        if server is not None and server.allowed_tools is not None:
            tool = name.removeprefix(f"{server.name}{TOOL_OF_SERVER}")
            # Without the name of a tool, the reference means all tools of the server.
            if tool and tool not in server.allowed_tools:
                report(
                    f'The MCP server "{server.name}" does not allow "{tool}"{near(tool, server.allowed_tools)}. '
                    f"Its allowed_tools: {listing(server.allowed_tools)}."
                )
        elif not scope.has_tool(name):
            known = sorted(scope.tools)
            report(
                f'The tool "{name}" does not exist{near(name, known)}, and its prefix is not an MCP server. '
                f"Tools: {listing(known)}. Servers: {listing(sorted(scope.servers))}."
            )


def _check_known(kind: Kind, name: str, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    known = scope.agents if kind == "agent" else scope.orchestrations
    if name not in known and (kind, name) not in scope.broken:
        problems.error(
            location,
            f'The {KIND_WORDS[kind]} "{name}" does not exist{near(name, known)}. Known: {listing(sorted(known))}.',
            tolerable=True,
        )


def _inputs(scope: DefinitionScope) -> dict[str, set[str]]:
    """Return the input keys that other definitions pass to each orchestration."""
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
    """Return the keys that a tool of type orchestration passes, if its schema lists them."""
    schema: Any = tool.input_schema
    for name in ("properties", "input", "properties"):
        schema = cast("Mapping[str, Any]", schema).get(name) if isinstance(schema, Mapping) else None
    return cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else ()
