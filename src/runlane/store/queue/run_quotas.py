"""The number of runs that a tenant starts per day, counted in the transaction that accepts them, under its lock.

Only tenants with this quota are counted. The count is a number in the row of the quota, so accepting a run counts
nothing; it begins with the runs of the day when the quota is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from sqlalchemy import BigInteger, FromClause, Integer, Text, bindparam, func, select, union_all, update
from sqlalchemy.sql.base import Executable

from runlane.domain.quota import DAY_US, RUNS_PER_DAY, check_runs_per_day, day_of
from runlane.domain.run import Status
from runlane.errors import QuotaReached
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.sql.database import Session, clock_in
from runlane.store.sql.expressions import lit, member
from runlane.store.sql.schema import runs, tenant_quotas
from runlane.store.sql.statement import Statement

_is_daily = tenant_quotas.c.name == lit(RUNS_PER_DAY)
_READ = Statement(
    "read_run_quotas",
    select(tenant_quotas).where(member(tenant_quotas.c.tenant, "ids"), _is_daily),
    purpose="Read how many runs tenants may start per day, and have started.",
)


def _store(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(tenant_quotas)
        .where(tenant_quotas.c.tenant == b.tenant, _is_daily)
        .values(day=b.day, used=b.used)
        .returning(tenant_quotas.c.tenant)
    )


_STORE = Statement(
    "count_runs_of_day",
    _store,
    {"tenant": Text(), "day": Integer(), "used": BigInteger()},
    purpose="Note how many runs tenants have started today.",
)
# One part for each index: of ended, waiting and running runs.
_of_day = (
    runs.c.tenant == bindparam("tenant", type_=Text()),
    runs.c.accepted_at >= bindparam("since", type_=BigInteger()),
)
_parts = [
    select(func.count().label("n")).where(*_of_day, *conditions)
    for conditions in (
        (runs.c.ended_at.is_not(None),),
        (runs.c.ended_at.is_(None), runs.c.status != lit(Status.RUNNING)),
        (runs.c.status == lit(Status.RUNNING),),
    )
]
_all = union_all(*_parts).subquery("parts")
_COUNT = Statement(
    "runs_accepted_since", select(func.sum(_all.c.n).label("n")), purpose="Count the runs of a tenant since a time."
)


class RunQuotas:
    """The daily quotas of some tenants while their runs are accepted, under their locks."""

    def __init__(self, now_us: int, limits: dict[str, int], used: dict[str, int]) -> None:
        self._now_us = now_us
        self._limits = limits
        self._before = dict(used)
        self._used = used

    @classmethod
    async def read(cls, session: Session, tenants: Sequence[str], now_us: int) -> Self:
        """Read the quotas of these tenants."""
        limits: dict[str, int] = {}
        used: dict[str, int] = {}
        for row in await session.fetch(_READ, ids=session.texts(tenants)) if tenants else ():
            tenant = row["tenant"]
            limits[tenant] = row["most"]
            if row["used"] is None:
                # The quota is new, and its own transaction has not counted yet.
                used[tenant] = await _started_since(session, tenant, day_of(now_us) * DAY_US)
            else:
                used[tenant] = row["used"] if row["day"] == day_of(now_us) else 0
        return cls(now_us, limits, used)

    def check(self, tenant: str, count: int) -> QuotaReached | None:
        """Return why this many more runs are rejected, if they are."""
        if tenant not in self._limits:
            return None
        return check_runs_per_day(tenant, self._limits[tenant], self._used[tenant], count, self._now_us)

    def add(self, tenant: str, count: int) -> None:
        """Count accepted runs."""
        if tenant in self._limits:
            self._used[tenant] += count

    async def store(self, session: Session) -> None:
        """Store the counts that have changed."""
        day = day_of(self._now_us)
        changed = [(tenant, day, used) for tenant, used in sorted(self._used.items()) if used != self._before[tenant]]
        await session.fetch(_STORE, changed)
        for tenant, _, used in changed:
            await warn_of_quota(session, tenant, RUNS_PER_DAY, self._limits[tenant], self._before[tenant], used)


async def count_today(session: Session, tenant: str) -> None:
    """Count the runs that a tenant has started today, and store the number. The caller holds the tenant's lock."""
    day = day_of(await clock_in(session))
    await session.fetch(_STORE, [(tenant, day, await _started_since(session, tenant, day * DAY_US))])


async def _started_since(session: Session, tenant: str, since_us: int) -> int:
    return int((await session.fetch(_COUNT, tenant=tenant, since=since_us))[0]["n"])
