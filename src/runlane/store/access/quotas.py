"""Quotas of tenants: declared here, with the statement that counts their use, and read by `GET /quotas`.

A quota whose limit is a column of the tenant or a setting of the server is only read here. The others have a row in
`tenant_quotas` for each tenant that has them. To add a quota, add a rule with a statement that counts its use, and
check the limit where it is used, under the tenant's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Text, bindparam, case, delete, exists, func, null, select, update

from runlane.domain.quota import (
    CHAT_SESSIONS,
    COLLECTING_KEYS,
    DAY_US,
    EVENTS_PER_MINUTE,
    MEMORIES,
    RUNS_PER_DAY,
    STORED_BYTES,
    TRIGGERS,
    WEBHOOK_ENDPOINTS,
    Period,
    QuotaUse,
    check_number,
    check_quota_limit,
)
from runlane.domain.run import Status
from runlane.domain.schedule import DEFAULT_MAX_SCHEDULES
from runlane.domain.tenant import TenantUsage, rate_quota
from runlane.errors import InvalidRequest, NotFound, nearest
from runlane.settings import Settings
from runlane.store.access.audit import append_audit
from runlane.store.access.limit_changes import mark_open_runs, wait_for_writers
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.access.stored_bytes import count_again
from runlane.store.access.tenants import FIND_TENANT, limits_of, tenant_lock, unknown_tenant
from runlane.store.events.rates import used_of_rate
from runlane.store.queue.flow_statements import COUNT_COLLECTING
from runlane.store.queue.run_quotas import LOCKING, count_today
from runlane.store.sql.database import Database, Session, clock_in
from runlane.store.sql.expressions import lit, now_once, upsert
from runlane.store.sql.schema import (
    chat_sessions,
    definitions,
    lanes,
    memories,
    runs,
    schedules,
    secrets,
    tenant_quotas,
    tenants,
    webhook_endpoints,
)
from runlane.store.sql.statement import Row, Statement
from runlane.store.usage import SPENT_TODAY


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """A quota. Its limit is this column of the tenant, this setting of the server, or in `tenant_quotas`.

    A `settable` one has a limit in `tenant_quotas` for some tenants, and the setting for the others.
    """

    name: str
    description: str
    used: Statement | None
    per: Period | None = None
    column: str | None = None
    setting: str | None = None
    settable: bool = False
    default: int | None = None


_tenant = bindparam("tenant", type_=Text())
_name = bindparam("name", type_=Text())


def _count_of(name: str, *conditions: Any) -> Statement:
    return Statement(
        f"use_of_{name}",
        select(func.count().label("used")).where(*conditions),
        purpose=f"Count the use of the quota {name}.",
    )


_today = now_once() // lit(DAY_US)
_of_quota = (tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name == _name)
_RUNS_TODAY = Statement(
    "use_of_runs_per_day",
    select(case((tenant_quotas.c.day == _today, tenant_quotas.c.used), else_=lit(0)).label("used")).where(
        tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name == lit(RUNS_PER_DAY)
    ),
    purpose="Read the number of runs that a tenant has started today.",
)
QUOTAS: Final = (
    QuotaRule("runs_per_second", "New runs per second; bursts of one second.", None, "second", "rate_per_second"),
    QuotaRule(
        "open_runs",
        "Runs that have not ended.",
        _count_of("open_runs", runs.c.tenant == _tenant, runs.c.limited, runs.c.ended_at.is_(None)),
        column="max_queued",
    ),
    QuotaRule(
        "running_runs",
        "Runs in execution; others wait.",
        _count_of("running_runs", runs.c.tenant == _tenant, runs.c.status == lit(Status.RUNNING), runs.c.limited),
        column="max_running",
    ),
    QuotaRule(RUNS_PER_DAY, "Runs accepted per day (UTC).", _RUNS_TODAY, "day"),
    QuotaRule("cost_usd_per_day", "Cost of model calls per day (UTC).", SPENT_TODAY, "day", "max_cost_usd_per_day"),
    QuotaRule(CHAT_SESSIONS, "Chat sessions.", _count_of(CHAT_SESSIONS, chat_sessions.c.tenant == _tenant)),
    QuotaRule(
        STORED_BYTES,
        "Bytes of inputs, results and events; counted again every 5 minutes.",
        Statement(
            "use_of_stored_bytes",
            select(tenant_quotas.c.used).where(
                tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name == lit(STORED_BYTES)
            ),
            purpose="Read how many bytes a tenant has stored.",
        ),
    ),
    QuotaRule(
        "schedules",
        "Schedules.",
        _count_of("schedules", schedules.c.tenant == _tenant),
        column="max_schedules",
        default=DEFAULT_MAX_SCHEDULES,
    ),
    QuotaRule(COLLECTING_KEYS, "Keys with a debounced run or a batch that is not due yet.", COUNT_COLLECTING),
    QuotaRule(MEMORIES, "Memories.", _count_of(MEMORIES, memories.c.tenant == _tenant)),
    QuotaRule(
        TRIGGERS,
        "Triggers.",
        _count_of(
            TRIGGERS,
            definitions.c.tenant == _tenant,
            definitions.c.kind == lit("trigger"),
            definitions.c.removed_at.is_(None),
        ),
    ),
    QuotaRule(
        WEBHOOK_ENDPOINTS,
        "Webhook endpoints.",
        _count_of(
            WEBHOOK_ENDPOINTS, webhook_endpoints.c.tenant == _tenant, webhook_endpoints.c.kind == lit("endpoint")
        ),
        setting="max_webhook_endpoints",
        settable=True,
    ),
    QuotaRule(
        EVENTS_PER_MINUTE,
        "Events sent, with bursts of one minute.",
        None,
        "minute",
        setting="events_per_minute",
        settable=True,
    ),
    QuotaRule("secrets", "Secrets.", _count_of("secrets", secrets.c.tenant == _tenant), setting="max_secrets"),
    QuotaRule(
        "lanes",
        "Lanes that only the tenant's definitions name.",
        _count_of("lanes", lanes.c.tenant == _tenant),
        setting="max_lanes_per_tenant",
    ),
)
_RULES: Final = {rule.name: rule for rule in QUOTAS}

_READ = Statement(
    "read_quotas", select(tenant_quotas).where(tenant_quotas.c.tenant == _tenant), purpose="Read a tenant's quotas."
)
_FIND = Statement("find_quota", select(tenant_quotas.c.most).where(*_of_quota), purpose="Read a quota of a tenant.")


def _set() -> Statement:
    most = bindparam("most", type_=BigInteger())
    statement = upsert(tenant_quotas).values(tenant=_tenant, name=_name, most=most, day=null(), used=null())
    changed = statement.on_conflict_do_update(index_elements=["tenant", "name"], set_={"most": most})
    return Statement("set_quota", changed, purpose="Set a quota of a tenant.")


_SET = _set()
_REMOVE = Statement("remove_quota", delete(tenant_quotas).where(*_of_quota), purpose="Remove a quota of a tenant.")
_is_metered = exists().where(
    tenant_quotas.c.tenant == _tenant, tenant_quotas.c.name.in_([lit(name) for name in LOCKING])
)
_METER = Statement(
    "meter_tenant",
    update(tenants).where(tenants.c.id == _tenant).values(metered=_is_metered),
    purpose="Note whether the runs of a tenant are counted when they are accepted.",
)


def server_quotas(settings: Settings) -> Mapping[str, int | None]:
    """Return the limits that are settings of this server."""
    names = ("max_secrets", "max_lanes_per_tenant", "max_webhook_endpoints", "events_per_minute")
    return {name: getattr(settings, name) for name in names}


async def read_quotas(database: Database, tenant: str, server: Mapping[str, int | None]) -> Sequence[QuotaUse]:
    """Return every quota of a tenant with its use. `server` has the limits that are settings, by their names."""

    async def work(session: Session) -> list[QuotaUse]:
        rows = await session.fetch(FIND_TENANT, tenant=tenant)
        if not rows:
            raise await unknown_tenant(session, tenant)
        stored = {row["name"]: row["most"] for row in await session.fetch(_READ, tenant=tenant)}
        found: list[QuotaUse] = []
        for rule in QUOTAS:
            limit = _limit_of(rule, rows[0], stored, server)
            used = None if limit is None else await _use_of(session, rule, rows[0], limit)
            found.append(QuotaUse(rule.name, limit, used, rule.per, rule.description))
        return found

    return await database.transact(work)


async def set_quota(database: Database, tenant: str, name: str, limit: float | None, *, actor: str) -> None:
    """Set a quota of a tenant, or remove it with None. It applies to every request that begins after this returns."""
    rule = _stored_rule(name, tenant)
    most = None if limit is None else check_quota_limit(limit)

    async def change(session: Session) -> bool:
        await session.lock(exclusive=[tenant_lock(tenant)])
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        rows = await session.fetch(_FIND, tenant=tenant, name=name)
        old = rows[0]["most"] if rows else None
        if most is None:
            await session.fetch(_REMOVE, tenant=tenant, name=name)
        else:
            await session.fetch(_SET, tenant=tenant, name=name, most=most)
        if rule.name in LOCKING:
            await session.fetch(_METER, tenant=tenant)
        await append_audit(
            session,
            actor=actor,
            tenant=tenant,
            action="quota.set",
            subject=name,
            old={"limit": old},
            new={"limit": most},
        )
        return old is None and most is not None

    if await database.transact(change) and rule.name in LOCKING:
        # Transactions that accept runs without counting them commit before the runs are counted here.
        await wait_for_writers(database)
        await _count_first(database, tenant, rule.name)


async def _count_first(database: Database, tenant: str, name: str) -> None:
    """Count the use of a quota by a tenant before the quota was set."""

    async def count(session: Session) -> None:
        await session.lock(exclusive=[tenant_lock(tenant)])
        await count_today(session, tenant)

    if name == STORED_BYTES:
        await count_again(database, tenant)
    elif name == RUNS_PER_DAY:
        await database.transact(count)
    else:
        await mark_open_runs(database, tenant)


async def check_one_more(session: Session, tenant: str, name: str, default: int | None, count: int = 1) -> None:
    """Raise QuotaReached if the tenant may not have this many more objects of a quota without a period.

    `default` is the limit of tenants without one of their own. With a limit, the tenant is locked.
    """
    if default is None and not await session.fetch(_FIND, tenant=tenant, name=name):
        return
    await session.lock(exclusive=[tenant_lock(tenant)])
    rows = await session.fetch(_FIND, tenant=tenant, name=name)
    limit = rows[0]["most"] if rows else default
    if limit is None:
        return
    used = await use_of(session, name, tenant)
    refusal = check_number(tenant, name, limit, used, count)
    if refusal is not None:
        raise refusal
    await warn_of_quota(session, tenant, name, limit, used, used + count)


async def stored_limit(database: Database, tenant: str, name: str) -> int | None:
    """Return the limit of a quota that is counted elsewhere, or None without one."""
    rows = await database.query(_FIND, tenant=tenant, name=name)
    return rows[0]["most"] if rows else None


async def use_of(session: Session, name: str, tenant: str) -> int:
    """Count the use of a quota without a period by a tenant."""
    statement = _RULES[name].used
    assert statement is not None  # noqa: S101 - only the rate has no such statement
    return int((await session.fetch(statement, tenant=tenant))[0]["used"])


def _stored_rule(name: str, tenant: str) -> QuotaRule:
    rule = _RULES.get(name)
    if rule is None:
        known = list(_RULES)
        raise NotFound(f'No quota "{name}"{nearest(name, known)}. Quotas: {", ".join(known)}.')
    if rule.column is not None:
        raise InvalidRequest(
            f"The quota {name} is a limit of the tenant. Change it: runlane tenants set {tenant} --help"
        )
    if rule.setting is not None and not rule.settable:
        raise InvalidRequest(f"The quota {name} is a setting of the server: RUNLANE_{rule.setting.upper()}.")
    return rule


def _limit_of(rule: QuotaRule, row: Row, stored: Mapping[str, int], server: Mapping[str, int | None]) -> float | None:
    if rule.column is not None:
        limit = rule.default if row[rule.column] is None else row[rule.column]
        return None if limit is None else float(limit)
    return stored.get(rule.name, None if rule.setting is None else server[rule.setting])


async def _use_of(session: Session, rule: QuotaRule, row: Row, limit: float) -> float:
    if rule.name == EVENTS_PER_MINUTE:
        return await used_of_rate(session, f"tenant:{row['id']}", int(limit))
    if rule.used is not None:
        rows = await session.fetch(rule.used, tenant=row["id"])
        return float(rows[0]["used"] or 0)
    now_ns = await clock_in(session) * 1000
    rate = rate_quota(limits_of(row), TenantUsage(0, row["rate_paid_until"], now_ns))
    return 0.0 if rate is None else float(rate.limit - rate.remaining)
