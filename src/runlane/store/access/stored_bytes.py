"""How many bytes a tenant has stored: inputs, results and events of its runs, stored events, threads and items.

Only tenants with the quota `stored_bytes` are counted. The bytes of a request are added to the count in its
transaction, under the tenant's lock. Changes by workers and retention are found by a recount every few minutes, in
pages, without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, Text, bindparam, func, or_, select, tuple_, update

from runlane.domain.quota import STORED_BYTES, check_stored_bytes
from runlane.domain.run import Status
from runlane.domain.text import utf8_size
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.access.tenants import tenant_lock
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import byte_size, lit, now_us
from runlane.store.sql.schema import (
    checkpoint_values,
    checkpoint_writes,
    checkpoints,
    run_events,
    run_inputs,
    run_results,
    runs,
    store_items,
    stored_events,
    tenant_quotas,
    threads,
)
from runlane.store.sql.statement import Statement

COUNT_AGAIN_US: Final = 300 * 1_000_000
_PAGE: Final = 2_000
_THREADS_PAGE: Final = 200

_tenant = bindparam("tenant", type_=Text())
_of_quota = (tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name == lit(STORED_BYTES))


def _sum(owner: ColumnElement[Any], columns: Iterable[ColumnElement[Any]], ids: Select[Any]) -> ColumnElement[int]:
    size = sum((func.coalesce(byte_size(column), lit(0)) for column in columns), lit(0))
    return select(func.coalesce(func.sum(size), lit(0))).where(owner.in_(ids)).scalar_subquery()


def _bytes_of(name: str, page: Select[Any], purpose: str) -> Statement:
    runs_of_page = page.cte("page")
    ids = select(runs_of_page.c.id)
    size = (
        _sum(run_inputs.c.run_id, [run_inputs.c.input], ids)
        + _sum(run_results.c.run_id, [run_results.c.result, run_results.c.error, run_results.c.state], ids)
        + _sum(run_events.c.run_id, [run_events.c.data], ids)
    )
    last = select(func.max(runs_of_page.c.id)).scalar_subquery()
    return Statement(name, select(last.label("last"), size.label("size")), purpose=purpose)


# Ended runs are read by their index, page by page. Open runs are fewer.
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
_ITEMS = Statement(
    "bytes_of_items",
    select(
        func.coalesce(
            func.sum(byte_size(store_items.c.value) + func.coalesce(byte_size(store_items.c.embedding), lit(0))), lit(0)
        ).label("size")
    ).where(store_items.c.tenant == _tenant),
    purpose="Count the bytes of the items that graphs of a tenant have stored.",
)


def _threads_of_page() -> Select[Any, Any, int]:
    page = (
        select(threads.c.key, threads.c.created_at, threads.c.id)
        .where(
            threads.c.tenant == _tenant,
            tuple_(threads.c.created_at, threads.c.id)
            > tuple_(bindparam("after_at", type_=BigInteger()), bindparam("after_id", type_=Text())),
        )
        .order_by(threads.c.created_at, threads.c.id)
        .limit(lit(_THREADS_PAGE))
        .cte("page")
    )
    size = (
        _sum(checkpoints.c.thread, [checkpoints.c.checkpoint], select(page.c.key))
        + _sum(checkpoint_values.c.thread, [checkpoint_values.c.value], select(page.c.key))
        + _sum(checkpoint_writes.c.thread, [checkpoint_writes.c.value], select(page.c.key))
    )
    last = select(page.c.created_at, page.c.id).order_by(page.c.created_at.desc(), page.c.id.desc()).limit(lit(1))
    newest = last.subquery("newest")
    return select(newest.c.created_at, newest.c.id, size.label("size"))


# Threads are read by their index, page by page.
_THREADS = Statement(
    "bytes_of_threads", _threads_of_page(), purpose="Count the bytes of the checkpoints of some threads of a tenant."
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
    """Count the bytes that a request stores besides runs, if the tenant has the quota. Raises QuotaReached."""
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
    """Count the bytes of a tenant. Bytes that requests add meanwhile may be counted twice until the next count."""
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
    for statement in (_EVENTS, _ITEMS):
        total += int((await database.query(statement, tenant=tenant))[0]["size"])
    total += await _count_threads(database, tenant)
    for status in Status:
        after: str | None = "" if status.terminal else None
        while after is not None:
            (row,) = await database.query(_ENDED, tenant=tenant, status=status.value, after=after)
            total += int(row["size"])
            after = row["last"]
    return total


async def _count_threads(database: Database, tenant: str) -> int:
    total, place = 0, (-1, "")
    while True:
        rows = await database.query(_THREADS, tenant=tenant, after_at=place[0], after_id=place[1])
        if not rows:
            return total
        total += int(rows[0]["size"])
        place = (rows[0]["created_at"], rows[0]["id"])
