"""The facts from which the timeline of a run is built: parts of its step records and of its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runlane.domain.events import EventType

# The calls inside a step are read for one step at a time.
STEP_EVENTS: Final = (
    EventType.STEP_START,
    EventType.STEP_COMPLETE,
    EventType.STEP_RETRY,
    EventType.STEP_ERROR,
    EventType.PARALLEL_START,
    EventType.PARALLEL_COMPLETE,
    EventType.BRANCH_START,
    EventType.LOOP_ITERATION,
    EventType.LOOP_COMPLETE,
    EventType.HUMAN_INPUT_REQUIRED,
    EventType.RESUMED,
)
DECISION_EVENTS: Final = (EventType.IF_DECISION, EventType.SWITCH_DECISION, EventType.ROUTING_DECISION)
CALL_EVENTS: Final = (
    EventType.MODEL_REQUEST,
    EventType.MODEL_RESPONSE,
    EventType.TOOL_EXECUTION,
    EventType.TOOL_RESULT,
)


class StepFacts(NamedTuple):
    """The parts of a step record that the timeline needs."""

    path: str
    step_id: str | None
    kind: str
    attempt: int
    outcome: str | None
    tries: int
    duration_us: int | None
    cost_usd: float | None
    tokens: int
    ended_at_us: int


class EventFacts(NamedTuple):
    """The parts of an event that the timeline needs."""

    type: str
    attempt: int
    at_us: int
    data: Mapping[str, Any]


class PartsSummary(NamedTuple):
    """A summary of the parts of a collapsed span: their number, their outcomes, and their total time and cost."""

    parts: int
    outcomes: Mapping[str, int]
    started_us: int | None
    ended_us: int | None
    cost_usd: float | None
    tokens: int
