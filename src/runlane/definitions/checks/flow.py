"""The flow of an orchestration: entry step, existing targets, branches that can join, closed loops.

These checks need only the orchestration itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from runlane.definitions.graph import Graph, TransitionKind, graph_of
from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import (
    EndStep,
    EvaluatorStep,
    HumanField,
    HumanStep,
    IfElseStep,
    LoopStep,
    ParallelStep,
    Step,
    SwitchStep,
    TransformStep,
    WaitStep,
)

# In a URL, this id would be the path of the list of runs.
_RESERVED = frozenset({"runs"})
# The cost of checking a graph grows with the product of its links and branches.
_MAX_LINKS = 10_000
_MAX_BRANCHES = 1_000
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check_flow(orchestration: Orchestration, location: Location, problems: Problems) -> None:
    """Report problems of the steps and the transitions between them."""
    graph = graph_of(orchestration)
    if not _is_bounded(graph, location, problems):
        return
    if orchestration.id in _RESERVED:
        problems.error(location.at(field="id"), f'The id "{orchestration.id}" is reserved by the API. Choose another.')
    _check_ids(orchestration, location, problems)
    _check_targets(graph, location, problems)
    _check_entry(orchestration, graph, location, problems)
    for step in graph.steps.values():
        here = location.at(step=step.id)
        _check_code(step, here, problems)
        match step:
            case EvaluatorStep():
                _check_evaluator(step, here, problems)
            case ParallelStep():
                _check_parallel(step, graph, here, problems)
            case LoopStep():
                _check_loop(step, graph, here, problems)
            case HumanStep():
                _check_human(step, here, problems)
            case WaitStep():
                _check_wait(step, here, problems)
            case EndStep():
                if step.next_step_id is not None:
                    problems.warn(here.at(field="next_step_id"), "A step of type end has no next step. Remove it.")
            case _:
                pass


def _is_bounded(graph: Graph, location: Location, problems: Problems) -> bool:
    links = sum(len(found) for found in graph.links.values())
    branches = sum(len(step.parallel_branches) for step in graph.steps.values() if isinstance(step, ParallelStep))
    if links > _MAX_LINKS or branches > _MAX_BRANCHES:
        problems.error(
            location.at(field="steps"),
            f"The steps have {links} links and {branches} branches; at most {_MAX_LINKS} and {_MAX_BRANCHES} are "
            "allowed. Move parts into other orchestrations.",
        )
        return False
    return True


def _check_ids(orchestration: Orchestration, location: Location, problems: Problems) -> None:
    seen: set[str] = set()
    for number, step in enumerate(orchestration.steps, 1):
        if step.id in seen:
            problems.error(
                location.at(step=step.id, field="id"),
                f"Step number {number} has the id of another step. Give it a unique id.",
            )
        seen.add(step.id)


def _check_targets(graph: Graph, location: Location, problems: Problems) -> None:
    for step_id, links in graph.links.items():
        for link in links:
            here = location.at(step=step_id, field=link.field)
            if link.target is not None and link.target not in graph.steps:
                problems.error(here, unknown_step(link.target, graph.steps))
            elif link.target == step_id and link.kind in (
                TransitionKind.ERROR,
                TransitionKind.BRANCH,
                TransitionKind.BODY,
            ):
                fix = " Use retry to repeat it." if link.kind is TransitionKind.ERROR else " Name another step."
                problems.error(here, f"The step leads to itself.{fix}")


def unknown_step(target: str, steps: Iterable[str]) -> str:
    """Return a message that a step does not exist, with the existing steps."""
    names = list(steps)
    return f'The step "{target}" does not exist{near(target, names)}. Steps: {listing(names)}.'


def _check_entry(orchestration: Orchestration, graph: Graph, location: Location, problems: Problems) -> None:
    if orchestration.entry not in graph.steps:
        problems.error(location.at(field="entry_step_id"), unknown_step(orchestration.entry, graph.steps))
        return
    reached = graph.reachable([orchestration.entry])
    for step_id in graph.steps:
        if step_id not in reached:
            problems.warn(
                location.at(step=step_id),
                f'The step cannot be reached from "{orchestration.entry}", where the run begins. Link it or remove it.',
            )


def _check_evaluator(step: EvaluatorStep, location: Location, problems: Problems) -> None:
    if step.fallback_route is not None and step.fallback_route not in step.route_map:
        problems.error(
            location.at(field="fallback_route"),
            f'The route "{step.fallback_route}" does not exist{near(step.fallback_route, step.route_map)}. '
            f"Routes: {listing(step.route_map)}.",
        )
    for label in step.route_descriptions:
        if label not in step.route_map:
            problems.warn(
                location.at(field=f"route_descriptions.{label}"),
                f'The route "{label}" does not exist{near(label, step.route_map)}. Routes: {listing(step.route_map)}.',
            )


def _check_parallel(step: ParallelStep, graph: Graph, location: Location, problems: Problems) -> None:
    """Report a branch that cannot end, or that reaches steps after the join."""
    join = step.next_step_id
    barriers = {step.id} if join is None else {step.id, join}
    after = graph.reachable([join], {step.id}) if join is not None else set[str]()
    to_join = graph.ancestors(join, {step.id}) if join is not None else set[str]()
    parts: list[set[str]] = []
    for number, branch in enumerate(step.parallel_branches):
        here = location.at(field=f"parallel_branches[{number}]")
        if not branch:
            problems.error(here, "The branch is empty. Name its first step, or remove it.")
            continue
        if any(target not in graph.steps for target in branch):
            continue
        if join is not None and join in branch:
            problems.error(
                here, f'"{join}" is the join of the branches (next_step_id) and cannot be part of one. Remove it.'
            )
            continue
        if len(set(branch)) < len(branch):
            problems.error(here, "A step is listed twice. List each step of a branch once.")
        part = graph.reachable(branch, barriers)
        parts.append(part)
        if any(step.id in graph.targets(found) for found in part):
            problems.error(
                here,
                f'The branch leads back to "{step.id}", which would start all branches again. Remove that link.',
            )
        outside = sorted(found for found in part & after if found not in to_join)
        if outside:
            problems.error(
                here,
                f'The branch leaves the parallel step: it leads to "{outside[0]}", which comes after the join '
                f'"{join}". Lead it to the join.',
            )
        elif len(branch) == 1 and not _can_end(part, graph, barriers):
            end = f'the join "{join}"' if join is not None else "an end"
            problems.error(here, f"No path of this branch leads to {end}. Lead it there.")
    shared = [found for found in graph.steps if sum(found in part for part in parts) > 1]
    if join is None and shared:
        problems.warn(
            location.at(field="next_step_id"),
            f'Several branches lead to "{shared[0]}", so each of them executes it. To join them there, write '
            f'"next_step_id": "{shared[0]}".',
        )


def _can_end(part: set[str], graph: Graph, barriers: set[str]) -> bool:
    """Return whether the branch has a last step. A step of type end ends the run, not the branch."""
    for found in part:
        for link in graph.links[found]:
            if link.target in barriers or (
                link.target is None and link.kind in (TransitionKind.NEXT, TransitionKind.ROUTE)
            ):
                return True
    return False


def _check_loop(step: LoopStep, graph: Graph, location: Location, problems: Problems) -> None:
    """Report a body that is entered other than through the loop.

    The steps of the body are executed in the order of the list. Steps that choose their next step may leave the loop.
    """
    body = set(step.loop_step_ids)
    if len(body) < len(step.loop_step_ids):
        problems.error(location.at(field="loop_step_ids"), "A step is listed twice. List each step of the body once.")
    if step.next_step_id is not None and step.next_step_id in body:
        problems.error(
            location.at(field="next_step_id"),
            f'"{step.next_step_id}" is in the body (loop_step_ids). The next step must be outside of it.',
        )
    for outer, links in graph.links.items():
        for link in links if outer not in body and outer != step.id else ():
            if link.target in body and link.kind is not TransitionKind.BODY:
                problems.warn(
                    location.at(step=outer, field=link.field),
                    f'"{link.target}" is in the body of the loop "{step.id}", and this link bypasses the loop, so that '
                    f'it would be executed outside of any round. Lead to "{step.id}" to begin the loop.',
                )


def _check_human(step: HumanStep, location: Location, problems: Problems) -> None:
    seen: set[str] = set()
    for number, field in enumerate(step.human_fields):
        here = location.at(field=f"human_fields[{number}]")
        if field.name in seen:
            problems.error(here, f'Another field has the name "{field.name}". Give it a unique name.')
        seen.add(field.name)
        if field.default is not None and not _fits(field):
            problems.error(
                here, f"The default {field.default!r} is not a valid value of type {field.type}. Correct it."
            )
    if step.on_expiry is not None and step.expires_after_seconds is None:
        problems.warn(location.at(field="on_expiry"), "Without expires_after_seconds, it has no effect.")


def _fits(field: HumanField) -> bool:
    value = field.default
    match field.type:
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "select":
            return value in field.options
        case "multiselect":
            return isinstance(value, list) and all(item in field.options for item in value)  # pyright: ignore[reportUnknownVariableType]
        case "date":
            return isinstance(value, str) and _DATE.match(value) is not None
        case "email":
            return isinstance(value, str) and "@" in value
        case _:
            return isinstance(value, str)


def _check_wait(step: WaitStep, location: Location, problems: Problems) -> None:
    if step.on_expiry is not None and step.expires_after_seconds is None:
        problems.warn(location.at(field="on_expiry"), "Without expires_after_seconds, it has no effect.")
    if step.event is None and step.expires_after_seconds is not None:
        problems.warn(location.at(field="expires_after_seconds"), "Only a wait for an event can expire. Remove it.")


def _check_code(step: Step, location: Location, problems: Problems) -> None:
    match step:
        case IfElseStep():
            check_expression(step.if_condition, location.at(field="if_condition"), problems)
        case SwitchStep():
            check_expression(step.switch_expression, location.at(field="switch_expression"), problems)
        case LoopStep():
            for field in ("while_condition", "for_each"):
                text: str | None = getattr(step, field)
                if text is not None:
                    check_expression(text, location.at(field=field), problems)
        case TransformStep():
            _parse(step.transform_code, "exec", location.at(field="transform_code"), problems)
        case _:
            pass


def check_expression(text: str, location: Location, problems: Problems, example: str = "state.key") -> None:
    """Report an expression that cannot be parsed or that contains placeholders."""
    if "{{" in text or "{state." in text:
        problems.error(
            location, f"An expression cannot contain placeholders. Write {example} instead of {{{example}}}."
        )
        return
    _parse(text.strip(), "eval", location, problems)


def _parse(text: str, mode: str, location: Location, problems: Problems) -> None:
    try:
        ast.parse(text, mode=mode)
    except SyntaxError as error:
        # An incomplete expression has no column.
        where = f"Column {error.offset}" if error.offset else "At its end"
        if mode == "exec":
            where = f"Line {error.lineno}, column {error.offset}" if error.offset else f"Line {error.lineno}"
        problems.error(location, f"{where}: {error.msg}.")
    except (RecursionError, MemoryError, ValueError):
        problems.error(location, "The code is too deeply nested to be parsed. Simplify it.")
