"""Filters of runs: the filters of lists that have no index, and the filters in requests that change many runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Query

from runlane.access.policy import tenant_to_list
from runlane.api.schemas.actions import MAX_SECONDS, MAX_USD, BulkFilter
from runlane.api.schemas.fields import Name, moment_us
from runlane.domain.access import Principal
from runlane.domain.run import Status
from runlane.errors import InvalidRequest
from runlane.store.queue.search import RunFilter

Seconds = Annotated[float | None, Query(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Usd = Annotated[float | None, Query(ge=0, le=MAX_USD, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class CheckedFilters:
    """Filters that lists check run by run, as parameters of a request."""

    worker: Annotated[Name | None, Query(description="The worker of their last attempt.")] = None
    session: Annotated[Name | None, Query(description="The chat session that they belong to.")] = None
    error_code: Annotated[Name | None, Query(description="The code or type of their error.")] = None
    definition: Annotated[
        Name | None, Query(description="The version of the orchestration or agent that they are pinned to.")
    ] = None
    roots: Annotated[bool, Query(description="Only runs that no other run started as a tool.")] = False
    min_duration_seconds: Seconds = None
    max_duration_seconds: Seconds = None
    min_cost_usd: Usd = None
    max_cost_usd: Usd = None

    def apply(self, wanted: RunFilter) -> RunFilter:
        """Return the filter with these conditions added."""
        return replace(
            wanted,
            worker_id=self.worker,
            session_id=self.session,
            error_code=self.error_code,
            definition=self.definition,
            roots_only=self.roots,
            min_duration_us=_us(self.min_duration_seconds),
            max_duration_us=_us(self.max_duration_seconds),
            min_cost_usd=self.min_cost_usd,
            max_cost_usd=self.max_cost_usd,
        )


Checked = Annotated[CheckedFilters, Depends()]


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def run_filter(principal: Principal, given: BulkFilter, possible: tuple[Status, ...]) -> RunFilter | None:
    """Return the filter; None if nothing can match.

    Raise InvalidRequest if it is empty, which is probably a mistake.
    """
    # `roots: false` does not restrict the selection.
    if not given.model_dump(exclude_none=True, exclude={"roots"} if given.roots is False else None):
        raise InvalidRequest("The filter is empty, which would match every run. Give at least one field.")
    statuses = tuple(status for status in possible if given.status is None or status in given.status)
    if not statuses:
        return None
    return RunFilter(
        statuses=statuses,
        target=given.target,
        lane=given.lane,
        tenant=tenant_to_list(principal, given.tenant),
        ordering_key=given.ordering_key,
        accepted_from_us=None if given.accepted_from is None else moment_us(given.accepted_from),
        accepted_before_us=None if given.accepted_before is None else moment_us(given.accepted_before),
        text=given.text,
        tags=tuple(given.tags or ()),
        schedule_id=given.schedule_id,
        forked_from=given.forked_from,
        parent=given.parent,
        worker_id=given.worker,
        session_id=given.session,
        error_code=given.error_code,
        definition=given.definition,
        roots_only=given.roots is True,
        min_duration_us=_us(given.min_duration_seconds),
        max_duration_us=_us(given.max_duration_seconds),
        min_cost_usd=given.min_cost_usd,
        max_cost_usd=given.max_cost_usd,
    )
