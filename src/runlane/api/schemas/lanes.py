"""Lanes, workers, and changes of lanes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import Name, RequestModel, ResponseModel, text_only
from runlane.api.schemas.listing import Listing
from runlane.domain.lane import (
    MAX_HOLD_SECONDS,
    MAX_KINDS,
    MAX_NAME,
    MAX_OWNER,
    MAX_REASON,
    POLL_BOUNDS_MS,
    SLOT_BOUNDS,
    STALE_BOUNDS_MINUTES,
    Lane,
    LaneHold,
)
from runlane.domain.start_tags import PRIORITY_BOUNDS_SECONDS
from runlane.domain.views import WorkerInfo
from runlane.store.queue.lanes import LaneChange

LaneName = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f\x7f]*$"), AfterValidator(text_only)
]


class PatchLane(RequestModel):
    """The settings of a lane to change; at least one field must be given."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_slots": 4}, {"enabled": False}]})

    enabled: bool | None = None
    max_slots: int | None = Field(
        default=None, ge=SLOT_BOUNDS[0], le=SLOT_BOUNDS[1], description="Null removes the cap, 0 pauses the lane."
    )
    poll_interval_ms: int | None = Field(default=None, ge=POLL_BOUNDS_MS[0], le=POLL_BOUNDS_MS[1])
    fair: bool | None = Field(default=None, description="Whether tenants share the lane fairly.")
    priority_seconds: int | None = Field(
        default=None,
        ge=PRIORITY_BOUNDS_SECONDS[0],
        le=PRIORITY_BOUNDS_SECONDS[1],
        description="How long one point of priority may delay other runs. Applies to runs accepted after the change.",
    )
    stale_timeout_minutes: int | None = Field(
        default=None,
        ge=STALE_BOUNDS_MINUTES[0],
        le=STALE_BOUNDS_MINUTES[1],
        description="An attempt without progress for this long is interrupted, and the run is retried.",
    )

    def change(self) -> LaneChange:
        """Return the requested changes. A null removes the setting if it is optional."""
        given = self.model_fields_set
        return LaneChange(
            enabled=self.enabled,
            max_slots=self.max_slots,
            uncapped="max_slots" in given and self.max_slots is None,
            poll_interval_ms=self.poll_interval_ms,
            fair=self.fair,
            priority_seconds=self.priority_seconds,
            stale_timeout_minutes=self.stale_timeout_minutes,
            unbounded="stale_timeout_minutes" in given and self.stale_timeout_minutes is None,
        )


class NewLane(PatchLane):
    """Create a lane. An omitted setting has its default."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "slow", "max_slots": 1, "kinds": ["report"]}]})

    name: LaneName
    kinds: list[Name] = Field(
        default_factory=list[str], max_length=MAX_KINDS, description="Kinds of runs to assign to it, with waiting runs."
    )


class AssignKinds(RequestModel):
    """Assign kinds of runs to a lane, in place of the lane that their code or definition names."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kinds": ["report", "export"]}]})

    kinds: list[Name] = Field(min_length=1, max_length=MAX_KINDS)


class KindsAssigned(ResponseModel):
    """A lane after kinds were assigned to it."""

    lane: Lane
    moved_runs: int = Field(description="Waiting runs that moved to the lane.")


class NewHold(RequestModel):
    """Hold a lane, so that it starts no runs."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "restore of 17 May", "expires_in_seconds": 3600}]}
    )

    reason: str = Field(min_length=1, max_length=MAX_REASON)
    owner: str | None = Field(
        default=None, min_length=1, max_length=MAX_OWNER, description="Default: the key of the request."
    )
    expires_in_seconds: float | None = Field(
        default=None, gt=0, le=MAX_HOLD_SECONDS, description="Null: until it is released."
    )


HOLDS = Listing("holds", LaneHold)
LANES = Listing("lanes", Lane)
WORKERS = Listing("workers", WorkerInfo)


class LaneChanged(ResponseModel):
    """A lane after a change, and the changed fields."""

    lane: Lane
    changed: dict[str, dict[str, Any]] = Field(examples=[{"max_slots": {"old": None, "new": 4}}])
