"""The commands for keys, tenants, roles and the audit log.

On a server they need a key that may do it. On the database they need none, because its owner may do everything; the
first key of a server is made this way.
"""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import ApiKey, Url
from runlane.cli.show import Json

keys = typer.Typer(help="API keys: make, list, revoke.", no_args_is_help=True)
tenants = typer.Typer(help="Tenants and their limits.", no_args_is_help=True)
roles = typer.Typer(help="Roles: what a key may do.", no_args_is_help=True)
audit = typer.Typer(help="Who changed what.", no_args_is_help=True)

TenantId = Annotated[str, typer.Argument(help="The tenant's id.", metavar="TENANT")]
MaxQueued = Annotated[int | None, typer.Option(help="Runs that have not ended, at most.")]
MaxRunning = Annotated[int | None, typer.Option(help="Running runs at which new ones are refused.")]
Rate = Annotated[float | None, typer.Option(help="New runs per second; a second's worth may come at once.")]
MaxCost = Annotated[float | None, typer.Option(help="What its models may cost on one day (UTC), in dollars.")]
OnCap = Annotated[str | None, typer.Option(help="What a step does then: fail (the default), or ask a person for more.")]
DisplayName = Annotated[str | None, typer.Option(help="For people; the id if left out.")]
Limit = Annotated[int, typer.Option(min=1, max=1000)]
Before = Annotated[str | None, typer.Option(help="Continue after this id, the last of the page before.")]


@keys.command(name="create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    role: Annotated[str, typer.Option(help="viewer, operator, developer, platform_admin or one of your own.")],
    tenant: Annotated[
        str | None,
        typer.Option(help="The tenant it belongs to. Default: default, or on a server that of the key in use."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires. Default: never.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Make a key and print it. It is not stored and cannot be shown again."""
    from runlane.cli.administer import AdminTarget, make_key

    make_key(name, role=role, tenant=tenant, expires_days=expires_days, at=AdminTarget(url, api_key), json=json)


@keys.command(name="list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    before: Before = None,
    limit: Limit = 100,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List keys, newest first."""
    from runlane.cli.administer import AdminTarget, show_keys

    show_keys(tenant=tenant, before=before, limit=limit, at=AdminTarget(url, api_key), json=json)


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id.", metavar="ID")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Refuse a key from now on, on every server at once."""
    from runlane.cli.administer import AdminTarget, revoke

    revoke(key, at=AdminTarget(url, api_key), json=json)


@tenants.command(name="create")
def create_tenant(
    tenant: TenantId,
    name: DisplayName = None,
    max_queued: MaxQueued = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    max_cost_per_day: MaxCost = None,
    on_cap: OnCap = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Make a tenant."""
    from runlane.cli.administer import AdminTarget, make_tenant

    make_tenant(
        tenant,
        name=name,
        max_queued=max_queued,
        max_running=max_running,
        rate=rate,
        max_cost_per_day=max_cost_per_day,
        on_cap=on_cap,
        at=AdminTarget(url, api_key),
        json=json,
    )


@tenants.command(name="list")
def list_tenants(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the tenants with their limits."""
    from runlane.cli.administer import AdminTarget, show_tenants

    show_tenants(at=AdminTarget(url, api_key), json=json)


@tenants.command(name="set")
def set_tenant(
    tenant: TenantId,
    name: DisplayName = None,
    max_queued: MaxQueued = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    max_cost_per_day: MaxCost = None,
    on_cap: OnCap = None,
    no_limit: Annotated[
        str | None,
        typer.Option(
            help="Limits to remove, comma-separated: max_queued, max_running, rate_per_second, max_cost_usd_per_day."
        ),
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="A disabled tenant's keys are refused.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change a tenant while everything runs. When this returns, every new run is held to the new limits."""
    from runlane.cli.administer import AdminTarget, change_tenant

    change_tenant(
        tenant,
        name=name,
        max_queued=max_queued,
        max_running=max_running,
        rate=rate,
        max_cost_per_day=max_cost_per_day,
        on_cap=on_cap,
        no_limit=no_limit,
        enabled=enabled,
        at=AdminTarget(url, api_key),
        json=json,
    )


@tenants.command(name="delete")
def delete_tenant(tenant: TenantId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Delete a tenant that has no runs, and revoke its keys."""
    from runlane.cli.administer import AdminTarget, remove_tenant

    remove_tenant(tenant, at=AdminTarget(url, api_key), json=json)


@roles.command(name="list")
def list_roles(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the roles with what they allow."""
    from runlane.cli.administer import AdminTarget, show_roles

    show_roles(at=AdminTarget(url, api_key), json=json)


@roles.command(name="set")
def set_role(
    name: Annotated[str, typer.Argument(help="A name of your own.")],
    permissions: Annotated[list[str], typer.Argument(help="What it allows, such as runs:read runs:write.")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Make or change a role. Keys that have it are held to it from the next request on."""
    from runlane.cli.administer import AdminTarget, change_role

    change_role(name, permissions, at=AdminTarget(url, api_key), json=json)


@roles.command(name="delete")
def delete_role(
    name: Annotated[str, typer.Argument(help="The role.")], url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a role that no key has."""
    from runlane.cli.administer import AdminTarget, remove_role

    remove_role(name, at=AdminTarget(url, api_key), json=json)


@audit.command(name="list")
def list_audit(
    tenant: Annotated[str | None, typer.Option(help="Only changes in this tenant.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this kind of change, such as key.revoke.")] = None,
    before: Before = None,
    limit: Limit = 50,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List administrative changes with what was before and after, newest first."""
    from runlane.cli.administer import AdminTarget, show_audit

    show_audit(tenant=tenant, action=action, before=before, limit=limit, at=AdminTarget(url, api_key), json=json)
