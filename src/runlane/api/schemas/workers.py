"""One worker, and all workers of a version."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import Name, RequestModel, ResponseModel
from runlane.domain.views import WorkerInfo, WorkerLoss


class WorkerVersion(RequestModel):
    """Names the workers of a version."""

    version: Name = Field(description="A version that `GET /workers` returns.", examples=["0.1.0"])


class WorkerDetail(ResponseModel):
    """A worker and what it executes."""

    worker: WorkerInfo
    run_ids: list[str] = Field(description="The runs that it executes, at most 100. A tenant sees its own.")
    losses: list[WorkerLoss] = Field(
        description="The latest 100 attempts that it lost by a crash or a cut connection. A tenant sees its own."
    )
