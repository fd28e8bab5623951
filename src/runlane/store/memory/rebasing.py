"""Append superseded operations again, with new numbers, after the operations of other processes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Text, bindparam, update

from runlane.domain.memory import MemoryOpState
from runlane.store.memory.copying import replace_copy
from runlane.store.memory.operations import PlannedOp, apply_ops, log_ops
from runlane.store.memory.ownership import Acquired
from runlane.store.sql.database import Database, Session
from runlane.store.sql.schema.memory import memories
from runlane.store.sql.statement import Statement

_LAST = Statement(
    "memory_set_last_seq",
    update(memories)
    .where(memories.c.id == bindparam("memory_id", type_=Text()))
    .values(last_seq=bindparam("last", type_=BigInteger())),
    purpose="Store the number of the last operation after superseded ones were appended.",
)


async def append_again(database: Database, file: Database, acquired: Acquired, waiting: Sequence[PlannedOp]) -> None:
    """Read the memory again and add the waiting operations after its last one.

    The copy and the operations are stored in one transaction, so that a crash loses none of the operations.
    """
    memory_id: str = acquired.row["id"]
    last_seq: int = acquired.row["last_seq"]
    again = [op.with_seq(last_seq + index) for index, op in enumerate(waiting, start=1)]

    async def append(session: Session) -> None:
        await apply_ops(session, again)
        await log_ops(session, again, {memory_id: MemoryOpState.PENDING})
        await session.fetch(_LAST, memory_id=memory_id, last=last_seq + len(again))

    await replace_copy(database, file, acquired.row, acquired.epoch, append)
