"""The log of operations in the file of a node: those that wait for replication, were replicated, or were rejected.

An entry that was added without an idempotency key is logged by its own row: the id of the entry is the id of the
operation, and the operation waits while its number is higher than the last replicated one. Other operations have a row
in the log, and so has an added entry that was rejected, or whose row changed before it was replicated.

A memory is parked when the database rejects one of its operations: that one is `rejected`, those after it are
`blocked`. Other memories are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.memory import MemoryOp, MemoryOpKind, MemoryOpState, ParkedMemory
from runlane.domain.text import clean_text
from runlane.store.memory.local_file import LocalFile
from runlane.store.memory.operations import PlannedOp, stored_op
from runlane.store.memory.rows import OP_COLUMNS, UNKEYED, op_from
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, optional
from runlane.store.sql.schema.memory import memories, memory_entries, memory_ops
from runlane.store.sql.statement import Row, Statement

# The prefixes of reasons after which all waiting operations of a memory can only be appended again or dropped.
SUPERSEDED = "superseded: "
DELETED = "deleted: "
_MAX_ERROR = 2000

_o, _m, _e = memory_ops.c, memories.c, memory_entries.c
_memory = bindparam("memory_id", type_=Text())
_waits = _o.state != lit("applied")
# Numbers have no gap, so the operations of a memory that wait are those after `applied_seq`. The log needs no index of
# its own for them, because the memories with such operations have a small one.
_unreplicated = _m.last_seq > _m.applied_seq
_logged = memories.join(memory_ops, (_o.memory_id == _m.id) & (_o.seq > _m.applied_seq))


def _in_state(state: MemoryOpState) -> ColumnElement[bool]:
    return _o.state == lit(state.value)


# An added entry without a payload has its content in its own row, whether or not it has a row in the log. A cross join
# is executed in the written order, so the memories are read first. Both parts are in the order of memories, so SQLite
# merges them, and a limit bounds what is read, except that the logged operations of one memory may be sorted as a
# whole.
_WAITING_OPS: Final = (
    "select m.id as memory_id, o.seq as seq, o.op_id, o.fingerprint, o.kind, o.subject, o.payload, o.created_at, "
    "e.text, e.summary, e.metadata, e.tags, e.expires_at from memories m {by} "
    "cross join memory_ops o on o.memory_id = m.id and o.seq > m.applied_seq "
    "left join memory_entries e on o.payload is null and e.memory_id = o.memory_id and e.seq = o.seq where {where} "
    "union all select m.id, e.seq, e.id, '', 'add_entry', e.id, null, e.created_at, "
    "e.text, e.summary, e.metadata, e.tags, e.expires_at from memories m {by} "
    "cross join memory_entries e on e.memory_id = m.id and e.seq > m.applied_seq where {where} and not exists "
    "(select 1 from memory_ops o where o.memory_id = e.memory_id and o.seq = e.seq) order by memory_id, seq"
)
_PENDING = Statement(
    "memory_pending_ops",
    text(
        f"{_WAITING_OPS} limit :limit".format(
            by="indexed by memories_unreplicated",
            where="m.last_seq > m.applied_seq and not m.parked and m.id > :after",
        )
    ).bindparams(bindparam("after", type_=Text()), bindparam("limit", type_=Integer())),
    purpose="Read operations that wait for replication, by memory, in their order.",
)
_WAITING = Statement(
    "memory_waiting_ops",
    text(_WAITING_OPS.format(by="", where="m.id = :memory_id")).bindparams(_memory),
    purpose="Read the operations of a memory that are not replicated.",
)
_REJECTED = Statement(
    "memory_rejected_ops",
    select(*OP_COLUMNS)
    .select_from(_logged)
    .where(_unreplicated, _m.parked, _in_state(MemoryOpState.REJECTED), optional("memory_id", _m.id))
    .order_by(_o.memory_id),
    purpose="Read the operations that the database rejected.",
)
_oldest = func.coalesce(
    select(_o.created_at).where(_o.memory_id == _m.id, _o.seq == _m.applied_seq + 1).scalar_subquery(),
    select(_e.created_at).where(_e.memory_id == _m.id, _e.seq == _m.applied_seq + 1).scalar_subquery(),
)
_COUNTS = Statement(
    "memory_waiting_counts",
    select(_m.id, (_m.last_seq - _m.applied_seq).label("waiting"), _oldest.label("oldest")).where(_unreplicated),
    purpose="Count the operations that are not replicated.",
)


def _mark_applied(batch: FromClause) -> Executable:
    return (
        update(memory_ops)
        .where(_o.memory_id == batch.c.memory_id, _o.seq <= batch.c.seq, _waits, _o.fingerprint != UNKEYED)
        .values(state=MemoryOpState.APPLIED.value, payload=None, error=None)
    )


def _drop_applied(batch: FromClause) -> Executable:
    # Joined, so that SQLite reads the operations of each memory by its key.
    logged = memory_ops.alias("logged")
    applied = (
        select(logged.c.memory_id, logged.c.seq)
        .select_from(batch.join(logged, (logged.c.memory_id == batch.c.memory_id) & (logged.c.seq <= batch.c.seq)))
        .where(logged.c.state != lit("applied"), logged.c.fingerprint == UNKEYED)
    )
    return delete(memory_ops).where(tuple_(_o.memory_id, _o.seq).in_(applied))


def _mark_heads(batch: FromClause) -> Executable:
    return (
        update(memories).where(_m.id == batch.c.memory_id, _m.applied_seq < batch.c.seq).values(applied_seq=batch.c.seq)
    )


_MARKS = {"memory_id": Text(), "seq": BigInteger()}
_MARK_OPS = Statement("memory_mark_ops", _mark_applied, _MARKS, purpose="Mark operations as replicated.")
_DROP_OPS = Statement(
    "memory_drop_ops",
    _drop_applied,
    _MARKS,
    purpose="Delete replicated operations without an idempotency key from the log of a file.",
)
_MARK_HEADS = Statement("memory_mark_heads", _mark_heads, _MARKS, purpose="Store up to where memories are replicated.")
_seq = bindparam("seq_of", type_=BigInteger())
_LOG_ADDED = Statement(
    "memory_log_added",
    text(
        "insert into memory_ops (memory_id, seq, op_id, fingerprint, kind, subject, state, attempts, created_at) "
        "select e.memory_id, e.seq, e.id, '', 'add_entry', e.id, 'pending', 0, e.created_at from memory_entries e "
        "where e.memory_id = :memory_id and e.seq = :seq_of on conflict (memory_id, seq) do nothing"
    ).bindparams(_memory, _seq),
    purpose="Log an added entry that the database rejected, unless it is in the log.",
)
_REJECT = Statement(
    "memory_reject_op",
    update(memory_ops)
    .where(_o.memory_id == _memory, _o.seq == _seq)
    .values(state=MemoryOpState.REJECTED.value, error=bindparam("problem", type_=Text()), attempts=_o.attempts + 1),
    purpose="Store why the database rejected an operation.",
)
_BLOCK = Statement(
    "memory_block_ops",
    update(memory_ops)
    .where(_o.memory_id == _memory, _in_state(MemoryOpState.PENDING))
    .values(state=MemoryOpState.BLOCKED.value),
    purpose="Keep the operations after a rejected one from being replicated.",
)
_PARK = Statement(
    "memory_park",
    update(memories).where(_m.id == _memory).values(parked=bindparam("is_parked", type_=Integer())),
    purpose="Park a memory, or release it.",
)
_UNBLOCK = Statement(
    "memory_unblock_ops",
    update(memory_ops).where(_o.memory_id == _memory, _waits).values(state=MemoryOpState.PENDING.value),
    purpose="Let the operations of a parked memory be replicated.",
)
_DISCARD = Statement(
    "memory_discard_op",
    update(memory_ops)
    .where(_o.memory_id == _memory, _in_state(MemoryOpState.REJECTED))
    .values(kind=MemoryOpKind.DISCARDED.value, payload="{}")
    .returning(*OP_COLUMNS),
    purpose="Replace a rejected operation by one that does nothing.",
)
_HIDE = Statement(
    "memory_hide_discarded",
    update(memory_entries)
    .where(
        memory_entries.c.memory_id == _memory,
        memory_entries.c.seq == _seq,
        memory_entries.c.deleted_at.is_(None),
    )
    .values(text="", summary="", metadata="{}", tags="{}", deleted_at=memory_entries.c.created_at),
    purpose="Delete the entry of a discarded operation from the local copy.",
)
_STALE = Statement(
    "memory_mark_stale",
    update(memories).where(_m.id == _memory).values(stale=literal_column("1")),
    purpose="Have the local copy of a memory read again once it is replicated.",
)
_HEAD = Statement(
    "memory_local_head",
    select(_m.tenant, _m.last_seq, _m.applied_seq, _m.epoch, _m.parked, _m.stale).where(_m.id == _memory),
    purpose="Read the state of the local copy of a memory.",
)
_SET_EPOCH = Statement(
    "memory_set_epoch",
    update(memories).where(_m.id == _memory).values(epoch=bindparam("epoch_of", type_=BigInteger())),
    purpose="Store the epoch under which this node writes to a memory.",
)


@dataclass(frozen=True, slots=True)
class LocalHead:
    """The local copy of a memory."""

    tenant: str
    last_seq: int
    applied_seq: int
    parked: bool
    stale: bool


@dataclass(frozen=True, slots=True)
class WaitingOps:
    """How many operations of all memories wait, and since when."""

    by_memory: Mapping[str, int]
    oldest_us: int | None


async def local_head(file: Database, memory_id: str) -> LocalHead | None:
    """Return the state of the local copy, or None without one."""
    rows = await file.query(_HEAD, memory_id=memory_id)
    if not rows:
        return None
    row = rows[0]
    return LocalHead(row["tenant"], row["last_seq"], row["applied_seq"], bool(row["parked"]), bool(row["stale"]))


async def pending_ops(file: Database, after: str, limit: int) -> Sequence[PlannedOp]:
    """Return operations that wait for replication, of memories after this id, of each memory in their order."""
    return _ops(await file.query(_PENDING, after=after, limit=limit))


async def waiting_ops(file: Database, memory_id: str) -> Sequence[PlannedOp]:
    """Return all operations of a memory that are not replicated, with those that are blocked or rejected."""
    return _ops(await file.query(_WAITING, memory_id=memory_id))


def _ops(rows: Sequence[Row]) -> list[PlannedOp]:
    # Iterating over a row yields its values, in the order of the columns; reading them by name takes ten times as long.
    return [stored_op(*cast("Iterable[Any]", row)) for row in rows]


async def rejected_op(file: Database, memory_id: str) -> MemoryOp | None:
    """Return the operation for which a memory is parked, or None."""
    rows = await file.query(_REJECTED, memory_id=memory_id)
    return op_from(rows[0]) if rows else None


async def count_waiting(file: Database) -> WaitingOps:
    """Count the operations that are not replicated."""
    rows = await file.query(_COUNTS)
    return WaitingOps(
        {row["id"]: row["waiting"] for row in rows},
        min((row["oldest"] for row in rows if row["oldest"] is not None), default=None),
    )


async def parked_memories(file: Database) -> Sequence[ParkedMemory]:
    """Return the memories that wait for a decision of an operator."""
    waiting = (await count_waiting(file)).by_memory
    ops = [op_from(row) for row in await file.query(_REJECTED, memory_id=None)]
    return [
        ParkedMemory(op.memory_id, op, waiting[op.memory_id], (op.error or "").startswith(SUPERSEDED)) for op in ops
    ]


async def mark_applied(file: LocalFile, applied: Mapping[str, int]) -> None:
    """Store up to which number each memory is replicated."""
    members = list(applied.items())

    async def work(session: Session) -> None:
        # The database has the whole log. The file keeps only the rows that recognize repeated requests, and stays
        # small.
        await session.fetch(_DROP_OPS, members)
        await session.fetch(_MARK_OPS, members)
        await session.fetch(_MARK_HEADS, members)

    # A mark that is lost in a power failure is set again, because the database skips operations that it has.
    await file.transact_lazily(work)


async def set_epoch(file: Database, memory_id: str, epoch: int) -> None:
    """Store the epoch under which this node writes to a memory."""

    async def work(session: Session) -> None:
        await session.fetch(_SET_EPOCH, memory_id=memory_id, epoch_of=epoch)

    await file.transact(work)


async def park(file: Database, memory_id: str, seq: int, problem: str) -> None:
    """Stop the replication of a memory at an operation that the database rejected."""
    # Only the first line is kept, because the details that a database adds contain the written values.
    error = clean_text(problem.partition("\n")[0], _MAX_ERROR)

    async def work(session: Session) -> None:
        await session.fetch(_LOG_ADDED, memory_id=memory_id, seq_of=seq)
        await session.fetch(_REJECT, memory_id=memory_id, seq_of=seq, problem=error)
        await session.fetch(_BLOCK, memory_id=memory_id)
        await session.fetch(_PARK, memory_id=memory_id, is_parked=1)

    await file.transact(work)


async def retry_parked(file: Database, memory_id: str) -> None:
    """Let the operations of a parked memory be replicated again."""

    async def work(session: Session) -> None:
        await session.fetch(_UNBLOCK, memory_id=memory_id)
        await session.fetch(_PARK, memory_id=memory_id, is_parked=0)

    await file.transact(work)


async def discard_rejected(file: Database, memory_id: str) -> MemoryOp | None:
    """Replace the rejected operation by one that does nothing, and continue after it. Return the discarded one."""

    async def work(session: Session) -> Row | None:
        discarded = await session.fetch(_DISCARD, memory_id=memory_id)
        if not discarded:
            return None
        await session.fetch(_HIDE, memory_id=memory_id, seq_of=discarded[0]["seq"])
        await session.fetch(_UNBLOCK, memory_id=memory_id)
        await session.fetch(_PARK, memory_id=memory_id, is_parked=0)
        await session.fetch(_STALE, memory_id=memory_id)
        return discarded[0]

    row = await file.transact(work)
    return None if row is None else op_from(row)
