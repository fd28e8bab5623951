"""Runs of threads: start, wait, stream, list, cancel and delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from runlane.access.policy import require
from runlane.api.agent_server.deletion import publish_changes, wait_stopped
from runlane.api.agent_server.joining import JoinAnswer
from runlane.api.agent_server.native_resume import resume_once
from runlane.api.agent_server.native_stream import NativeRunFollower, follow_native
from runlane.api.agent_server.routing import JsonList, agent_router, listing, page_headers
from runlane.api.agent_server.run_schemas import ThreadRunBody
from runlane.api.agent_server.run_stream import RunFollower, final_values, follow_new_run, follow_run
from runlane.api.agent_server.starting import RunPath, start
from runlane.api.agent_server.thread_stream import RUN_MODES, follow_thread
from runlane.api.agent_server.threads import ThreadId
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotencyKey
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.api.sse import EventStream
from runlane.domain.access import Permission, Principal
from runlane.domain.graph import CancelAction, ThreadRunStatus, thread_key
from runlane.domain.thread import Thread, ThreadRun
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest, NotFound, RunNotFound, UnknownThread
from runlane.store.threads import thread_runs as store
from runlane.store.threads.cancelling import cancel_thread_runs
from runlane.store.threads.native_runs import asking_runs
from runlane.store.threads.threads import find_thread

router = agent_router("runs of threads")

RunId = Annotated[str, Path(description="The run's id.")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="The id of the last event that the reader has; -1 for none.")
]
Modes = Annotated[list[str] | None, JsonList, Query(alias="stream_mode", description="Only events of these modes.")]
RunField = Literal[
    "run_id",
    "thread_id",
    "assistant_id",
    "created_at",
    "updated_at",
    "status",
    "metadata",
    "kwargs",
    "multitask_strategy",
]


@router.post("/threads/{thread_id}/runs", response_model=ThreadRun, responses=answers(404, 409, 413, 429))
async def create_run(
    request: Request, principal: RunsWrite, thread_id: ThreadId, body: ThreadRunBody, key: IdempotencyKey = None
) -> JsonBody:
    """Accept a run. When the response is sent, the run is stored, so it survives a crash of this server."""
    return created(await start_one(request, principal, thread_id, body, key))


@router.post("/threads/{thread_id}/runs/wait", response_class=Response, responses=answers(404, 409, 413, 429))
async def wait_for_new_run(
    request: Request, principal: RunsWrite, thread_id: ThreadId, body: ThreadRunBody, key: IdempotencyKey = None
) -> Response:
    """Accept a run, wait until it has ended, and return the values of the thread."""
    started = RunPath.of(await start_one(request, principal, thread_id, body, key), is_new=key is None)
    return await join(parts_of(request), principal, started, cancels=body.on_disconnect == "cancel")


@router.post("/threads/{thread_id}/runs/stream", response_class=Response, responses=answers(404, 409, 413, 429))
async def stream_new_run(
    request: Request, principal: RunsWrite, thread_id: ThreadId, body: ThreadRunBody, key: IdempotencyKey = None
) -> Response:
    """Accept a run and stream its events."""
    started = RunPath.of(await start_one(request, principal, thread_id, body, key), is_new=key is None)
    cancels = body.on_disconnect == "cancel"
    return await stream(parts_of(request), principal, started, body.modes, None, cancels=cancels)


@router.get("/threads/{thread_id}/runs", response_model=list[ThreadRun], responses=answers(404))
async def list_runs(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    status: Annotated[ThreadRunStatus | None, Query()] = None,
    select: Annotated[list[RunField] | None, JsonList, Query()] = None,
) -> JsonBody:
    """List the runs of a thread, newest first. A page that would exceed 16 MiB has the header `X-Pagination-Next`."""
    database = parts_of(request).database
    found, cut = await store.list_thread_runs(
        database, principal.tenant, thread_id, status=status, limit=limit, offset=offset
    )
    if not found:
        await find_thread(database, principal.tenant, thread_id)
    headers = page_headers(offset, len(found), more=True) if cut else None
    return listing(await _shown(parts_of(request), principal, thread_id, found), select, headers)


@router.get("/threads/{thread_id}/runs/{run_id}", response_model=ThreadRun, responses=answers(404))
async def get_run(request: Request, principal: RunsRead, thread_id: ThreadId, run_id: RunId) -> JsonBody:
    """Return a run of a thread."""
    return await run_answer(parts_of(request), principal, RunPath(thread_id, run_id))


@router.get("/threads/{thread_id}/runs/{run_id}/join", response_class=Response, responses=answers(404))
async def join_run(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    run_id: RunId,
    cancel_on_disconnect: Annotated[bool, Query()] = False,
) -> Response:
    """Wait until a run has ended, and return the values of the thread."""
    parts = parts_of(request)
    if cancel_on_disconnect:
        require(principal, Permission.RUNS_WRITE)
    run = await store.find_thread_run(parts.database, principal.tenant, thread_id, run_id)
    return await join(parts, principal, RunPath.of(run), cancels=cancel_on_disconnect)


@router.get("/threads/{thread_id}/runs/{run_id}/stream", response_class=Response, responses=answers(404))
async def join_stream(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    run_id: RunId,
    stream_mode: Modes = None,
    cancel_on_disconnect: Annotated[bool, Query()] = False,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the events of a run after the given event, until the run has ended."""
    parts = parts_of(request)
    if cancel_on_disconnect:
        require(principal, Permission.RUNS_WRITE)
    run = await store.find_thread_run(parts.database, principal.tenant, thread_id, run_id)
    modes = parse_modes(stream_mode) or run.kwargs["stream_mode"]
    return await stream(parts, principal, RunPath.of(run), modes, last_event_id, cancels=cancel_on_disconnect)


@router.get("/threads/{thread_id}/stream", response_class=Response, responses=answers(404))
async def stream_thread(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    stream_mode: Annotated[
        list[Literal["run_modes", "lifecycle", "state_update", ""]] | None,
        JsonList,
        Query(
            description="`run_modes` has the events of runs in their modes, `lifecycle` their beginnings and ends, "
            "`state_update` the states after updates."
        ),
    ] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the events of all runs of a thread. The stream stays open for later runs."""
    parts = parts_of(request)
    thread = await find_thread(parts.database, principal.tenant, thread_id)
    modes = parse_modes(stream_mode) or [RUN_MODES]
    follower = await follow_thread(parts, principal, thread, modes, last_event_id)
    return EventStream(follower, {"Location": f"/threads/{thread_id}/stream"})


@router.post("/threads/{thread_id}/runs/{run_id}/cancel", response_model=ThreadRun, responses=answers(404))
async def cancel_run(
    request: Request,
    principal: RunsWrite,
    thread_id: ThreadId,
    run_id: RunId,
    wait: Annotated[bool, Query(description="Return when the run has stopped.")] = False,
    action: Annotated[CancelAction, Query(description="`rollback` also deletes what the run has stored.")] = (
        CancelAction.INTERRUPT
    ),
) -> JsonBody:
    """Cancel a run that has not ended."""
    parts = parts_of(request)
    await _visible(parts, principal, thread_id, run_id)
    if not await cancel(parts, principal, thread_id, [run_id], action, wait=wait):
        raise NotFound(f"Run {run_id} has ended already, so it cannot be cancelled.")
    started = RunPath(thread_id, run_id)
    headers = {"Location": f"{started}/join", "Content-Location": str(started)} if wait else None
    status = 200 if wait else 202
    try:
        return await run_answer(parts, principal, started, status=status, headers=headers)
    except RunNotFound:  # the run was rolled back
        return JsonBody({}, status, headers)


@router.delete(
    "/threads/{thread_id}/runs/{run_id}", status_code=204, response_class=Response, responses=answers(404, 409)
)
async def delete_run(request: Request, principal: RunsWrite, thread_id: ThreadId, run_id: RunId) -> Response:
    """Delete a run that has ended. The state of the thread stays as it is."""
    await store.delete_thread_run(parts_of(request).database, principal.tenant, thread_id, run_id)
    return Response(status_code=204)


async def start_one(
    request: Request, principal: Principal, thread_id: str | None, body: ThreadRunBody, key: str | None
) -> ThreadRun:
    """Accept one run or, in a thread of an agent, answer the question that its run waits for. Return the run."""
    if thread_id is not None and body.on_completion == "delete":
        raise InvalidRequest("on_completion=delete is for runs without a thread. Delete the thread instead.")
    if thread_id is not None and body.command is not None:
        thread = await _known_thread(parts_of(request), principal, thread_id)
        if thread is not None and thread.native is not None:
            return await resume_run(parts_of(request), principal, thread, body.command.given(), key)
    return (await start(request, principal, [body.to_request(thread_id, key)]))[0]


async def resume_run(
    parts: Services, principal: Principal, thread: Thread, command: Mapping[str, Any], key: str | None = None
) -> ThreadRun:
    """Answer the question of an agent's run and return the run, which continues under the same id."""
    run_id, resumed_at = await resume_once(parts, principal, thread, command, key)
    run = await store.find_thread_run(parts.database, principal.tenant, thread.id, run_id)
    return replace(run, resumed_at=resumed_at)


async def _known_thread(parts: Services, principal: Principal, thread_id: str) -> Thread | None:
    """Return a thread; None if it does not exist, as the request may create it."""
    try:
        return await find_thread(parts.database, principal.tenant, thread_id)
    except UnknownThread:
        return None


def created(run: ThreadRun) -> JsonBody:
    """Return the response with a new run."""
    return JsonBody(to_dict(run), headers={"Content-Location": str(RunPath.of(run))})


async def run_answer(
    parts: Services,
    principal: Principal,
    started: RunPath,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> JsonBody:
    """Return the response with a run."""
    run = await store.find_thread_run(parts.database, principal.tenant, started.thread_id, started.run_id)
    (shown,) = await _shown(parts, principal, started.thread_id, [run])
    return JsonBody(to_dict(shown), status, headers)


async def _shown(parts: Services, principal: Principal, thread_id: str, runs: Sequence[ThreadRun]) -> list[ThreadRun]:
    """Return runs as clients see them.

    A run that waits for an answer has succeeded, like a graph that is interrupted.
    """
    if not any(run.is_native and run.status is ThreadRunStatus.RUNNING for run in runs):
        return list(runs)
    asking = set((await asking_runs(parts.database, [thread_key(principal.tenant, thread_id)])).values())
    return [replace(run, status=ThreadRunStatus.SUCCESS) if run.id in asking else run for run in runs]


async def join(parts: Services, principal: Principal, started: RunPath, *, cancels: bool) -> Response:
    """Return a response with the values after a run.

    If `cancels` is true, a disconnect of the client cancels the run.
    """
    run_id = started.run_id
    headers = {"Location": f"{started}/join", "Content-Location": str(started)}
    left = _canceller(parts, principal, started) if cancels else None
    if started.native:
        reader = await _native(parts, principal, started, (), None)

        async def values() -> Any:
            return reader.final(await parts.results.get(run_id))

        return JoinAnswer(reader, values, headers, left)

    async def answer() -> Any:
        found = await parts.results.get(run_id)
        values: Any = None
        if found.result is None and found.error is None:
            try:
                values = (await find_thread(parts.database, principal.tenant, started.thread_id)).values
            except UnknownThread:
                values = None
        return final_values(found, values)

    silent = _Silent()
    is_new = started.is_new
    follower = (
        parts.follow_new(principal, run_id, silent) if is_new else await parts.follow(principal, run_id, 0, silent)
    )
    return JoinAnswer(follower, answer, headers, left)


async def stream(
    parts: Services,
    principal: Principal,
    started: RunPath,
    modes: Sequence[str],
    last_event_id: str | None,
    *,
    cancels: bool,
) -> Response:
    """Return the stream of a run. If `cancels` is true, a disconnect of the client cancels the run."""
    headers = {"Location": f"{started}/stream", "Content-Location": str(started)}
    follower: RunFollower | NativeRunFollower
    if started.native:
        follower = await _native(parts, principal, started, modes, last_event_id)
    elif started.is_new:
        follower = follow_new_run(parts, principal, started.run_id, modes)
    else:
        follower = await follow_run(parts, principal, started.run_id, modes, last_event_id)
    return EventStream(follower, headers, _canceller(parts, principal, started) if cancels else None)


async def _native(
    parts: Services, principal: Principal, started: RunPath, modes: Sequence[str], last_event_id: str | None
) -> NativeRunFollower:
    thread = await find_thread(parts.database, principal.tenant, started.thread_id)
    run = await store.find_thread_run(parts.database, principal.tenant, started.thread_id, started.run_id)
    if last_event_id is None and started.resumed_at is not None:
        last_event_id = str(started.resumed_at)
    return await follow_native(parts, principal, thread, run, modes, last_event_id)


async def cancel(
    parts: Services,
    principal: Principal,
    thread_id: str,
    run_ids: Sequence[str],
    action: CancelAction,
    *,
    wait: bool = False,
) -> int:
    """Cancel runs of a thread that have not ended. Return the number of cancelled runs."""
    changes = await cancel_thread_runs(
        parts.database, principal.tenant, thread_id, action, actor=principal.actor, only=set(run_ids)
    )
    publish_changes(parts, changes)
    if wait:
        await wait_stopped(parts, principal, changes)
    return len(changes)


def parse_modes(given: Sequence[str] | None) -> list[str]:
    """Return the modes of a query. Clients send an empty value for no modes."""
    return [mode for mode in given or () if mode]


def _canceller(parts: Services, principal: Principal, started: RunPath) -> Callable[[], Awaitable[None]]:
    async def leave() -> None:
        await cancel(parts, principal, started.thread_id, [started.run_id], CancelAction.INTERRUPT)

    return partial(leave)


async def _visible(parts: Services, principal: Principal, thread_id: str, run_id: str) -> RunPath:
    if await store.thread_of_run(parts.database, principal.tenant, run_id) != thread_id:
        raise RunNotFound(run_id)
    return RunPath(thread_id, run_id)


class _Silent:
    """The encoding for a reader that only waits for the end of a run."""

    def event(self, run_id: str, line: object) -> bytes:
        return b""

    def gap(self, run_id: str, first_seq: int) -> bytes:
        return b""
