"""Read memories: pages of entries, single entries, fragments. Expired and deleted entries are not returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Integer, Text, bindparam, or_, select

from runlane.domain.memory import EntryPage, FragmentInfo, MemoryEntry, MemoryFragment
from runlane.errors import InvalidRequest
from runlane.store.memory.planning import missing_entry, missing_fragment, missing_memory
from runlane.store.memory.rows import ENTRY_COLUMNS, FRAGMENT_COLUMNS, entry_from, fragment_from, fragment_info
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import now_us
from runlane.store.sql.schema.memory import memories, memory_entries, memory_fragments
from runlane.store.sql.statement import Statement

_e = memory_entries.c
_f = memory_fragments.c
_memory = bindparam("memory_id", type_=Text())
_before = bindparam("before", type_=BigInteger())
_after = bindparam("after", type_=BigInteger())
_before_us = bindparam("before_us", type_=BigInteger())
_after_us = bindparam("after_us", type_=BigInteger())
_limit = bindparam("limit", type_=Integer())
_live = (_e.deleted_at.is_(None), or_(_e.expires_at.is_(None), _e.expires_at > now_us()))
_MAX_SEQ = 2**62

_HEAD = Statement(
    "memory_head",
    select(memories.c.id, memories.c.tenant, memories.c.last_seq, memories.c.applied_seq).where(
        memories.c.id == _memory
    ),
    purpose="Read the tenant of a memory and the numbers of its operations.",
)
# The same statement reads the head of the memory, so both are of one snapshot and a page takes one statement.
_PAGE = select(
    *ENTRY_COLUMNS,
    select(memories.c.tenant).where(memories.c.id == _memory).scalar_subquery().label("tenant"),
    select(memories.c.applied_seq).where(memories.c.id == _memory).scalar_subquery().label("applied_seq"),
).where(
    _e.memory_id == _memory,
    _e.seq < _before,
    _e.seq > _after,
    _e.created_at < _before_us,
    _e.created_at > _after_us,
    *_live,
)
_NEWEST = Statement(
    "memory_newest_entries",
    _PAGE.order_by(_e.seq.desc()).limit(_limit),
    purpose="Read entries of a memory, newest first, with the tenant of the memory and what of it is replicated.",
)
_OLDEST = Statement(
    "memory_oldest_entries",
    _PAGE.order_by(_e.seq).limit(_limit),
    purpose="Read entries of a memory, oldest first, with the tenant of the memory and what of it is replicated.",
)
_ENTRY = Statement(
    "memory_entry",
    select(*ENTRY_COLUMNS).where(_e.id == bindparam("entry_id", type_=Text()), _e.memory_id == _memory, *_live),
    purpose="Read an entry.",
)
_FRAGMENT = Statement(
    "memory_fragment",
    select(*FRAGMENT_COLUMNS, _f.content).where(_f.memory_id == _memory, _f.name == bindparam("name", type_=Text())),
    purpose="Read a fragment.",
)
_MANIFEST = Statement(
    "memory_manifest",
    select(*FRAGMENT_COLUMNS).where(_f.memory_id == _memory).order_by(_f.name),
    purpose="Read the fragments of a memory without their content.",
)


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries of a page. With `after`, it begins with the oldest entry after it, otherwise with the newest."""

    limit: int = 25
    before: int | None = None
    after: int | None = None
    before_us: int | None = None
    after_us: int | None = None


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """The tenant of a memory and the numbers of its operations."""

    tenant: str
    last_seq: int
    applied_seq: int


async def find_head(database: Database, memory_id: str) -> HeadInfo | None:
    """Return the head of a memory, or None if the database has no such memory."""
    rows = await database.query(_HEAD, memory_id=memory_id)
    return HeadInfo(rows[0]["tenant"], rows[0]["last_seq"], rows[0]["applied_seq"]) if rows else None


async def read_head(database: Database, tenant: str, memory_id: str) -> HeadInfo:
    """Return the head of a memory of this tenant."""
    head = await find_head(database, memory_id)
    if head is None or head.tenant != tenant:
        raise missing_memory(memory_id)
    return head


async def list_entries(database: Database, tenant: str, memory_id: str, wanted: EntryRange) -> EntryPage:
    """Return a page of entries."""
    if wanted.before is not None and wanted.after is not None:
        raise InvalidRequest("before and after exclude each other. Give one of them.")
    rows = await database.query(
        _NEWEST if wanted.after is None else _OLDEST,
        memory_id=memory_id,
        before=_MAX_SEQ if wanted.before is None else wanted.before,
        after=-1 if wanted.after is None else wanted.after,
        before_us=_MAX_SEQ if wanted.before_us is None else wanted.before_us,
        after_us=-1 if wanted.after_us is None else wanted.after_us,
        limit=wanted.limit + 1,
    )
    if not rows:
        await read_head(database, tenant, memory_id)
    elif rows[0]["tenant"] != tenant:
        raise missing_memory(memory_id)
    entries = [entry_from(row, rows[0]["applied_seq"]) for row in rows]
    more, entries = len(entries) > wanted.limit, entries[: wanted.limit]
    if wanted.after is not None:
        return EntryPage(entries, None, entries[-1].seq if entries else wanted.after)
    newest = entries[0].seq if entries else None
    return EntryPage(entries, entries[-1].seq if more else None, newest)


async def get_entry(database: Database, tenant: str, memory_id: str, entry_id: str) -> MemoryEntry:
    """Return an entry."""
    head = await read_head(database, tenant, memory_id)
    rows = await database.query(_ENTRY, memory_id=memory_id, entry_id=entry_id)
    if not rows:
        raise missing_entry(entry_id, memory_id)
    return entry_from(rows[0], head.applied_seq)


async def get_fragment(database: Database, tenant: str, memory_id: str, name: str) -> MemoryFragment:
    """Return a fragment."""
    head = await read_head(database, tenant, memory_id)
    rows = await database.query(_FRAGMENT, memory_id=memory_id, name=name)
    if not rows:
        raise missing_fragment(name, memory_id)
    return fragment_from(rows[0], head.applied_seq)


async def read_manifest(database: Database, tenant: str, memory_id: str) -> Sequence[FragmentInfo]:
    """Return the fragments of a memory by name, without their content."""
    head = await read_head(database, tenant, memory_id)
    rows = await database.query(_MANIFEST, memory_id=memory_id)
    return [fragment_info(row, head.applied_seq) for row in rows]
