"""Lanes and workers, and changes of a lane."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.lane import POLL_BOUNDS_MS, SLOT_BOUNDS, Lane
from runlane.domain.views import WorkerInfo


class PatchLane(RequestModel):
    """The settings of a lane to change; at least one field must be given."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_slots": 4}, {"enabled": False}]})

    enabled: bool | None = None
    max_slots: int | None = Field(
        default=None, ge=SLOT_BOUNDS[0], le=SLOT_BOUNDS[1], description="Null removes the cap, 0 pauses the lane."
    )
    poll_interval_ms: int | None = Field(default=None, ge=POLL_BOUNDS_MS[0], le=POLL_BOUNDS_MS[1])


LANES = Listing("lanes", Lane)
WORKERS = Listing("workers", WorkerInfo)


class LaneChanged(ResponseModel):
    """A lane after a change, and the changed fields."""

    lane: Lane
    changed: dict[str, dict[str, Any]] = Field(examples=[{"max_slots": {"old": None, "new": 4}}])
