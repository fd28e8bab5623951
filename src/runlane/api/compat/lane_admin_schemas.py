"""Requests and responses of the worker administration under /admin/workers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class JobCancelled(ResponseModel):
    """A cancelled run."""

    job_id: str
    cancelled: bool
    message: str


class JobPriority(ResponseModel):
    """A run's old and new priority."""

    job_id: str
    old_priority: int
    new_priority: int


class WorkerStatus(ResponseModel):
    """Slots, running runs and queued runs."""

    running_jobs: list[dict[str, Any]]
    running_count: int
    queued_by_type: list[dict[str, Any]]
    total_queued: int
    lanes: list[dict[str, Any]]
    total_slots: int = Field(
        description="Runs that can be executed at once: slots of the live workers, or fewer if all lanes are capped."
    )
    slots_in_use: int = Field(description="Runs that are executed now, in lanes with and without a cap.")
