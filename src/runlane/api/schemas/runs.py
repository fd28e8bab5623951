"""Runs as they are told: in lists, whole, and everything that is recorded of one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from runlane.api.schemas.fields import At, ResponseModel
from runlane.api.schemas.orchestrations import WaitView
from runlane.domain.run import Status

_Attempt = Annotated[int, Field(description="The number of claims, the fence: claims after a pause count too.")]
_Tries = Annotated[
    int, Field(description="1 for the first start, and one more for each failure or lost worker that it went on after.")
]


class RunSummary(ResponseModel):
    """A run without its input and result."""

    run_id: str
    target: str
    lane: str
    tenant: str
    status: Status
    priority: int
    attempt: _Attempt
    tries: _Tries
    failures: int
    losses: int
    max_attempts: int
    ordering_key: str | None
    accepted_at: At
    due_at: At | None
    started_at: At | None = Field(description="The start of the first attempt.")
    claimed_at: At | None = Field(description="The start of the latest attempt.")
    ended_at: At | None
    cancel_requested_at: At | None
    worker_id: str | None
    first_seq: int
    last_seq: int
    progress: float | None
    progress_note: str | None


class Fork(ResponseModel):
    """A run, and the step of it from which on another one went its own way."""

    run_id: str
    from_step: str


class Parent(ResponseModel):
    """A run that has called another one as a tool."""

    run_id: str
    path: str = Field(description="The place of the call: the step's path, and the call within it.")


class ChildView(ResponseModel):
    """A run that was called as a tool."""

    run_id: str
    target: str
    status: Status
    path: str = Field(description="The place of the call: the step's path, and the call within it.")


class RunWhole(RunSummary):
    """A run with its input, and its result or error."""

    input: dict[str, Any] | None
    result: Any
    error: dict[str, Any] | None
    state: dict[str, Any] | None = Field(
        description="Of an orchestration: what its finished steps have made of it so far."
    )
    waiting_for: list[WaitView] = Field(description="What a run of an orchestration waits for now.")
    definition: str | None = Field(description="The version of the orchestration that the run is pinned to.")
    forked_from: Fork | None = Field(description="Where the run was forked from.")
    parent: Parent | None = Field(description="The run that has called this one as a tool.")
    children: list[ChildView] = Field(
        description="The runs that this one has called as tools, in their order; at most the first 100."
    )
    blocked_by: str | None = Field(description="Of a blocked run: the run that holds its ordering key.")


class RunPage(ResponseModel):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")
    truncated: bool = Field(
        description="The page has fewer than `limit` because enough runs were looked at; older ones may fit."
    )


class RunStatus(ResponseModel):
    """Where a run stands, with the fields of the orchestration API."""

    run_id: str
    orchestration_id: str = Field(description="The orchestration, or the task, that the run executes.")
    status: Status
    current_step_id: str | None = Field(description="The step that asks, or the one that began last.")
    waiting_for_human: bool
    worker_id: str | None
    total_cost_usd: float | None = Field(
        description="So far, of the answers of models whose price is known; null if none of them has one."
    )
    total_tokens_used: int = Field(description="So far, with those of steps that are at work.")
    started_at: At | None = Field(description="The start of the first attempt.")
    ended_at: At | None
    attempt: _Attempt
    tries: _Tries
    progress: float | None
    progress_note: str | None
    blocked_by: str | None = Field(description="Of a blocked run: the run that holds its ordering key.")


class AttemptView(ResponseModel):
    """An attempt that has ended, or with outcome null the one that runs."""

    attempt: int
    worker_id: str | None
    started_at: At | None
    ended_at: At | None
    outcome: str | None
    error: dict[str, Any] | None


class Attempts(ResponseModel):
    """Every attempt of a run, in order."""

    run_id: str
    attempts: list[AttemptView]


class StepView(ResponseModel):
    """A recorded step."""

    path: str = Field(description="Which execution of the step it is; a fork may begin here.")
    kind: str
    attempt: int = Field(description="0 for a step that a fork has taken over.")
    step_id: str | None
    outcome: str | None = Field(
        description="`done`, `retrying`, `handled`: failed, and its error route took it, `failed`: ended the run."
    )
    route: str | None = Field(description="The way that the step chose.")
    input: dict[str, Any] | None = Field(
        description="What it was given of the state: `input_keys`, and by their paths the values in its texts."
    )
    output: Any
    error: dict[str, Any] | None
    tries: int = Field(description="Tries that failed.")
    cost_usd: float | None = Field(description="Of all its tries.")
    tokens: int
    duration_seconds: float | None
    ended_at: At


class Steps(ResponseModel):
    """The recorded steps of a run, in order."""

    run_id: str
    steps: list[StepView]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


class EventsPage(ResponseModel):
    """Events of a run in order, as its stream gives them."""

    run_id: str
    count: int
    events: list[dict[str, Any]] = Field(
        examples=[[{"type": "queued", "seq": 1, "run_id": "run_1", "attempt": 0, "at": "2026-01-31T12:00:00.000000Z"}]]
    )
    next_after: int = Field(description="Pass it as `after` for what follows.")
    last_seq: int
    first_seq: int = Field(description="The oldest event that is kept.")


class LogsPage(ResponseModel):
    """Log lines from an index on. Every event of the run is one line, so indexes never shift.

    A poller passes `next_index` as `since` and ends when `expected_log_count` is there and `next_index` has reached it.
    """

    run_id: str
    logs: list[dict[str, Any]] = Field(
        examples=[[{"index": 2, "event": "log", "message": "hello", "at": "2026-01-31T12:00:00.000000Z"}]]
    )
    next_index: int
    status: Status
    expected_log_count: int | None = Field(description="How many lines there are in all, once the run has ended.")
    first_index: int = Field(description="The oldest line that is kept.")
    truncated: bool = Field(description="Lines at or after `since` are no longer kept.")
    runner_id: str | None
    log_source: str
