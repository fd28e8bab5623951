"""Threads: create, read, find, update and delete them."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request
from starlette.responses import Response

from runlane.api.agent_auth.guard import (
    require_thread,
    require_visible_thread,
    rule_of,
    thread_rule,
    visible_threads,
)
from runlane.api.agent_server.deletion import remove_thread
from runlane.api.agent_server.extraction import extract, parse_paths
from runlane.api.agent_server.native_state import current, with_questions
from runlane.api.agent_server.operations import perform
from runlane.api.agent_server.routing import agent_router, check_uuid, page_headers, selected
from runlane.api.agent_server.thread_schemas import (
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    TtlBody,
)
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.serializers import JsonBody, to_bytes
from runlane.api.services import parts_of
from runlane.domain.graph import GraphRequest, Operation, PruneStrategy
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.thread import Thread
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest, RunlaneError, UnknownThread
from runlane.store.threads import thread_search as search
from runlane.store.threads import threads as store

router = agent_router("threads")

ThreadId = Annotated[str, Path(description="The thread's id.")]
_HIDDEN = frozenset({"ttl"})


@router.post("/threads", response_model=Thread, responses=answers(409))
async def create_thread(request: Request, principal: RunsWrite, body: ThreadCreate | None = None) -> JsonBody:
    """Create a thread."""
    wanted = body or ThreadCreate()
    thread_id = str(uuid.uuid4()) if wanted.thread_id is None else check_uuid(wanted.thread_id, "thread id")
    # Supersteps change the state, even of an existing thread.
    rule = await thread_rule(request, "update", {"thread_id": uuid.UUID(thread_id)}) if wanted.supersteps else None
    thread = await store.create_thread(
        parts_of(request).database,
        principal.tenant,
        thread_id,
        metadata=wanted.metadata,
        ttl=_ttl(wanted.ttl) or default_ttl(parts_of(request).app.agent_server.thread_ttl),
        may_exist=wanted.if_exists == "do_nothing",
    )
    if wanted.if_exists == "do_nothing":
        await require_visible_thread(request, principal.tenant, thread_id)
    if wanted.supersteps:
        steps = tuple(step.model_dump(exclude_unset=True) for step in wanted.supersteps)
        try:
            await require_thread(request, principal.tenant, thread_id, rule)
            await perform(request, principal, thread, Operation.SUPERSTEPS, GraphRequest(supersteps=steps))
        except RunlaneError:
            if wanted.if_exists == "raise":  # this request has created it
                await remove_thread(parts_of(request), principal, thread_id)
            raise
        thread = await store.find_thread(parts_of(request).database, principal.tenant, thread_id)
    return JsonBody(thread_json(thread))


@router.post("/threads/search", response_model=list[Thread], responses=answers())
async def search_threads(request: Request, principal: RunsRead, body: ThreadSearch | None = None) -> Response:
    """Find threads, last changed first unless another order is given.

    A page ends before its limit if its JSON would exceed 16 MiB; `X-Pagination-Next` is the offset of the next page.
    """
    wanted = body or ThreadSearch()
    paths = parse_paths(wanted.extract)
    with_values = "values" in {*(wanted.select or ("values",)), *(path[0] for path in paths.values())}
    parts = parts_of(request)
    bodies: list[bytes] = []
    room = search.MAX_PAGE_BYTES
    async with parts.searches.turn(principal):
        found = await search.search_threads(
            parts.database,
            principal.tenant,
            _filter(request, wanted, wanted.ids),
            sort_by=wanted.sort_by or "updated_at",
            descending=wanted.sort_order != "asc",
            limit=wanted.limit,
            offset=wanted.offset,
            with_values=with_values,
        )
        async for thread in with_questions(parts.database, found.threads, with_values=with_values):
            encoded = to_bytes(_shown(thread, wanted.select, paths))
            room -= len(encoded)
            if bodies and room < 0:
                break
            bodies.append(encoded)
    more = found.more or len(bodies) < len(found.threads)
    headers = page_headers(wanted.offset, len(bodies), more=more)
    return Response(b"[" + b",".join(bodies) + b"]", headers=headers, media_type="application/json")


def _shown(thread: Thread, select: Sequence[str] | None, paths: Mapping[str, list[str]]) -> dict[str, Any]:
    whole = thread_json(thread)
    shown = selected(whole, select)
    if not paths:
        return shown
    return {**shown, "extracted": {name: extract(whole, parts) for name, parts in paths.items()}}


@router.post("/threads/count", response_model=int, responses=answers())
async def count_threads(request: Request, principal: RunsRead, body: ThreadCount | None = None) -> JsonBody:
    """Return the number of threads that match."""
    wanted = _filter(request, body or ThreadCount(), None)
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        return JsonBody(await search.count_threads(parts.database, principal.tenant, wanted))


@router.post("/threads/prune", response_model=dict[str, int], responses=answers(409))
async def prune_threads(request: Request, principal: RunsWrite, body: ThreadPrune) -> JsonBody:
    """Delete threads, or all of their checkpoints except the newest. Threads that do not exist are skipped."""
    parts = parts_of(request)
    pruned = 0
    for thread_id in await visible_threads(request, principal.tenant, list(dict.fromkeys(body.thread_ids))):
        if body.strategy is PruneStrategy.KEEP_LATEST:
            pruned += await store.prune_thread(parts.database, principal.tenant, thread_id)
            continue
        with contextlib.suppress(UnknownThread):
            await remove_thread(parts, principal, thread_id)
            pruned += 1
    return JsonBody({"pruned_count": pruned})


@router.post("/threads/{thread_id}/copy", response_model=Thread, responses=answers(404))
async def copy_thread(request: Request, principal: RunsWrite, thread_id: ThreadId) -> JsonBody:
    """Copy a thread with its state and history."""
    source = await store.find_thread(parts_of(request).database, principal.tenant, thread_id)
    if source.native is not None:
        raise InvalidRequest("Threads of agents cannot be copied. Send the messages to a new thread.")
    copy_id = str(uuid.uuid4())
    copied = await store.copy_thread(parts_of(request).database, principal.tenant, thread_id, copy_id)
    return JsonBody(thread_json(copied))


@router.get("/threads/{thread_id}", response_model=Thread, responses=answers(404))
async def get_thread(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    include: Annotated[list[str] | None, Query(description="`ttl` adds the time at which the thread expires.")] = None,
) -> JsonBody:
    """Return a thread with its values and open interrupts."""
    database = parts_of(request).database
    thread = await current(database, await store.find_thread(database, principal.tenant, thread_id))
    return JsonBody(thread_json(thread, ttl=include is not None and "ttl" in include))


@router.patch("/threads/{thread_id}", response_model=Thread, responses=answers(404))
async def update_thread(
    request: Request,
    principal: RunsWrite,
    thread_id: ThreadId,
    body: ThreadPatch,
    prefer: Annotated[str | None, Header(description="`return=minimal` leaves the body out.")] = None,
) -> Response:
    """Merge metadata into the metadata of a thread, or set the time at which the thread expires."""
    thread = await store.patch_thread(
        parts_of(request).database, principal.tenant, thread_id, metadata=body.metadata, ttl=_ttl(body.ttl)
    )
    if prefer is not None and "return=minimal" in prefer.replace(" ", ""):
        return Response(status_code=204)
    return JsonBody(thread_json(thread, ttl=body.ttl is not None))


@router.delete("/threads/{thread_id}", status_code=204, response_class=Response, responses=answers(404))
async def delete_thread(request: Request, principal: RunsWrite, thread_id: ThreadId) -> Response:
    """Delete a thread with all of its state. Its open runs are cancelled."""
    await remove_thread(parts_of(request), principal, thread_id)
    return Response(status_code=204)


def thread_json(thread: Thread, *, ttl: bool = False) -> dict[str, Any]:
    """Return a thread in the form that clients receive."""
    body = to_dict(thread)
    if thread.error is not None:
        body["error"] = {"error": thread.error.get("type"), "message": thread.error.get("message")}
    return body if ttl else {name: value for name, value in body.items() if name not in _HIDDEN}


def _filter(request: Request, wanted: ThreadCount, ids: list[str] | None) -> search.ThreadFilter:
    return search.ThreadFilter(
        ids=ids,
        status=wanted.status,
        metadata=wanted.metadata or None,
        values=wanted.values or None,
        rule=rule_of(request),
    )


def default_ttl(given: DefaultTtl | None) -> store.Ttl | None:
    """Return the default time to live of threads."""
    return None if given is None else store.Ttl(given.minutes, given.strategy)


def _ttl(given: TtlBody | float | None) -> store.Ttl | None:
    if given is None:
        return None
    body = given if isinstance(given, TtlBody) else TtlBody(ttl=given, strategy=PruneStrategy.DELETE)
    return store.Ttl(math.ceil(body.ttl), body.strategy.value)
