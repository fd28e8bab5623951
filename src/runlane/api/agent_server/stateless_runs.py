"""Runs without a thread. Each has its own thread, which is deleted when the run ends unless the request keeps it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request
from starlette.responses import Response

from runlane.api.agent_auth.guard import visible_threads
from runlane.api.agent_server.routing import agent_router
from runlane.api.agent_server.run_schemas import BatchRunBody, CancelManyBody, ThreadRunBody
from runlane.api.agent_server.runs import (
    LastEventId,
    Modes,
    RunId,
    cancel,
    created,
    join,
    join_stream,
    start_one,
    stream,
)
from runlane.api.agent_server.starting import RunPath, start
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotencyKey
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.graph import CancelAction, ThreadRunStatus, run_status
from runlane.domain.run import Status
from runlane.domain.tenant import bare_key
from runlane.domain.thread import ThreadRun
from runlane.domain.wire import to_dict
from runlane.errors import NotFound, RunNotFound, UnknownThread
from runlane.store.threads.cancelling import find_open_runs
from runlane.store.threads.thread_runs import thread_of_run

router = agent_router("runs of threads")

MAX_BATCH = 100


@router.post("/runs", response_model=ThreadRun, responses=answers(404, 409, 413, 429))
async def create_stateless_run(
    request: Request, principal: RunsWrite, body: ThreadRunBody, key: IdempotencyKey = None
) -> JsonBody:
    """Accept a run in its own thread."""
    return created(await start_one(request, principal, None, body, key))


@router.post("/runs/wait", response_class=Response, responses=answers(404, 409, 413, 429))
async def wait_for_stateless_run(
    request: Request, principal: RunsWrite, body: ThreadRunBody, key: IdempotencyKey = None
) -> Response:
    """Accept a run in its own thread, wait until it has ended, and return its values."""
    started = RunPath.of(await start_one(request, principal, None, body, key), is_new=key is None)
    return await join(parts_of(request), principal, started, cancels=body.on_disconnect == "cancel")


@router.post("/runs/stream", response_class=Response, responses=answers(404, 409, 413, 429))
async def stream_stateless_run(
    request: Request, principal: RunsWrite, body: ThreadRunBody, key: IdempotencyKey = None
) -> Response:
    """Accept a run in its own thread and stream its events."""
    started = RunPath.of(await start_one(request, principal, None, body, key), is_new=key is None)
    cancels = body.on_disconnect == "cancel"
    return await stream(parts_of(request), principal, started, body.modes, None, cancels=cancels)


@router.get("/runs/{run_id}/stream", response_class=Response, responses=answers(404))
async def join_stateless_stream(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    stream_mode: Modes = None,
    cancel_on_disconnect: Annotated[bool, Query()] = False,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the events of a run whose thread the client does not name."""
    thread = await thread_of_run(parts_of(request).database, principal.tenant, run_id)
    if thread is None or not await visible_threads(request, principal.tenant, [thread]):
        raise RunNotFound(run_id)
    return await join_stream(request, principal, thread, run_id, stream_mode, cancel_on_disconnect, last_event_id)


@router.post("/runs/batch", response_model=list[ThreadRun], responses=answers(404, 409, 413, 429))
async def create_batch(
    request: Request,
    principal: RunsWrite,
    body: Annotated[list[BatchRunBody], Body(min_length=1, max_length=MAX_BATCH)],
) -> JsonBody:
    """Accept a list of runs, each in its own thread; all or none."""
    started = await start(request, principal, [item.to_request(None, None) for item in body])
    return JsonBody([to_dict(run) for run in started])


@router.post("/runs/cancel", status_code=204, response_class=Response, responses=answers(404))
async def cancel_many(
    request: Request,
    principal: RunsWrite,
    body: CancelManyBody,
    action: Annotated[CancelAction, Query()] = CancelAction.INTERRUPT,
) -> Response:
    """Cancel runs of a thread, or all runs with a status."""
    parts = parts_of(request)
    if body.thread_id is not None:
        if not await visible_threads(request, principal.tenant, [body.thread_id]):
            raise UnknownThread(body.thread_id)
        cancelled = await cancel(parts, principal, body.thread_id, body.run_ids or (), action)
    else:
        cancelled, last = 0, ""
        statuses = _statuses(body.status)
        while by_thread := await find_open_runs(parts.database, principal.tenant, statuses, last):
            allowed = set(await visible_threads(request, principal.tenant, [bare_key(key) for key in by_thread]))
            for thread, run_ids in by_thread.items():
                if bare_key(thread) in allowed:
                    cancelled += await cancel(parts, principal, bare_key(thread), run_ids, action)
            last = max(run_id for run_ids in by_thread.values() for run_id in run_ids)
    if not cancelled:
        raise NotFound("No runs were found to cancel. Runs that have ended cannot be cancelled.")
    return Response(status_code=204)


def _statuses(wanted: str | None) -> list[Status]:
    chosen = {
        "pending": {ThreadRunStatus.PENDING},
        "running": {ThreadRunStatus.RUNNING},
    }.get(wanted or "all", {ThreadRunStatus.PENDING, ThreadRunStatus.RUNNING})
    return [status for status in Status if run_status(status) in chosen]
