"""The state of threads: read it at any checkpoint, list its history, and update it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from runlane.api.agent_server.native_state import read_native_history, read_native_state, within_bound
from runlane.api.agent_server.operations import perform
from runlane.api.agent_server.routing import agent_router, check_uuid, selected
from runlane.api.agent_server.state_schemas import HistoryQuery, StateChange, StateField, StateQuery
from runlane.api.agent_server.thread_schemas import CheckpointBody
from runlane.api.agent_server.threads import ThreadId
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.graph import GraphRequest, Operation
from runlane.domain.thread import Thread
from runlane.errors import InvalidRequest, NotFound
from runlane.store.threads import states as store
from runlane.store.threads.threads import find_thread

router = agent_router("threads")

Subgraphs = Annotated[bool, Query(description="Include the state of subgraphs that have not finished.")]
Select = Annotated[list[StateField] | None, Query(description="Only these fields.")]


@router.get("/threads/{thread_id}/state", response_model=dict[str, Any], responses=answers(404))
async def get_state(
    request: Request, principal: RunsRead, thread_id: ThreadId, subgraphs: Subgraphs = False, select: Select = None
) -> JsonBody:
    """Return the newest state of a thread."""
    thread = await find_thread(parts_of(request).database, principal.tenant, thread_id)
    return await _state(request, thread, CheckpointBody(), subgraphs, select)


@router.post("/threads/{thread_id}/state/checkpoint", response_model=dict[str, Any], responses=answers(404))
async def get_state_at(request: Request, principal: RunsRead, thread_id: ThreadId, body: StateQuery) -> JsonBody:
    """Return the state at a checkpoint, or the newest one of a subgraph."""
    thread = await find_thread(parts_of(request).database, principal.tenant, thread_id)
    return await _state(request, thread, body.checkpoint, body.subgraphs, body.select)


@router.get("/threads/{thread_id}/state/{checkpoint_id}", response_model=dict[str, Any], responses=answers(404))
async def get_state_by_id(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    checkpoint_id: str,
    subgraphs: Subgraphs = False,
    select: Select = None,
) -> JsonBody:
    """Return the state at a checkpoint."""
    thread = await find_thread(parts_of(request).database, principal.tenant, thread_id)
    return await _state(request, thread, CheckpointBody(checkpoint_id=checkpoint_id), subgraphs, select)


@router.post("/threads/{thread_id}/state", response_model=dict[str, Any], responses=answers(404, 409))
async def update_state(request: Request, principal: RunsWrite, thread_id: ThreadId, body: StateChange) -> JsonBody:
    """Update the state with values that a node could have returned. Conflict while the thread has an open run."""
    thread = await find_thread(parts_of(request).database, principal.tenant, thread_id)
    checkpoint = {} if body.checkpoint is None else body.checkpoint.given()
    if body.checkpoint_id is not None:
        checkpoint["checkpoint_id"] = body.checkpoint_id
    given = GraphRequest(values=body.values, as_node=body.as_node, checkpoint=checkpoint or None)
    configurable = await perform(request, principal, thread, Operation.UPDATE_STATE, given)
    place = {"thread_id": thread_id, "checkpoint_ns": "", **configurable}
    return JsonBody({"checkpoint": place, "configurable": place, "checkpoint_id": place.get("checkpoint_id")})


@router.get("/threads/{thread_id}/history", response_model=list[dict[str, Any]], responses=answers(404))
async def list_history(
    request: Request,
    principal: RunsRead,
    thread_id: ThreadId,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    before: Annotated[str | None, Query(description="The id of a checkpoint; only earlier states.")] = None,
    select: Select = None,
) -> JsonBody:
    """List the states of a thread, newest first."""
    query = HistoryQuery(limit=limit, before=before or None, select=select)
    return await _history(request, principal.tenant, thread_id, query)


@router.post("/threads/{thread_id}/history", response_model=list[dict[str, Any]], responses=answers(404))
async def search_history(
    request: Request, principal: RunsRead, thread_id: ThreadId, body: HistoryQuery | None = None
) -> JsonBody:
    """Find states of a thread, newest first."""
    # A filter may read every checkpoint of the thread.
    async with parts_of(request).searches.turn(principal):
        return await _history(request, principal.tenant, thread_id, body or HistoryQuery())


async def _state(
    request: Request, thread: Thread, place: CheckpointBody, subgraphs: bool, select: list[StateField] | None
) -> JsonBody:
    _check_thread(place, thread.id)
    if thread.native is not None:
        found = await read_native_state(parts_of(request).database, thread, place.checkpoint_id)
        return JsonBody(selected(found, select))
    state = await store.read_state(
        parts_of(request).database, thread.key, place.checkpoint_ns or "", place.checkpoint_id, subgraphs=subgraphs
    )
    if state is None and place.checkpoint_id is not None:
        raise NotFound(f'The thread "{thread.id}" has no checkpoint "{place.checkpoint_id}".')
    return JsonBody(selected(state or dict(store.EMPTY_STATE), select))


async def _history(request: Request, tenant: str, thread_id: str, query: HistoryQuery) -> JsonBody:
    database = parts_of(request).database
    thread = await find_thread(database, tenant, thread_id)
    place = query.checkpoint or CheckpointBody()
    _check_thread(place, thread_id)
    before = _before(query, thread_id)
    if thread.native is not None:
        states = await read_native_history(database, thread, before=before, limit=query.limit)
        wanted = query.metadata or {}
        kept = [state for state in states if all(state["metadata"].get(name) == wanted[name] for name in wanted)]
        return JsonBody([selected(state, query.select) for state in within_bound(thread, kept)])
    found = await store.read_history(
        database,
        thread.key,
        place.checkpoint_ns or "",
        limit=query.limit,
        before=before,
        checkpoint_id=place.checkpoint_id,
        metadata=query.metadata,
    )
    return JsonBody([selected(state, query.select) for state in found])


def _before(query: HistoryQuery, thread_id: str) -> str | None:
    """Return the id of the checkpoint before which states are listed."""
    if isinstance(query.before, CheckpointBody):
        _check_thread(query.before, thread_id)
        return query.before.checkpoint_id
    # Ids are compared as text, so any other string would select states as well.
    return None if query.before is None else check_uuid(query.before, "id of a checkpoint")


def _check_thread(place: CheckpointBody, thread_id: str) -> None:
    if place.thread_id not in (None, thread_id):
        raise InvalidRequest(f'The checkpoint belongs to the thread "{place.thread_id}". Use the path of that thread.')
