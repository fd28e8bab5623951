"""`runlane quotas`: what tenants may have and start, and how much of it they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_app
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_rows
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.domain.quota import QuotaUse

app = typer.Typer()

OfTenant = Annotated[str | None, typer.Option("--tenant", help="The tenant. Default: the key's own, or `default`.")]


@app.command(name="list")
def list_quotas(tenant: OfTenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the quotas of a tenant with their limits and use."""

    async def on_server(client: Client) -> Sequence[QuotaUse]:
        return await client.quotas(tenant=tenant)

    _print(on_server_or_app(url, api_key, on_server, lambda own: _read(own, tenant)), json=json)


@app.command(name="set")
def set_quota(
    name: Annotated[str, typer.Argument(help="Such as runs_per_day; see: runlane quotas list.", metavar="QUOTA")],
    limit: Annotated[int | None, typer.Argument(help="The limit.", metavar="LIMIT", show_default=False)] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Remove the limit.")] = False,
    tenant: OfTenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Set a quota of a tenant. It applies to every request that starts after the command has returned."""
    if (limit is None) is not no_limit:
        raise InvalidRequest("Give either a limit or --no-limit.")

    async def on_server(client: Client) -> Sequence[QuotaUse]:
        return await client.set_quota(name, limit, tenant=tenant)

    async def on_app(own: App) -> Sequence[QuotaUse]:
        from runlane.store.access.quotas import set_quota

        await set_quota(await own.database(), tenant or DEFAULT_TENANT, name, limit, actor=audit_actor())
        return await _read(own, tenant)

    _print(on_server_or_app(url, api_key, on_server, on_app), json=json)


async def _read(own: App, tenant: str | None) -> Sequence[QuotaUse]:
    from runlane.store.access.quotas import read_quotas, server_quotas

    connection, owner = await own.connect(), tenant or DEFAULT_TENANT
    uses = await read_quotas(connection.database, owner, server_quotas(own.settings))
    return await connection.memory_opener.with_use(owner, uses)


def _print(quotas: Sequence[QuotaUse], *, json: bool) -> None:
    print_rows(
        quotas,
        ["quota", "limit", "used", "per", "of"],
        lambda row: [row.name, _number(row.limit), _number(row.used), row.per, row.description],
        empty="No quotas.",
        json=json,
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.6g}" if value % 1 else f"{value:,.0f}"
