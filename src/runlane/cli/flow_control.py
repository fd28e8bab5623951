"""`runlane flow-control`: the keys of flow control, and the starts that have no run because of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_app
from runlane.cli.options import ApiKey, Json, Limit, Tenant, Url
from runlane.cli.output import format_time, print_rows
from runlane.domain.flow_keys import FlowRule
from runlane.domain.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.domain.flow_keys import FlowKeyUse

app = typer.Typer(no_args_is_help=True)


@app.callback()
def flow_control() -> None:
    """Show the keys of flow control."""


@app.command(name="list")
def list_keys(
    rule: Annotated[FlowRule | None, typer.Option(help="Only keys of this rule.")] = None,
    target: Annotated[str | None, typer.Option(help="Only keys of this target.")] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Only keys with skipped or dropped starts.")] = False,
    after: Annotated[str | None, typer.Option(help="The id of the last key of the previous page.")] = None,
    limit: Limit = 100,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List keys that were used within a day: skipped starts, and the run that further starts join."""

    async def on_server(client: Client) -> Sequence[FlowKeyUse]:
        name = None if rule is None else rule.value
        return await client.flow_keys(
            rule=name, target=target, only_skipped=skipped, tenant=tenant, after=after, limit=limit
        )

    async def on_app(local: App) -> Sequence[FlowKeyUse]:
        owner = tenant or DEFAULT_TENANT
        return await local.flow_keys(
            tenant=owner, rule=rule, target=target, only_skipped=skipped, after=after, limit=limit
        )

    print_rows(
        on_server_or_app(url, api_key, on_server, on_app),
        ["rule", "target", "key", "skipped", "run", "starts", "due"],
        lambda row: [
            row.rule,
            row.target,
            row.key,
            row.skipped,
            row.run_id,
            row.starts,
            format_time(row.due_at_us),
        ],
        empty="No keys of flow control.",
        json=json,
    )
