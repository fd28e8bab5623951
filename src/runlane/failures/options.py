"""The options of bulk actions and of the retry of a dead letter, with their bounds."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from runlane.domain.bulk import MAX_SPREAD_SECONDS
from runlane.domain.dead_letter import LOWERED_PRIORITY, MAX_ASSIGNEE, MAX_NOTE, RetryKind
from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY
from runlane.domain.tags import MAX_TAGS, TagChange, check_change
from runlane.domain.validation import listed_errors, too_many
from runlane.errors import InvalidInput, InvalidRequest
from runlane.submit.tasks import MAX_DELAY_SECONDS

_CLEAN = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"
Note = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NOTE, pattern=_CLEAN)]
Assignee = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ASSIGNEE, pattern=_CLEAN)]


class Options(BaseModel):
    """Options of an action; the base has none."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, defer_build=True)


class PriorityOptions(Options):
    """The new priority of waiting runs."""

    priority: int = Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)


class LaneOptions(Options):
    """The lane that waiting runs are moved to."""

    lane: str = Field(min_length=1, max_length=200)


class TagOptions(Options):
    """The tags that runs get and lose; their other tags stay."""

    add: list[str] = Field(default_factory=list[str], max_length=MAX_TAGS)
    remove: list[str] = Field(default_factory=list[str], max_length=MAX_TAGS)

    @model_validator(mode="after")
    def _valid(self) -> Self:
        try:
            self.change()
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self

    def change(self) -> TagChange:
        """Return the change of each run."""
        return check_change(self.add, self.remove)


class RetryOptions(Options):
    """How failed runs are retried."""

    delay_seconds: float = Field(
        default=0.0, ge=0, le=MAX_DELAY_SECONDS, description="The delay before the first run starts."
    )
    spread_seconds: float = Field(
        default=0.0, ge=0, le=MAX_SPREAD_SECONDS, description="The starts are spread evenly over this time."
    )
    lower_priority: int = Field(default=0, ge=0, le=MAX_PRIORITY - MIN_PRIORITY)
    latest: bool = Field(default=False, description="Use the current versions, if the recorded steps match them.")

    def delay_us(self, no: int, total: int) -> int:
        """Return the delay of one of `total` runs, of which the first has the number 1."""
        share = (no - 1) / total if total else 0.0
        return int((self.delay_seconds + self.spread_seconds * share) * 1_000_000)


class LetterRetry(RetryOptions):
    """How dead letters are retried."""

    kind: Annotated[RetryKind, Field(strict=False)] = Field(
        default=RetryKind.RESUME,
        description="`resume` from the failed step, `restart` as a new run on the current versions, or `fork`.",
    )
    lower_priority: int = Field(
        default=LOWERED_PRIORITY,
        ge=0,
        le=MAX_PRIORITY - MIN_PRIORITY,
        description="Lowers the priority by this many points, so that new runs start first.",
    )
    from_step: str | None = Field(
        default=None,
        min_length=1,
        max_length=2000,
        description="For a fork: the path of a step; null means the failed step.",
    )
    state: dict[str, Any] = Field(default_factory=dict[str, Any], description="For a fork: changes to the state.")
    force: bool = Field(default=False, description="Include runs that failed for good five times or more.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind is not RetryKind.FORK and (self.from_step is not None or self.state):
            raise ValueError('from_step and state are for kind "fork"')
        if self.kind is RetryKind.RESTART and self.latest:
            raise ValueError('kind "restart" always uses the current versions; leave latest out')
        return self


class DiscardOptions(Options):
    """The reason why dead letters are discarded, and whether their ordering keys are released."""

    note: Note | None = None
    release: bool = Field(default=False, description="Unblock the runs queued behind it under its ordering key.")


class AcknowledgeOptions(Options):
    """The reason why dead letters are acknowledged."""

    note: Note | None = None


class AssignOptions(Options):
    """The person that dead letters are assigned to."""

    to: Assignee | None = Field(description="Null removes the assignment.")


def parse_options(kind: type[Options], given: dict[str, Any]) -> Options:
    """Return checked options. InvalidInput names each field that is wrong."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        fields = {".".join(map(str, item["loc"])) or "options": item["msg"] for item in listed_errors(error)}
        shown = "; ".join(f"{name}: {message}" for name, message in fields.items()) or too_many(error).rstrip(".")
        raise InvalidInput(f"The options are not valid. {shown}.") from None
