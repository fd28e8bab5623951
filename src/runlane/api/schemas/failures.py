"""Dead letters and bulk jobs: filters and changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from runlane.api.schemas.actions import BulkFilter
from runlane.api.schemas.fields import Moment, Name, RequestModel, ResponseModel, StepPath
from runlane.domain.bulk import MAX_JOB_IDS, MAX_RATE
from runlane.domain.dead_letter import LOWERED_PRIORITY, LetterState, RetryKind
from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY, Status
from runlane.failures.options import Assignee, Note
from runlane.submit.tasks import MAX_DELAY_SECONDS

Ids = Annotated[list[Name], Field(min_length=1, max_length=MAX_JOB_IDS)]
Rate = Annotated[float, Field(ge=0.01, le=MAX_RATE, description="At most this many runs per second.")]
RunAction = Literal["cancel", "retry", "priority", "lane", "tag"]
LetterAction = Literal["retry", "discard", "acknowledge", "assign"]


class LetterFilterBody(RequestModel):
    """Selects dead letters; at least one field must be given."""

    state: list[Annotated[LetterState, Field(strict=False)]] | None = Field(
        default=None, min_length=1, max_length=5, description="Default: open and acknowledged."
    )
    target: Name | None = None
    lane: Name | None = None
    tenant: Name | None = None
    code: Name | None = None
    fingerprint: Name | None = None
    step: StepPath | None = Field(default=None, description="The path of the failed step, or its last part.")
    assigned_to: Name | None = None
    died_from: Moment | None = Field(default=None, description="RFC 3339; this moment or later.")
    died_before: Moment | None = Field(default=None, description="RFC 3339; before this moment.")
    text: Name | None = Field(default=None, description="Part of the message, the run's id or the target.")


class RetryLetter(RequestModel):
    """The options for a retry of a dead letter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"kind": "fork", "state": {"tone": "dry"}}]})

    kind: Annotated[RetryKind, Field(strict=False)] = Field(
        default=RetryKind.RESUME,
        description="`resume` from the failed step, `restart` as a new run with the current versions, or `fork`.",
    )
    delay_seconds: float = Field(default=0.0, ge=0, le=MAX_DELAY_SECONDS)
    lower_priority: int = Field(default=LOWERED_PRIORITY, ge=0, le=MAX_PRIORITY - MIN_PRIORITY)
    latest: bool = Field(default=False, description="Use the current versions, if the recorded steps match them.")
    from_step: StepPath | None = Field(
        default=None, description="For a fork: the path of a step; null means the failed step."
    )
    state: dict[str, Any] = Field(default_factory=dict[str, Any], description="For a fork: changes to the state.")


class DiscardLetter(RequestModel):
    """The note for a discarded dead letter, and whether its ordering key is released."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "The order was paid by hand."}]})

    note: Note | None = None
    release: bool = Field(default=False, description="Unblock the runs queued behind it under its ordering key.")


class AcknowledgeLetter(RequestModel):
    """The note for an acknowledged dead letter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"note": "The provider knows."}]})

    note: Note | None = None


class AssignLetter(RequestModel):
    """The person that a dead letter is assigned to."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"to": "ann"}]})

    to: Assignee | None = Field(description="Null removes the assignment.")


class LetterRetried(ResponseModel):
    """A retried dead letter."""

    run_id: str
    state: LetterState
    status: Status = Field(description="The status of the run that repeats the failed one.")
    new_run_id: str | None = Field(description="The new run of a restart or a fork.")


class _BulkBody(RequestModel):
    run_ids: Ids | None = Field(default=None, description="Used instead of a filter. Each run must exist.")
    options: dict[str, Any] = Field(default_factory=dict[str, Any], description="The options of the action.")
    rate: Rate | None = None
    dry_run: bool = Field(default=False, description="Only count the runs that the job would change.")


class CreateBulk(_BulkBody):
    """Change every run that the filter matches, or the given runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": "lane", "filter": {"target": "resize"}, "options": {"lane": "slow"}, "rate": 50}]
        }
    )

    action: RunAction
    filter: BulkFilter | None = None


class CreateLetterBulk(_BulkBody):
    """Change every dead letter that the filter matches, or the dead letters of the given runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "retry", "filter": {"code": "model_error"}, "options": {"spread_seconds": 600}, "rate": 20}
            ]
        }
    )

    action: LetterAction
    filter: LetterFilterBody | None = None
