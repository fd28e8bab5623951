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
    """A step to perform. Its `path` identifies this execution within the run and never changes.

    `part` is "step" except for loops, whose while condition and list of items are evaluated separately. `tries` counts
    the failures of this execution so far; the next try is due `delay_seconds` after the last one. A first try may have
    a delay, too, if its container is retried. `state` is a read-only view of what the step may read.
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

    `output` is the recorded JSON value, so that a replay gets the same one.
    """

    output: Any = None
    route: str | None = None
    cost_usd: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A step could not be performed. `retryable` means that a retry may succeed."""

    code: str
    message: str
    retryable: bool = False
    cost_usd: float | None = None
    tokens: int = 0


Outcome = Done | Failed


@dataclass(frozen=True, slots=True)
class StepEvent:
    """An event of the run's stream that follows from an outcome.

    `output` is the output of a nested orchestration, which is not performed by a worker. It is not emitted.
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

    `loop_limits` are the steps of a completed run whose `max_iterations` was reached.
    """

    status: EndStatus
    response: Any
    state: Mapping[str, Any]
    error: Failed | None = None
    step_id: str | None = None
    loop_limits: tuple[str, ...] = ()
