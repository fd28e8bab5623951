"""Apply the operations of a node to the database.

A batch is applied under the lock of its memories. For each memory the epoch must be the node's, and the numbers must
follow the last one; those that were applied before are skipped, so a batch may be sent again. So a memory in the
database is always a prefix of its log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BigInteger, FromClause, Text, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.memory import MemoryOpState
from runlane.failpoints import failpoint
from runlane.store.memory.operations import PlannedOp, apply_ops, log_ops
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member
from runlane.store.sql.schema.memory import memories
from runlane.store.sql.statement import Row, Statement

_m = memories.c

_HEADS = Statement(
    "memory_heads_to_replicate",
    select(_m.id, _m.last_seq, _m.epoch, _m.owner).where(member(_m.id, "ids")).order_by(_m.id).with_for_update(),
    purpose="Lock the memories of a batch of a node.",
)


def _advance(batch: FromClause) -> Executable:
    b = batch.c
    return update(memories).where(_m.id == b.id).values(last_seq=b.last_seq, applied_seq=b.last_seq, used_at=b.used_at)


_ADVANCE = Statement(
    "memory_advance_replicated",
    _advance,
    {"id": Text(), "last_seq": BigInteger(), "used_at": BigInteger()},
    purpose="Store up to where memories are replicated.",
)


class Verdict(StrEnum):
    """The outcome of the operations of one memory in the database."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    MISSING = "missing"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """The verdict on one memory of a batch, and the number of its last operation in the database."""

    verdict: Verdict
    last_seq: int = 0


def is_rejection(error: Exception) -> bool:
    """Return whether the database rejects the values of an operation.

    Otherwise it refuses every operation: SQLSTATE 42 is a missing permission, table or column.
    """
    return not str(getattr(error, "sqlstate", "")).startswith("42")


async def replicate(
    database: Database, node_id: str, epochs: Mapping[str, int], ops: Sequence[PlannedOp]
) -> dict[str, MemoryVerdict]:
    """Apply operations in one transaction and return the verdict on each memory."""
    by_memory: dict[str, list[PlannedOp]] = {}
    for op in ops:
        by_memory.setdefault(op.memory_id, []).append(op)

    async def work(session: Session) -> dict[str, MemoryVerdict]:
        rows = await session.fetch(_HEADS, ids=session.texts(sorted(by_memory)))
        heads = {row["id"]: row for row in rows}
        verdicts: dict[str, MemoryVerdict] = {}
        accepted: list[PlannedOp] = []
        for memory_id, given in by_memory.items():
            verdict, news = _judge(heads.get(memory_id), node_id, epochs.get(memory_id), given)
            verdicts[memory_id] = verdict
            accepted += news
        if accepted:
            await apply_ops(session, accepted)
            await log_ops(session, accepted, dict.fromkeys(by_memory, MemoryOpState.APPLIED))
            last = {op.memory_id: (op.memory_id, op.seq, op.created_at_us) for op in accepted}
            await session.fetch(_ADVANCE, list(last.values()))
        failpoint("replicate.before_commit")
        return verdicts

    return await database.transact(work)


def _judge(
    head: Row | None, node_id: str, epoch: int | None, ops: Sequence[PlannedOp]
) -> tuple[MemoryVerdict, Sequence[PlannedOp]]:
    """Return the verdict on the operations of one memory, and those that are new."""
    if head is None:
        return MemoryVerdict(Verdict.MISSING), ()
    last_seq: int = head["last_seq"]
    if head["owner"] != node_id or head["epoch"] != epoch:
        return MemoryVerdict(Verdict.SUPERSEDED, last_seq), ()
    news = [op for op in ops if op.seq > last_seq]
    if news and news[0].seq != last_seq + 1:
        return MemoryVerdict(Verdict.GAP, last_seq), ()
    return MemoryVerdict(Verdict.APPLIED, news[-1].seq if news else last_seq), news
