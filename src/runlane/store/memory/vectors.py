"""Embeddings of entries: stored beside them, and compared with a query one bounded batch at a time.

A vector is stored only while its entry exists, and a search returns entries that exist. So an embedding that is
computed after its entry was deleted changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    FromClause,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    delete,
    literal_column,
    or_,
    select,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.memory import MemoryEntry
from runlane.store.memory.reading import read_head
from runlane.store.memory.rows import ENTRY_COLUMNS, entry_from
from runlane.store.memory.similarity import Found, better
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us, upsert
from runlane.store.sql.schema.memory import memories, memory_entries, memory_indexes, memory_vectors
from runlane.store.sql.statement import Statement, text_list

Vector = Sequence[float]

SCAN_PAGE: Final = 1000
# A search compares at most this many of the newest entries of a memory.
MAX_SCANNED: Final = 50_000

_e, _v, _x, _m = memory_entries.c, memory_vectors.c, memory_indexes.c, memories.c
_memory = bindparam("memory_id", type_=Text())
_limit = bindparam("limit", type_=Integer())
_current = (
    _e.deleted_at.is_(None),
    _e.corrected_by.is_(None),
    or_(_e.expires_at.is_(None), _e.expires_at > now_us()),
)

_INDEX = Statement(
    "memory_index_state",
    select(_m.tenant, _m.last_seq, _x.model, _x.indexed_seq)
    .select_from(memories.outerjoin(memory_indexes, _x.memory_id == _m.id))
    .where(_m.id == _memory),
    purpose="Read up to which entry a memory has embeddings.",
)
_TO_EMBED = Statement(
    "memory_entries_to_embed",
    select(_e.id, _e.seq, _e.text, _e.summary)
    .where(_e.memory_id == _memory, _e.seq > bindparam("after", type_=BigInteger()), *_current)
    .order_by(_e.seq)
    .limit(_limit),
    purpose="Read entries without an embedding.",
)


def _insert_vectors(batch: FromClause) -> Executable:
    b = batch.c
    exists = select(_e.id).where(_e.id == b.entry_id, _e.memory_id == b.memory_id, _e.deleted_at.is_(None)).exists()
    statement = upsert(memory_vectors).from_select(
        ["entry_id", "memory_id", "seq", "vector"],
        select(b.entry_id, b.memory_id, b.seq, b.vector).where(exists),
    )
    return statement.on_conflict_do_update(index_elements=["entry_id"], set_={"vector": statement.excluded.vector})


_INSERT = Statement(
    "memory_insert_vectors",
    _insert_vectors,
    {"entry_id": Text(), "memory_id": Text(), "seq": BigInteger(), "vector": LargeBinary()},
    purpose="Store the embeddings of entries that still exist.",
    by_rows=True,
)


def _set_index() -> Statement:
    statement = upsert(memory_indexes).values(
        memory_id=_memory, model=bindparam("model", type_=Text()), indexed_seq=bindparam("seq", type_=BigInteger())
    )
    changed = {"model": statement.excluded.model, "indexed_seq": statement.excluded.indexed_seq}
    return Statement(
        "memory_set_index",
        statement.on_conflict_do_update(index_elements=["memory_id"], set_=changed),
        purpose="Store up to which entry a memory has embeddings.",
    )


_SET_INDEX = _set_index()
_CLEAR = Statement(
    "memory_clear_vectors",
    delete(memory_vectors).where(_v.memory_id == _memory),
    purpose="Delete the embeddings of a memory.",
)
_SCAN = Statement(
    "memory_scan_vectors",
    select(_v.entry_id, _v.seq, _v.vector)
    .select_from(memory_vectors.join(memory_entries, _e.id == _v.entry_id))
    .where(_v.memory_id == _memory, _v.seq < bindparam("before", type_=BigInteger()), *_current)
    .order_by(_v.seq.desc())
    .limit(_limit),
    purpose="Read a batch of embeddings of a memory, newest first.",
)
_BY_ID = Statement(
    "memory_entries_by_id",
    select(*ENTRY_COLUMNS).where(_e.memory_id == _memory, member(_e.id, "ids"), *_current),
    purpose="Read the entries that a search by meaning found.",
)
_UNINDEXED = Statement(
    "memory_unindexed",
    select(_m.id, _m.tenant, _m.last_seq)
    .select_from(memories.outerjoin(memory_indexes, _x.memory_id == _m.id))
    .where(
        _m.id > bindparam("after", type_=Text()),
        or_(
            _x.memory_id.is_(None),
            _x.indexed_seq < _m.last_seq,
            _x.model != bindparam("model", type_=Text()),
        ),
        _m.last_seq > literal_column("1"),
    )
    .order_by(_m.id)
    .limit(_limit),
    purpose="Find memories with entries that have no embedding.",
)


@dataclass(frozen=True, slots=True)
class IndexState:
    """The entries of a memory that have embeddings. `model` is None before the first embedding."""

    tenant: str
    last_seq: int
    model: str | None
    indexed_seq: int


@dataclass(frozen=True, slots=True)
class UnindexedEntry:
    """An entry that needs an embedding."""

    id: str
    seq: int
    text: str


async def index_state(database: Database, memory_id: str) -> IndexState | None:
    """Return which entries of a memory have embeddings, or None if the memory does not exist."""
    rows = await database.query(_INDEX, memory_id=memory_id)
    if not rows:
        return None
    row = rows[0]
    return IndexState(row["tenant"], row["last_seq"], row["model"], row["indexed_seq"] or 0)


async def unindexed_memories(database: Database, model: str, after: str, limit: int) -> Sequence[tuple[str, str, int]]:
    """Return id, tenant and last number of memories with entries that have no embedding of this model, by id."""
    rows = await database.query(_UNINDEXED, model=model, after=after, limit=limit)
    return [(row["id"], row["tenant"], row["last_seq"]) for row in rows]


async def entries_to_embed(database: Database, memory_id: str, after: int, limit: int) -> Sequence[UnindexedEntry]:
    """Return the next entries without an embedding, in their order."""
    rows = await database.query(_TO_EMBED, memory_id=memory_id, after=after, limit=limit)
    return [UnindexedEntry(row["id"], row["seq"], f"{row['summary']}\n{row['text']}".strip()) for row in rows]


async def start_index(database: Database, memory_id: str, model: str) -> None:
    """Delete the embeddings of a memory, which are of another model or no longer wanted."""

    async def work(session: Session) -> None:
        await session.fetch(_CLEAR, memory_id=memory_id)
        await session.fetch(_SET_INDEX, memory_id=memory_id, model=model, seq=0)

    await database.transact(work)


async def store_vectors(
    database: Database, memory_id: str, model: str, vectors: Sequence[tuple[UnindexedEntry, Vector]], seq: int
) -> None:
    """Store embeddings, and up to which number the memory has them, in one transaction."""
    members = [(entry.id, memory_id, entry.seq, pack_unit(vector)) for entry, vector in vectors]

    async def work(session: Session) -> None:
        await session.fetch(_INSERT, members)
        await session.fetch(_SET_INDEX, memory_id=memory_id, model=model, seq=seq)

    await database.transact(work)


async def nearest_entries(database: Database, memory_id: str, query: Vector, limit: int) -> list[str]:
    """Return the ids of the entries nearest to a vector, best first."""
    unit = pack_unit(query)
    best: list[Found] = []
    before, scanned = 2**62, 0
    while scanned < MAX_SCANNED:
        rows = await database.query(_SCAN, memory_id=memory_id, before=before, limit=SCAN_PAGE)
        # In a thread: a page of long vectors takes tens of milliseconds.
        best = await asyncio.to_thread(better, best, unit, rows, limit)
        scanned += len(rows)
        if len(rows) < SCAN_PAGE:
            break
        before = rows[-1]["seq"]
    return [entry_id for _, _, entry_id in sorted(best, reverse=True)]


async def entries_by_id(database: Database, tenant: str, memory_id: str, ids: Sequence[str]) -> dict[str, MemoryEntry]:
    """Return the entries with these ids that exist and are not corrected."""
    head = await read_head(database, tenant, memory_id)
    rows = await database.query(_BY_ID, memory_id=memory_id, ids=text_list(database.dialect, ids))
    return {row["id"]: entry_from(row, head.applied_seq) for row in rows}


def pack_unit(vector: Vector) -> bytes:
    """Return a vector of length one as bytes. A vector without direction stays as it is."""
    length = math.hypot(*vector) or 1.0
    return array("f", [number / length for number in vector]).tobytes()
