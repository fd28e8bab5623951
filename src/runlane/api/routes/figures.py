"""Figures of runs: counts by status, lane and target, and series over time."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request

from runlane.access.policy import tenant_to_list
from runlane.api.auth import RunsRead
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Moment, Name, moment_us
from runlane.api.serializers import ValueBody
from runlane.api.services import parts_of
from runlane.domain.series import RunSeries
from runlane.domain.views import RunCounts
from runlane.errors import Forbidden
from runlane.store.queue.group_counts import count_open_by
from runlane.store.queue.run_counts import count_runs
from runlane.store.queue.series_reading import SeriesBy, SeriesQuery, read_run_series

router = RawRouter(tags=["runs"])

Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
Target = Annotated[Name | None, Query(description="The task, or `orchestration:ID`.")]


@router.get("/runs/counts", response_model=RunCounts, responses=answers())
async def get_counts(
    request: Request,
    principal: RunsRead,
    target: Target = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Tenant = None,
    group: Annotated[
        Literal["lane", "target"] | None, Query(description="Also count open runs by lane or target, up to 100,000.")
    ] = None,
) -> ValueBody:
    """Count the runs in each status, up to 1,000 per status."""
    only = tenant_to_list(principal, tenant)
    database = parts_of(request).database
    counts = await count_runs(database, only, target=target, lane=lane)
    groups = () if group is None else await count_open_by(database, group, only)
    return ValueBody(RunCounts(counts, groups))


@router.get("/runs/series", response_model=RunSeries, responses=answers())
async def get_series(
    request: Request,
    principal: RunsRead,
    since: Annotated[
        Moment | None, Query(alias="from", description="RFC 3339; by default an hour or a day ago.")
    ] = None,
    to: Annotated[Moment | None, Query(description="RFC 3339; by default now.")] = None,
    step: Annotated[
        int, Query(ge=60, le=7 * 86400, multiple_of=60, description="The length of a bucket in seconds.")
    ] = 60,
    group: Annotated[SeriesBy, Query(description="The dimension of the series. `tenant` is for platform admins.")] = (
        SeriesBy.NONE
    ),
    target: Target = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Tenant = None,
) -> ValueBody:
    """Return the numbers of accepted and ended runs over time, with their cost, wait time and execution time.

    Minutes are counted within half a minute after they end, and stored for 48 hours; hours are stored as long as runs.
    """
    if group is SeriesBy.TENANT and not principal.everywhere:
        raise Forbidden("Series of every tenant are for platform admins. Use another group, or none.")
    wanted = SeriesQuery(
        from_us=None if since is None else moment_us(since),
        to_us=None if to is None else moment_us(to),
        step_seconds=step,
        by=group,
        tenant=tenant_to_list(principal, tenant),
        lane=lane,
        target=target,
    )
    return ValueBody(await read_run_series(parts_of(request).database, wanted))
