"""Items of the store of graphs, which graphs keep across threads, for clients."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from runlane.api.agent_auth.guard import rule_of
from runlane.api.agent_server.item_schemas import ItemDelete, ItemPut, ItemSearch, NamespaceSearch, WithoutNul
from runlane.api.agent_server.routing import agent_router
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.item_text import WHOLE, item_text
from runlane.domain.text import dump_json, utf8_size
from runlane.domain.timestamps import format_timestamp
from runlane.errors import Conflict, Forbidden, InputTooLarge
from runlane.store.threads import items as store

router = agent_router("store")


@router.put("/store/items", status_code=204, response_class=Response, responses=answers(409, 413))
async def put_item(request: Request, principal: RunsWrite, body: ItemPut) -> Response:
    """Store an item. An item with the same namespace and key is replaced."""
    most = parts_of(request).app.settings.max_input_bytes
    if (size := utf8_size(dump_json(body.value))) > most:
        raise InputTooLarge(
            f"The value has {size} bytes; at most {most} are allowed (RUNLANE_MAX_INPUT_BYTES). Store large values "
            "elsewhere and store a reference."
        )
    text = None if body.index is False else item_text(body.value, body.index or [WHOLE])
    default = parts_of(request).app.graph_store.ttl
    ttl = body.ttl if body.ttl is not None or default is None else default.minutes
    item = store.NewItem(tuple(body.namespace), body.key, body.value, text=text, ttl_minutes=ttl)
    rule = rule_of(request)
    if rule is not None and not rule.allows(body.value):
        raise Forbidden("The auth module does not allow this value: its filter does not match it.")
    stored = await parts_of(request).database.transact(
        lambda session: store.put_items(session, principal.tenant, [item], rule)
    )
    if not stored:
        raise Conflict(f'The item "{body.key[:100]}" exists already. Use another key.')
    return Response(status_code=204)


@router.get("/store/items", response_model=dict[str, Any] | None, responses=answers())
async def get_item(
    request: Request,
    principal: RunsRead,
    key: Annotated[WithoutNul, Query(min_length=1)],
    namespace: Annotated[
        list[WithoutNul] | None, Query(description="Its labels, joined with periods or repeated.")
    ] = None,
    refresh_ttl: Annotated[bool | None, Query()] = None,
) -> JsonBody:
    """Return an item; null if it does not exist."""
    labels = tuple(label for part in namespace or () for label in part.split(".") if label)
    refresh = _refreshes(request, refresh_ttl)
    found = await store.read_item(
        parts_of(request).database, principal.tenant, labels, key, refresh_ttl=refresh, rule=rule_of(request)
    )
    return JsonBody(None if found is None else _item_json(found))


@router.delete("/store/items", status_code=204, response_class=Response, responses=answers())
async def delete_item(request: Request, principal: RunsWrite, body: ItemDelete) -> Response:
    """Delete an item, if it exists."""
    keys = [(tuple(body.namespace), body.key)]
    rule = rule_of(request)
    await parts_of(request).database.transact(lambda session: store.delete_items(session, principal.tenant, keys, rule))
    return Response(status_code=204)


@router.post("/store/items/search", response_model=dict[str, Any], responses=answers())
async def search_items(request: Request, principal: RunsRead, body: ItemSearch | None = None) -> JsonBody:
    """Find items below a prefix of namespaces, by their fields and by words."""
    wanted = body or ItemSearch()
    query = store.ItemQuery(
        prefix=tuple(wanted.namespace_prefix),
        filter=wanted.filter,
        query=wanted.query,
        limit=wanted.limit,
        offset=wanted.offset,
        refresh_ttl=_refreshes(request, wanted.refresh_ttl),
        rule=rule_of(request),
    )
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        found = await parts.database.transact(lambda session: store.search_items(session, principal.tenant, query))
    return JsonBody({"items": [{**_item_json(item), "score": item.score} for item in found]})


@router.post("/store/namespaces", response_model=dict[str, Any], responses=answers())
async def list_namespaces(request: Request, principal: RunsRead, body: NamespaceSearch | None = None) -> JsonBody:
    """List the namespaces that contain items."""
    wanted = body or NamespaceSearch()
    query = store.NamespaceQuery(
        prefixes=[tuple(wanted.prefix)] if wanted.prefix else [],
        suffixes=[tuple(wanted.suffix)] if wanted.suffix else [],
        max_depth=wanted.max_depth,
        limit=wanted.limit,
        offset=wanted.offset,
        rule=rule_of(request),
    )
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        found = await parts.database.transact(lambda session: store.list_namespaces(session, principal.tenant, query))
    return JsonBody({"namespaces": [list(labels) for labels in found]})


def _refreshes(request: Request, wanted: bool | None) -> bool:
    """Return whether reading restarts the time to live: the request decides, else the configuration file."""
    default = parts_of(request).app.graph_store.ttl
    return wanted if wanted is not None else default is None or default.refresh_on_read


def _item_json(item: store.StoredItem) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": format_timestamp(item.created_at_us),
        "updated_at": format_timestamp(item.updated_at_us),
    }
