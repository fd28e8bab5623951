"""Workers: one, and all of a version."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import Name, RequestModel, ResponseModel
from runlane.domain.views import WorkerInfo, WorkerLoss


class WorkerVersion(RequestModel):
    """Names the workers of a version."""

    version: Name = Field(description="As `GET /workers` returns it.", examples=["0.1.0"])


class WorkerDetail(ResponseModel):
    """A worker and what it executes."""

    worker: WorkerInfo
    run_ids: list[str] = Field(description="Runs that it executes, at most 100; for a tenant, its own among them.")
    losses: list[WorkerLoss] = Field(
        description="The latest 100 attempts that ended because it died or was cut off; for a tenant, its own."
    )
