"""Bulk jobs: one change of many runs, made by any process, each run at most once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, with_config

from runlane.domain.views import NextCursor
from runlane.domain.wire import WIRE, Timestamp

# How many runs one job may change. A filter that matches more is refused.
MAX_JOB_RUNS: Final = 100_000
# How many ids a request may name.
MAX_JOB_IDS: Final = 10_000
MAX_RATE: Final = 10_000.0
MAX_SPREAD_SECONDS: Final = 7 * 86400


class BulkActionName(StrEnum):
    """The change that a job makes to each run; the last four are for dead letters. Stored values must not change."""

    CANCEL = "cancel"
    RETRY = "retry"
    PRIORITY = "priority"
    LANE = "lane"
    TAG = "tag"
    REPLAY = "replay"
    DISCARD = "discard"
    ACKNOWLEDGE = "acknowledge"
    ASSIGN = "assign"


class BulkState(StrEnum):
    """The state of a job. The values are stored and must not change."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"


class ItemState(StrEnum):
    """The state of one run of a job. The values are stored and must not change."""

    PENDING = "pending"
    CHANGED = "changed"
    REFUSED = "refused"


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class BulkJob:
    """A bulk job and its progress."""

    id: Annotated[str, Field(alias="job_id")]
    tenant: Annotated[str | None, Field(description="Null: runs of all tenants.")]
    action: BulkActionName
    options: Mapping[str, Any]
    selection: Annotated[Mapping[str, Any], Field(description="What selected the runs: a filter, or a number of ids.")]
    state: BulkState
    total: Annotated[int, Field(description="The runs that were selected when the job was created.")]
    changed: int
    refused: Annotated[int, Field(description="Runs that did not allow the change; see the items for the reasons.")]
    rate: Annotated[float | None, Field(description="At most this many runs per second; null: no limit.")]
    created_by: str
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]
    stopped_by: str | None

    @property
    def pending(self) -> int:
        """The number of runs that the job has not processed yet."""
        return self.total - self.changed - self.refused


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class BulkItem:
    """One run of a job."""

    no: Annotated[int, Field(description="The position of the run in the job, from 1.")]
    run_id: str
    state: ItemState
    code: Annotated[str | None, Field(description="The error code of a refused run.")]
    reason: Annotated[str | None, Field(description="The reason for a refused run.")]
    new_run_id: Annotated[str | None, Field(description="The started run, if any.")]
    settled_at_us: Annotated[Timestamp | None, Field(alias="settled_at")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class BulkJobPage:
    """A page of bulk jobs, newest first."""

    jobs: tuple[BulkJob, ...]
    next_cursor: NextCursor


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class BulkItemPage:
    """A page of the runs of a job, in order."""

    items: tuple[BulkItem, ...]
    next_cursor: NextCursor


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class BulkPreview:
    """The selection that a bulk job would make: the exact number, and the first of the runs."""

    total: int
    run_ids: Annotated[tuple[str, ...], Field(description="At most the first 100.")]
