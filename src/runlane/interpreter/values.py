"""Values that the step machine and the performers of steps exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import Step

Part = Literal["step", "condition", "items"]


@dataclass(frozen=True, slots=True)
class PendingStep:
    """Something to perform now. Its `path` names this very execution within the run and never changes.

    `part` is "step" but for loops, whose while condition and list of items are worked out apart. `tries` counts the
    failures of this execution so far; the next try is due `delay_seconds` after the last one. A first try may have to
    wait, too: what contains it has failed and is tried again. `state` is what the step may read: it is a view, not to
    be changed.
    """

    path: str
    orchestration: Orchestration
    step: Step
    state: Mapping[str, Any]
    part: Part = "step"
    tries: int = 0
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """A step was performed. `route` is the label that an evaluator chose, or "expired" for a wait that expired.

    `output` is a plain JSON value, the same that is recorded: what is settled again must not differ from it.
    """

    output: Any = None
    route: str | None = None
    cost_usd: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A step could not be performed. `retryable` means that another try may go well."""

    code: str
    message: str
    retryable: bool = False
    cost_usd: float | None = None
    tokens: int = 0


Outcome = Done | Failed


@dataclass(frozen=True, slots=True)
class StepEvent:
    """An event of the run's stream that follows from what has happened.

    `output` is the output of an inner orchestration, which is not performed by a worker. It is not emitted.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None


class EndStatus(StrEnum):
    """How an orchestration ended."""

    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OrchestrationEnd:
    """The end of the run: the last output as `response`, the state, and the error of a failed one.

    `loop_limits` are the steps whose `max_iterations` was reached on the way to a completed one.
    """

    status: EndStatus
    response: Any
    state: Mapping[str, Any]
    error: Failed | None = None
    step_id: str | None = None
    loop_limits: tuple[str, ...] = ()
