"""Filters of runs in the bodies of requests that change many runs."""

from __future__ import annotations

from runlane.access.policy import tenant_to_list
from runlane.api.schemas.actions import BulkFilter
from runlane.api.schemas.fields import moment_us
from runlane.domain.access import Principal
from runlane.domain.run import Status
from runlane.errors import InvalidRequest
from runlane.store.queue.search import RunFilter


def run_filter(principal: Principal, given: BulkFilter, possible: tuple[Status, ...]) -> RunFilter | None:
    """Return the filter; None when nothing can match. An empty one would match everything, probably by mistake."""
    if not given.model_dump(exclude_none=True):
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
    )
