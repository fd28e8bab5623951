"""One worker."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel
from runlane.domain.views import WorkerInfo, WorkerLoss


class WorkerDetail(ResponseModel):
    """A worker and what it executes."""

    worker: WorkerInfo
    run_ids: list[str] = Field(description="Runs that it executes, at most 100; for a tenant, its own among them.")
    losses: list[WorkerLoss] = Field(
        description="The latest 100 attempts that ended because it died or was cut off; for a tenant, its own."
    )
