"""Quotas of runs per day and of stored bytes, counted in the transaction that accepts runs, under the tenant's lock.

Only tenants with such a quota are counted. The count is a number in the row of the quota, so accepting a run reads no
other runs. When the quota is set, the count begins with what exists then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Self

from sqlalchemy import BigInteger, FromClause, Integer, Text, bindparam, func, select, union_all, update
from sqlalchemy.sql.base import Executable

from runlane.domain.quota import (
    COLLECTING_KEYS,
    DAY_US,
    RUNS_PER_DAY,
    STORED_BYTES,
    check_runs_per_day,
    check_stored_bytes,
    day_of,
)
from runlane.domain.run import Status
from runlane.domain.text import utf8_size
from runlane.errors import QuotaReached
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.sql.database import Session, clock_in
from runlane.store.sql.expressions import lit, member
from runlane.store.sql.schema import runs, tenant_quotas
from runlane.store.sql.statement import Statement

# The quotas whose use is counted when runs are accepted.
METERED: Final = (RUNS_PER_DAY, STORED_BYTES)
# The quotas that are checked under the tenant's lock when runs are accepted; tenants with one are `metered`.
LOCKING: Final = (*METERED, COLLECTING_KEYS)
_READ = Statement(
    "read_run_quotas",
    select(tenant_quotas).where(
        member(tenant_quotas.c.tenant, "ids"), tenant_quotas.c.name.in_([lit(name) for name in METERED])
    ),
    purpose="Read how many runs tenants may start per day and how much they may store, and what is used.",
)


def _store(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(tenant_quotas)
        .where(tenant_quotas.c.tenant == b.tenant, tenant_quotas.c.name == b.name)
        .values(day=b.day, used=b.used)
        .returning(tenant_quotas.c.tenant)
    )


_STORE = Statement(
    "count_runs_of_day",
    _store,
    {"tenant": Text(), "name": Text(), "day": Integer(), "used": BigInteger()},
    purpose="Note how many runs tenants have started today, and how much they have stored.",
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


@dataclass(slots=True)
class _Use:
    """A quota while runs are accepted: what was used before, and what is used now."""

    limit: int
    before: int
    used: int


class RunQuotas:
    """The quotas of some tenants while their runs are accepted, under their locks."""

    def __init__(self, now_us: int, uses: dict[tuple[str, str], _Use]) -> None:
        self._now_us = now_us
        self._uses = uses

    @classmethod
    async def read(cls, session: Session, tenants: Sequence[str], now_us: int) -> Self:
        """Read the quotas of these tenants."""
        uses: dict[tuple[str, str], _Use] = {}
        for row in await session.fetch(_READ, ids=session.texts(tenants)) if tenants else ():
            tenant, name, used = row["tenant"], row["name"], row["used"]
            if name == RUNS_PER_DAY and used is None:
                # The quota is new, and its own transaction has not counted yet.
                used = await _started_since(session, tenant, day_of(now_us) * DAY_US)
            elif name == RUNS_PER_DAY and row["day"] != day_of(now_us):
                used = 0
            uses[tenant, name] = _Use(row["most"], used or 0, used or 0)
        return cls(now_us, uses)

    def check(self, tenant: str, inputs: Sequence[str]) -> QuotaReached | None:
        """Return why runs with these inputs are rejected, if they are."""
        daily, stored = self._uses.get((tenant, RUNS_PER_DAY)), self._uses.get((tenant, STORED_BYTES))
        refusal = None
        if daily is not None:
            refusal = check_runs_per_day(tenant, daily.limit, daily.used, len(inputs), self._now_us)
        if stored is not None and refusal is None:
            refusal = check_stored_bytes(tenant, stored.limit, stored.used, sum(map(utf8_size, inputs)))
        return refusal

    def add(self, tenant: str, inputs: Sequence[str]) -> None:
        """Count accepted runs."""
        daily, stored = self._uses.get((tenant, RUNS_PER_DAY)), self._uses.get((tenant, STORED_BYTES))
        if daily is not None:
            daily.used += len(inputs)
        if stored is not None:
            stored.used += sum(map(utf8_size, inputs))

    async def store(self, session: Session) -> None:
        """Store the counts that have changed."""
        day = day_of(self._now_us)
        changed = [(*key, use) for key, use in sorted(self._uses.items(), key=itemgetter(0)) if use.used != use.before]
        await session.fetch(_STORE, [(tenant, name, day, use.used) for tenant, name, use in changed])
        for tenant, name, use in changed:
            await warn_of_quota(session, tenant, name, use.limit, use.before, use.used)


async def count_today(session: Session, tenant: str) -> None:
    """Count the runs that a tenant has started today, and store the number. The caller holds the tenant's lock."""
    day = day_of(await clock_in(session))
    await session.fetch(_STORE, [(tenant, RUNS_PER_DAY, day, await _started_since(session, tenant, day * DAY_US))])


async def _started_since(session: Session, tenant: str, since_us: int) -> int:
    return int((await session.fetch(_COUNT, tenant=tenant, since=since_us))[0]["n"])
