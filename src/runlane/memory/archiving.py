"""Export, import and purge a memory, page by page, as the work of runs.

Each has one effect, however often its run is attempted. An import adds its entries under idempotency keys of its run. A
purge deletes the entries that it finds. An export writes its records to the log of its run, and stores its position
after each page: a lost attempt repeats at most one page, whose records have the same numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from runlane.domain.memory import MAX_ENTRIES_AT_ONCE, MemoryEntry, NewEntry
from runlane.domain.timestamps import parse_timestamp
from runlane.domain.wire import to_dict
from runlane.errors import Fail, InvalidRequest, MemoryBusy, MemoryOwnedElsewhere, NotFound, Retry, Unavailable
from runlane.memory.service import MemoryService

_PAGE: Final = 200
# A line of a run's log has at most 65,536 characters.
_LINE_CHARACTERS: Final = 60_000
_RETRY_SECONDS: Final = 5.0
# How long an export or a purge waits until the database has what the owner of the memory has accepted.
_COMMIT_SECONDS: Final = 10.0
# The number of entries that are deleted at once, so that a purge leaves room in the shard of its memory for other
# changes.
_DELETED_AT_ONCE: Final = 50


class ArchiveContext(Protocol):
    """The part of the attempt's context that these runs use."""

    @property
    def run_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def saved(self) -> Any: ...

    def log(self, message: str, **fields: Any) -> Awaitable[None]: ...

    def checkpoint(self, value: Any) -> Awaitable[None]: ...

    def progress(self, fraction: float, note: str | None = None) -> Awaitable[None]: ...


async def export_memory(ctx: ArchiveContext, service: MemoryService, memory_id: str) -> dict[str, int]:
    """Write everything of a memory to the log of the run, one record per entry and fragment."""
    tenant, saved = ctx.tenant, _saved(ctx)
    memory = await service.get_memory(tenant, memory_id)
    record, after, count = saved.get("record", 0), saved.get("after", 0), saved.get("entries", 0)
    if not record:
        # Without this, an export by another process than the owner would lack what is not replicated yet.
        await service.await_commit(tenant, memory_id, _COMMIT_SECONDS)
        await _write(ctx, 0, {"memory": to_dict(memory)})
        record = 1
    while True:
        page = await service.list_entries(tenant, memory_id, after=after, limit=_PAGE)
        for entry in page.entries:
            await _write(ctx, record, {"entry": to_dict(entry)})
            record += 1
        if not page.entries:
            break
        after, count = page.entries[-1].seq, count + len(page.entries)
        await ctx.checkpoint({"record": record, "after": after, "entries": count})
        await ctx.progress(min(1.0, after / max(1, memory.last_seq)))
    manifest = await service.manifest(tenant, memory_id)
    for info in manifest:
        await _write(ctx, record, {"fragment": to_dict(await service.get_fragment(tenant, memory_id, info.name))})
        record += 1
    return {"records": record, "entries": count, "fragments": len(manifest)}


def _saved(ctx: ArchiveContext) -> dict[str, int]:
    found: dict[str, int] | None = ctx.saved
    return found or {}


async def _write(ctx: ArchiveContext, record: int, value: Mapping[str, Any]) -> None:
    text = orjson.dumps(value).decode()
    pieces = [text[start : start + _LINE_CHARACTERS] for start in range(0, len(text), _LINE_CHARACTERS)]
    for part, piece in enumerate(pieces, start=1):
        await ctx.log(piece, record=record, part=part, parts=len(pieces))


async def import_memory(
    ctx: ArchiveContext,
    service: MemoryService,
    memory_id: str,
    entries: Sequence[Mapping[str, Any]],
    fragments: Sequence[Mapping[str, Any]],
) -> dict[str, int]:
    """Add entries in their order, and write fragments.

    Entries that have expired since the export are added as well, and are deleted like others that expire: each attempt
    adds the same entries.
    """
    tenant = ctx.tenant
    new = [new_entry(entry) for entry in entries]
    for first in range(0, len(new), MAX_ENTRIES_AT_ONCE):
        key = f"import:{ctx.run_id}:{first}"
        batch = new[first : first + MAX_ENTRIES_AT_ONCE]
        await service.add_entries(tenant, memory_id, batch, idempotency_key=key, expired=True)
        await ctx.progress(min(1.0, (first + MAX_ENTRIES_AT_ONCE) / len(new)))
    for index, fragment in enumerate(fragments):
        key = f"import:{ctx.run_id}:fragment:{index}"
        await service.put_fragment(tenant, memory_id, fragment["name"], fragment["content"], idempotency_key=key)
    return {"entries": len(new), "fragments": len(fragments)}


def new_entry(entry: Mapping[str, Any]) -> NewEntry:
    """Return an entry to add from its JSON."""
    expires_at = entry.get("expires_at")
    return NewEntry(
        entry["text"],
        entry.get("summary") or "",
        entry.get("metadata") or {},
        entry.get("tags") or {},
        None if expires_at is None else parse_timestamp(expires_at),
    )


async def purge_memory(
    ctx: ArchiveContext, service: MemoryService, memory_id: str, before_us: int | None
) -> dict[str, int]:
    """Delete the content of the entries of a memory, or of those before a time."""
    tenant, saved = ctx.tenant, _saved(ctx)
    after, deleted = saved.get("after", 0), saved.get("deleted", 0)
    # Entries that are added meanwhile are not deleted. The database may lack entries that the owner of the memory has
    # accepted before.
    last_seq = saved.get("last_seq") or (await service.await_commit(tenant, memory_id, _COMMIT_SECONDS)).seq
    while True:
        page = await service.list_entries(tenant, memory_id, after=after, limit=_PAGE)
        found = [entry for entry in page.entries if entry.seq <= last_seq]
        due = [entry for entry in found if before_us is None or entry.created_at_us < before_us]
        for first in range(0, len(due), _DELETED_AT_ONCE):
            await _delete(service, tenant, due[first : first + _DELETED_AT_ONCE])
        deleted += len(due)
        if len(found) < _PAGE:
            return {"deleted": deleted}
        after = found[-1].seq
        await ctx.checkpoint({"after": after, "deleted": deleted, "last_seq": last_seq})
        await ctx.progress(min(1.0, after / max(1, last_seq)))


async def _delete(service: MemoryService, tenant: str, entries: Sequence[MemoryEntry]) -> None:
    calls = [service.delete_entry(tenant, entry.memory_id, entry.id) for entry in entries]
    for result in await asyncio.gather(*calls, return_exceptions=True):
        # Another caller deleted the entry, or it expired.
        if isinstance(result, BaseException) and not isinstance(result, NotFound):
            raise result


async def with_retries(work: Awaitable[dict[str, int]]) -> dict[str, int]:
    """Return the result of a run's work.

    An error that a later try or another process can avoid is retried; others fail the run.
    """
    try:
        return await work
    except (MemoryOwnedElsewhere, MemoryBusy, Unavailable) as error:
        raise Retry(_RETRY_SECONDS, str(error)) from error
    except (InvalidRequest, NotFound) as error:
        raise Fail(str(error)) from error
