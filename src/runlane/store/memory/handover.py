"""Requests for memories that a living node owns, and their release to the process that requested them.

A request counts for a short time by the clock of the database, and the process that needs the memory renews it. While
it counts, only that process may take the memory once it is released, so an owner with many callers cannot win it back
at once. A request of a process that has ended expires. Requests only determine the next owner; the owner and the epoch
of a memory determine which writes are valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Text, bindparam, select, update

from runlane.errors import Conflict, MemoryOwnedElsewhere, Unavailable
from runlane.store.memory.planning import missing_memory
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_once, now_us
from runlane.store.sql.schema.memory import memories, memory_nodes
from runlane.store.sql.statement import Row, Statement

REQUEST_SECONDS: Final = 2.0
_AT_ONCE: Final = 100

_m, _n = memories.c, memory_nodes.c
_memory = bindparam("memory_id", type_=Text())
_node = bindparam("node", type_=Text())


def request_counts() -> ColumnElement[bool]:
    """Return the condition that a memory is requested at this moment."""
    return _m.requested_at > now_us() - round(REQUEST_SECONDS * 1_000_000)


def living_owner_url() -> ColumnElement[str]:
    """Return the address of the node that owns a memory, or null if none owns it with a valid lease."""
    return select(_n.url).where(_n.id == _m.owner, _n.lease_until > now_us()).scalar_subquery()


_LOCK = Statement(
    "memory_lock_to_request",
    select(
        _m.owner,
        _m.requested_by,
        request_counts().label("request_counts"),
        living_owner_url().label("owner_url"),
    )
    .where(_m.id == _memory)
    .with_for_update(of=memories),
    purpose="Lock a memory and read which node owns it and which process has requested it.",
)
_REQUEST = Statement(
    "memory_request",
    update(memories).where(_m.id == _memory).values(requested_by=_node, requested_at=now_us()),
    purpose="Request a memory from the node that owns it.",
)
_WITHDRAW = Statement(
    "memory_withdraw_request",
    update(memories).where(_m.id == _memory, _m.requested_by == _node).values(requested_by=None),
    purpose="End the request of a process for a memory.",
)
_REQUESTED = Statement(
    "memory_requested",
    select(_m.id)
    .where(
        _m.owner == _node,
        _m.requested_by.is_not(None),
        _m.requested_by != _node,
        _m.requested_at > now_once() - round(REQUEST_SECONDS * 1_000_000),
    )
    .order_by(_m.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read which memories of a node are requested.",
)
# The number of the last operation is compared again: a memory is released only if the database has all of them.
_RELEASE = Statement(
    "memory_hand_over",
    update(memories)
    .where(
        _m.id == _memory,
        _m.owner == _node,
        _m.epoch == bindparam("epoch_of", type_=BigInteger()),
        _m.last_seq == bindparam("last", type_=BigInteger()),
        request_counts(),
    )
    .values(owner=None, requested_at=now_us())
    .returning(_m.requested_by),
    purpose="Release a memory to the process that requested it.",
)


class ReservedMemory(MemoryOwnedElsewhere):
    """The memory was released for another process, which has a moment to take it."""

    def __init__(self, memory_id: str, requested_by: str) -> None:
        super().__init__(memory_id, requested_by, "")
        Conflict.__init__(self, f'The memory "{memory_id}" is reserved for {requested_by}, which requested it. Retry.')


class MemoryReleased(Unavailable):
    """The memory was released before the change was written, and nothing was stored."""


@dataclass(frozen=True, slots=True)
class RequestedMemory:
    """The result of a request. With `blocked`, the caller cannot take the memory yet. `owner` is the owning node."""

    blocked: bool
    owner: str | None


def reservation(memory_id: str, row: Row, process: str) -> ReservedMemory | None:
    """Return the refusal for a memory that is reserved for another process than this one."""
    if row["requested_by"] in (None, process) or not row["request_counts"]:
        return None
    return ReservedMemory(memory_id, row["requested_by"])


async def request_memory(database: Database, process: str, memory_id: str) -> RequestedMemory:
    """Request a memory for a process, or renew its request, unless the request of another one counts."""

    async def work(session: Session) -> RequestedMemory:
        rows = await session.fetch(_LOCK, memory_id=memory_id)
        if not rows:
            raise missing_memory(memory_id)
        row = rows[0]
        living = row["owner"] is not None and row["owner"] != process and row["owner_url"] is not None
        owner = row["owner"] if living else None
        if reservation(memory_id, row, process) is not None:
            return RequestedMemory(blocked=True, owner=owner)
        await session.fetch(_REQUEST, memory_id=memory_id, node=process)
        return RequestedMemory(blocked=living, owner=owner)

    return await database.transact(work)


async def withdraw_request(database: Database, process: str, memory_id: str) -> None:
    """End the request of a process for a memory."""

    async def work(session: Session) -> None:
        await session.fetch(_WITHDRAW, memory_id=memory_id, node=process)

    await database.transact(work)


async def requested_memories(database: Database, node_id: str) -> Sequence[str]:
    """Return memories of a node that other processes request at this moment."""
    rows = await database.query(_REQUESTED, node=node_id, limit=_AT_ONCE)
    return [row["id"] for row in rows]


async def release_requested(database: Database, node_id: str, memory_id: str, epoch: int, last_seq: int) -> str | None:
    """Release a memory to the process that requested it, and return that process.

    Return None if the request ended, or if the database does not have exactly the operations of the node.
    """

    async def work(session: Session) -> str | None:
        rows = await session.fetch(_RELEASE, memory_id=memory_id, node=node_id, epoch_of=epoch, last=last_seq)
        return rows[0]["requested_by"] if rows else None

    return await database.transact(work)
