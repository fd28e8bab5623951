"""The route that a performed step chooses, if it chooses one, and the event for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from runlane.definitions.schema.step import EvaluatorStep, HumanStep, IfElseStep, Step, SwitchStep, WaitStep
from runlane.domain.events import EventType
from runlane.interpreter.state import StateRejected
from runlane.interpreter.values import Done

EXPIRED: Final = "expired"
UNKNOWN_ROUTE: Final = "unknown_route"

# Steps that choose a route or wait. Their output is not an answer, so it does not become the response of a run.
STEERING: Final = frozenset({"evaluator", "if_else", "switch", "wait"})


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen route: a step (None: the fiber ends), the output to store, and the event."""

    target: str | None
    output: Any = None
    stored: bool = True
    event: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


def chosen(step: Step, done: Done) -> Route | None:
    """Return the route that a step chose; None for steps that continue with the next one."""
    match step:
        case IfElseStep():
            holds = bool(done.output)
            target = step.if_true_step_id if holds else step.if_false_step_id
            return Route(target, holds, event=EventType.IF_DECISION, data={"result": holds, "target_step_id": target})
        case SwitchStep():
            case = next((text for text in spellings(done.output) if text in step.switch_cases), None)
            target = step.switch_default_step_id if case is None else step.switch_cases[case]
            data = {"value": done.output, "matched_case": case, "target_step_id": target}
            return Route(target, done.output, event=EventType.SWITCH_DECISION, data=data)
        case EvaluatorStep():
            label = done.route
            if label is None or label not in step.route_map:
                raise StateRejected(
                    UNKNOWN_ROUTE,
                    f"The evaluator chose {_quoted(label)}, which is not a route ({', '.join(step.route_map)}).",
                )
            target = step.route_map[label]
            return Route(
                target, label, event=EventType.ROUTING_DECISION, data={"decision": label, "target_step_id": target}
            )
        case HumanStep() | WaitStep() if done.route == EXPIRED:
            if step.on_expiry is None:
                raise StateRejected(EXPIRED, "The wait expired, and the step has no on_expiry.")
            return Route(step.on_expiry, stored=False)
        case _:
            return None


def spellings(value: Any) -> Iterator[str]:
    """Yield the spellings of a value as a case of a switch: a string as it is, otherwise JSON, and 3.0 also as 3."""
    if isinstance(value, str):
        yield value
        return
    try:
        yield orjson.dumps(value).decode()
    except TypeError:
        # A number beyond 64 bits is still valid JSON.
        yield str(value)
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))


def _quoted(label: str | None) -> str:
    return "nothing" if label is None else f'"{label}"'
