"""Events: the numbered, durable lines of a run's stream, and the names they may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class EventType(StrEnum):
    """The types of numbered, durable events. They are stored and read by clients, so they do not change."""

    # Every run.
    QUEUED = "queued"
    APPROVED = "approved"
    PICKED_UP = "worker_picked_up"
    LOG = "log"
    CHECKPOINT = "checkpoint"
    ATTEMPT_FAILED = "attempt_failed"
    RETRY_LATER = "retry_later"
    HANDED_BACK = "handed_back"
    WORKER_LOST = "worker_lost"
    KEY_FREE = "key_free"
    DEPENDENCIES_MET = "dependencies_met"
    ADMITTED = "admitted"
    WITHDRAWN = "withdrawn"
    STARTS_JOINED = "starts_joined"
    CANCEL_REQUESTED = "cancel_requested"
    REVIVED = "revived"
    RESUMED = "resumed"
    DONE = "done"
    # Orchestrations and their control flow.
    ORCHESTRATION_START = "orchestration_start"
    ORCHESTRATION_END = "orchestration_end"
    ORCHESTRATION_COMPLETE = "orchestration_complete"
    STEP_START = "step_start"
    STEP_COMPLETE = "step_complete"
    STEP_RETRY = "step_retry"
    STEP_ERROR = "step_error"
    STEP_WARNING = "step_warning"
    PARALLEL_START = "parallel_start"
    BRANCH_START = "branch_start"
    PARALLEL_COMPLETE = "parallel_complete"
    MERGE_COMPLETE = "merge_complete"
    LOOP_ITERATION = "loop_iteration"
    LOOP_COMPLETE = "loop_complete"
    LOOP_LIMIT_REACHED = "loop_limit_reached"
    IF_DECISION = "if_decision"
    SWITCH_DECISION = "switch_decision"
    ROUTING_DECISION = "routing_decision"
    TRANSFORM_RESULT = "transform_result"
    FINAL = "final"
    # Models, tools and people.
    MODEL_REQUEST = "model_request"
    MODEL_RESPONSE = "model_response"
    LLM_REASONING = "llm_reasoning"
    WAITING = "waiting"
    TOOL_EXECUTION = "tool_execution"
    TOOL_RESULT = "tool_result"
    CONVERSATION_COMPACTED = "conversation_compacted"
    MEMORY_UPDATED = "memory_updated"
    HUMAN_INPUT_REQUIRED = "human_input_required"
    PAUSED = "paused"
    # Graphs of LangGraph.
    GRAPH_STREAM = "graph_stream"


class LiveType(StrEnum):
    """The types of live events, which have no number and are not stored."""

    TEXT = "text"
    THINKING = "thinking"
    ARGUMENTS = "arguments"
    PROGRESS = "progress"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class Event:
    """One stored event."""

    run_id: str
    seq: int
    type: str
    attempt: int
    at_us: int
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class StoredEvent(NamedTuple):
    """One stored event: `data` is JSON, and the frame for a reader is made only from these fields."""

    seq: int
    type: str
    attempt: int
    at_us: int
    data: str


class Notice(NamedTuple):
    """Published after a commit: a run has events up to `last_seq`.

    `lines` may hold its newest events; a reader that misses one reads the database.
    """

    run_id: str
    last_seq: int
    lines: tuple[StoredEvent, ...] = ()


class Delta(NamedTuple):
    """A live event without a number that is not stored, such as progress. `data` is JSON.

    A repeat sends earlier content again, for readers that have joined since.
    """

    run_id: str
    attempt: int
    type: str
    data: str
    repeat: bool = False
