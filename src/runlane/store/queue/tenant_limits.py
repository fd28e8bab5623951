"""The limits of tenants, checked in the transaction that stores the runs and under a lock on the tenant.

So the limits are exact under concurrent requests. Only runs of tenants with limits are checked here: the statement that
accepts runs does not store these runs, which is how a process detects a new limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, FromClause, Text, case, func, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.tenant import TenantUsage, admit, rate_quota
from runlane.errors import Forbidden, NotFound, RateLimited, RateQuota
from runlane.store.access.tenants import limits_of, tenant_lock
from runlane.store.queue.run_quotas import RunQuotas
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import runs, tenants
from runlane.store.sql.statement import Statement

Refusal = RateLimited | NotFound | Forbidden


_open = select(func.count()).where(runs.c.tenant == tenants.c.id, runs.c.limited, runs.c.ended_at.is_(None))
_USAGE = Statement(
    "tenant_usage",
    select(
        tenants,
        now_us().label("now"),
        case((tenants.c.max_queued.is_not(None), _open.scalar_subquery()), else_=lit(0)).label("open"),
    ).where(member(tenants.c.id, "ids")),
    purpose="Read limits and open runs of tenants, for admission.",
)


def _pay(batch: FromClause) -> Executable:
    return (
        update(tenants)
        .where(tenants.c.id == batch.c.tenant)
        .values(rate_paid_until=batch.c.paid_until)
        .returning(tenants.c.id)
    )


_PAY = Statement(
    "pay_rate",
    _pay,
    {"tenant": Text(), "paid_until": BigInteger()},
    purpose="Note up to when accepted runs have used the rate of tenants.",
)


async def refusals(session: Session, groups: Sequence[tuple[str, Sequence[str]]]) -> list[Refusal | RateQuota | None]:
    """Return for each group of runs of a tenant why it is rejected as a whole, or the remaining rate of the tenant.

    A group is a tenant with the inputs of its runs. Earlier groups come first.
    """
    names = sorted({tenant for tenant, _ in groups})
    await session.lock(exclusive=[tenant_lock(name) for name in names])
    rows = {row["id"]: row for row in await session.fetch(_USAGE, ids=session.texts(names))}
    usages = {name: TenantUsage(row["open"], row["rate_paid_until"], row["now"] * 1000) for name, row in rows.items()}
    metered = [name for name in names if name in rows and rows[name]["metered"]]
    quotas = await RunQuotas.read(session, metered, next((row["now"] for row in rows.values()), 0))
    verdicts: list[Refusal | RateQuota | None] = []
    for tenant, inputs in groups:
        row = rows.get(tenant)
        if row is None:
            verdicts.append(NotFound(f'No tenant "{tenant}" exists. See: runlane tenants list'))
        elif not row["enabled"]:
            verdicts.append(Forbidden(f'The tenant "{tenant}" is disabled and accepts no runs.'))
        else:
            limits = limits_of(row)
            refusal = quotas.check(tenant, inputs) or admit(tenant, limits, usages[tenant], len(inputs))
            quota = rate_quota(limits, usages[tenant])
            if refusal is None:
                quotas.add(tenant, inputs)
            else:
                refusal.quota = quota
            verdicts.append(refusal or quota)
    paid = [
        (name, usage.rate_paid_until_ns)
        for name, usage in usages.items()
        if usage.rate_paid_until_ns != rows[name]["rate_paid_until"]
    ]
    await session.fetch(_PAY, paid)
    await quotas.store(session)
    return verdicts
