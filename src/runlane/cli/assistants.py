"""`runlane assistants`: assistants of hosted graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import on_server_or_app
from runlane.cli.json_input import read_object
from runlane.cli.options import ApiKey, Json, Limit, Url
from runlane.cli.output import format_time, print_rows
from runlane.cli.terminal import write_line
from runlane.cli.threads import Metadata, OfDatabase, Offset, print_value, refuse_tenant
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.wire import to_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.domain.assistant import Assistant, AssistantVersion

app = typer.Typer()

AssistantId = Annotated[str, typer.Argument(help="Id of the assistant, or of a graph.", metavar="ID")]


@app.command(name="list")
def list_assistants(
    graph: Annotated[str | None, typer.Option(help="Only assistants of this graph.")] = None,
    metadata: Metadata = None,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: OfDatabase = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List assistants, newest first. Every hosted graph has a default one."""
    wanted: dict[str, Any] = {
        "graph_id": graph,
        "metadata": None if metadata is None else read_object(metadata, "--metadata", "what the metadata contains"),
        "limit": limit,
        "offset": offset,
    }

    async def on_server(client: Client) -> Sequence[Assistant]:
        refuse_tenant(tenant)
        return await client.assistants.list(**wanted)

    async def on_app(local: App) -> Sequence[Assistant]:
        return await local.assistants.list(**wanted, tenant=tenant or DEFAULT_TENANT)

    print_rows(
        on_server_or_app(url, api_key, on_server, on_app),
        ["assistant", "graph", "name", "version", "changed"],
        lambda row: [row.id, row.graph_id, row.name, row.version, format_time(row.updated_at_us)],
        empty="No assistants. A worker that hosts graphs registers them.",
        json=json,
        to_dict=to_dict,
    )


@app.command()
def show(
    assistant_id: AssistantId, tenant: OfDatabase = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show an assistant."""

    async def on_server(client: Client) -> Assistant:
        refuse_tenant(tenant)
        return await client.assistants.get(assistant_id)

    async def on_app(local: App) -> Assistant:
        return await local.assistants.get(assistant_id, tenant=tenant or DEFAULT_TENANT)

    print_value(on_server_or_app(url, api_key, on_server, on_app), json=json)


@app.command()
def versions(
    assistant_id: AssistantId,
    limit: Limit = 20,
    tenant: OfDatabase = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the versions of an assistant, newest first."""

    async def on_server(client: Client) -> Sequence[AssistantVersion]:
        refuse_tenant(tenant)
        return await client.assistants.versions(assistant_id, limit=limit)

    async def on_app(local: App) -> Sequence[AssistantVersion]:
        return await local.assistants.versions(assistant_id, limit=limit, tenant=tenant or DEFAULT_TENANT)

    print_rows(
        on_server_or_app(url, api_key, on_server, on_app),
        ["version", "graph", "name", "created"],
        lambda row: [row.version, row.graph_id, row.name, format_time(row.created_at_us)],
        empty="No versions.",
        json=json,
        to_dict=to_dict,
    )


@app.command()
def delete(assistant_id: AssistantId, tenant: OfDatabase = None, url: Url = None, api_key: ApiKey = None) -> None:
    """Delete an assistant and its versions; keep its threads. The default assistant of a graph cannot be deleted."""

    async def on_server(client: Client) -> None:
        refuse_tenant(tenant)
        await client.assistants.delete(assistant_id)

    async def on_app(local: App) -> None:
        await local.assistants.delete(assistant_id, tenant=tenant or DEFAULT_TENANT)

    on_server_or_app(url, api_key, on_server, on_app)
    write_line(f"Deleted {assistant_id}.")
