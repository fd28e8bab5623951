"""The worker administration of the lane design."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class JobCancelled(ResponseModel):
    """A cancelled run, as the worker administration tells it."""

    job_id: str
    cancelled: bool
    message: str


class JobPriority(ResponseModel):
    """A run's priority before and after."""

    job_id: str
    old_priority: int
    new_priority: int


class WorkerStatus(ResponseModel):
    """Slots, what runs, and what waits."""

    running_jobs: list[dict[str, Any]]
    running_count: int
    queued_by_type: list[dict[str, Any]]
    total_queued: int
    lanes: list[dict[str, Any]]
    total_slots: int = Field(
        description="Runs that can be executed at once: slots of the live workers, or fewer if all lanes are capped."
    )
    slots_in_use: int = Field(description="Runs in execution, in lanes with and without a cap.")
