"""The quota of memories: how many a tenant may have.

Where memories are in the database of the quotas, the tenant is locked while one is created. A memory file is separate
from that database: the transaction on the file is exclusive, and the limit is read before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sqlalchemy import Text, bindparam, func, select

from runlane.domain.quota import MEMORIES, QuotaUse, check_number
from runlane.store.access.quotas import check_one_more, stored_limit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.schema.memory import memories
from runlane.store.sql.statement import Statement

_COUNT = Statement(
    "memory_count_of_tenant",
    select(func.count().label("used")).where(memories.c.tenant == bindparam("tenant", type_=Text())),
    purpose="Count the memories of a tenant in a memory file.",
)


async def room_for_memory(runs: Database, shared: Database, tenant: str) -> Callable[[Session], Awaitable[None]]:
    """Return a check for the transaction that creates a memory. It raises QuotaReached."""
    if runs is shared:
        return lambda session: check_one_more(session, tenant, MEMORIES, None)
    limit = await stored_limit(runs, tenant, MEMORIES)

    async def check(session: Session) -> None:
        if limit is not None:
            used = (await session.fetch(_COUNT, tenant=tenant))[0]["used"]
            refusal = check_number(tenant, MEMORIES, limit, used)
            if refusal is not None:
                raise refusal

    return check


async def with_file_use(uses: Sequence[QuotaUse], file: Database, tenant: str) -> Sequence[QuotaUse]:
    """Return the quotas with the number of memories in a file."""
    (row,) = await file.query(_COUNT, tenant=tenant)
    return [replace(use, used=row["used"]) if use.name == MEMORIES and use.limit is not None else use for use in uses]
