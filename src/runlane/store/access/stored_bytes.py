"""How many bytes a tenant has stored: inputs, results and events of its runs, and its own stored events.

Only tenants with the quota `stored_bytes` are counted. What a request adds is added to the count in its transaction,
under the tenant's lock. What workers and retention change is found by counting everything again every few minutes, in
pages, without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, func, or_, select, update

from runlane.domain.quota import STORED_BYTES, check_stored_bytes
from runlane.domain.run import Status
from runlane.domain.text import utf8_size
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.access.tenants import tenant_lock
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import byte_size, lit, now_us
from runlane.store.sql.schema import run_events, run_inputs, run_results, runs, stored_events, tenant_quotas
from runlane.store.sql.statement import Statement

COUNT_AGAIN_US: Final = 300 * 1_000_000
_PAGE: Final = 2_000

_tenant = bindparam("tenant", type_=Text())
_of_quota = (tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name == lit(STORED_BYTES))


def _sum(table: Any, columns: Iterable[ColumnElement[Any]], ids: Select[Any]) -> ColumnElement[int]:
    size = sum((func.coalesce(byte_size(column), lit(0)) for column in columns), lit(0))
    return select(func.coalesce(func.sum(size), lit(0))).where(table.c.run_id.in_(ids)).scalar_subquery()


def _bytes_of(name: str, page: Select[Any], purpose: str) -> Statement:
    runs_of_page = page.cte("page")
    ids = select(runs_of_page.c.id)
    size = (
        _sum(run_inputs, [run_inputs.c.input], ids)
        + _sum(run_results, [run_results.c.result, run_results.c.error, run_results.c.state], ids)
        + _sum(run_events, [run_events.c.data], ids)
    )
    last = select(func.max(runs_of_page.c.id)).scalar_subquery()
    return Statement(name, select(last.label("last"), size.label("size")), purpose=purpose)


# By the index of ended runs, page by page. Open runs are fewer.
_ENDED = _bytes_of(
    "bytes_of_ended_runs",
    select(runs.c.id)
    .where(
        runs.c.tenant == _tenant,
        runs.c.status == bindparam("status", type_=Text()),
        runs.c.ended_at.is_not(None),
        runs.c.id > bindparam("after", type_=Text()),
    )
    .order_by(runs.c.id)
    .limit(lit(_PAGE)),
    "Count the bytes of some ended runs of a tenant.",
)
_OPEN = _bytes_of(
    "bytes_of_open_runs",
    select(runs.c.id).where(runs.c.tenant == _tenant, runs.c.ended_at.is_(None)),
    "Count the bytes of the open runs of a tenant.",
)
_EVENTS = Statement(
    "bytes_of_stored_events",
    select(func.coalesce(func.sum(byte_size(stored_events.c.data)), lit(0)).label("size")).where(
        stored_events.c.tenant == _tenant
    ),
    purpose="Count the bytes of the stored events of a tenant.",
)
_READ = Statement("read_stored_bytes", select(tenant_quotas).where(*_of_quota), purpose="Read the quota of bytes.")
_SET = Statement(
    "set_stored_bytes",
    update(tenant_quotas).where(*_of_quota).values(used=bindparam("used", type_=BigInteger()), counted_at=now_us()),
    purpose="Store how many bytes a tenant has stored.",
)
_DUE = Statement(
    "take_stored_bytes_to_count",
    update(tenant_quotas)
    .where(
        tenant_quotas.c.name == lit(STORED_BYTES),
        or_(tenant_quotas.c.counted_at.is_(None), tenant_quotas.c.counted_at < now_us() - lit(COUNT_AGAIN_US)),
    )
    .values(counted_at=now_us())
    .returning(tenant_quotas.c.tenant),
    purpose="Take the tenants whose bytes this process counts again.",
)


@dataclass(frozen=True, slots=True)
class _Quota:
    most: int
    used: int


async def _read(session: Session, tenant: str) -> _Quota | None:
    rows = await session.fetch(_READ, tenant=tenant)
    return _Quota(rows[0]["most"], rows[0]["used"] or 0) if rows else None


async def add_stored(session: Session, tenant: str, texts: Iterable[str]) -> None:
    """Count what a request stores beside runs, if the tenant has the quota. Raises QuotaReached."""
    await session.lock(exclusive=[tenant_lock(tenant)])
    quota = await _read(session, tenant)
    if quota is None:
        return
    size = sum(map(utf8_size, texts))
    refusal = check_stored_bytes(tenant, quota.most, quota.used, size)
    if refusal is not None:
        raise refusal
    await session.fetch(_SET, tenant=tenant, used=quota.used + size)
    await warn_of_quota(session, tenant, STORED_BYTES, quota.most, quota.used, quota.used + size)


async def due_counts(session: Session) -> list[str]:
    """Return the tenants whose bytes are to be counted again, and keep other processes from counting them."""
    return [row["tenant"] for row in await session.fetch(_DUE)]


async def count_again(database: Database, tenant: str) -> None:
    """Count the bytes of a tenant. What requests add meanwhile may be counted twice, until the next time."""
    before = await database.transact(lambda session: _read(session, tenant))
    if before is None:
        return
    counted = await _count(database, tenant)

    async def store(session: Session) -> None:
        await session.lock(exclusive=[tenant_lock(tenant)])
        quota = await _read(session, tenant)
        if quota is not None:
            used = counted + max(0, quota.used - before.used)
            await session.fetch(_SET, tenant=tenant, used=used)
            await warn_of_quota(session, tenant, STORED_BYTES, quota.most, quota.used, used)

    await database.transact(store)


async def _count(database: Database, tenant: str) -> int:
    total = int((await database.query(_OPEN, tenant=tenant))[0]["size"])
    total += int((await database.query(_EVENTS, tenant=tenant))[0]["size"])
    for status in Status:
        after: str | None = "" if status.terminal else None
        while after is not None:
            (row,) = await database.query(_ENDED, tenant=tenant, status=status.value, after=after)
            total += int(row["size"])
            after = row["last"]
    return total
