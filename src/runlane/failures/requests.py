"""Requests for bulk jobs: checked as a whole, then stored with the runs that they select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runlane.domain.bulk import MAX_JOB_IDS, MAX_JOB_RUNS, MAX_RATE, BulkActionName, BulkPreview
from runlane.domain.ids import new_id
from runlane.errors import InvalidRequest
from runlane.failures.actions import ACTIONS
from runlane.failures.options import LaneOptions, Options, parse_options
from runlane.store.failures.bulk_items import (
    Selection,
    check_visible,
    preview_items,
    select_items,
    store_ids,
)
from runlane.store.failures.bulk_jobs import NewJob, create_job
from runlane.store.queue.lanes import check_lanes
from runlane.store.sql.database import Database, Session

_SHOWN_IDS = 100


class NothingMatches(InvalidRequest):
    """The filter of a bulk job matches nothing."""


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A change of many runs: of those that a filter matches, or of these ids.

    `tenant` bounds both; None means all tenants. `shown` is the filter as the caller wrote it. `limit` selects the
    newest runs where more match; without it, a filter that matches more than a job may change is refused.
    """

    action: BulkActionName
    selection: Selection | None = None
    ids: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rate: float | None = None
    tenant: str | None = None
    actor: str = "local"
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """A stored job. `more` means that more runs match than its limit allows."""

    id: str
    total: int
    more: bool = False


async def create_bulk(database: Database, request: BulkChange) -> CreatedJob:
    """Store a job with the runs that it will change. Nothing is stored if the request is refused."""
    options = await _checked(database, request)
    ids = list(dict.fromkeys(request.ids))
    shown = {"filter": dict(request.shown)} if request.selection is not None else {"ids": len(ids)}
    job = NewJob(
        new_id("blk"),
        request.tenant,
        request.action,
        options.model_dump(mode="json", exclude_defaults=True),
        shown,
        request.rate,
        request.actor,
    )

    async def work(session: Session) -> CreatedJob:
        more = False
        if request.selection is None:
            await check_visible(session, ids, request.tenant, letters=ACTIONS[request.action].is_for_letters)
            await store_ids(session, job.id, ids)
            total = len(ids)
        else:
            total, more = await select_items(session, job.id, request.selection, request.limit or MAX_JOB_RUNS)
        _check_total(total, more, request)
        await create_job(session, job, total)
        return CreatedJob(job.id, total, more)

    return await database.transact(work)


async def preview_bulk(database: Database, request: BulkChange) -> BulkPreview:
    """Return the exact number of runs that a job would select now, and the first of them."""
    await _checked(database, request)
    if request.selection is None:
        ids, more = list(dict.fromkeys(request.ids)), False
        letters = ACTIONS[request.action].is_for_letters
        await database.transact(lambda session: check_visible(session, ids, request.tenant, letters=letters))
    else:
        ids, more = await preview_items(database, request.selection, request.limit or MAX_JOB_RUNS)
    _check_total(len(ids), more, request)
    return BulkPreview(len(ids), tuple(ids[:_SHOWN_IDS]))


async def _checked(database: Database, request: BulkChange) -> Options:
    """Check the request and return its options."""
    if (request.selection is None) == (not request.ids):
        raise InvalidRequest("Give either a filter or ids.")
    if len(request.ids) > MAX_JOB_IDS:
        raise InvalidRequest(f"{len(request.ids)} ids are too many; at most {MAX_JOB_IDS}. Use a filter.")
    if request.rate is not None and not 0.01 <= request.rate <= MAX_RATE:
        raise InvalidRequest(f"rate={request.rate:g} must be between 0.01 and {MAX_RATE:g} runs per second.")
    options = parse_options(ACTIONS[request.action].options, dict(request.options))
    if isinstance(options, LaneOptions):
        await check_lanes(database, [options.lane])
    return options


def _check_total(total: int, more: bool, request: BulkChange) -> None:
    if total == 0:
        raise NothingMatches(
            f"The filter matches nothing that the action {request.action.value} could change. Nothing was started."
        )
    if more and request.limit is None:
        raise InvalidRequest(
            f"The filter matches more than {MAX_JOB_RUNS} runs, which one job may change. Narrow it, for example by "
            "time, or give a limit."
        )
