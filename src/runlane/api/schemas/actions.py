"""Changes of one run, or of all matching runs."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import (
    MAX_BULK,
    Key,
    Moment,
    Name,
    Note,
    Priority,
    RequestModel,
    ResponseModel,
    StepPath,
    Tag,
    Tags,
)
from runlane.domain.run import Status

MAX_SECONDS: Final = 10 * 365 * 86_400
MAX_USD: Final = 1e9
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, le=MAX_USD, allow_inf_nan=False)]


class PatchRun(RequestModel):
    """Change the priority of a waiting run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": 50}]})

    priority: Priority


class RetryRun(RequestModel):
    """The options of a retry."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"latest": True}]})

    latest: bool = Field(default=False, description="Use the current versions, if the recorded steps match them.")


class PatchTags(RequestModel):
    """Change the tags of a run: set all of them, or add and remove some."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"add": ["reviewed"], "remove": ["nightly"]}]})

    tags: Tags | None = Field(
        default=None, description="The complete set of tags of the run; an empty list removes all tags."
    )
    add: Tags = ()
    remove: Tags = ()


class RunTags(ResponseModel):
    """The tags of a run."""

    run_id: str
    tags: list[str]


class ResumeRun(RequestModel):
    """Answer a question of a run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"response": {"decision": "approve", "notes": "Publish it."}}]}
    )

    response: dict[str, Any] | str = Field(
        default_factory=dict[str, Any],
        description="The fields by name; a string answers a question with at most one field.",
    )
    step: StepPath | None = Field(default=None, description="The id or path of the step, if several steps ask.")
    note: Note | None = Field(default=None, description="Stored with the answer, for people.")


class BulkFilter(RequestModel):
    """Selects runs; at least one field must be given."""

    status: list[Annotated[Status, Field(strict=False)]] | None = Field(default=None, min_length=1, max_length=9)
    target: Name | None = None
    lane: Name | None = None
    tenant: Name | None = None
    ordering_key: Key | None = None
    accepted_from: Moment | None = Field(default=None, description="RFC 3339; this moment or later.")
    accepted_before: Moment | None = Field(default=None, description="RFC 3339; before this moment.")
    tags: list[Tag] | None = Field(default=None, min_length=1, max_length=20, description="Runs that have all of them.")
    schedule_id: Name | None = Field(default=None, description="The schedule that started them.")
    forked_from: Name | None = Field(default=None, description="The run that they were forked from.")
    text: Name | None = Field(default=None, description="Part of the id, target, ordering key or progress note.")
    parent: Name | None = Field(default=None, description="The run that started them as tools.")
    worker: Name | None = Field(default=None, description="The worker of their last attempt.")
    session: Name | None = Field(default=None, description="The chat session that they belong to.")
    error_code: Name | None = Field(default=None, description="The code or type of their error.")
    definition: Name | None = Field(default=None, description="The version of the definition that they are pinned to.")
    roots: bool | None = Field(default=None, description="Only runs that no other run started as a tool.")
    min_duration_seconds: Seconds | None = None
    max_duration_seconds: Seconds | None = None
    min_cost_usd: Usd | None = None
    max_cost_usd: Usd | None = None


class BulkRequest(RequestModel):
    """Change every matching run, at most `limit` of them, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filter": {"lane": "default", "status": ["queued"]}, "limit": 100}]}
    )

    filter: BulkFilter
    limit: int = Field(default=100, ge=1, le=MAX_BULK)
    dry_run: bool = Field(default=False, description="Only count the matching runs.")


class Changed(ResponseModel):
    """The status of a changed run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"run_id": "run_0192f3a1b2c37abc8def0123456789ab", "status": "queued"}]}
    )

    run_id: str
    status: str
    stream_url: str


class Bulk(ResponseModel):
    """The result of a bulk change."""

    matched: int = Field(description="Matching runs, at most `limit`.")
    changed: int
    refused: int = Field(description="Runs whose status no longer allowed the change.")
    more: bool = Field(description="More runs may match: repeat the request.")
    run_ids: list[str]
    dry_run: bool
    job_id: str | None = Field(description="The bulk job that made the changes.")
    finished: bool = Field(description="False: the job continues; see GET /bulk/{job_id}.")
