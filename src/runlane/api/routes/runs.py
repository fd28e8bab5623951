"""Reading runs: lists, one run, and its records."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from runlane import queries
from runlane.access.policy import tenant_to_list
from runlane.api.auth import RunsRead
from runlane.api.conditional import conditional_body
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.run_filters import Checked
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.fields import MAX_PAGE, MAX_WAIT_SECONDS, Key, Moment, Name, Tag, WantedStatus, moment_us
from runlane.api.serializers import ValueBody
from runlane.api.services import parts_of
from runlane.domain.ids import RUN_ID_PREFIX
from runlane.domain.run import Run
from runlane.domain.tags import MAX_TAGS
from runlane.domain.views import AttemptList, Logs, RunPage, RunStatus, StartResult, StepPage
from runlane.store.queue.search import RunFilter

collection = RawRouter(tags=["runs"])
single = RawRouter(tags=["runs"])

MAX_SEQ = 2**31 - 1
MAX_IDS = 100
Number = Annotated[int, Query(ge=0, le=MAX_SEQ)]


@collection.get("/runs", response_model=RunPage, responses=answers(429))
async def list_runs(
    request: Request,
    principal: RunsRead,
    checked: Checked,
    status: Annotated[list[WantedStatus] | None, Query(description="Repeat for several.")] = None,
    target: Annotated[Name | None, Query(description="The task, or `orchestration:ID`.")] = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
    key: Annotated[Key | None, Query(description="The ordering key.")] = None,
    accepted_from: Annotated[Moment | None, Query(description="RFC 3339; this moment or later.")] = None,
    accepted_before: Annotated[Moment | None, Query(description="RFC 3339; before this moment.")] = None,
    text: Annotated[Name | None, Query(description="Part of the id, target, ordering key or progress note.")] = None,
    id_prefix: Annotated[
        str | None, Query(pattern=RUN_ID_PREFIX, description="The first characters of the id, such as `run_0192f3`.")
    ] = None,
    tag: Annotated[list[Tag] | None, Query(max_length=MAX_TAGS, description="Repeat for runs with all tags.")] = None,
    parent: Annotated[Name | None, Query(description="The run that started them as tools.")] = None,
    schedule_id: Annotated[Name | None, Query(description="The schedule that started them.")] = None,
    forked_from: Annotated[Name | None, Query(description="The run that they were forked from.")] = None,
    ids: Annotated[list[Name] | None, Query(max_length=MAX_IDS, description="These runs. Repeat for several.")] = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> Response:
    """Find runs, newest first.

    Statuses, target, lane, key, session, tag, schedule, forks and parent have indexes. A page checks other filters, and
    further filters in addition to a key, a tag, a schedule or forks, on at most 10,000 runs; beyond that it is
    `truncated` and has a cursor.
    """
    wanted = RunFilter(
        statuses=tuple(status or ()),
        target=target,
        lane=lane,
        tenant=tenant_to_list(principal, tenant),
        ordering_key=key,
        accepted_from_us=None if accepted_from is None else moment_us(accepted_from),
        accepted_before_us=None if accepted_before is None else moment_us(accepted_before),
        text=text,
        id_prefix=id_prefix,
        tags=tuple(tag or ()),
        parent=parent,
        ids=tuple(ids or ()),
        schedule_id=schedule_id,
        forked_from=forked_from,
    )
    parts = parts_of(request)
    async with parts.searches.turn(principal) if text is not None else nullcontext():
        return conditional_body(request, await queries.list_runs(parts.database, checked.apply(wanted), cursor, limit))


@single.get("/{run_id}", response_model=Run, responses=answers(404))
async def get_run(request: Request, principal: RunsRead, run_id: RunId) -> ValueBody:
    """Return a run with its input and, if it has ended, its result or error."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_run(parts.database, run_id))


@single.get("/{run_id}/status", response_model=RunStatus, responses=answers(404))
async def get_status(request: Request, principal: RunsRead, run_id: RunId) -> ValueBody:
    """Return the status of a run."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_status(parts.database, run_id))


@single.get("/{run_id}/attempts", response_model=AttemptList, responses=answers(404))
async def get_attempts(request: Request, principal: RunsRead, run_id: RunId) -> ValueBody:
    """List the attempts with their worker, times, outcome and error."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    attempts = await queries.get_attempts(parts.database, run_id)
    return ValueBody(AttemptList(run_id, tuple(attempts)))


@single.get("/{run_id}/starts/{start_id}", response_model=StartResult, responses=answers(404))
async def get_start(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    start_id: Annotated[Name, Path(description="The `start_id` of the response to the start.")],
) -> ValueBody:
    """Return one start that a batch has collected, with its part of the batch's result."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_start(parts.database, run_id, start_id))


@single.get("/{run_id}/steps", response_model=StepPage, responses=answers(404))
async def get_steps(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    cursor: Annotated[str | None, Query(max_length=2100, description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
) -> ValueBody:
    """List the finished steps of a run in the order in which they were recorded. A task's checkpoint is a step."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_step_page(parts.database, run_id, cursor, limit))


@single.get("/{run_id}/logs", response_model=Logs, responses=answers(404))
async def get_logs(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    since: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    event: Annotated[Name | None, Query(description="Only lines of this event, such as `log`.")] = None,
) -> ValueBody:
    """Return log lines for polling. An index is an event's number minus one, so deletions do not shift it."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_logs(parts.database, run_id, standing, since, limit, event))


@single.get("/{run_id}/wait", response_model=Run, responses=answers(404))
async def wait_for_run(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    timeout_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 30.0,
) -> ValueBody:
    """Return the run when it has ended or when the timeout is over; `status` shows which."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    if not standing.status.terminal:
        follower = await parts.follow(principal, run_id, standing.last_seq)
        try:
            async with asyncio.timeout(timeout_seconds):
                while not follower.ended:
                    await follower.next(timeout_seconds)
        except TimeoutError:
            pass
        finally:
            follower.close()
        if follower.refusal is not None:
            raise follower.refusal
    return ValueBody(await queries.get_run(parts.database, run_id))
