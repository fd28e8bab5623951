"""`runlane tenants`: tenants, their limits and budgets."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runlane.cli.backend import audit_actor, on_server_or_app, on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import changes, format_time, print_changes, print_json, print_result, print_rows, split_names
from runlane.domain.tenant import OnCap as OnCapValue
from runlane.domain.tenant import Tenant, TenantBudget, TenantLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.store.sql.database import Database

app = typer.Typer()

TenantId = Annotated[str, typer.Argument(help="Id of the tenant.", metavar="TENANT")]
DisplayName = Annotated[str | None, typer.Option(help="Name for people. Default: the id.")]
MaxQueued = Annotated[int | None, typer.Option(help="Maximum number of runs that have not ended.")]
MaxRunning = Annotated[
    int | None, typer.Option(help="Maximum number of concurrent runs in the cluster; further runs wait.")
]
Rate = Annotated[float | None, typer.Option(help="New runs per second; bursts of one second are allowed.")]
MaxCost = Annotated[float | None, typer.Option(help="Maximum cost of models per day (UTC), in dollars.")]
OnCap = Annotated[
    str | None, typer.Option(help="What a step does at that limit: fail (the default), or ask a person to raise it.")
]

Weight = Annotated[float | None, typer.Option(help="Its share of the starts in a lane, relative to others: 0.1 to 10.")]


@app.command()
def create(
    tenant: TenantId,
    name: DisplayName = None,
    max_queued: MaxQueued = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    max_cost_per_day: MaxCost = None,
    on_cap: OnCap = None,
    weight: Weight = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a tenant."""
    limits = TenantLimits(max_queued, max_running, rate)
    budget = TenantBudget(max_cost_per_day, cast("OnCapValue", on_cap or "fail"))
    fields = {
        "name": name,
        **asdict(limits),
        "max_cost_usd_per_day": max_cost_per_day,
        "on_cap": on_cap,
        "weight": weight,
    }

    async def on_server(client: Client) -> Tenant:
        return await client.admin.create_tenant(tenant, _given(fields))

    async def on_database(database: Database) -> Tenant:
        from runlane.store.access.tenants import create_tenant

        return await create_tenant(
            database,
            tenant,
            name=name,
            limits=limits,
            budget=budget,
            weight=1.0 if weight is None else weight,
            actor=audit_actor(),
        )

    created = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    print_result(asdict(created), f"{created.id}: created, {_describe_limits(created)}.", json=json)


@app.command(name="list")
def list_tenants(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the tenants with their limits."""

    async def on_database(database: Database) -> Sequence[Tenant]:
        from runlane.store.access.tenants import list_tenants

        return await list_tenants(database)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.admin.tenants(), on_database),
        ["tenant", "name", "state", "max_queued", "max_running", "rate_per_second", "max_cost_usd_per_day", "on_cap",
         "weight", "created"],
        lambda row: [
            row.id, row.name, "enabled" if row.enabled else "disabled", row.max_queued, row.max_running,
            row.rate_per_second, row.max_cost_usd_per_day, row.on_cap, row.weight, format_time(row.created_at_us),
        ],
        empty="No tenants.",
        json=json,
    )  # fmt: skip


@app.command(name="set")
def set_tenant(
    tenant: TenantId,
    name: DisplayName = None,
    max_queued: MaxQueued = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    max_cost_per_day: MaxCost = None,
    on_cap: OnCap = None,
    weight: Weight = None,
    no_limit: Annotated[
        str | None,
        typer.Option(
            help="Limits to remove, comma-separated: max_queued, max_running, rate_per_second, max_cost_usd_per_day, "
            "max_schedules, min_schedule_seconds."
        ),
    ] = None,
    max_schedules: Annotated[int | None, typer.Option(help="Maximum number of schedules; 1000 by default.")] = None,
    min_schedule_seconds: Annotated[
        float | None, typer.Option(help="The shortest period of schedules; 10 by default.")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="The keys of a disabled tenant are rejected.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change a tenant during operation. When the command returns, the new limits apply to every new run."""
    fields: dict[str, Any] = {
        "name": name,
        "enabled": enabled,
        "max_queued": max_queued,
        "max_running": max_running,
        "rate_per_second": rate,
        "max_cost_usd_per_day": max_cost_per_day,
        "on_cap": on_cap,
        "weight": weight,
        "max_schedules": max_schedules,
        "min_schedule_seconds": min_schedule_seconds,
    }
    unlimited = frozenset(part.replace("-", "_") for part in split_names(no_limit))

    async def on_server(client: Client) -> tuple[Tenant, Tenant]:
        before = await client.admin.tenant(tenant)
        return before, await client.admin.set_tenant(tenant, _given(fields) | dict.fromkeys(unlimited))

    async def on_database(database: Database) -> tuple[Tenant, Tenant]:
        from runlane.store.access.tenants import TenantChange, set_tenant

        change = TenantChange(**fields, unlimited=unlimited)
        return await set_tenant(database, tenant, change, actor=audit_actor())

    old, new = on_server_or_database(url, api_key, on_server, on_database)
    changed = changes(asdict(old), asdict(new))
    changed.pop("updated_at_us", None)
    if json:
        print_json({"tenant": asdict(new), "changed": changed})
    else:
        print_changes(tenant, changed)


@app.command()
def delete(tenant: TenantId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Delete a tenant that has no runs and no memories, and revoke its keys."""

    async def on_app(own: App) -> Tenant:
        from runlane.store.access.tenants import delete_tenant

        delete = partial(delete_tenant, await own.database(), tenant, actor=audit_actor())
        return await (await own.connect()).memory_opener.delete_tenant(tenant, delete)

    deleted = on_server_or_app(url, api_key, lambda client: client.admin.delete_tenant(tenant), on_app)
    print_result({"deleted": asdict(deleted)}, f"{deleted.id}: deleted.", json=json)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _describe_limits(tenant: Tenant) -> str:
    limits = {**asdict(tenant.limits), "max_cost_usd_per_day": tenant.max_cost_usd_per_day}
    return ", ".join(f"{name} {value}" for name, value in _given(limits).items()) or "no limits"
