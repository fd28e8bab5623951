"""Entries and fragments of a memory.

A change is stored when its response is sent. With `wait=committed`, the response is sent when the change is in the
database, or after 30 seconds; the header Memory-Commit contains the result.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import MemoryRead, MemoryWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotencyKey
from runlane.api.router import RawRouter
from runlane.api.routes.memory_vaults import MemoryId, Tenant, memory_of
from runlane.api.schemas.fields import Name
from runlane.api.schemas.memory import (
    FRAGMENTS,
    HITS,
    AwaitCommit,
    CorrectionBody,
    DeletedBody,
    PostEntries,
    PostEntry,
    PutFragmentBody,
    PutTags,
    SearchMemory,
)
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.memory import (
    MAX_ENTRY_PAGE,
    CommitState,
    Consistency,
    EntryPage,
    MemoryCommit,
    MemoryEntry,
    MemoryFragment,
)
from runlane.domain.wire import to_dict
from runlane.errors import MemoryOwnedElsewhere
from runlane.memory.service import MemoryService

router = RawRouter(prefix="/memory/memories/{memory_id}", tags=["memory"], route_class=LargeBodyRoute)

EntryId = Annotated[Name, Path(description="The entry's id.", examples=["entry_0192f3"])]
FragmentName = Annotated[Name, Path(description="The fragment's name.", examples=["context"])]
Reading = Annotated[
    Consistency,
    Query(description="local: all changes that this process accepted. committed: only changes in the database."),
]
Wait = Annotated[
    Literal["stored", "committed"], Query(description="committed: respond when the change is in the database.")
]
_CHANGES: dict[int | str, dict[str, Any]] = answers(404, 409, 413, 429, 507)
_WAIT_SECONDS = 30.0


@router.post("/entries", status_code=201, response_model=MemoryEntry, responses=_CHANGES)
async def post_entry(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    body: PostEntry,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> ValueBody:
    """Add an entry."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    added = await memory.add_entry(owner, memory_id, body.entry(), idempotency_key=idempotency_key)
    return ValueBody(added, 201, await _commit(memory, owner, memory_id, wait))


@router.post("/entries/batch", status_code=201, response_model=EntryPage, responses=_CHANGES)
async def post_entries(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    body: PostEntries,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> ValueBody:
    """Add entries in their order, all or none."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    entries = [entry.entry() for entry in body.entries]
    added = await memory.add_entries(owner, memory_id, entries, idempotency_key=idempotency_key)
    page = EntryPage(added, None, added[-1].seq)
    return ValueBody(page, 201, await _commit(memory, owner, memory_id, wait))


@router.get("/entries", response_model=EntryPage, responses=answers(404))
async def get_entries(
    request: Request,
    principal: MemoryRead,
    memory_id: MemoryId,
    tenant: Tenant = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRY_PAGE)] = 25,
    before: Annotated[int | None, Query(ge=0, le=2**62, description="Older entries: `next_before`.")] = None,
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Newer entries, oldest first: `next_after`.")
    ] = None,
    consistency: Reading = "local",
) -> ValueBody:
    """List entries, newest first; with `after`, oldest first. The number of an entry is its cursor."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    page = await memory.list_entries(owner, memory_id, limit=limit, before=before, after=after, consistency=consistency)
    return ValueBody(page)


@router.get("/entries/{entry_id}", response_model=MemoryEntry, responses=answers(404))
async def get_entry(
    request: Request,
    principal: MemoryRead,
    memory_id: MemoryId,
    entry_id: EntryId,
    tenant: Tenant = None,
    consistency: Reading = "local",
) -> ValueBody:
    """Return an entry."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    return ValueBody(await memory.get_entry(owner, memory_id, entry_id, consistency=consistency))


@router.delete("/entries/{entry_id}", response_model=DeletedBody, responses=_CHANGES)
async def delete_entry(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    entry_id: EntryId,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> JsonBody:
    """Delete the content of an entry. The request can be repeated."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    await memory.delete_entry(owner, memory_id, entry_id, idempotency_key=idempotency_key)
    return JsonBody({"deleted": entry_id}, 200, await _commit(memory, owner, memory_id, wait))


@router.post("/entries/{entry_id}/correct", status_code=201, response_model=MemoryEntry, responses=_CHANGES)
async def correct_entry(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    entry_id: EntryId,
    body: CorrectionBody,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> ValueBody:
    """Add an entry that corrects another entry. An entry is corrected at most once."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    added = await memory.correct_entry(
        owner, memory_id, entry_id, body.entry(), body.reason, idempotency_key=idempotency_key
    )
    return ValueBody(added, 201, await _commit(memory, owner, memory_id, wait))


@router.put("/entries/{entry_id}/tags", response_model=MemoryEntry, responses=_CHANGES)
async def put_tags(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    entry_id: EntryId,
    body: PutTags,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> ValueBody:
    """Replace the tags of an entry."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    tagged = await memory.set_tags(owner, memory_id, entry_id, body.tags, idempotency_key=idempotency_key)
    return ValueBody(tagged, 200, await _commit(memory, owner, memory_id, wait))


@router.get("/fragments", response_model=FRAGMENTS.schema, responses=answers(404))
async def get_manifest(
    request: Request,
    principal: MemoryRead,
    memory_id: MemoryId,
    tenant: Tenant = None,
    consistency: Reading = "local",
) -> JsonBody:
    """List the fragments of a memory with their hashes and sizes."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    return FRAGMENTS.all(await memory.manifest(owner, memory_id, consistency=consistency))


@router.get("/fragments/{name}", response_model=MemoryFragment, responses=answers(404))
async def get_fragment(
    request: Request,
    principal: MemoryRead,
    memory_id: MemoryId,
    name: FragmentName,
    tenant: Tenant = None,
    consistency: Reading = "local",
) -> ValueBody:
    """Return a fragment."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    return ValueBody(await memory.get_fragment(owner, memory_id, name, consistency=consistency))


@router.put("/fragments/{name}", response_model=MemoryFragment, responses=_CHANGES)
async def put_fragment(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    name: FragmentName,
    body: PutFragmentBody,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> ValueBody:
    """Write a fragment, such as `context`. The last write wins."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    written = await memory.put_fragment(owner, memory_id, name, body.content, idempotency_key=idempotency_key)
    return ValueBody(written, 200, await _commit(memory, owner, memory_id, wait))


@router.delete("/fragments/{name}", response_model=DeletedBody, responses=_CHANGES)
async def delete_fragment(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    name: FragmentName,
    tenant: Tenant = None,
    wait: Wait = "stored",
    idempotency_key: IdempotencyKey = None,
) -> JsonBody:
    """Delete a fragment other than `context`."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    await memory.delete_fragment(owner, memory_id, name, idempotency_key=idempotency_key)
    return JsonBody({"deleted": name}, 200, await _commit(memory, owner, memory_id, wait))


@router.post("/search", response_model=HITS.schema, responses=answers(404))
async def search_memory(
    request: Request,
    principal: MemoryRead,
    memory_id: MemoryId,
    body: SearchMemory,
    tenant: Tenant = None,
    consistency: Reading = "local",
) -> JsonBody:
    """Find entries by words and, with an embedding model, by meaning, best first.

    Corrected entries are not returned.
    """
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    async with parts_of(request).searches.turn(principal):
        found = await memory.search(owner, memory_id, body.query, limit=body.limit, consistency=consistency)
    return JsonBody({"hits": [to_dict(hit) for hit in found]})


@router.post("/await-commit", response_model=MemoryCommit, responses=answers(404, 409))
async def await_commit(
    request: Request, principal: MemoryRead, memory_id: MemoryId, body: AwaitCommit, tenant: Tenant = None
) -> ValueBody:
    """Wait until changes before this request are in the database. The result is committed, timeout or rejected."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    return ValueBody(await memory.await_commit(owner, memory_id, body.timeout_seconds))


async def _commit(memory: MemoryService, tenant: str, memory_id: str, wait: str) -> dict[str, str] | None:
    if wait == "stored":
        return None
    try:
        # This read must not request the memory back from its owner.
        here = memory.forwarding(lambda _error: True)
        state = (await here.await_commit(tenant, memory_id, _WAIT_SECONDS)).state
    except MemoryOwnedElsewhere:
        # The memory was handed over after the change, so all its changes are in the database.
        state = CommitState.COMMITTED
    return {"Memory-Commit": state.value}
