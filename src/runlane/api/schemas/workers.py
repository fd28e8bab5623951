"""One worker."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel
from runlane.domain.views import WorkerInfo


class WorkerDetail(ResponseModel):
    """A worker and what it executes."""

    worker: WorkerInfo
    run_ids: list[str] = Field(description="Runs that it executes, at most 100; for a tenant, its own among them.")
