"""Assistants: create, read, find, update and delete them; read the graph of an assistant and its schemas."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from runlane.api.agent_auth.guard import rule_of, thread_rule
from runlane.api.agent_server.assistant_schemas import (
    AssistantCount,
    AssistantCreate,
    AssistantPatch,
    AssistantSearch,
    LatestVersion,
    VersionSearch,
)
from runlane.api.agent_server.config import mirror_context
from runlane.api.agent_server.deletion import remove_assistant
from runlane.api.agent_server.routing import agent_router, check_uuid, listing, page_headers
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.assistant import Assistant, AssistantVersion, HostedGraph
from runlane.domain.native_thread import is_native
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.threads import assistant_search as search
from runlane.store.threads import assistants as store
from runlane.store.threads.graphs import find_graph
from runlane.store.threads.native_graphs import find_native_graph

router = agent_router("assistants")

AssistantId = Annotated[str, Path(description="The id of an assistant or of a graph.")]


@router.post("/assistants", response_model=Assistant, responses=answers(404, 409))
async def create_assistant(request: Request, principal: RunsWrite, body: AssistantCreate) -> ValueBody:
    """Create an assistant: a graph with config, context and metadata."""
    config, context = mirror_context({} if body.config is None else body.config.given(), body.context)
    content = store.AssistantContent(
        graph_id=body.graph_id,
        name=body.name or "Untitled",
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata or {},
    )
    assistant_id = str(uuid.uuid4()) if body.assistant_id is None else check_uuid(body.assistant_id, "assistant id")
    return ValueBody(
        await store.create_assistant(
            parts_of(request).database,
            principal.tenant,
            assistant_id,
            content,
            may_exist=body.if_exists == "do_nothing",
        )
    )


@router.post("/assistants/search", response_model=list[Assistant], responses=answers())
async def search_assistants(request: Request, principal: RunsRead, body: AssistantSearch | None = None) -> JsonBody:
    """Find assistants, newest first unless another order is given."""
    wanted = body or AssistantSearch()
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        page, more = await search.search_assistants(
            parts.database,
            principal.tenant,
            _filter(request, wanted),
            sort_by=wanted.sort_by or "created_at",
            descending=wanted.sort_order != "asc",
            limit=wanted.limit,
            offset=wanted.offset,
        )
    return listing(page, wanted.select, page_headers(wanted.offset, len(page), more=more))


@router.post("/assistants/count", response_model=int, responses=answers())
async def count_assistants(request: Request, principal: RunsRead, body: AssistantCount | None = None) -> JsonBody:
    """Return the number of assistants that match."""
    wanted = _filter(request, body or AssistantCount())
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        return JsonBody(await search.count_assistants(parts.database, principal.tenant, wanted))


@router.get("/assistants/{assistant_id}", response_model=Assistant, responses=answers(404))
async def get_assistant(request: Request, principal: RunsRead, assistant_id: AssistantId) -> ValueBody:
    """Return an assistant, or the default one of a graph."""
    return ValueBody(await store.find_assistant(parts_of(request).database, principal.tenant, assistant_id))


@router.patch("/assistants/{assistant_id}", response_model=Assistant, responses=answers(404))
async def update_assistant(
    request: Request, principal: RunsWrite, assistant_id: AssistantId, body: AssistantPatch
) -> ValueBody:
    """Store a new version. Omitted fields keep their value; metadata is merged."""
    changes: dict[str, Any] = {
        name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None
    }
    if body.config is not None or body.context is not None:
        config = {} if body.config is None else body.config.given()
        changes["config"], changes["context"] = mirror_context(config, body.context)
    return ValueBody(await store.update_assistant(parts_of(request).database, principal.tenant, assistant_id, changes))


@router.post("/assistants/{assistant_id}/versions", response_model=list[AssistantVersion], responses=answers(404))
async def list_versions(
    request: Request, principal: RunsRead, assistant_id: AssistantId, body: VersionSearch | None = None
) -> JsonBody:
    """List the versions of an assistant, newest first."""
    wanted = body or VersionSearch()
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        found, cut = await store.list_versions(
            parts.database,
            principal.tenant,
            assistant_id,
            metadata=wanted.metadata,
            limit=wanted.limit,
            offset=wanted.offset,
        )
    return listing(found, None, page_headers(wanted.offset, len(found), more=True) if cut else None)


@router.post("/assistants/{assistant_id}/latest", response_model=Assistant, responses=answers(404))
async def set_latest(
    request: Request, principal: RunsWrite, assistant_id: AssistantId, body: LatestVersion
) -> ValueBody:
    """Make a stored version the current one."""
    return ValueBody(await store.set_latest(parts_of(request).database, principal.tenant, assistant_id, body.version))


@router.get("/assistants/{assistant_id}/graph", response_model=dict[str, Any], responses=answers(404, 409))
async def get_graph(
    request: Request,
    principal: RunsRead,
    assistant_id: AssistantId,
    xray: Annotated[str, Query(description="`true`, or the depth to which subgraphs are drawn.")] = "false",
) -> JsonBody:
    """Return the nodes and edges of the graph."""
    graph = await _graph_of(request, principal.tenant, assistant_id)
    drawings: Mapping[str, Any] = graph.drawing or {}
    if not drawings:
        raise Conflict(f'The graph "{graph.id}" cannot be drawn: its factory needs a run. Read its schemas instead.')
    return JsonBody(drawings[_depth(xray, drawings)])


@router.get("/assistants/{assistant_id}/schemas", response_model=dict[str, Any], responses=answers(404))
async def get_schemas(request: Request, principal: RunsRead, assistant_id: AssistantId) -> JsonBody:
    """Return the JSON Schemas of the graph; a schema that the graph does not define is null."""
    graph = await _graph_of(request, principal.tenant, assistant_id)
    names = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    schemas = graph.schemas or {}
    return JsonBody({"graph_id": graph.id, **{name: schemas.get(name) for name in names}})


@router.get("/assistants/{assistant_id}/subgraphs", response_model=dict[str, Any], responses=answers(404))
@router.get("/assistants/{assistant_id}/subgraphs/{namespace}", response_model=dict[str, Any], responses=answers(404))
async def get_subgraphs(
    request: Request,
    principal: RunsRead,
    assistant_id: AssistantId,
    namespace: str | None = None,
    recurse: Annotated[bool, Query(description="Include the subgraphs of subgraphs.")] = False,
) -> JsonBody:
    """Return the schemas of the subgraphs by their namespace."""
    graph = await _graph_of(request, principal.tenant, assistant_id)
    found: Mapping[str, Any] = graph.subgraphs or {}
    if namespace is not None:
        found = {name: value for name, value in found.items() if name == namespace or name.startswith(f"{namespace}|")}
        if not found:
            raise NotFound(f'The graph "{graph.id}" has no subgraph "{namespace}".')
    elif not recurse:
        found = {name: value for name, value in found.items() if "|" not in name}
    return JsonBody(dict(found))


async def _graph_of(request: Request, tenant: str, assistant_id: str) -> HostedGraph:
    database = parts_of(request).database
    assistant = await store.find_assistant(database, tenant, assistant_id)
    if is_native(assistant.graph_id):
        return await find_native_graph(database, tenant, assistant.graph_id)
    graph = await find_graph(database, assistant.graph_id)
    if graph.error is not None:
        raise Conflict(f'The graph "{graph.id}" could not be loaded: {graph.error}. Correct it and restart the worker.')
    return graph


def _depth(xray: str, drawings: Mapping[str, Any]) -> str:
    deepest = max(int(depth) for depth in drawings)
    match xray.lower():
        case "" | "false":
            wanted = 0
        case "true":
            wanted = deepest
        case text if text.isdigit():
            wanted = int(text)
        case text:
            raise InvalidRequest(f"xray={text[:40]!r} is not a depth. Use true, false or a number.")
    return str(min(wanted, deepest))


def _filter(request: Request, wanted: AssistantCount) -> search.AssistantFilter:
    return search.AssistantFilter(
        graph_id=wanted.graph_id, name=wanted.name, metadata=wanted.metadata or None, rule=rule_of(request)
    )


@router.delete("/assistants/{assistant_id}", status_code=204, response_class=Response, responses=answers(404, 409))
async def delete_assistant(
    request: Request,
    principal: RunsWrite,
    assistant_id: AssistantId,
    delete_threads: Annotated[bool, Query(description="Delete the threads of the assistant, too.")] = False,
) -> Response:
    """Delete an assistant with its versions."""
    rule = await thread_rule(request, "delete", {}) if delete_threads else None
    await remove_assistant(parts_of(request), principal, assistant_id, delete_threads=delete_threads, rule=rule)
    return Response(status_code=204)
