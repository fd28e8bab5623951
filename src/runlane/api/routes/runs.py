"""Reading runs: lists, one run, and everything that is recorded of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from runlane.access.policy import tenant_to_list
from runlane.api.auth import RunsRead
from runlane.api.error_responses import answers
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.fields import MAX_PAGE, MAX_WAIT_SECONDS, Key, Moment, Name, moment_us
from runlane.api.schemas.runs import Attempts, EventsPage, LogsPage, RunPage, RunStatus, RunWhole, Steps
from runlane.api.serializers import (
    JsonBody,
    RunProgress,
    attempts_json,
    log_json,
    run_json,
    status_json,
    step_json,
    whole_json,
)
from runlane.api.services import Services, parts_of
from runlane.api.sse_encoding import line_json
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.ids import RUN_ID_PREFIX
from runlane.domain.run import Run, Status
from runlane.errors import InvalidRequest
from runlane.store.orchestration.calls import read_totals
from runlane.store.orchestration.steps import read_steps
from runlane.store.orchestration.waits import Wait, read_waits
from runlane.store.queue.events import read_last, read_page
from runlane.store.queue.runs import find_run, read_attempts
from runlane.store.queue.search import RunFilter, RunStanding, search_runs
from runlane.submit.orchestrations import with_state

collection = APIRouter(tags=["runs"])
single = APIRouter(tags=["runs"])

MAX_SEQ = 2**31 - 1
_STEP_NUMBER: Final = re.compile(r"[0-9]{1,9}")
Number = Annotated[int, Query(ge=0, le=MAX_SEQ)]


@collection.get("/runs", response_model=RunPage, responses=answers(429))
async def list_runs(
    request: Request,
    principal: RunsRead,
    status: Annotated[list[Status] | None, Query(description="Give it several times for several.")] = None,
    target: Annotated[Name | None, Query(description="The task, or `orchestration:ID`.")] = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Annotated[Name | None, Query(description="For platform admins; others see their own.")] = None,
    key: Annotated[Key | None, Query(description="The ordering key.")] = None,
    accepted_from: Annotated[Moment | None, Query(description="RFC 3339; this moment or later.")] = None,
    accepted_before: Annotated[Moment | None, Query(description="RFC 3339; before this moment.")] = None,
    text: Annotated[Name | None, Query(description="Part of the id, target, ordering key or progress note.")] = None,
    id_prefix: Annotated[
        str | None, Query(pattern=RUN_ID_PREFIX, description="The first characters of the id, such as `run_0192f3`.")
    ] = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> JsonBody:
    """Find runs, newest first. A page looks at 20,000 runs at most, then it is `truncated` and has a cursor."""
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
    )
    parts = parts_of(request)
    release = parts.searches.take(principal) if text is not None else None
    try:
        found = await search_runs(parts.database, wanted, below=cursor, limit=limit)
    finally:
        if release is not None:
            release()
    return JsonBody(
        {
            "runs": [run_json(run) for run in found.runs],
            "next_cursor": found.cursor,
            "truncated": found.truncated,
        }
    )


@single.get("/{run_id}", response_model=RunWhole, responses=answers(404))
async def get_run(request: Request, principal: RunsRead, run_id: RunId) -> JsonBody:
    """A run with its input, and its result or error. A finished run always has them."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return JsonBody(await _whole(parts, run_id))


@single.get("/{run_id}/status", response_model=RunStatus, responses=answers(404))
async def get_status(request: Request, principal: RunsRead, run_id: RunId) -> JsonBody:
    """Where a run stands."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    run = await find_run(parts.database, run_id)
    return JsonBody(status_json(run, await _course(parts, run)))


@single.get("/{run_id}/attempts", response_model=Attempts, responses=answers(404))
async def get_attempts(request: Request, principal: RunsRead, run_id: RunId) -> JsonBody:
    """Every attempt, with its worker, times, outcome and error."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    run = await find_run(parts.database, run_id)
    ended = await read_attempts(parts.database, run_id)
    return JsonBody({"run_id": run_id, "attempts": attempts_json(run, ended)})


@single.get("/{run_id}/steps", response_model=Steps, responses=answers(404))
async def get_steps(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    cursor: Annotated[str | None, Query(max_length=2100, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
) -> JsonBody:
    """What the run has finished so far, in the order it was recorded; a task's checkpoint is a step."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    after = (-1, "")
    if cursor is not None:
        number, _, path = cursor.partition(":")
        if _STEP_NUMBER.fullmatch(number) is None or "\0" in path:
            raise InvalidRequest("The cursor is none that a page of steps gave as `next_cursor`.")
        after = (int(number), path)
    found = await read_steps(parts.database, run_id, after=after, limit=limit)
    last = found[-1] if len(found) == limit else None
    return JsonBody(
        {
            "run_id": run_id,
            "steps": [step_json(step) for step in found],
            "next_cursor": None if last is None else f"{last['no'] or 0}:{last['path']}",
        }
    )


@single.get("/{run_id}/events", response_model=EventsPage, responses=answers(404))
async def get_events(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 500,
) -> Response:
    """Stored events after a number, each the same JSON that the stream sends."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    lines = await read_page(parts.database, run_id, after, limit)
    first_seq = _first_kept(standing, after, lines)
    last = lines[-1].seq if lines else after
    head = orjson.dumps(
        {
            "run_id": run_id,
            "count": len(lines),
            "next_after": last,
            "last_seq": max(standing.last_seq, last if lines else 0),
            "first_seq": first_seq,
        }
    ).decode()
    events = ",".join(line_json(run_id, line) for line in lines)
    return Response(f'{head[:-1]},"events":[{events}]}}', media_type="application/json")


@single.get("/{run_id}/logs", response_model=LogsPage, responses=answers(404))
async def get_logs(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    since: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    event: Annotated[Name | None, Query(description="Only lines of this event, such as `log`.")] = None,
) -> JsonBody:
    """Log lines for pollers. An index is an event's number less one: it never shifts, whatever is cut."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    lines = await read_page(parts.database, run_id, since, limit)
    first_index = _first_kept(standing, since, lines) - 1
    expected = standing.last_seq if standing.status.terminal else None
    # With nothing left to read, a poller of a finished run must get to its end, even if retention took the rest.
    next_index = lines[-1].seq if lines else max(since, expected or 0)
    return JsonBody(
        {
            "run_id": run_id,
            "logs": [log_json(line) for line in lines if event is None or line.type == event],
            "next_index": next_index,
            "status": standing.status.value,
            "expected_log_count": expected,
            "first_index": first_index,
            "truncated": since < first_index,
            "runner_id": standing.worker_id,
            "log_source": "database",
        }
    )


@single.get("/{run_id}/wait", response_model=RunWhole, responses=answers(404))
async def wait_for_run(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    timeout_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 30.0,
) -> JsonBody:
    """The run once it has ended, or as it is when the time is up: look at `status`."""
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
    return JsonBody(await _whole(parts, run_id))


async def _whole(parts: Services, run_id: str) -> dict[str, Any]:
    run = await find_run(parts.database, run_id)
    asks = run.has_steps and not run.status.terminal
    waits = await read_waits(parts.database, run_id) if asks else ()
    return whole_json(await with_state(parts.database, run), waits)


async def _course(parts: Services, run: Run) -> RunProgress:
    if not run.has_steps:
        return RunProgress(waiting_for_human=run.status is Status.PAUSED)
    cost_usd, tokens = await read_totals(parts.database, run.id)
    if run.status.terminal:
        return RunProgress(cost_usd=cost_usd, tokens=tokens)
    people = [
        wait
        for wait in await read_waits(parts.database, run.id)
        if wait.kind == "human" and not (wait.answered or wait.overdue)
    ]
    return RunProgress(await _current_step(parts, run, people), bool(people), cost_usd, tokens)


async def _current_step(parts: Services, run: Run, people: Sequence[Wait]) -> str | None:
    """The step that asks first, or the one that began last."""
    if run.status is Status.PAUSED and people:
        return people[0].step_id
    begun = await read_last(parts.database, run.id, EventType.STEP_START)
    return None if begun is None else orjson.loads(begun.data).get("orch_step_id")


def _first_kept(standing: RunStanding, after: int, lines: Sequence[StoredEvent]) -> int:
    """The oldest number that is kept. A cut between the two reads shows as a hole where the page begins."""
    return lines[0].seq if lines and lines[0].seq > after + 1 else standing.first_seq
