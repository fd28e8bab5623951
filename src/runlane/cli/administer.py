"""What the commands for keys, tenants, roles and the audit log do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from runlane.cli.either import with_either
from runlane.cli.show import acting, clock, print_json, print_table
from runlane.cli.terminal import write_line
from runlane.domain.access import ApiKey, AuditEntry, Role
from runlane.domain.tenant import DEFAULT_TENANT, OnCap, Tenant, TenantBudget, TenantLimits
from runlane.store.access.audit import list_audit
from runlane.store.access.keys import create_key, list_keys, revoke_key
from runlane.store.access.roles import delete_role, list_roles, set_role
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, list_tenants, set_tenant
from runlane.store.sql.database import Database

if TYPE_CHECKING:
    from runlane.client import Client


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """What a command was told to act on: a server's URL and key, or neither."""

    url: str | None
    api_key: str | None


def make_key(
    name: str, *, role: str, tenant: str | None, expires_days: float | None, at: AdminTarget, json: bool
) -> None:
    """`runlane keys create`."""
    life_seconds = None if expires_days is None else expires_days * 86400

    async def on_server(client: Client) -> tuple[ApiKey, str | None]:
        return await client.admin.create_key(name, role, tenant=tenant, expires_in_seconds=life_seconds)

    async def on_database(database: Database) -> tuple[ApiKey, str | None]:
        owner = tenant or DEFAULT_TENANT
        return await create_key(database, name, role, tenant=owner, life_seconds=life_seconds, actor=acting())

    key, secret = with_either(at.url, at.api_key, on_server, on_database, creates=True)
    if json:
        print_json({"key": secret, **asdict(key)})
        return
    write_line(
        secret if secret is not None else "The key was created by an earlier try, whose answer was lost. Revoke it."
    )
    write_line(f"Key {key.id} ({key.name}): role {key.role}, tenant {key.tenant}, expires {clock(key.expires_at_us)}.")
    write_line("Keep it now: only its hash is stored, and it cannot be shown again.")


def show_keys(*, tenant: str | None, before: str | None, limit: int, at: AdminTarget, json: bool) -> None:
    """`runlane keys list`."""
    rows = with_either(
        at.url,
        at.api_key,
        lambda client: client.admin.keys(tenant=tenant, before=before, limit=limit),
        lambda database: list_keys(database, tenant=tenant, before=before, limit=limit),
    )
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["key", "name", "prefix", "role", "tenant", "state", "created", "expires", "last used", "by"],
        [
            [row.id, row.name, row.prefix, row.role, row.tenant, _state(row), clock(row.created_at_us),
             clock(row.expires_at_us), clock(row.last_used_at_us), row.created_by]
            for row in rows
        ],
        "No keys. Make one: runlane keys create NAME --role platform_admin",
    )  # fmt: skip


def revoke(key_id: str, *, at: AdminTarget, json: bool) -> None:
    """`runlane keys revoke`."""
    key = with_either(
        at.url,
        at.api_key,
        lambda client: client.admin.revoke_key(key_id),
        lambda database: revoke_key(database, key_id, actor=acting()),
    )
    if json:
        print_json(asdict(key))
    else:
        write_line(f"{key.id} ({key.name}): revoked {clock(key.revoked_at_us)}")


def make_tenant(
    tenant: str,
    *,
    name: str | None,
    max_queued: int | None,
    max_running: int | None,
    rate: float | None,
    max_cost_per_day: float | None,
    on_cap: str | None,
    at: AdminTarget,
    json: bool,
) -> None:
    """`runlane tenants create`."""
    limits = TenantLimits(max_queued, max_running, rate)
    budget = TenantBudget(max_cost_per_day, cast("OnCap", on_cap or "fail"))
    fields = _given({"name": name, **asdict(limits), "max_cost_usd_per_day": max_cost_per_day, "on_cap": on_cap})
    made = with_either(
        at.url,
        at.api_key,
        lambda client: client.admin.create_tenant(tenant, fields),
        lambda database: create_tenant(database, tenant, name=name, limits=limits, budget=budget, actor=acting()),
        creates=True,
    )
    if json:
        print_json(_flat(made))
    else:
        write_line(f"{made.id}: created, {_tenant_row(made)}.")


def show_tenants(*, at: AdminTarget, json: bool) -> None:
    """`runlane tenants list`."""
    rows = with_either(at.url, at.api_key, lambda client: client.admin.tenants(), list_tenants)
    if json:
        print_json([_flat(row) for row in rows])
        return
    print_table(
        ["tenant", "name", "state", "max_queued", "max_running", "rate_per_second", "max_cost_usd_per_day", "on_cap",
         "created"],
        [
            [row.id, row.name, "enabled" if row.enabled else "disabled", row.limits.max_queued,
             row.limits.max_running, row.limits.rate_per_second, row.budget.max_cost_usd_per_day, row.budget.on_cap,
             clock(row.created_at_us)]
            for row in rows
        ],
        "No tenants.",
    )  # fmt: skip


def change_tenant(
    tenant: str,
    *,
    name: str | None,
    max_queued: int | None,
    max_running: int | None,
    rate: float | None,
    max_cost_per_day: float | None,
    on_cap: str | None,
    no_limit: str | None,
    enabled: bool | None,
    at: AdminTarget,
    json: bool,
) -> None:
    """`runlane tenants set`."""
    change = TenantChange(
        name=name,
        enabled=enabled,
        max_queued=max_queued,
        max_running=max_running,
        rate_per_second=rate,
        max_cost_usd_per_day=max_cost_per_day,
        on_cap=on_cap,
        unlimited=frozenset(part.strip().replace("-", "_") for part in (no_limit or "").split(",") if part.strip()),
    )
    fields = _given({field: value for field, value in asdict(change).items() if field != "unlimited"})
    fields |= dict.fromkeys(change.unlimited)

    async def on_server(client: Client) -> tuple[Tenant, Tenant]:
        return await client.admin.tenant(tenant), await client.admin.set_tenant(tenant, fields)

    old, new = with_either(
        at.url, at.api_key, on_server, lambda database: set_tenant(database, tenant, change, actor=acting())
    )
    before, now = _flat(old), _flat(new)
    changed = {
        field: {"old": before[field], "new": now[field]}
        for field in before
        if field != "updated_at_us" and before[field] != now[field]
    }
    if json:
        print_json({"tenant": now, "changed": changed})
        return
    for field, values in changed.items():
        write_line(f"{tenant}: {field} {values['old']} -> {values['new']}")
    if not changed:
        write_line(f"{tenant}: nothing changed.")


def remove_tenant(tenant: str, *, at: AdminTarget, json: bool) -> None:
    """`runlane tenants delete`."""
    gone = with_either(
        at.url,
        at.api_key,
        lambda client: client.admin.delete_tenant(tenant),
        lambda database: delete_tenant(database, tenant, actor=acting()),
    )
    if json:
        print_json({"deleted": _flat(gone)})
    else:
        write_line(f"{gone.id}: deleted.")


def show_roles(*, at: AdminTarget, json: bool) -> None:
    """`runlane roles list`."""
    rows = with_either(at.url, at.api_key, lambda client: client.admin.roles(), list_roles)
    if json:
        print_json([_role(row) for row in rows])
        return
    print_table(
        ["role", "kind", "permissions"],
        [[row.name, "built in" if row.built_in else "custom", " ".join(sorted(row.permissions))] for row in rows],
        "No roles.",
    )


def change_role(name: str, permissions: Sequence[str], *, at: AdminTarget, json: bool) -> None:
    """`runlane roles set`."""
    wanted = [part for text in permissions for part in text.replace(",", " ").split()]

    async def on_server(client: Client) -> tuple[Role | None, Role]:
        before = next((role for role in await client.admin.roles() if role.name == name), None)
        return before, await client.admin.set_role(name, wanted)

    old, new = with_either(
        at.url, at.api_key, on_server, lambda database: set_role(database, name, wanted, actor=acting()), creates=True
    )
    if json:
        print_json({"role": _role(new), "old": None if old is None else _role(old)})
        return
    before = "none" if old is None else " ".join(sorted(old.permissions))
    write_line(f"{name}: {before} -> {' '.join(sorted(new.permissions))}")


def remove_role(name: str, *, at: AdminTarget, json: bool) -> None:
    """`runlane roles delete`."""
    gone = with_either(
        at.url,
        at.api_key,
        lambda client: client.admin.delete_role(name),
        lambda database: delete_role(database, name, actor=acting()),
    )
    if json:
        print_json({"deleted": _role(gone)})
    else:
        write_line(f"{gone.name}: deleted.")


def show_audit(
    *, tenant: str | None, action: str | None, before: str | None, limit: int, at: AdminTarget, json: bool
) -> None:
    """`runlane audit list`."""

    async def on_server(client: Client) -> Sequence[AuditEntry]:
        return await client.admin.audit(tenant=tenant, action=action, before=before, limit=limit)

    async def on_database(database: Database) -> Sequence[AuditEntry]:
        return await list_audit(database, tenant=tenant, action=action, before=before, limit=limit)

    rows = with_either(at.url, at.api_key, on_server, on_database)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["entry", "at", "actor", "tenant", "action", "subject", "old", "new"],
        [[row.id, clock(row.at_us), row.actor, row.tenant, row.action, row.subject, row.old, row.new] for row in rows],
        "Nothing was changed yet.",
    )


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _flat(tenant: Tenant) -> dict[str, Any]:
    fields = asdict(tenant)
    limits, budget = fields.pop("limits"), fields.pop("budget")
    return {**fields, **limits, **budget}


def _role(role: Role) -> dict[str, Any]:
    return {"name": role.name, "permissions": sorted(role.permissions), "built_in": role.built_in}


def _state(key: ApiKey) -> str:
    if key.revoked_at_us is not None:
        return "revoked"
    expired = key.expires_at_us is not None and key.expires_at_us <= time.time_ns() // 1000
    return "expired" if expired else "active"


def _tenant_row(tenant: Tenant) -> str:
    fields = {**asdict(tenant.limits), "max_cost_usd_per_day": tenant.budget.max_cost_usd_per_day}
    told = [f"{name} {value}" for name, value in fields.items() if value is not None]
    return ", ".join(told) or "no limits"
