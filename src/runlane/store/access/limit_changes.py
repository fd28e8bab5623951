"""New limits of a tenant reach every run: those that are being accepted, and those that are open.

A run is accepted by a statement that reads its tenant's row without a lock. A change of limits waits for the statements
that may have read the old row, then marks the open runs that were accepted without limits.
"""

from __future__ import annotations

from sqlalchemy import Text, bindparam, select, text, tuple_, union_all, update

from runlane.domain.run import Status
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement

_MARK_AT_ONCE = 500

# Postgres locks a statement's tables before it takes the snapshot, so later writers see what is committed now. Other
# transactions queue behind this lock, so it gives up soon and is retried.
_LOCK_TIMEOUT = Statement(
    "limit_wait_for_writers",
    text("set local lock_timeout = '1s'"),
    purpose="Bound the wait for open transactions that write runs.",
)
_BARRIER = Statement(
    "wait_for_writers",
    text("lock table runs in share mode"),
    purpose="Wait for the transactions that began before a tenant's limits changed.",
)


_of_tenant = runs.c.tenant == bindparam("tenant")
_not_running = runs.c.status != lit(Status.RUNNING)
_is_running = runs.c.status == lit(Status.RUNNING)
# A page in the order of the index of waiting runs, and every running run each time.
_PLACE = ("target", "lane", "status", "id")
_place = [runs.c[name] for name in _PLACE]
_after = [bindparam(f"after_{name}", type_=Text()) for name in _PLACE]
_unmarked_waiting = (
    select(runs.c.id)
    .where(_of_tenant, runs.c.ended_at.is_(None), _not_running, ~runs.c.limited, tuple_(*_place) > tuple_(*_after))
    .order_by(*_place)
    .limit(lit(_MARK_AT_ONCE))
    .subquery("waiting")
)
_open = union_all(
    select(_unmarked_waiting.c.id), select(runs.c.id).where(_of_tenant, _is_running, ~runs.c.limited)
).cte("open_runs")
_MARK = Statement(
    "mark_limited",
    update(runs).where(runs.c.id == _open.c.id).values(limited=True).returning(*_place),
    purpose="Put the open runs of a tenant under its new limits, page by page.",
)


async def wait_for_writers(database: Database) -> None:
    """Wait until every run that is accepted later is accepted under the limits that are stored now."""

    async def work(session: Session) -> None:
        if session.dialect == "postgresql":
            await session.fetch(_LOCK_TIMEOUT)
            await session.fetch(_BARRIER)

    await database.transact(work)


async def mark_open_runs(database: Database, tenant: str) -> None:
    """Count the runs that were accepted while the tenant had no limits.

    A run whose status changes may move to a place before the current page. The pages therefore begin again until one
    statement, which sees all runs in one snapshot, finds no more of them.
    """
    start = ("", "", "", "")
    after = start
    while True:
        places = await _mark_some(database, tenant, after)
        if len(places) < _MARK_AT_ONCE and after == start:
            return
        after = max(places) if len(places) >= _MARK_AT_ONCE else start


async def _mark_some(database: Database, tenant: str, after: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Mark some runs behind this place, and return the places of those that are not running."""
    begin = {f"after_{name}": value for name, value in zip(_PLACE, after, strict=True)}

    async def work(session: Session) -> list[tuple[str, ...]]:
        rows = await session.fetch(_MARK, tenant=tenant, **begin)
        return [tuple(row[name] for name in _PLACE) for row in rows if row["status"] != Status.RUNNING]

    return await database.transact(work)
