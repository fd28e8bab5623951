"""Copy memories from the database to the file of a node, and delete such copies.

A copy contains the whole memory, so reads of it need no database. Its head is stored last: a copy without a head does
not exist, whatever rows a crash left behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    FromClause,
    Integer,
    Table,
    Text,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.sql.base import Executable

from runlane.store.memory.entry_words import insert_entries
from runlane.store.memory.operations import PUT_FRAGMENTS
from runlane.store.memory.rows import UNKEYED
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, upsert
from runlane.store.sql.schema.memory import (
    REQUEST_COLUMNS,
    memories,
    memory_entries,
    memory_fragments,
    memory_ops,
)
from runlane.store.sql.statement import Row, Statement

COPY_PAGE: Final = 1000

_m = memories.c
_memory = bindparam("memory_id", type_=Text())
_after = bindparam("after", type_=BigInteger())
_limit = bindparam("limit", type_=Integer())
_ENTRIES = Statement(
    "memory_entries_to_copy",
    select(memory_entries)
    .where(memory_entries.c.memory_id == _memory, memory_entries.c.seq > _after)
    .order_by(memory_entries.c.seq)
    .limit(_limit),
    purpose="Read entries of a memory for a copy.",
)
_CHANGED = Statement(
    "memory_entries_changed",
    select(memory_entries)
    .where(memory_entries.c.memory_id == _memory, memory_entries.c.changed_seq > _after)
    .order_by(memory_entries.c.seq)
    .limit(_limit),
    purpose="Read the entries of a memory that were added or changed after an operation.",
)
_SUMMARY = Statement(
    "memory_copy_summary",
    select(func.count().label("entries"), func.max(memory_entries.c.id).label("last_id")).where(
        memory_entries.c.memory_id == _memory, memory_entries.c.seq <= _after
    ),
    purpose="Compare a copy with its memory, up to an operation that both have.",
)
_FRAGMENTS = Statement(
    "memory_fragments_to_copy",
    select(memory_fragments).where(memory_fragments.c.memory_id == _memory),
    purpose="Read the fragments of a memory for a copy.",
)
_OPS = Statement(
    "memory_ops_to_copy",
    select(memory_ops)
    .where(memory_ops.c.memory_id == _memory, memory_ops.c.seq > _after, memory_ops.c.fingerprint != UNKEYED)
    .order_by(memory_ops.c.seq)
    .limit(_limit),
    purpose="Read the operations of a memory for a copy, which recognizes repeated requests by them.",
)


def _insert_into(table: Table, columns: Mapping[str, Any]) -> Callable[[FromClause], Executable]:
    def build(batch: FromClause) -> Executable:
        return upsert(table).from_select(list(columns), select(*(batch.c[name] for name in columns)))

    return build


_COPIED: Final = (memory_entries.name, memory_fragments.name, memory_ops.name)
_ENTRY_TYPES: Final = {column.name: column.type for column in memory_entries.c}
_OP_TYPES: Final = {column.name: column.type for column in memory_ops.c}
_HEAD_TYPES: Final = {
    column.name: column.type
    for column in memories.c
    if column.name not in REQUEST_COLUMNS and column.name not in ("parked", "stale", "owner")
}
_COPY_ENTRIES = Statement(
    "memory_copy_entries",
    _insert_into(memory_entries, _ENTRY_TYPES),
    _ENTRY_TYPES,
    purpose="Store copies of entries.",
    by_rows=True,
)
_COPY_OPS = Statement(
    "memory_copy_ops",
    _insert_into(memory_ops, _OP_TYPES),
    _OP_TYPES,
    purpose="Store copies of operations.",
    by_rows=True,
)
_COPY_HEAD = Statement(
    "memory_copy_head",
    lambda batch: upsert(memories).from_select(
        [*_HEAD_TYPES, "parked", "stale"],
        select(*(batch.c[name] for name in _HEAD_TYPES), literal_column("0"), literal_column("0")),
    ),
    _HEAD_TYPES,
    purpose="Store the copy of a memory itself, once the rest is complete.",
)
_EVICT = {
    table: Statement(
        f"memory_evict_{table.name}",
        delete(table).where((_m.id if table is memories else table.c.memory_id) == _memory),
        purpose="Delete the local copy of a memory.",
    )
    for table in (memories, memory_entries, memory_fragments, memory_ops)
}
_DROP_CHANGED = Statement(
    "memory_drop_changed",
    delete(memory_entries).where(member(memory_entries.c.id, "ids")),
    purpose="Delete copies of entries before they are stored again.",
)
_LAST_SEQ = Statement(
    "memory_last_seq_of_copy",
    select(_m.last_seq, _m.applied_seq).where(_m.id == _memory),
    purpose="Check that nothing was written to a copy while it was read again.",
)
# The ids in each table are read one by one from its index, because a file may have millions of rows.
_IDS: Final = (
    "select id from (with recursive ids (id) as (select min(memory_id) from {table} union all "
    "select (select min(memory_id) from {table} where memory_id > ids.id) from ids where ids.id is not null) "
    "select id from ids where id is not null)"
)
_UNFINISHED = Statement(
    "memory_unfinished_copies",
    text(
        f"select id from ({' union '.join(_IDS.format(table=name) for name in _COPIED)}) "  # noqa: S608 - constants
        "where id not in (select id from memories)"
    ),
    purpose="Find the rows of copies that a crash left without a head.",
)
_FRAGMENT_NAMES: Final = ("memory_id", "name", "content", "sha256", "size", "updated_at", "seq")

Page = tuple[Statement, Sequence[Sequence[Any]]]


async def evict(file: Database, memory_id: str) -> None:
    """Delete the local copy of a memory."""
    await file.transact(lambda session: _evict(session, memory_id))


async def evict_replicated(file: Database, memory_id: str) -> bool:
    """Delete the local copy of a memory if nothing in it waits for replication; return whether it was deleted."""

    async def work(session: Session) -> bool:
        rows = await session.fetch(_LAST_SEQ, memory_id=memory_id)
        if rows and rows[0]["last_seq"] != rows[0]["applied_seq"]:
            return False
        await _evict(session, memory_id)
        return True

    return await file.transact(work)


async def drop_unfinished(file: Database) -> None:
    """Delete what a crash left of copies that were not complete. No copy is being made at this time."""
    for row in await file.query(_UNFINISHED):
        await evict(file, row["id"])


async def copy_memory(database: Database, file: Database, head: Row, epoch: int) -> None:
    """Store a copy of a memory, page by page, so that changes of other memories are written meanwhile."""
    await evict(file, head["id"])
    async for statement, members in _pages(database, head["id"]):

        async def store(session: Session, page: Page = (statement, members)) -> None:
            await _store_page(session, *page)

        await file.transact(store)
    await file.transact(lambda session: _store_head(session, head, epoch))


async def update_copy(database: Database, file: Database, head: Row, epoch: int, after: int) -> bool:
    """Bring a copy without waiting operations up to date with what was written after an operation.

    Return False, and change nothing, if the copy differs from the memory at that operation, or if much was written
    since. Each change of an entry has the number of its operation, and so do keys. Fragments are few and are replaced.
    """
    memory_id: str = head["id"]
    # The maximum of an id depends on the order of characters; ids are ASCII digits after the same prefix.
    here, there = [(await each.query(_SUMMARY, memory_id=memory_id, after=after))[0] for each in (file, database)]
    if (here["entries"], here["last_id"]) != (there["entries"], there["last_id"]):
        return False
    entries = await database.query(_CHANGED, memory_id=memory_id, after=after, limit=COPY_PAGE + 1)
    ops = await database.query(_OPS, memory_id=memory_id, after=after, limit=COPY_PAGE + 1)
    if max(len(entries), len(ops)) > COPY_PAGE:
        return False
    fragments = await database.query(_FRAGMENTS, memory_id=memory_id)

    async def work(session: Session) -> None:
        await session.fetch(_DROP_CHANGED, ids=session.texts([row["id"] for row in entries]))
        await insert_entries(session, _COPY_ENTRIES, [tuple(row[name] for name in _ENTRY_TYPES) for row in entries])
        await session.fetch(_COPY_OPS, [tuple(row[name] for name in _OP_TYPES) for row in ops])
        await session.fetch(_EVICT[memory_fragments], memory_id=memory_id)
        await session.fetch(PUT_FRAGMENTS, [tuple(row[name] for name in _FRAGMENT_NAMES) for row in fragments])
        await session.fetch(_EVICT[memories], memory_id=memory_id)
        await _store_head(session, head, epoch)

    await file.transact(work)
    return True


async def replace_copy(
    database: Database,
    file: Database,
    head: Row,
    epoch: int,
    finish: Callable[[Session], Awaitable[None]] | None = None,
) -> bool:
    """Replace a copy in one transaction, which `finish` may extend.

    Without `finish`, only a copy is replaced in which nothing waits; return whether it was.
    """
    pages = [page async for page in _pages(database, head["id"])]

    async def work(session: Session) -> bool:
        if finish is None:
            rows = await session.fetch(_LAST_SEQ, memory_id=head["id"])
            if not rows or not rows[0]["last_seq"] == rows[0]["applied_seq"] == head["last_seq"]:
                return False
        await _evict(session, head["id"])
        for statement, members in pages:
            await _store_page(session, statement, members)
        await _store_head(session, head, epoch)
        if finish is not None:
            await finish(session)
        return True

    return await file.transact(work)


async def _evict(session: Session, memory_id: str) -> None:
    for statement in _EVICT.values():
        await session.fetch(statement, memory_id=memory_id)


async def _store_page(session: Session, statement: Statement, members: Sequence[Sequence[Any]]) -> None:
    if statement is _COPY_ENTRIES:
        await insert_entries(session, statement, members)
    else:
        await session.fetch(statement, members)


async def _store_head(session: Session, head: Row, epoch: int) -> None:
    values = {**{name: head[name] for name in _HEAD_TYPES}, "epoch": epoch, "applied_seq": head["last_seq"]}
    await session.fetch(_COPY_HEAD, [tuple(values[name] for name in _HEAD_TYPES)])


async def _pages(database: Database, memory_id: str) -> AsyncIterator[Page]:
    fragments = await database.query(_FRAGMENTS, memory_id=memory_id)
    yield PUT_FRAGMENTS, [tuple(row[name] for name in _FRAGMENT_NAMES) for row in fragments]
    for read, write, names in ((_ENTRIES, _COPY_ENTRIES, tuple(_ENTRY_TYPES)), (_OPS, _COPY_OPS, tuple(_OP_TYPES))):
        after = 0
        while rows := await database.query(read, memory_id=memory_id, after=after, limit=COPY_PAGE):
            yield write, [tuple(row[name] for name in names) for row in rows]
            after = rows[-1]["seq"]
