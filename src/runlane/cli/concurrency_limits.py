"""`runlane concurrency-limits`: how many runs of several targets run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_app
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import format_time, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.domain.concurrency import SharedLimit

app = typer.Typer()

LimitName = Annotated[str, typer.Argument(help="The name of the limit, as targets refer to it.", metavar="NAME")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="The tenant. Default: the key's own, or `default`.")]


@app.command(name="list")
def list_limits(tenant: OfTenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the concurrency limits of a tenant with their use."""

    async def on_server(client: Client) -> Sequence[SharedLimit]:
        return await client.concurrency_limits(tenant=tenant)

    async def on_app(local: App) -> Sequence[SharedLimit]:
        return await local.concurrency_limits(tenant=tenant or DEFAULT_TENANT)

    _print(on_server_or_app(url, api_key, on_server, on_app), json=json)


@app.command(name="set")
def set_limit(
    name: LimitName,
    max_running: Annotated[int, typer.Argument(help="Maximum number of admitted runs; 0 starts none.", min=0)],
    tenant: OfTenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create or change a limit. It applies when the command returns; queued runs above it go back to waiting."""

    async def on_server(client: Client) -> Sequence[SharedLimit]:
        return [await client.set_concurrency_limit(name, max_running, tenant=tenant)]

    async def on_app(local: App) -> Sequence[SharedLimit]:
        owner = tenant or DEFAULT_TENANT
        return [await local.set_concurrency_limit(name, max_running, tenant=owner, actor=audit_actor())]

    _print(on_server_or_app(url, api_key, on_server, on_app, creates=True), json=json)


@app.command(name="delete")
def delete_limit(name: LimitName, tenant: OfTenant = None, url: Url = None, api_key: ApiKey = None) -> None:
    """Delete a limit that no run uses."""

    async def on_server(client: Client) -> SharedLimit:
        return await client.delete_concurrency_limit(name, tenant=tenant)

    async def on_app(local: App) -> SharedLimit:
        return await local.delete_concurrency_limit(name, tenant=tenant or DEFAULT_TENANT, actor=audit_actor())

    on_server_or_app(url, api_key, on_server, on_app)
    write_line(f"Deleted the concurrency limit {name}.")


def _print(limits: Sequence[SharedLimit], *, json: bool) -> None:
    print_rows(
        limits,
        ["name", "max running", "admitted", "waiting", "updated", "by"],
        lambda row: [
            row.name,
            row.max_running,
            row.admitted,
            row.waiting,
            format_time(row.updated_at_us),
            row.updated_by,
        ],
        empty="No concurrency limits.",
        json=json,
    )
