"""The memory API under /v0, for clients that use it.

The API uses other names: `rawEntry`, `entryId`, `creationTime`. The actor is the tenant of the key.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

from fastapi import Path, Query, Request
from starlette.responses import PlainTextResponse, Response

from runlane.api.auth import Anyone, MemoryAdmin, MemoryRead, MemoryWrite, is_recalled
from runlane.api.body import LargeBodyRoute
from runlane.api.compat import memory_v0_schemas as shapes
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.memory_vaults import audited, memory_of
from runlane.api.schemas.fields import MAX_PAGE, Moment, Name, moment_us
from runlane.api.serializers import JsonBody, moment
from runlane.api.services import parts_of
from runlane.domain.memory import (
    CONTEXT_FRAGMENT,
    DEFAULT_CONTEXT,
    MAX_ENTRY_PAGE,
    MAX_FRAGMENT_CHARACTERS,
    MAX_SEARCH_HITS,
    Memory,
    MemoryEntry,
)
from runlane.errors import InputTooLarge, InvalidInput, InvalidRequest, NotFound, Unavailable
from runlane.memory.service import MemoryService
from runlane.store.memory.planning import missing_memory

router = RawRouter(prefix="/v0", tags=["memory, compatible paths"], route_class=LargeBodyRoute)

VaultId = Annotated[Name, Path(description="The vault's id, or its title.")]
MemoryId = Annotated[Name, Path(description="The memory's id, or its title.")]
EntryId = Annotated[Name, Path()]
_MAX_BODY_BYTES = MAX_FRAGMENT_CHARACTERS * 4
_CHANGES: dict[int | str, dict[str, Any]] = answers(404, 409, 413, 429, 507)
_ENTRIES = "/vaults/{vault_id}/memories/{memory_id}/entries"
_PLAIN_TEXT: Final[dict[str, Any]] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_CONTEXTS = "/vaults/{vault_id}/memories/{memory_id}/contexts"


@router.get("/health", response_model=shapes.Health, responses=answers())
async def get_health(request: Request, principal: Anyone) -> JsonBody:
    """Return `healthy` if the server responds."""
    del principal
    return JsonBody({"status": "healthy", "timestamp": moment(shapes.now_us())})


@router.post("/vaults", status_code=201, response_model=shapes.VaultShape, responses=answers(409))
async def post_vault(request: Request, principal: MemoryWrite, body: shapes.PostVaultShape) -> JsonBody:
    """Create a vault."""
    created = await (await memory_of(request)).create_vault(principal.tenant, body.title, description=body.description)
    return JsonBody(shapes.vault(created), 201)


@router.get("/vaults", response_model=shapes.VaultsShape, responses=answers())
async def get_vaults(request: Request, principal: MemoryRead) -> JsonBody:
    """List up to 1000 vaults."""
    found = await (await memory_of(request)).list_vaults(principal.tenant, limit=MAX_PAGE)
    return JsonBody({"vaults": [shapes.vault(item) for item in found], "count": len(found)})


@router.get("/vaults/{vault_id}", response_model=shapes.VaultShape, responses=answers(404))
async def get_vault(request: Request, principal: MemoryRead, vault_id: VaultId) -> JsonBody:
    """Return a vault."""
    memory = await memory_of(request)
    return JsonBody(
        shapes.vault(await memory.get_vault(principal.tenant, await _vault(memory, principal.tenant, vault_id)))
    )


@router.delete("/vaults/{vault_id}", status_code=204, response_class=Response, responses=answers(404, 409))
async def delete_vault(request: Request, principal: MemoryAdmin, vault_id: VaultId) -> Response:
    """Delete a vault that has no memories."""
    memory = await memory_of(request)
    await memory.delete_vault(principal.tenant, await _vault(memory, principal.tenant, vault_id))
    return Response(status_code=204)


@router.post(
    "/vaults/{vault_id}/memories", status_code=201, response_model=shapes.MemoryShape, responses=answers(404, 409)
)
async def post_memory(
    request: Request, principal: MemoryWrite, vault_id: VaultId, body: shapes.PostMemoryShape
) -> JsonBody:
    """Create a memory with its context."""
    memory = await memory_of(request)
    created = await memory.create_memory(
        principal.tenant,
        body.title,
        vault_id=await _vault(memory, principal.tenant, vault_id),
        memory_type=body.memoryType,
        description=body.description,
    )
    return JsonBody(shapes.memory(created), 201)


@router.get("/vaults/{vault_id}/memories", response_model=shapes.MemoriesShape, responses=answers(404))
async def get_memories(request: Request, principal: MemoryRead, vault_id: VaultId) -> JsonBody:
    """List up to 1000 memories of a vault."""
    memory = await memory_of(request)
    vault = await _vault(memory, principal.tenant, vault_id)
    found = await memory.list_memories(principal.tenant, vault_id=vault, limit=MAX_PAGE)
    return JsonBody({"memories": [shapes.memory(item) for item in found], "count": len(found)})


@router.get("/vaults/{vault_id}/memories/{memory_id}", response_model=shapes.MemoryShape, responses=answers(404))
async def get_memory(request: Request, principal: MemoryRead, vault_id: VaultId, memory_id: MemoryId) -> JsonBody:
    """Return a memory."""
    memory = await memory_of(request)
    return JsonBody(shapes.memory(await _memory(memory, principal.tenant, vault_id, memory_id)))


@router.delete(
    "/vaults/{vault_id}/memories/{memory_id}", status_code=204, response_class=Response, responses=answers(404, 409)
)
async def delete_memory(request: Request, principal: MemoryAdmin, vault_id: VaultId, memory_id: MemoryId) -> Response:
    """Delete a memory with everything in it."""
    memory = await memory_of(request)
    found = await _memory(memory, principal.tenant, vault_id, memory_id)
    record = partial(audited, request, principal, principal.tenant, "memory.delete", found.id)
    await memory.delete_memory(principal.tenant, found.id, record=record)
    return Response(status_code=204)


@router.post(
    "/vaults/{vault_id}/memories/{memory_id}/attach", response_model=shapes.MemoryShape, responses=answers(404, 409)
)
async def attach_memory(request: Request, principal: MemoryWrite, vault_id: VaultId, memory_id: MemoryId) -> JsonBody:
    """Move a memory to this vault."""
    memory = await memory_of(request)
    vault = await _vault(memory, principal.tenant, vault_id)
    return JsonBody(shapes.memory(await memory.move_memory(principal.tenant, memory_id, vault)))


@router.post(_ENTRIES, status_code=201, response_model=shapes.EntryShape, responses=_CHANGES)
async def post_entry(
    request: Request, principal: MemoryWrite, vault_id: VaultId, memory_id: MemoryId, body: shapes.PostEntryShape
) -> JsonBody:
    """Add an entry."""
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    added = await memory.add_entry(principal.tenant, found.id, body.entry(), idempotency_key=_key(request))
    return JsonBody(shapes.entry(added), 201)


@router.get(_ENTRIES, response_model=shapes.EntriesShape, responses=answers(404))
async def get_entries(
    request: Request,
    principal: MemoryRead,
    vault_id: VaultId,
    memory_id: MemoryId,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[Moment | None, Query()] = None,
    after: Annotated[Moment | None, Query()] = None,
) -> JsonBody:
    """List entries before or after a time, newest first.

    A page has all entries of the time at which it ends, and may therefore be longer than `limit`.
    """
    if before is not None and after is not None:
        raise InvalidRequest("before and after cannot be combined. Give one of them.")
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    wanted = (None if before is None else moment_us(before), None if after is None else moment_us(after))
    entries = [shapes.entry(item) for item in await _page(memory, principal.tenant, found.id, limit, *wanted)]
    return JsonBody({"entries": entries, "count": len(entries)})


@router.get(f"{_ENTRIES}/{{entry_id}}", response_model=shapes.EntryShape, responses=answers(404))
async def get_entry(
    request: Request, principal: MemoryRead, vault_id: VaultId, memory_id: MemoryId, entry_id: EntryId
) -> JsonBody:
    """Return an entry."""
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    return JsonBody(shapes.entry(await memory.get_entry(principal.tenant, found.id, entry_id)))


@router.delete(f"{_ENTRIES}/{{entry_id}}", status_code=204, response_class=Response, responses=_CHANGES)
async def delete_entry(
    request: Request, principal: MemoryWrite, vault_id: VaultId, memory_id: MemoryId, entry_id: EntryId
) -> Response:
    """Delete an entry."""
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    await memory.delete_entry(principal.tenant, found.id, entry_id, idempotency_key=_key(request))
    return Response(status_code=204)


@router.patch(f"{_ENTRIES}/{{entry_id}}/tags", response_model=shapes.EntryShape, responses=_CHANGES)
async def patch_tags(
    request: Request,
    principal: MemoryWrite,
    vault_id: VaultId,
    memory_id: MemoryId,
    entry_id: EntryId,
    body: shapes.PatchTagsShape,
) -> JsonBody:
    """Replace the tags of an entry."""
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    key = _key(request)
    return JsonBody(
        shapes.entry(await memory.set_tags(principal.tenant, found.id, entry_id, body.tags, idempotency_key=key))
    )


@router.put(_CONTEXTS, status_code=201, response_model=shapes.ContextShape, responses=answers(404, 409, 413, 415, 429))
async def put_context(request: Request, principal: MemoryWrite, vault_id: VaultId, memory_id: MemoryId) -> JsonBody:
    """Write the context document. The body is plain text."""
    if not request.headers.get("content-type", "").startswith("text/plain"):
        raise shapes.NotPlainText
    content = await request.body()
    if len(content) > _MAX_BODY_BYTES:
        raise InputTooLarge(f"The context has more than {MAX_FRAGMENT_CHARACTERS} characters.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidInput("The context is not UTF-8.") from None
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    written = await memory.put_fragment(
        principal.tenant, found.id, CONTEXT_FRAGMENT, text, idempotency_key=_key(request)
    )
    return JsonBody(shapes.context(found.id, written), 201)


@router.get(_CONTEXTS, response_class=Response, responses={200: _PLAIN_TEXT, **answers(404)})
async def get_context(
    request: Request, principal: MemoryRead, vault_id: VaultId, memory_id: MemoryId
) -> PlainTextResponse:
    """Return the context document as plain text."""
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    return PlainTextResponse((await memory.get_fragment(principal.tenant, found.id, CONTEXT_FRAGMENT)).content)


@router.delete(f"{_CONTEXTS}/{{context_id}}", status_code=204, response_class=Response, responses=_CHANGES)
async def delete_context(
    request: Request, principal: MemoryWrite, vault_id: VaultId, memory_id: MemoryId, context_id: EntryId
) -> Response:
    """Replace the current context, if it has this id, by the context of a new memory.

    Earlier contexts are not stored.
    """
    memory = await memory_of(request)
    found = await _memory_at_hand(request, memory, principal.tenant, vault_id, memory_id)
    current = await memory.get_fragment(principal.tenant, found.id, CONTEXT_FRAGMENT)
    if shapes.context(found.id, current)["contextId"] != context_id:
        raise NotFound(f'The context "{context_id}" is not the current context of the memory "{found.id}".')
    await memory.put_fragment(principal.tenant, found.id, CONTEXT_FRAGMENT, DEFAULT_CONTEXT)
    return Response(status_code=204)


@router.post("/search", response_model=shapes.SearchShape, responses=answers(404))
async def search(request: Request, principal: MemoryRead, body: shapes.PostSearchShape) -> JsonBody:
    """Find entries by words, and return the current context with them.

    Earlier contexts are not stored, so the best context is the current one, if it has a word of the query.
    """
    memory = await memory_of(request)
    limit = min(body.topK, MAX_SEARCH_HITS)
    async with parts_of(request).searches.turn(principal):
        hits = await memory.search(principal.tenant, body.memoryId, body.query, limit=limit)
    context = await memory.get_fragment(principal.tenant, body.memoryId, CONTEXT_FRAGMENT)
    return JsonBody(
        {
            "entries": [{**shapes.entry(hit.entry), "score": hit.score} for hit in hits],
            "count": len(hits),
            "latestContext": context.content,
            "contextTimestamp": moment(context.updated_at_us),
            **shapes.best_context(context, body.query),
        }
    )


def _key(request: Request) -> str | None:
    """Return the idempotency key of a request."""
    return request.headers.get("idempotency-key")


async def _page(
    memory: MemoryService, tenant: str, memory_id: str, limit: int, before_us: int | None, after_us: int | None
) -> list[MemoryEntry]:
    """Return a page with all entries of the time at which it ends: the next page begins before that time."""
    page = await memory.list_entries(tenant, memory_id, limit=limit, before_us=before_us, after_us=after_us)
    entries, before = list(page.entries), page.next_before
    while before is not None:
        edge = entries[-1].created_at_us
        page = await memory.list_entries(
            tenant, memory_id, limit=MAX_ENTRY_PAGE, before=before, before_us=edge + 1, after_us=edge - 1
        )
        entries += page.entries
        before = page.next_before
    return entries


async def _vault(memory: MemoryService, tenant: str, vault: str) -> str:
    """Return the id of a vault, given its id or its title."""
    try:
        return (await memory.get_vault(tenant, vault)).id
    except NotFound:
        found = await memory.find_vault(tenant, vault)
        if found is None:
            raise
        return found.id


async def _memory(memory: MemoryService, tenant: str, vault: str, wanted: str) -> Memory:
    """Return a memory of a vault, given its id or its title."""
    vault_id = await _vault(memory, tenant, vault)
    try:
        found = await memory.get_memory(tenant, wanted)
    except NotFound:
        by_title = await memory.find_memory(tenant, vault_id, wanted)
        if by_title is None:
            raise
        return by_title
    if found.vault_id != vault_id:
        raise missing_memory(wanted)
    return found


async def _memory_at_hand(request: Request, memory: MemoryService, tenant: str, vault: str, wanted: str) -> Memory:
    """Return a memory as `_memory` does; while the database is unavailable, one that this process owns, by its ids."""
    if not is_recalled(request):
        return await _memory(memory, tenant, vault, wanted)
    found = await memory.owned_memory(tenant, wanted)
    if found is None or found.vault_id != vault:
        raise Unavailable("The database is unavailable, so a memory is found only by its id and the id of its vault.")
    return found
