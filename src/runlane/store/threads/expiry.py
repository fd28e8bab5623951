"""Threads whose time to live has ended, and everything of a deleted tenant.

The time to live of a thread restarts when a run of it ends. A thread with an open run does not expire. Depending on its
strategy, an expired thread is deleted, or only its checkpoints before the newest are.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Table, Text, and_, bindparam, delete, select, update

from runlane.domain.graph import PruneStrategy, key_of_thread, thread_ordering_key
from runlane.store.queue.ordering import key_locks
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once
from runlane.store.sql.schema import (
    checkpoint_values,
    checkpoint_writes,
    checkpoints,
    store_items,
    thread_runs,
    threads,
)
from runlane.store.sql.statement import Statement
from runlane.store.threads.deletion import delete_threads, keep_latest

# The number is small, because a thread may have many checkpoints.
THREADS_AT_ONCE: Final = 20

_over = and_(threads.c.expires_at.is_not(None), threads.c.expires_at <= now_once(), threads.c.open_runs == lit(0))
_EXPIRED = Statement(
    "expired_threads",
    select(threads.c.tenant, threads.c.id).where(_over).order_by(threads.c.expires_at).limit(lit(THREADS_AT_ONCE)),
    purpose="Find threads whose time to live has ended.",
)
_LOCK = Statement(
    "lock_expired_threads",
    select(threads.c.key, threads.c.ttl_strategy)
    .where(member(threads.c.key, "keys"), _over)
    .order_by(threads.c.key)
    .with_for_update(),
    purpose="Lock threads that are still expired while they are deleted.",
)
_KEEP = Statement(
    "keep_expired_threads",
    update(threads).where(member(threads.c.key, "keys")).values(expires_at=None),
    purpose="Keep threads whose old checkpoints were deleted until they are used again.",
)

_tenant = bindparam("tenant", type_=Text())
_of_tenant = select(threads.c.key).where(threads.c.tenant == _tenant)


def _drop(table: Table) -> Statement:
    owned = table.c.tenant == _tenant if "tenant" in table.c else table.c.thread.in_(_of_tenant)
    return Statement(
        f"delete_{table.name}_of_tenant",
        delete(table).where(owned),
        purpose=f"Delete the rows of a deleted tenant in {table.name}.",
    )


# Threads are deleted last, because the other rows are found through them.
_DROPS: Final = [
    _drop(table)
    for table in (
        checkpoints,
        checkpoint_values,
        checkpoint_writes,
        thread_runs,
        store_items,
        threads,
    )
]


async def expire_threads(session: Session) -> int:
    """Delete some expired threads, or their old checkpoints; return how many threads were found."""
    found = await session.fetch(_EXPIRED)
    if not found:
        return 0
    keys = [thread_ordering_key(row["tenant"], row["id"]) for row in found]
    # Locks come before rows. No run of these threads is accepted while the locks are held.
    await session.lock(exclusive=key_locks(keys))
    rows = await session.fetch(_LOCK, keys=session.texts(sorted(map(key_of_thread, keys))))
    kept = [row["key"] for row in rows if row["ttl_strategy"] == PruneStrategy.KEEP_LATEST]
    for key in kept:
        await keep_latest(session, key)
    if kept:
        await session.fetch(_KEEP, keys=session.texts(kept))
    await delete_threads(session, [row["key"] for row in rows if row["key"] not in kept])
    return len(found)


async def drop_threads(session: Session, tenant: str) -> None:
    """Delete the threads and items of a deleted tenant."""
    for statement in _DROPS:
        await session.fetch(statement, tenant=tenant)
