"""The way through an orchestration: a beginning, no step that leads nowhere, branches that can meet, closed loops.

Everything here can be told from one orchestration alone.
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

# In a URL it would be taken for the list of runs.
_RESERVED = frozenset({"runs"})
# What it takes to look at a graph grows with the product of both.
_MAX_LINKS = 10_000
_MAX_BRANCHES = 1_000
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check_flow(orchestration: Orchestration, place: Location, problems: Problems) -> None:
    """Note what is wrong with the steps and the way through them."""
    graph = graph_of(orchestration)
    if not _is_bounded(graph, place, problems):
        return
    if orchestration.id in _RESERVED:
        problems.error(place.at(field="id"), f'The id "{orchestration.id}" is used by the API. Choose another.')
    _check_ids(orchestration, place, problems)
    _check_targets(graph, place, problems)
    _check_entry(orchestration, graph, place, problems)
    for step in graph.steps.values():
        here = place.at(step=step.id)
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
                    problems.warn(here.at(field="next_step_id"), "Nothing follows a step of type end. Remove it.")
            case _:
                pass


def _is_bounded(graph: Graph, place: Location, problems: Problems) -> bool:
    links = sum(len(found) for found in graph.links.values())
    branches = sum(len(step.parallel_branches) for step in graph.steps.values() if isinstance(step, ParallelStep))
    if links > _MAX_LINKS or branches > _MAX_BRANCHES:
        problems.error(
            place.at(field="steps"),
            f"The steps have {links} links and {branches} branches; at most {_MAX_LINKS} and {_MAX_BRANCHES} may be. "
            "Move parts into orchestrations of their own.",
        )
        return False
    return True


def _check_ids(orchestration: Orchestration, place: Location, problems: Problems) -> None:
    seen: set[str] = set()
    for number, step in enumerate(orchestration.steps, 1):
        if step.id in seen:
            problems.error(
                place.at(step=step.id, field="id"), f"Step number {number} has an id that is taken. Give it its own."
            )
        seen.add(step.id)


def _check_targets(graph: Graph, place: Location, problems: Problems) -> None:
    for step_id, links in graph.links.items():
        for link in links:
            here = place.at(step=step_id, field=link.field)
            if link.target is not None and link.target not in graph.steps:
                problems.error(here, unknown_step(link.target, graph.steps))
            elif link.target == step_id and link.kind in (
                TransitionKind.ERROR,
                TransitionKind.BRANCH,
                TransitionKind.BODY,
            ):
                cure = " Use retry to try it again." if link.kind is TransitionKind.ERROR else ""
                problems.error(here, f"The step leads to itself.{cure}")


def unknown_step(target: str, steps: Iterable[str]) -> str:
    """That there is no such step, and which there are."""
    names = list(steps)
    return f'There is no step "{target}"{near(target, names)}. Steps: {listing(names)}.'


def _check_entry(orchestration: Orchestration, graph: Graph, place: Location, problems: Problems) -> None:
    if orchestration.entry not in graph.steps:
        problems.error(place.at(field="entry_step_id"), unknown_step(orchestration.entry, graph.steps))
        return
    reached = graph.reachable([orchestration.entry])
    for step_id in graph.steps:
        if step_id not in reached:
            problems.warn(
                place.at(step=step_id),
                f'No way leads here from "{orchestration.entry}", where the run begins. Link it or remove it.',
            )


def _check_evaluator(step: EvaluatorStep, place: Location, problems: Problems) -> None:
    if step.fallback_route is not None and step.fallback_route not in step.route_map:
        problems.error(
            place.at(field="fallback_route"),
            f'There is no route "{step.fallback_route}"{near(step.fallback_route, step.route_map)}. '
            f"Routes: {listing(step.route_map)}.",
        )
    for label in step.route_descriptions:
        if label not in step.route_map:
            problems.warn(
                place.at(field=f"route_descriptions.{label}"),
                f'There is no route "{label}"{near(label, step.route_map)}. Routes: {listing(step.route_map)}.',
            )


def _check_parallel(step: ParallelStep, graph: Graph, place: Location, problems: Problems) -> None:
    """Each branch must be able to end, and must not go where the run goes on after the join."""
    join = step.next_step_id
    barriers = {step.id} if join is None else {step.id, join}
    after = graph.reachable([join], {step.id}) if join is not None else set[str]()
    to_join = graph.reach_back(join, {step.id}) if join is not None else set[str]()
    parts: list[set[str]] = []
    for number, branch in enumerate(step.parallel_branches):
        here = place.at(field=f"parallel_branches[{number}]")
        if not branch:
            problems.error(here, "The branch is empty. Name its first step, or remove it.")
            continue
        if any(target not in graph.steps for target in branch):
            continue
        if join is not None and join in branch:
            problems.error(here, f'"{join}" is where the branches meet (next_step_id); it cannot be part of one.')
            continue
        if len(set(branch)) < len(branch):
            problems.error(here, "A step is named twice. A branch goes through each of its steps once.")
        part = graph.reachable(branch, barriers)
        parts.append(part)
        if any(step.id in graph.targets(found) for found in part):
            problems.error(
                here, f'The branch leads back to "{step.id}", which would start all branches again within it.'
            )
        outside = sorted(found for found in part & after if found not in to_join)
        if outside:
            problems.error(
                here,
                f'The branch leaves the parallel step: it leads to "{outside[0]}", which comes after "{join}", where '
                "the branches meet. Lead it to the join.",
            )
        elif len(branch) == 1 and not _can_end(part, graph, barriers):
            end = f'"{join}", where the branches meet' if join is not None else "an end"
            problems.error(here, f"No way through this branch leads to {end}. Lead it there.")
    shared = [found for found in graph.steps if sum(found in part for part in parts) > 1]
    if join is None and shared:
        problems.warn(
            place.at(field="next_step_id"),
            f'Several branches lead to "{shared[0]}", so each of them runs it. If they shall meet there, write '
            f'"next_step_id": "{shared[0]}".',
        )


def _can_end(part: set[str], graph: Graph, barriers: set[str]) -> bool:
    """Whether some step of the branch is its last one. A step of type end ends the run, not the branch."""
    for found in part:
        for link in graph.links[found]:
            if link.target in barriers or (
                link.target is None and link.kind in (TransitionKind.NEXT, TransitionKind.ROUTE)
            ):
                return True
    return False


def _check_loop(step: LoopStep, graph: Graph, place: Location, problems: Problems) -> None:
    """The body runs in the order of its list. What chooses a way in it may leave the loop; nothing comes in past it."""
    body = set(step.loop_step_ids)
    if len(body) < len(step.loop_step_ids):
        problems.error(place.at(field="loop_step_ids"), "A step is named twice. Name each step of the body once.")
    if step.next_step_id is not None and step.next_step_id in body:
        problems.error(
            place.at(field="next_step_id"),
            f'"{step.next_step_id}" is in the body (loop_step_ids). What follows the loop must be outside.',
        )
    for outer, links in graph.links.items():
        for link in links if outer not in body and outer != step.id else ():
            if link.target in body and link.kind is not TransitionKind.BODY:
                problems.warn(
                    place.at(step=outer, field=link.field),
                    f'"{link.target}" is in the body of the loop "{step.id}", and this leads to it past the loop, so '
                    f'that it runs outside of any round. Lead to "{step.id}" to begin the loop.',
                )


def _check_human(step: HumanStep, place: Location, problems: Problems) -> None:
    seen: set[str] = set()
    for number, field in enumerate(step.human_fields):
        here = place.at(field=f"human_fields[{number}]")
        if field.name in seen:
            problems.error(here, f'The name "{field.name}" is taken by another field. Give it its own.')
        seen.add(field.name)
        if field.default is not None and not _fits(field):
            problems.error(here, f"The default {field.default!r} is no answer that a field of type {field.type} takes.")
    if step.on_expiry is not None and step.expires_after_seconds is None:
        problems.warn(place.at(field="on_expiry"), "Without expires_after_seconds this never happens.")


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


def _check_wait(step: WaitStep, place: Location, problems: Problems) -> None:
    if step.on_expiry is not None and step.expires_after_seconds is None:
        problems.warn(place.at(field="on_expiry"), "Without expires_after_seconds this never happens.")
    if step.event is None and step.expires_after_seconds is not None:
        problems.warn(place.at(field="expires_after_seconds"), "Only waiting for an event can expire.")


def _check_code(step: Step, place: Location, problems: Problems) -> None:
    match step:
        case IfElseStep():
            _check_expression(step.if_condition, place.at(field="if_condition"), problems)
        case SwitchStep():
            _check_expression(step.switch_expression, place.at(field="switch_expression"), problems)
        case LoopStep():
            for field in ("while_condition", "for_each"):
                text: str | None = getattr(step, field)
                if text is not None:
                    _check_expression(text, place.at(field=field), problems)
        case TransformStep():
            _parse(step.transform_code, "exec", place.at(field="transform_code"), problems)
        case _:
            pass


def _check_expression(text: str, place: Location, problems: Problems) -> None:
    if "{{" in text or "{state." in text:
        problems.error(place, "This is an expression and has no placeholders. Write state.key instead of {state.key}.")
        return
    _parse(text.strip(), "eval", place, problems)


def _parse(text: str, mode: str, place: Location, problems: Problems) -> None:
    try:
        ast.parse(text, mode=mode)
    except SyntaxError as error:
        # Where a text stops too early there is no column.
        where = f"Column {error.offset}" if error.offset else "At its end"
        if mode == "exec":
            where = f"Line {error.lineno}, column {error.offset}" if error.offset else f"Line {error.lineno}"
        problems.error(place, f"{where}: {error.msg}.")
    except (RecursionError, MemoryError, ValueError):
        problems.error(place, "This is too deeply nested to be read. Make it simpler.")
