"""The graph of an orchestration: the transitions between steps, and reachability.

Containers (`parallel`, `loop`) lead to their parts, and continue with their next step when all parts have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import (
    EvaluatorStep,
    HumanStep,
    IfElseStep,
    LoopStep,
    ParallelStep,
    Step,
    SwitchStep,
    WaitStep,
)


class TransitionKind(StrEnum):
    """The reason why a step follows another step."""

    NEXT = "next"
    ROUTE = "route"
    BRANCH = "branch"
    BODY = "body"
    ERROR = "error"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition from a step. `field` is the field that defines it. A target of None ends the run."""

    source: str
    target: str | None
    kind: TransitionKind
    field: str
    label: str = ""


def transitions_of(step: Step) -> list[Transition]:
    """Return every transition that a step defines."""
    found: list[Transition] = []

    def add(target: str | None, kind: TransitionKind, field: str, label: str = "") -> None:
        found.append(Transition(step.id, target, kind, field, label))

    match step:
        case EvaluatorStep():
            for label, target in step.route_map.items():
                add(target, TransitionKind.ROUTE, f"route_map.{label}", label)
        case IfElseStep():
            add(step.if_true_step_id, TransitionKind.ROUTE, "if_true_step_id", "true")
            add(step.if_false_step_id, TransitionKind.ROUTE, "if_false_step_id", "false")
        case SwitchStep():
            for value, target in step.switch_cases.items():
                add(target, TransitionKind.ROUTE, f"switch_cases.{value}", value)
            add(step.switch_default_step_id, TransitionKind.ROUTE, "switch_default_step_id", "else")
        case ParallelStep():
            for number, branch in enumerate(step.parallel_branches):
                for position, target in enumerate(branch):
                    add(target, TransitionKind.BRANCH, f"parallel_branches[{number}][{position}]", str(number + 1))
        case LoopStep():
            for position, target in enumerate(step.loop_step_ids):
                add(target, TransitionKind.BODY, f"loop_step_ids[{position}]")
        case _:
            pass
    if step.next_step_id is not None or (not found and step.type != "end"):
        add(step.next_step_id, TransitionKind.NEXT, "next_step_id")
    if step.on_error is not None:
        add(step.on_error, TransitionKind.ERROR, "on_error", "error")
    if isinstance(step, (HumanStep, WaitStep)) and step.on_expiry is not None:
        add(step.on_expiry, TransitionKind.EXPIRY, "on_expiry", "expired")
    return found


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps by id with their transitions to existing steps. If several steps have the same id, the first is used."""

    steps: Mapping[str, Step]
    links: Mapping[str, tuple[Transition, ...]]

    def targets(self, step_id: str, avoiding: Collection[str] = ()) -> Iterator[str]:
        """Yield the steps that may follow a step."""
        for link in self.links[step_id]:
            if link.target is not None and link.target in self.steps and link.target not in avoiding:
                yield link.target

    def reachable(self, starts: Iterable[str], avoiding: Collection[str] = ()) -> set[str]:
        """Return the starts and all their successors, without passing through `avoiding`."""
        waiting = [start for start in starts if start in self.steps and start not in avoiding]
        seen = set(waiting)
        while waiting:
            for target in self.targets(waiting.pop(), avoiding):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen

    def ancestors(self, end: str, avoiding: Collection[str] = ()) -> set[str]:
        """Return the end and all its predecessors, without passing through `avoiding`."""
        sources: dict[str, list[str]] = {}
        for step_id in self.steps:
            for target in self.targets(step_id):
                sources.setdefault(target, []).append(step_id)
        waiting = [end]
        seen = {end}
        while waiting:
            for source in sources.get(waiting.pop(), ()):
                if source not in seen and source not in avoiding:
                    seen.add(source)
                    waiting.append(source)
        return seen


def graph_of(orchestration: Orchestration) -> Graph:
    """Return the graph of an orchestration."""
    steps: dict[str, Step] = {}
    for step in orchestration.steps:
        steps.setdefault(step.id, step)
    return Graph(steps, {step_id: tuple(transitions_of(step)) for step_id, step in steps.items()})
