"""Dead letters: the records of runs that failed for good, and their handling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, with_config

from runlane.domain.run import Status
from runlane.domain.views import Attempt, NextCursor
from runlane.domain.wire import WIRE, Timestamp

# A bulk retry leaves out runs that failed for good this often, unless it is forced.
MAX_DEATHS: Final = 5
# By default, a retried dead letter has a lower priority than new runs.
LOWERED_PRIORITY: Final = 10
# A letter that is not handled is kept at least this long, even if runs are kept for a shorter time.
OPEN_KEPT_DAYS: Final = 180
MAX_NOTE: Final = 2000
MAX_ASSIGNEE: Final = 200


class LetterState(StrEnum):
    """How a dead letter is handled. The values are stored and must not change."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RETRYING = "retrying"
    RESOLVED = "resolved"
    DISCARDED = "discarded"


class RetryKind(StrEnum):
    """How a dead letter is retried."""

    RESUME = "resume"
    RESTART = "restart"
    FORK = "fork"


# The states that a list shows unless it names states: an operator still has to decide about these letters.
UNHANDLED: Final = (LetterState.OPEN, LetterState.ACKNOWLEDGED)
# The states in which an operator may retry, discard or acknowledge a dead letter.
RETRYABLE: Final = (LetterState.OPEN, LetterState.ACKNOWLEDGED, LetterState.DISCARDED)
DISCARDABLE: Final = (LetterState.OPEN, LetterState.ACKNOWLEDGED)
ACKNOWLEDGEABLE: Final = (LetterState.OPEN,)


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter without the input, the whole error and the attempts of its run."""

    run_id: str
    tenant: str
    target: str
    lane: str
    state: LetterState
    code: Annotated[str, Field(description="The code of the failed step, or the type of the exception.")]
    message: Annotated[str, Field(description="The beginning of the error's message.")]
    fingerprint: Annotated[str, Field(description="Equal for failures with the same cause.")]
    fingerprint_version: Annotated[int, Field(description="The version of the rule; 0 for letters of older releases.")]
    last_step: Annotated[str | None, Field(description="The path of the step that failed.")]
    first_failed_at_us: Annotated[Timestamp, Field(alias="first_failed_at")]
    died_at_us: Annotated[Timestamp, Field(alias="died_at", description="When the run failed for good the last time.")]
    times_died: Annotated[int, Field(description="How often the run has failed for good, including runs before it.")]
    handled_by: Annotated[str | None, Field(description="The author of the last change of the state.")]
    handled_at_us: Annotated[Timestamp | None, Field(alias="handled_at")]
    note: str | None
    assigned_to: str | None
    retry_run_id: Annotated[str | None, Field(description="The run that repeats this one: a restart or a fork.")]
    version: Annotated[
        str | None, Field(description="The version of the definition that the run failed with; null for tasks.")
    ]


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A recorded step of a run that failed."""

    path: str
    step_id: str | None
    kind: str
    outcome: str | None
    error: Mapping[str, Any] | None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterSummary):
    """A dead letter with everything that is needed to understand the failure and to repeat the run."""

    input: Mapping[str, Any] | None
    error: Mapping[str, Any]
    attempts: tuple[Attempt, ...]
    steps: Annotated[tuple[FailedStep, ...], Field(description="The last recorded steps, in order; at most 100.")] = ()
    run_state: Annotated[
        Mapping[str, Any] | None, Field(description="The state of a run with steps when it failed.")
    ] = None
    run_status: Annotated[
        Status | None, Field(description="The status of the run now; null if retention has deleted it.")
    ] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of dead letters, the latest death first."""

    dead_letters: tuple[DeadLetterSummary, ...]
    open: Annotated[int, Field(description="The exact number of open dead letters that the caller may see.")]
    next_cursor: NextCursor


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class GroupVersion:
    """The dead letters of a group whose runs failed with one version of their definition."""

    version: Annotated[str | None, Field(description="Null for tasks, and for letters of older releases.")]
    count: int
    first_failed_at_us: Annotated[Timestamp, Field(alias="first_failed_at")]
    last_died_at_us: Annotated[Timestamp, Field(alias="last_died_at")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """The dead letters with one fingerprint."""

    fingerprint: str
    code: str
    count: int
    times_died: Annotated[int, Field(description="The sum over its letters.")]
    targets: Annotated[tuple[str, ...], Field(description="At most the first 10, sorted.")]
    steps: Annotated[tuple[str, ...], Field(description="The failed steps; at most the first 10, sorted.")]
    first_failed_at_us: Annotated[Timestamp, Field(alias="first_failed_at")]
    last_died_at_us: Annotated[Timestamp, Field(alias="last_died_at")]
    sample: Annotated[DeadLetterSummary, Field(description="The latest of its letters.")]
    versions: Annotated[tuple[GroupVersion, ...], Field(description="At most 10, latest failure first.")]
    daily: Annotated[
        tuple[int, ...], Field(description="Letters by the day (UTC) of their last death: 14 days, today last.")
    ]


# The number of days for which a group counts its letters by day.
GROUP_DAYS: Final = 14


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """Dead letters by fingerprint, the largest group first."""

    groups: tuple[DeadLetterGroup, ...]
    more: Annotated[bool, Field(description="There are more groups than `limit`.")]
