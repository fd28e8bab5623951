"""`runlane threads`: threads of hosted graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_app
from runlane.cli.json_input import read_object
from runlane.cli.options import ApiKey, Json, Limit, Url
from runlane.cli.output import format_time, print_json, print_rows, print_table
from runlane.cli.terminal import write_line
from runlane.domain.graph import ThreadStatus
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.app import App
    from runlane.client import Client
    from runlane.domain.thread import Thread

app = typer.Typer()

ThreadId = Annotated[str, typer.Argument(help="Id of the thread.", metavar="ID")]
OfDatabase = Annotated[
    str | None, typer.Option("--tenant", help="Tenant, in the database. A server uses the tenant of the key.")
]
Offset = Annotated[int, typer.Option(min=0, help="Skip this many entries.")]
Metadata = Annotated[
    str | None, typer.Option(help="Only those whose metadata contains this JSON object.", metavar="JSON")
]


@app.command(name="list")
def list_threads(
    status: Annotated[ThreadStatus | None, typer.Option(help="Only threads in this status.")] = None,
    metadata: Metadata = None,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: OfDatabase = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List threads, most recently changed first."""
    wanted: dict[str, Any] = {
        "status": None if status is None else status.value,
        "metadata": None if metadata is None else read_object(metadata, "--metadata", "what the metadata contains"),
        "limit": limit,
        "offset": offset,
    }

    async def on_server(client: Client) -> Sequence[Thread]:
        refuse_tenant(tenant)
        return await client.threads.list(**wanted)

    async def on_app(local: App) -> Sequence[Thread]:
        return await local.threads.list(**wanted, tenant=tenant or DEFAULT_TENANT)

    print_rows(
        on_server_or_app(url, api_key, on_server, on_app),
        ["thread", "status", "graph", "changed"],
        lambda row: [row.id, row.status.value, row.metadata.get("graph_id"), format_time(row.updated_at_us)],
        empty="No threads.",
        json=json,
        to_dict=to_dict,
    )


@app.command()
def show(
    thread_id: ThreadId, tenant: OfDatabase = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show a thread with its values and open interrupts."""

    async def on_server(client: Client) -> Thread:
        refuse_tenant(tenant)
        return await client.threads.get(thread_id)

    async def on_app(local: App) -> Thread:
        return await local.threads.get(thread_id, tenant=tenant or DEFAULT_TENANT)

    print_value(on_server_or_app(url, api_key, on_server, on_app), json=json)


@app.command()
def state(
    thread_id: ThreadId,
    checkpoint: Annotated[str | None, typer.Option(help="Id of a checkpoint. Default: the newest.")] = None,
    tenant: OfDatabase = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Print the state of a thread as JSON."""

    async def on_server(client: Client) -> dict[str, Any]:
        refuse_tenant(tenant)
        return await client.threads.state(thread_id, checkpoint)

    async def on_app(local: App) -> dict[str, Any]:
        return await local.threads.state(thread_id, checkpoint, tenant=tenant or DEFAULT_TENANT)

    print_json(on_server_or_app(url, api_key, on_server, on_app))


@app.command()
def history(
    thread_id: ThreadId,
    before: Annotated[str | None, typer.Option(help="Id of a checkpoint; only earlier states.")] = None,
    limit: Limit = 10,
    tenant: OfDatabase = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the states of a thread, newest first."""

    async def on_server(client: Client) -> Sequence[dict[str, Any]]:
        refuse_tenant(tenant)
        return await client.threads.history(thread_id, limit=limit, before=before)

    async def on_app(local: App) -> Sequence[dict[str, Any]]:
        owner = tenant or DEFAULT_TENANT
        return await local.threads.history(thread_id, limit=limit, before=before, tenant=owner)

    print_rows(
        on_server_or_app(url, api_key, on_server, on_app),
        ["checkpoint", "step", "source", "next", "created"],
        lambda row: [
            (row["checkpoint"] or {}).get("checkpoint_id"),
            (row["metadata"] or {}).get("step"),
            (row["metadata"] or {}).get("source"),
            ", ".join(row["next"]),
            row["created_at"],
        ],
        empty="The thread has no states.",
        json=json,
        to_dict=dict,
    )


@app.command()
def delete(thread_id: ThreadId, tenant: OfDatabase = None, url: Url = None, api_key: ApiKey = None) -> None:
    """Delete a thread with all of its state. Its open runs are cancelled."""

    async def on_server(client: Client) -> None:
        refuse_tenant(tenant)
        await client.threads.delete(thread_id)

    async def on_app(local: App) -> None:
        await local.threads.delete(thread_id, tenant=tenant or DEFAULT_TENANT, actor=audit_actor())

    on_server_or_app(url, api_key, on_server, on_app)
    write_line(f"Deleted {thread_id}.")


def print_value(value: object, *, json: bool) -> None:
    """Print a thread or an assistant: as JSON, or a line for each field."""
    fields = to_dict(value)
    if json:
        print_json(fields)
    else:
        rows = [[name, text if isinstance(text, str) else dump_json(text)] for name, text in fields.items()]
        print_table(["field", "value"], rows, empty="")


def refuse_tenant(tenant: str | None) -> None:
    """Raise InvalidRequest if a tenant is named for a server, which uses that of the key."""
    if tenant is not None:
        raise InvalidRequest("--tenant is for a database. On a server, use a key of the tenant.")
