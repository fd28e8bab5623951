"""Tenants and their limits, which may change at any time.

A run is accepted by one statement that reads its tenant's row without a lock, so a change must ensure that no statement
that read the old row is still running. It waits once for the transactions that are writing to `runs`; later ones take
their snapshot later. When a change returns, it applies to every run accepted from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Boolean, Float, Integer, Text, and_, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from runlane.domain.ids import lock_key
from runlane.domain.run import Status
from runlane.domain.tenant import (
    DEFAULT_TENANT,
    Tenant,
    TenantBudget,
    TenantLimits,
    check_budget,
    check_limits,
    check_schedule_limits,
    check_tenant_id,
    check_weight,
)
from runlane.domain.text import check_text
from runlane.errors import Conflict, InvalidRequest, NotFound, nearest
from runlane.store.access.audit import append_audit
from runlane.store.access.limit_changes import mark_open_runs, wait_for_writers
from runlane.store.chat.turns import drop_sessions
from runlane.store.definitions import drop_definitions
from runlane.store.events.dropping import drop_events
from runlane.store.queue.claim_locks import slots_lock
from runlane.store.queue.tenant_lanes import drop_tenant_lanes
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import (
    api_keys,
    concurrency_limits,
    lane_shares,
    runs,
    schedule_firings,
    schedules,
    secrets,
    tenant_quotas,
    tenants,
)
from runlane.store.sql.statement import Row, Statement
from runlane.store.usage import DELETE_USAGE
from runlane.store.webhooks.retention import drop_webhooks

MAX_NAME = 200

# The tenant accepts runs and has no limits that require counting, so a run is accepted at once.
FREE = and_(
    tenants.c.enabled,
    tenants.c.max_queued.is_(None),
    tenants.c.max_running.is_(None),
    tenants.c.rate_per_second.is_(None),
    ~tenants.c.metered,
)


@dataclass(frozen=True, slots=True)
class TenantChange:
    """A change of a tenant; None leaves a field unchanged. `unlimited` names limits to remove."""

    name: str | None = None
    enabled: bool | None = None
    max_queued: int | None = None
    max_running: int | None = None
    rate_per_second: float | None = None
    max_cost_usd_per_day: float | None = None
    on_cap: str | None = None
    weight: float | None = None
    max_schedules: int | None = None
    min_schedule_seconds: float | None = None
    unlimited: frozenset[str] = frozenset()


_SCHEDULE_LIMITS = ("max_schedules", "min_schedule_seconds")
LIMITS = ("max_queued", "max_running", "rate_per_second", "max_cost_usd_per_day", *_SCHEDULE_LIMITS)
_CHANGEABLE = ("name", "enabled", *LIMITS, "on_cap", "weight")
_by_id = tenants.c.id == bindparam("tenant")
FIND_TENANT = Statement("find_tenant", select(tenants).where(_by_id), purpose="Read a tenant.")
_LIST = Statement("list_tenants", select(tenants).order_by(tenants.c.id), purpose="Read all tenants.")
_fields = {
    "name": bindparam("new_name", type_=Text()),
    "enabled": bindparam("new_enabled", type_=Boolean()),
    "max_queued": bindparam("new_max_queued", type_=Integer()),
    "max_running": bindparam("new_max_running", type_=Integer()),
    "rate_per_second": bindparam("new_rate", type_=Float()),
    "max_cost_usd_per_day": bindparam("new_max_cost", type_=Float()),
    "on_cap": bindparam("new_on_cap", type_=Text()),
    "weight": bindparam("new_weight", type_=Float()),
}
_CREATE = Statement(
    "create_tenant",
    insert(tenants)
    .values(id=bindparam("tenant"), **_fields, created_at=now_us(), updated_at=now_us())
    .on_conflict_do_nothing(index_elements=["id"])
    .returning(tenants),
    purpose="Add a tenant.",
)
_SET = Statement(
    "set_tenant",
    update(tenants)
    .where(_by_id)
    .values(
        **_fields,
        max_schedules=bindparam("new_max_schedules", type_=Integer()),
        min_schedule_seconds=bindparam("new_min_schedule_seconds", type_=Float()),
        updated_at=now_us(),
    )
    .returning(tenants),
    purpose="Change a tenant.",
)
_ENABLE = Statement(
    "enable_tenant",
    update(tenants).where(_by_id).values(enabled=bindparam("new_enabled", type_=Boolean())).returning(tenants.c.id),
    purpose="Enable or disable a tenant.",
)
# Declared here and not with the other statements of secrets and quotas, which import this module.
_DROP_SECRETS = Statement(
    "delete_secrets_of_tenant",
    delete(secrets).where(secrets.c.tenant == bindparam("tenant")),
    purpose="Delete the secrets of a deleted tenant.",
)
# Declared here for the same reason.
_DROP_SHARES = Statement(
    "delete_shares_of_tenant",
    delete(lane_shares).where(lane_shares.c.tenant == bindparam("tenant")),
    purpose="Delete the shares of a deleted tenant.",
)
_several = select(func.count() > lit(1)).select_from(tenants.alias("every_tenant")).scalar_subquery()
_SHARE_LANES = Statement(
    "share_lanes",
    update(tenants).where(tenants.c.shares_lanes != _several).values(shares_lanes=_several),
    purpose="Let tenants share lanes fairly if there are several.",
)
_DROP_FIRINGS = Statement(
    "delete_firings_of_tenant",
    delete(schedule_firings).where(
        schedule_firings.c.schedule_uid.in_(select(schedules.c.uid).where(schedules.c.tenant == bindparam("tenant")))
    ),
    purpose="Delete the firings of a deleted tenant.",
)
_DROP_SCHEDULES = Statement(
    "delete_schedules_of_tenant",
    delete(schedules).where(schedules.c.tenant == bindparam("tenant")),
    purpose="Delete the schedules of a deleted tenant.",
)
_DROP_QUOTAS = Statement(
    "delete_quotas_of_tenant",
    delete(tenant_quotas).where(tenant_quotas.c.tenant == bindparam("tenant")),
    purpose="Delete the quotas of a deleted tenant.",
)
_DROP_LIMITS = Statement(
    "delete_limits_of_tenant",
    delete(concurrency_limits).where(concurrency_limits.c.tenant == bindparam("tenant")),
    purpose="Delete the concurrency limits of a deleted tenant.",
)
_DELETE = Statement("delete_tenant", delete(tenants).where(_by_id).returning(tenants.c.id), purpose="Delete a tenant.")
_REVOKE_ALL = Statement(
    "revoke_keys_of_tenant",
    update(api_keys)
    .where(api_keys.c.tenant == bindparam("tenant"), api_keys.c.revoked_at.is_(None))
    .values(revoked_at=now_us())
    .returning(api_keys.c.id),
    purpose="Revoke the API keys of a deleted tenant.",
)
# One condition for each index: of ended, waiting and running runs.
_of_tenant = runs.c.tenant == bindparam("tenant")
_not_running = runs.c.status != lit(Status.RUNNING)
_is_running = runs.c.status == lit(Status.RUNNING)
_HAS_RUNS = Statement(
    "tenant_has_runs",
    select(lit(1).label("found")).where(
        or_(
            exists().where(_of_tenant, runs.c.ended_at.is_not(None)),
            exists().where(_of_tenant, runs.c.ended_at.is_(None), _not_running),
            exists().where(_of_tenant, _is_running),
        )
    ),
    purpose="Check whether a tenant has runs.",
)

_IS_FREE = Statement(
    "tenant_is_unlimited",
    select(exists().where(_by_id, FREE).label("free")),
    purpose="Check whether a tenant is enabled and has no limits.",
)


def tenant_lock(tenant: str) -> int:
    """Return the lock under which a tenant's limits are checked and changed."""
    return lock_key("tenant", tenant)


async def is_free(database: Database, tenant: str) -> bool:
    """Return whether the tenant accepts runs without limits."""
    return bool((await database.query(_IS_FREE, tenant=tenant))[0]["free"])


async def list_tenants(database: Database) -> list[Tenant]:
    """Return every tenant."""
    return [_value(row) for row in await database.query(_LIST)]


async def find_tenant(database: Database, tenant: str) -> Tenant:
    """Return a tenant."""

    async def work(session: Session) -> Tenant:
        rows = await session.fetch(FIND_TENANT, tenant=tenant)
        if not rows:
            raise await unknown_tenant(session, tenant)
        return _value(rows[0])

    return await database.transact(work)


async def create_tenant(
    database: Database,
    tenant: str,
    *,
    actor: str,
    name: str | None = None,
    limits: TenantLimits | None = None,
    budget: TenantBudget | None = None,
    weight: float = 1.0,
) -> Tenant:
    """Create a tenant."""
    check_tenant_id(tenant)
    wanted = check_limits(limits or TenantLimits())
    spend = check_budget(budget or TenantBudget())
    check_weight(weight)
    shown = check_text(tenant if name is None else name, "The tenant's name", MAX_NAME)

    async def work(session: Session) -> Tenant:
        await session.lock(exclusive=[tenant_lock(tenant)])
        rows = await session.fetch(_CREATE, tenant=tenant, **_bound(shown, True, wanted, spend, weight))
        if not rows:
            raise Conflict(f'The tenant "{tenant}" exists. Change it: runlane tenants set {tenant}')
        await session.fetch(_SHARE_LANES)
        created = _value(rows[0])
        await append_audit(
            session, actor=actor, tenant=tenant, action="tenant.create", subject=tenant, new=_audit_fields(created)
        )
        return created

    return await database.transact(work)


async def set_tenant(database: Database, tenant: str, change: TenantChange, *, actor: str) -> tuple[Tenant, Tenant]:
    """Change a tenant; return the old and the new one. The change is in effect when this returns."""
    if change == TenantChange():
        raise InvalidRequest("Nothing to change: give a name, a limit or enabled.")
    if change.name is not None:
        check_text(change.name, "The tenant's name", MAX_NAME)
    if tenant == DEFAULT_TENANT and change.enabled is False:
        raise InvalidRequest('The tenant "default" cannot be disabled: platform keys belong to it.')

    async def work(session: Session) -> tuple[Tenant, Tenant]:
        await session.lock(exclusive=[tenant_lock(tenant), slots_lock(tenant)])
        rows = await session.fetch(FIND_TENANT, tenant=tenant)
        if not rows:
            raise await unknown_tenant(session, tenant)
        old = _value(rows[0])
        wanted = _changed(old, change)
        bound = _bound(wanted.name, wanted.enabled, wanted.limits, wanted.budget, wanted.weight)
        schedule_limits = {f"new_{name}": getattr(wanted, name) for name in _SCHEDULE_LIMITS}
        rows = await session.fetch(_SET, tenant=tenant, **bound, **schedule_limits)
        new = _value(rows[0])
        await append_audit(
            session,
            actor=actor,
            tenant=tenant,
            action="tenant.set",
            subject=tenant,
            old=_audit_fields(old),
            new=_audit_fields(new),
        )
        return old, new

    old, new = await database.transact(work)
    if new.limits or not new.enabled:
        await wait_for_writers(database)
    if new.limits:
        await mark_open_runs(database, tenant)
    return old, new


async def delete_tenant(database: Database, tenant: str, *, actor: str) -> Tenant:
    """Delete a tenant without runs and memories, and revoke its keys. It accepts no runs meanwhile."""
    if tenant == DEFAULT_TENANT:
        raise InvalidRequest('The tenant "default" always exists and cannot be deleted.')
    before = await find_tenant(database, tenant)
    await _enable(database, tenant, enabled=False)
    try:
        await wait_for_writers(database)
        if await database.query(_HAS_RUNS, tenant=tenant):
            raise Conflict(
                f'The tenant "{tenant}" has runs and cannot be deleted before retention has removed them. '
                f"Close it instead: runlane tenants set {tenant} --disable"
            )

        async def work(session: Session) -> None:
            await session.lock(exclusive=[tenant_lock(tenant)])
            if not await session.fetch(_DELETE, tenant=tenant):
                raise await unknown_tenant(session, tenant)
            await drop_definitions(session, tenant)
            await drop_tenant_lanes(session, tenant)
            await session.fetch(_DROP_SHARES, tenant=tenant)
            await session.fetch(_SHARE_LANES)
            for drop in (_DROP_SECRETS, _DROP_FIRINGS, _DROP_SCHEDULES, DELETE_USAGE, _DROP_QUOTAS, _DROP_LIMITS):
                await session.fetch(drop, tenant=tenant)
            await drop_sessions(session, tenant)
            from runlane.store.memory.tenants import drop_memory
            from runlane.store.threads import assistants, expiry

            await drop_memory(session, tenant)
            await assistants.drop_assistants(session, tenant)
            await expiry.drop_threads(session, tenant)
            await drop_events(session, tenant)
            await drop_webhooks(session, tenant)
            revoked = await session.fetch(_REVOKE_ALL, tenant=tenant)
            old = {**_audit_fields(before), "keys_revoked": [row["id"] for row in revoked]}
            await append_audit(session, actor=actor, tenant=tenant, action="tenant.delete", subject=tenant, old=old)

        await database.transact(work)
    except BaseException:
        await _enable(database, tenant, enabled=before.enabled)
        raise
    return before


async def _enable(database: Database, tenant: str, *, enabled: bool) -> None:
    async def work(session: Session) -> None:
        await session.lock(exclusive=[tenant_lock(tenant)])
        await session.fetch(_ENABLE, tenant=tenant, new_enabled=enabled)

    await database.transact(work)


async def unknown_tenant(session: Session, tenant: str) -> NotFound:
    """Return the error for a tenant that does not exist, with similar names."""
    known = [row["id"] for row in await session.fetch(_LIST)]
    return NotFound(f'No tenant "{tenant}" exists{nearest(tenant, known)}. See: runlane tenants list')


def _changed(old: Tenant, change: TenantChange) -> Tenant:
    wrong = sorted(change.unlimited - set(LIMITS))
    if wrong:
        raise InvalidRequest(f"{wrong[0]} is not a limit. Limits: {', '.join(LIMITS)}.")
    given = {name: value for name in _CHANGEABLE if (value := getattr(change, name)) is not None}
    both = sorted(change.unlimited & set(given))
    if both:
        raise InvalidRequest(f"{both[0]} cannot be set and removed at once.")
    new = replace(old, **given, **dict.fromkeys(change.unlimited))
    check_limits(new.limits)
    check_budget(new.budget)
    check_weight(new.weight)
    check_schedule_limits(new.max_schedules, new.min_schedule_seconds)
    return new


def _bound(name: str, enabled: bool, limits: TenantLimits, budget: TenantBudget, weight: float) -> dict[str, Any]:
    return {
        "new_name": name,
        "new_enabled": enabled,
        "new_max_queued": limits.max_queued,
        "new_max_running": limits.max_running,
        "new_rate": limits.rate_per_second,
        "new_max_cost": budget.max_cost_usd_per_day,
        "new_on_cap": budget.on_cap,
        "new_weight": weight,
    }


def limits_of(row: Row) -> TenantLimits:
    """Return the limits in a tenant's row."""
    rate = row["rate_per_second"]
    return TenantLimits(row["max_queued"], row["max_running"], None if rate is None else float(rate))


def _value(row: Row) -> Tenant:
    cost = row["max_cost_usd_per_day"]
    changed = {"enabled": bool(row["enabled"]), "max_cost_usd_per_day": None if cost is None else float(cost)}
    return from_row(Tenant, row, **changed, **asdict(limits_of(row)))


def _audit_fields(tenant: Tenant) -> Mapping[str, Any]:
    return {name: getattr(tenant, name) for name in _CHANGEABLE}
