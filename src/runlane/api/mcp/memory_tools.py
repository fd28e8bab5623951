"""Tools for memory: vaults, memories, entries, the context document and search.

A change is stored when the tool returns, so a model has no reason to repeat it. A repeated call with the same
idempotency key changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from runlane.api.mcp.tool import CallContext, ServedTool, ToolAnswer, typed_tool
from runlane.api.schemas.fields import Key, Name, RequestModel
from runlane.api.schemas.memory import Description, EntryTags, Title
from runlane.domain.access import Permission
from runlane.domain.memory import (
    CONTEXT_FRAGMENT,
    DEFAULT_MEMORY_TYPE,
    MAX_COMMIT_WAIT_SECONDS,
    MAX_ENTRY_CHARACTERS,
    MAX_FRAGMENT_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    MAX_REASON,
    MAX_SEARCH_HITS,
    MAX_SUMMARY_CHARACTERS,
    CommitState,
    Memory,
    NewEntry,
    Vault,
)
from runlane.domain.memory_names import TYPE_PATTERN
from runlane.domain.memory_prompts import default_prompts
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest, NotFound
from runlane.memory.service import MemoryService

_READ: Final = frozenset({Permission.MEMORY_READ})
_WRITE: Final = frozenset({Permission.MEMORY_READ, Permission.MEMORY_WRITE})
_LISTED: Final = 1000

MemoryType = Annotated[str, StringConstraints(pattern=TYPE_PATTERN)]
EntryText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ENTRY_CHARACTERS)]
SummaryText = Annotated[str, StringConstraints(max_length=MAX_SUMMARY_CHARACTERS)]
_KEY = "A repeated call with the same key changes nothing."


class InMemory(RequestModel):
    """A memory and, optionally, the vault that must contain it."""

    memory_id: Name = Field(description="The memory.")
    vault_id: Name | None = Field(default=None, description="The vault of the memory.")


class AddEntryArguments(InMemory):
    """Add an entry to a memory: a fact, decision or preference that later conversations need. The entry is stored when
    the call returns; do not add it again.
    """

    raw_entry: EntryText = Field(description="The text, which never changes.")
    summary: SummaryText = Field(default="", description="A summary of the entry in one sentence.")
    tags: EntryTags = Field(default_factory=dict[str, str])
    idempotency_key: Key | None = Field(default=None, description=_KEY)


class ListEntriesArguments(InMemory):
    """List entries of a memory, newest first; with after, those after an entry, oldest first."""

    limit: int = Field(default=25, ge=1, le=50, description="The size of a page.")
    before: int | None = Field(default=None, ge=0, le=2**62, description="next_before of the previous page.")
    after: int | None = Field(default=None, ge=0, le=2**62, description="next_after of the previous page.")


class EntryArguments(InMemory):
    """Return an entry of a memory."""

    entry_id: Name = Field(description="The entry.")


class CorrectEntryArguments(EntryArguments):
    """Add an entry that corrects another entry.

    Search no longer finds the corrected entry. An entry is corrected at most once.
    """

    raw_entry: EntryText = Field(description="The text that replaces the corrected entry.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=MAX_REASON)] = Field(
        description="The reason for the correction."
    )
    summary: SummaryText = Field(default="", description="A summary of the entry in one sentence.")
    idempotency_key: Key | None = Field(default=None, description=_KEY)


class DeleteEntryArguments(EntryArguments):
    """Delete the content of an entry. Deleting it again does nothing."""

    idempotency_key: Key | None = Field(default=None, description=_KEY)


class PutContextArguments(InMemory):
    """Replace the context document of a memory, which readers load first. The last write wins."""

    content: Annotated[str, StringConstraints(min_length=1, max_length=MAX_FRAGMENT_CHARACTERS)] = Field(
        description="The whole document."
    )
    idempotency_key: Key | None = Field(default=None, description=_KEY)


class GetContextArguments(InMemory):
    """Return the context document of a memory. Read it at the start of a conversation."""


class AwaitArguments(InMemory):
    """Wait until the changes of a memory that were made before this call are in the database."""

    timeout_seconds: float = Field(default=10.0, gt=0, le=MAX_COMMIT_WAIT_SECONDS, description="How long to wait.")


class SearchMemoriesArguments(InMemory):
    """Find entries of a memory by words, best first, and return its context document."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS)] = Field(
        description="Words that entries may contain."
    )
    top_k: int = Field(default=10, ge=1, le=MAX_SEARCH_HITS, description="Maximum number of entries.")


class GetMemoryArguments(InMemory):
    """Return a memory: its title, type and description."""


class CreateVaultArguments(RequestModel):
    """Create a vault, a named group of memories. Ask the user before you create one."""

    title: Title = Field(description="Letters, digits and hyphens; unique.")
    description: Description = Field(default="", description="For people.")


class CreateMemoryArguments(RequestModel):
    """Create a memory in a vault. Ask the user before you create one."""

    vault_id: Name = Field(description="The vault.")
    title: Title = Field(description="Letters, digits and hyphens; unique in the vault.")
    memory_type: MemoryType = Field(default=DEFAULT_MEMORY_TYPE, description="The use of the memory, such as notes.")
    description: Description = Field(default="", description="For people.")


class ListVaultsArguments(RequestModel):
    """List the vaults."""

    cursor: Name | None = Field(default=None, description="next_cursor of the previous page.")


class ListMemoriesArguments(RequestModel):
    """List the memories of one vault or of all vaults."""

    vault_id: Name | None = Field(default=None, description="The vault.")
    cursor: Name | None = Field(default=None, description="next_cursor of the previous page.")


class PromptsArguments(RequestModel):
    """Return the prompts for keeping a memory: rules of the context document, capture of entries, summaries."""

    memory_type: MemoryType = Field(default=DEFAULT_MEMORY_TYPE, description="The type of the memory.")


async def _service(caller: CallContext, given: InMemory) -> tuple[MemoryService, str]:
    """Return the service and the tenant. Raise NotFound if the memory is not in the given vault."""
    service, tenant = await caller.parts.app.memory(), caller.principal.tenant
    if given.vault_id is not None:
        await read_memory(service, tenant, given.memory_id, given.vault_id)
    return service, tenant


async def read_memory(service: MemoryService, tenant: str, memory_id: str, vault_id: str | None = None) -> Memory:
    """Return a memory. Raise NotFound if it is in another vault."""
    found = await service.get_memory(tenant, memory_id)
    if vault_id is not None and found.vault_id != vault_id:
        raise NotFound(f'The vault "{vault_id}" has no memory "{memory_id}". List them with list_memories.')
    return found


async def _add(caller: CallContext, given: AddEntryArguments) -> ToolAnswer:
    service, tenant = await _service(caller, given)
    entry = NewEntry(given.raw_entry, given.summary, tags=given.tags)
    key = given.idempotency_key or caller.idempotency_key
    added = await service.add_entry(tenant, given.memory_id, entry, idempotency_key=key)
    return ToolAnswer({"status": "stored", "entry": to_dict(added)}, text=f"enqueued: stored as {added.id}")


async def _list(caller: CallContext, given: ListEntriesArguments) -> Mapping[str, Any]:
    if given.before is not None and given.after is not None:
        raise InvalidRequest("Give either before or after, not both.")
    service, tenant = await _service(caller, given)
    page = await service.list_entries(
        tenant, given.memory_id, limit=given.limit, before=given.before, after=given.after
    )
    return {**to_dict(page), "count": len(page.entries), "applied_limit": given.limit}


async def _get(caller: CallContext, given: EntryArguments) -> Mapping[str, Any]:
    service, tenant = await _service(caller, given)
    return to_dict(await service.get_entry(tenant, given.memory_id, given.entry_id))


async def _correct(caller: CallContext, given: CorrectEntryArguments) -> Mapping[str, Any]:
    service, tenant = await _service(caller, given)
    entry = NewEntry(given.raw_entry, given.summary)
    key = given.idempotency_key or caller.idempotency_key
    return to_dict(
        await service.correct_entry(tenant, given.memory_id, given.entry_id, entry, given.reason, idempotency_key=key)
    )


async def _delete(caller: CallContext, given: DeleteEntryArguments) -> Mapping[str, Any]:
    service, tenant = await _service(caller, given)
    key = given.idempotency_key or caller.idempotency_key
    await service.delete_entry(tenant, given.memory_id, given.entry_id, idempotency_key=key)
    return {"entry_id": given.entry_id, "status": "deleted"}


async def _put_context(caller: CallContext, given: PutContextArguments) -> ToolAnswer:
    service, tenant = await _service(caller, given)
    key = given.idempotency_key or caller.idempotency_key
    stored = await service.put_fragment(tenant, given.memory_id, CONTEXT_FRAGMENT, given.content, idempotency_key=key)
    return ToolAnswer({"status": "stored", "context": to_dict(stored.info)}, text="enqueued: stored")


async def _get_context(caller: CallContext, given: GetContextArguments) -> ToolAnswer:
    service, tenant = await _service(caller, given)
    found = await service.get_fragment(tenant, given.memory_id, CONTEXT_FRAGMENT)
    return ToolAnswer(to_dict(found), text=found.content)


async def _await(caller: CallContext, given: AwaitArguments) -> ToolAnswer:
    service, tenant = await _service(caller, given)
    commit = await service.await_commit(tenant, given.memory_id, given.timeout_seconds)
    committed = commit.state is CommitState.COMMITTED
    return ToolAnswer(to_dict(commit), failed=not committed, text="consistent" if committed else commit.state.value)


async def _search(caller: CallContext, given: SearchMemoriesArguments) -> Mapping[str, Any]:
    service, tenant = await _service(caller, given)
    async with caller.parts.searches.turn(caller.principal):
        hits = await service.search(tenant, given.memory_id, given.query, limit=given.top_k)
    context = await service.get_fragment(tenant, given.memory_id, CONTEXT_FRAGMENT)
    entries = [{**to_dict(hit.entry), "score": hit.score, "found_by": list(hit.found_by)} for hit in hits]
    return {"entries": entries, "count": len(entries), "latest_context": context.content}


async def _memory(caller: CallContext, given: GetMemoryArguments) -> Mapping[str, Any]:
    service, tenant = await caller.parts.app.memory(), caller.principal.tenant
    return to_dict(await read_memory(service, tenant, given.memory_id, given.vault_id))


async def _create_vault(caller: CallContext, given: CreateVaultArguments) -> Mapping[str, Any]:
    service = await caller.parts.app.memory()
    return to_dict(await service.create_vault(caller.principal.tenant, given.title, description=given.description))


async def _create_memory(caller: CallContext, given: CreateMemoryArguments) -> Mapping[str, Any]:
    service = await caller.parts.app.memory()
    return to_dict(
        await service.create_memory(
            caller.principal.tenant,
            given.title,
            vault_id=given.vault_id,
            memory_type=given.memory_type,
            description=given.description,
        )
    )


async def _vaults(caller: CallContext, given: ListVaultsArguments) -> Mapping[str, Any]:
    service = await caller.parts.app.memory()
    found = await service.list_vaults(caller.principal.tenant, after=given.cursor, limit=_LISTED)
    return _page("vaults", found)


async def list_memories(caller: CallContext, vault_id: str | None, cursor: str | None = None) -> dict[str, Any]:
    """Return a page of the memories of the caller's tenant, of one vault or of every vault."""
    service = await caller.parts.app.memory()
    tenant = caller.principal.tenant
    return _page("memories", await service.list_memories(tenant, vault_id=vault_id, after=cursor, limit=_LISTED))


def _page(name: str, found: Sequence[Vault] | Sequence[Memory]) -> dict[str, Any]:
    following = found[-1].id if len(found) == _LISTED else None
    return {name: [to_dict(item) for item in found], "count": len(found), "next_cursor": following}


async def _memories(caller: CallContext, given: ListMemoriesArguments) -> Mapping[str, Any]:
    return await list_memories(caller, given.vault_id, given.cursor)


async def _prompts(_caller: CallContext, given: PromptsArguments) -> Mapping[str, Any]:
    return default_prompts(given.memory_type)


MEMORY_TOOLS: Final[tuple[ServedTool, ...]] = (
    typed_tool("add_entry", "Add an entry", AddEntryArguments, _WRITE, _add),
    typed_tool("list_entries", "List entries", ListEntriesArguments, _READ, _list, read_only=True),
    typed_tool("get_entry", "Read an entry", EntryArguments, _READ, _get, read_only=True),
    typed_tool("correct_entry", "Correct an entry", CorrectEntryArguments, _WRITE, _correct),
    typed_tool(
        "delete_entry", "Delete an entry", DeleteEntryArguments, _WRITE, _delete, destructive=True, idempotent=True
    ),
    typed_tool(
        "put_context", "Write the context", PutContextArguments, _WRITE, _put_context, destructive=True, idempotent=True
    ),
    typed_tool("get_context", "Read the context", GetContextArguments, _READ, _get_context, read_only=True),
    typed_tool("await_consistency", "Wait for the database", AwaitArguments, _READ, _await, read_only=True),
    typed_tool("search_memories", "Search a memory", SearchMemoriesArguments, _READ, _search, read_only=True),
    typed_tool("get_memory", "Read a memory", GetMemoryArguments, _READ, _memory, read_only=True),
    typed_tool("create_memory_in_vault", "Create a memory", CreateMemoryArguments, _WRITE, _create_memory),
    typed_tool("create_vault", "Create a vault", CreateVaultArguments, _WRITE, _create_vault),
    typed_tool("list_vaults", "List vaults", ListVaultsArguments, _READ, _vaults, read_only=True),
    typed_tool("list_memories", "List memories", ListMemoriesArguments, _READ, _memories, read_only=True),
    typed_tool("get_default_prompts", "Prompts for memory", PromptsArguments, _READ, _prompts, read_only=True),
)
