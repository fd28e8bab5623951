"""Delete expired entries, old operation ids, and copies of memories that are in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Text, bindparam, delete, func, select, tuple_, update

from runlane.store.memory.rows import UNKEYED
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema.memory import memories, memory_entries, memory_ops, memory_vectors
from runlane.store.sql.statement import Statement

PURGED_AT_ONCE: Final = 1000

_e, _o, _m = memory_entries.c, memory_ops.c, memories.c
_limit = bindparam("limit", type_=Integer())

# Replication sends the row of an entry that is not replicated, so that row is kept.
_replicated = select(_m.id).where(_m.id == _e.memory_id, _m.applied_seq >= _e.changed_seq).exists()
_EXPIRED = Statement(
    "memory_expired_entries",
    select(_e.id)
    .where(_e.expires_at.is_not(None), _e.expires_at <= now_us(), _replicated)
    .order_by(_e.expires_at)
    .limit(_limit),
    purpose="Find replicated entries that have expired.",
)
_PURGE = Statement(
    "memory_purge_expired",
    update(memory_entries)
    .where(member(_e.id, "ids"))
    .values(
        text="",
        summary="",
        metadata="{}",
        tags="{}",
        correction_reason=None,
        deleted_at=func.coalesce(_e.deleted_at, _e.expires_at),
        expires_at=None,
    ),
    purpose="Delete the content of expired entries.",
)
_PURGE_VECTORS = Statement(
    "memory_purge_vectors",
    delete(memory_vectors).where(member(memory_vectors.c.entry_id, "ids")),
    purpose="Delete the embeddings of expired entries.",
)


def _prune(*conditions: ColumnElement[bool]) -> Statement:
    old = select(_o.memory_id, _o.seq).where(
        _o.created_at < now_us() - bindparam("age_us", type_=BigInteger()), _o.state == lit("applied"), *conditions
    )
    return Statement(
        "memory_prune_ops",
        delete(memory_ops)
        .where(tuple_(_o.memory_id, _o.seq).in_(old.order_by(_o.created_at).limit(_limit)))
        .returning(_o.seq),
        purpose="Delete the ids of operations that are older than repeated requests are recognized.",
    )


# The index of a file has only the operations with an idempotency key; SQLite needs the condition to use it.
_PRUNE: Final = {"sqlite": _prune(_o.fingerprint != UNKEYED), "postgresql": _prune()}
_waits = _m.last_seq > _m.applied_seq
_IDLE = Statement(
    "memory_idle_copies",
    select(_m.id)
    .where(_m.used_at < now_us() - bindparam("age_us", type_=BigInteger()), ~_waits)
    .order_by(_m.used_at)
    .limit(_limit),
    purpose="Find copies of memories that were not used for long and are replicated.",
)
_OLDEST = Statement(
    "memory_oldest_copies",
    select(_m.id).where(~_waits).order_by(_m.used_at).limit(_limit),
    purpose="Find the replicated copies that were not used for longest.",
)
_REPLICATED = Statement(
    "memory_replicated_copies",
    select(_m.id).where(_m.id > bindparam("after", type_=Text()), ~_waits).order_by(_m.id).limit(_limit),
    purpose="Read the ids of replicated copies.",
)
_EXISTING = Statement(
    "memory_existing", select(_m.id).where(member(_m.id, "ids")), purpose="Read which memories exist."
)
_COPIES = Statement(
    "memory_count_copies", select(func.count().label("copies")).select_from(memories), purpose="Count copies."
)


async def purge_expired(database: Database) -> int:
    """Delete the content of expired entries; return how many."""

    async def work(session: Session) -> int:
        ids = [row["id"] for row in await session.fetch(_EXPIRED, limit=PURGED_AT_ONCE)]
        if ids:
            await session.fetch(_PURGE, ids=session.texts(ids))
            await session.fetch(_PURGE_VECTORS, ids=session.texts(ids))
        return len(ids)

    return await database.transact(work)


async def prune_ops(database: Database, hours: float) -> int:
    """Delete the ids of old operations; return how many."""

    async def work(session: Session) -> int:
        return len(
            await session.fetch(_PRUNE[session.dialect], age_us=round(hours * 3_600_000_000), limit=PURGED_AT_ONCE)
        )

    return await database.transact(work)


async def idle_copies(file: Database, days: float, limit: int) -> Sequence[str]:
    """Return copies that were not used for this time and have no waiting operations."""
    rows = await file.query(_IDLE, age_us=round(days * 86_400_000_000), limit=limit)
    return [row["id"] for row in rows]


async def oldest_copies(file: Database, limit: int) -> Sequence[str]:
    """Return the least recently used copies without waiting operations."""
    return [row["id"] for row in await file.query(_OLDEST, limit=limit)]


async def replicated_copies(file: Database, after: str, limit: int) -> Sequence[str]:
    """Return copies without waiting operations, by id."""
    return [row["id"] for row in await file.query(_REPLICATED, after=after, limit=limit)]


async def deleted_memories(database: Database, memory_ids: Sequence[str]) -> Sequence[str]:
    """Return those of the memories that do not exist in the database."""

    async def work(session: Session) -> set[str]:
        return {row["id"] for row in await session.fetch(_EXISTING, ids=session.texts(memory_ids))}

    existing = await database.transact(work)
    return [memory_id for memory_id in memory_ids if memory_id not in existing]


async def count_copies(file: Database) -> int:
    """Return how many memories a file has."""
    return (await file.query(_COPIES))[0]["copies"]
