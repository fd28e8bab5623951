"""Lanes and workers, and what can be changed of a lane."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import At, RequestModel, ResponseModel
from runlane.domain.lane import POLL_BOUNDS_MS, SLOT_BOUNDS


class PatchLane(RequestModel):
    """What to change of a lane; at least one field must be given."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_slots": 4}, {"enabled": False}]})

    enabled: bool | None = None
    max_slots: int | None = Field(
        default=None, ge=SLOT_BOUNDS[0], le=SLOT_BOUNDS[1], description="Null removes the cap, 0 pauses the lane."
    )
    poll_interval_ms: int | None = Field(default=None, ge=POLL_BOUNDS_MS[0], le=POLL_BOUNDS_MS[1])


class LaneView(ResponseModel):
    """A lane with what runs and waits in it."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    kinds: list[str]
    running: int
    queued: int
    running_jobs: int
    queued_jobs: int
    slots_available: int | None = Field(description="For platform admins; null without a cap.")
    oldest_queued_at: At | None


class Lanes(ResponseModel):
    """Every lane."""

    lanes: list[LaneView]


class LaneChanged(ResponseModel):
    """A lane after a change, and what changed."""

    lane: LaneView
    changed: dict[str, dict[str, Any]] = Field(examples=[{"max_slots": {"old": None, "new": 4}}])


class WorkerView(ResponseModel):
    """A worker."""

    worker_id: str
    hostname: str | None = Field(description="For platform admins.")
    pid: int | None = Field(description="For platform admins.")
    status: str
    version: str
    lanes: list[str]
    targets: list[str] | None = Field(description="For platform admins: what it can execute; null if it does not tell.")
    active_jobs: int = Field(description="Runs that it executes; for a tenant, its own among them.")
    max_jobs: int
    started_at: At
    last_heartbeat: At
    ended_at: At | None


class Workers(ResponseModel):
    """The workers, newest first."""

    workers: list[WorkerView]
