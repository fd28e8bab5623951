"""Ownership of memories, which determines the node that may write: a lease for each node, an epoch for each memory.

A node owns a memory while the memory names it as its owner and its lease is valid by the clock of the database. The
epoch grows with each acquisition, and a batch with an older one is refused, so a node that was cut off or frozen cannot
write after another one took the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Text, bindparam, delete, select, update

from runlane.errors import MemoryOwnedElsewhere
from runlane.store.memory.handover import living_owner_url, request_counts, reservation
from runlane.store.memory.planning import missing_memory
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us, upsert
from runlane.store.sql.schema.memory import memories, memory_nodes, memory_ops
from runlane.store.sql.statement import Row, Statement

_m, _n = memories.c, memory_nodes.c
_memory = bindparam("memory_id", type_=Text())
_node = bindparam("node", type_=Text())


def _renewal() -> Statement:
    until = now_us() + bindparam("lease_us", type_=BigInteger())
    statement = upsert(memory_nodes).values(
        id=_node, url=bindparam("url", type_=Text()), lease_until=until, started_at=now_us()
    )
    renewed = {"lease_until": statement.excluded.lease_until, "url": statement.excluded.url}
    return Statement(
        "memory_renew_node",
        statement.on_conflict_do_update(index_elements=["id"], set_=renewed),
        purpose="Renew the lease of a node, or register it.",
    )


_RENEW = _renewal()
_owner_url = living_owner_url()
_LOCK = Statement(
    "memory_lock_to_own",
    select(memories, _owner_url.label("owner_url"), request_counts().label("request_counts"))
    .where(_m.id == _memory)
    .with_for_update(of=memories),
    purpose="Lock a memory and read which node owns it.",
)
_TAKE = Statement(
    "memory_take",
    update(memories)
    .where(_m.id == _memory)
    .values(owner=_node, epoch=_m.epoch + 1, requested_by=bindparam("requested", type_=Text()))
    .returning(_m.epoch),
    purpose="Make a node the owner of a memory. Its own request ends.",
)
_RELEASE = Statement(
    "memory_release",
    update(memories).where(_m.owner == _node, member(_m.id, "ids")).values(owner=None),
    purpose="Give memories back.",
)
_RELEASE_ALL = Statement(
    "memory_release_others",
    update(memories).where(_m.owner == _node, ~member(_m.id, "ids")).values(owner=None),
    purpose="Give all memories back but those with operations that are not replicated.",
)
_SIGN_OFF = Statement(
    "memory_sign_off",
    delete(memory_nodes).where(_n.id == _node, ~select(_m.id).where(_m.owner == _node).exists()),
    purpose="Remove a node that owns nothing.",
)
_OPS_AFTER = Statement(
    "memory_ops_after",
    select(memory_ops.c.seq, memory_ops.c.op_id)
    .where(memory_ops.c.memory_id == _memory, memory_ops.c.seq > bindparam("after", type_=BigInteger()))
    .order_by(memory_ops.c.seq),
    purpose="Read which operations of a memory were applied after a number.",
)
_MEMORY = Statement("memory_row", select(memories).where(_m.id == _memory), purpose="Read the head of a memory.")
_OWNER = Statement(
    "memory_owner",
    select(_m.tenant, _m.owner, _owner_url.label("owner_url"), _m.last_seq, _m.epoch).where(_m.id == _memory),
    purpose="Read which node owns a memory.",
)


@dataclass(frozen=True, slots=True)
class KnownCopy:
    """A node's copy of a memory: the last replicated operation, and the operations that wait, by their numbers."""

    applied_seq: int
    waiting: dict[int, str]


@dataclass(frozen=True, slots=True)
class Acquired:
    """A memory that a node owns now. `row` is its head in the database.

    With `continued`, the local copy is the database's state plus the waiting operations after `row["last_seq"]`.
    """

    epoch: int
    row: Row
    continued: bool


class SupersededCopy(Exception):
    """Another process has written to the memory since, and the local copy has operations that are not replicated."""

    def __init__(self, owner: str | None, last_seq: int) -> None:
        self.last_seq = last_seq
        by = f"the node {owner}" if owner else "another process"
        super().__init__(f"{by} has written to the memory up to operation {last_seq} meanwhile")


async def renew_node(database: Database, node_id: str, url: str, lease_seconds: float) -> None:
    """Renew the lease of a node."""

    async def work(session: Session) -> None:
        await session.fetch(_RENEW, node=node_id, url=url, lease_us=round(lease_seconds * 1_000_000))

    await database.transact(work)


async def acquire(
    database: Database, node_id: str, tenant: str | None, memory_id: str, known: KnownCopy | None
) -> Acquired:
    """Make a node the owner of a memory.

    Raise MemoryOwnedElsewhere if another node owns it or it is reserved for another process, SupersededCopy if the
    node's waiting operations no longer follow the database's state.
    """

    async def work(session: Session) -> Acquired:
        rows = await session.fetch(_LOCK, memory_id=memory_id)
        if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
            raise missing_memory(memory_id)
        row = rows[0]
        if row["owner"] is not None and row["owner"] != node_id and row["owner_url"] is not None:
            raise MemoryOwnedElsewhere(memory_id, row["owner"], row["owner_url"])
        reserved = reservation(memory_id, row, node_id)
        if reserved is not None and row["owner"] != node_id:
            raise reserved
        continued = known is not None and await _continues(session, memory_id, known, row["last_seq"])
        if known is not None and known.waiting and not continued:
            raise SupersededCopy(row["owner"] if row["owner"] != node_id else None, row["last_seq"])
        requested = None if reserved is None else row["requested_by"]
        taken = await session.fetch(_TAKE, memory_id=memory_id, node=node_id, requested=requested)
        return Acquired(taken[0]["epoch"], row, continued)

    return await database.transact(work)


async def _continues(session: Session, memory_id: str, known: KnownCopy, last_seq: int) -> bool:
    """Return whether all operations that were applied since the node's last report are its own."""
    if last_seq == known.applied_seq:
        return True
    if last_seq < known.applied_seq:
        return False
    applied = await session.fetch(_OPS_AFTER, memory_id=memory_id, after=known.applied_seq)
    found = {row["seq"]: row["op_id"] for row in applied}
    return len(found) == last_seq - known.applied_seq and all(
        known.waiting.get(seq) == op_id for seq, op_id in found.items()
    )


async def release(database: Database, node_id: str, memory_ids: Sequence[str]) -> None:
    """Give memories back, so that any node may acquire them."""

    async def work(session: Session) -> None:
        await session.fetch(_RELEASE, node=node_id, ids=session.texts(memory_ids))

    await database.transact(work)


async def sign_off(database: Database, node_id: str, kept: Sequence[str]) -> None:
    """Give all memories back but those with operations that are not replicated, which wait for this node."""

    async def work(session: Session) -> None:
        await session.fetch(_RELEASE_ALL, node=node_id, ids=session.texts(kept))
        await session.fetch(_SIGN_OFF, node=node_id)

    await database.transact(work)


async def read_memory(database: Database, memory_id: str) -> Row | None:
    """Return the head of a memory in the database."""
    rows = await database.query(_MEMORY, memory_id=memory_id)
    return rows[0] if rows else None


async def check_not_owned(database: Database, memory_id: str) -> None:
    """Raise MemoryOwnedElsewhere if a node with a valid lease owns the memory."""
    row = await read_owner(database, memory_id)
    if row is not None and row["owner"] is not None and row["owner_url"] is not None:
        raise MemoryOwnedElsewhere(memory_id, row["owner"], row["owner_url"])


async def read_owner(database: Database, memory_id: str) -> Row | None:
    """Return the owner of a memory, with `owner_url` if its lease lasts; None for a memory that does not exist."""
    rows = await database.query(_OWNER, memory_id=memory_id)
    return rows[0] if rows else None
