"""`runlane mcp`: serve the MCP server on stdio; `runlane mcp check`: list the tools of another server, as agents do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.options import ApiKey, Concurrency, Dir, Json, Url
from runlane.cli.output import format_count, print_json
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from runlane.domain.mcp_check import McpCheck

app = typer.Typer(invoke_without_command=True)


@app.callback()
def serve(
    context: typer.Context,
    app_path: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="module:name of your App, to serve its tasks.")
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Also execute runs in this process.")] = False,
    concurrency: Concurrency = None,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Offer only tools that read. On a server, use a key with the role viewer."),
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Serve tools and resources of Runlane on stdin and stdout, for an MCP client that starts this command.

    With a server (--url, RUNLANE_URL, or a running `runlane dev` of this folder) requests are forwarded to it, with
    the permissions of the key. Otherwise the database is used directly, with all permissions.
    """
    if context.invoked_subcommand is not None:
        return
    from runlane.cli.logs import configure_logs

    # Logs go to stderr, because stdout belongs to the protocol.
    configure_logs(dev=False)
    from runlane.cli.process import run_process

    run_process(_serving(app_path, url, api_key, worker=worker, concurrency=concurrency, read_only=read_only))


def _serving(
    app_path: str | None,
    url: str | None,
    api_key: str | None,
    *,
    worker: bool,
    concurrency: int | None,
    read_only: bool,
) -> Coroutine[Any, Any, bool]:
    from runlane.cli.target import check_exists, server_or_database

    own = app_path is not None or worker or read_only
    if own and url is not None:
        raise InvalidRequest(
            f'--app, --worker and --read-only need a database, but the server "{url}" is given. Leave them out, or '
            "unset RUNLANE_URL and set RUNLANE_DATABASE_URL."
        )
    if not own:
        url, api_key = server_or_database(url, api_key)
    from runlane.api.mcp.stdio import READER, relay_to, serve_database

    if url is not None:
        return relay_to(url, api_key, _stop_on_signals)
    from runlane.access.policy import LOCAL
    from runlane.api.services import WorkerOptions
    from runlane.app import App
    from runlane.cli.app_loader import find_app

    loaded = App() if app_path is None else find_app(app_path)
    if not worker:
        check_exists(loaded.settings)
    options = WorkerOptions(None, concurrency) if worker else None
    return serve_database(loaded, READER if read_only else LOCAL, options, _stop_on_signals)


def _stop_on_signals(stopping: asyncio.Event) -> None:
    from runlane.cli.process import handle_signals

    handle_signals(stopping.set, stopping.set)


@app.command()
def check(
    server: Annotated[str, typer.Argument(help="Name of the server's definition.", metavar="SERVER")],
    directory: Dir = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant whose secrets are used. Default: default.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Connect to an MCP server and list its tools, as agents see them. Exit code 1 if it cannot be used.

    With --url or RUNLANE_URL, that server connects, with its stored definition and secrets. Otherwise this process
    connects: the definition comes from the folder with definitions if it exists, else from the database; secrets come
    from the database.
    """
    if url is not None:
        if directory is not None:
            raise InvalidRequest(
                f'--dir names a folder of this machine, but the server "{url}" is given. Leave --dir out to check the '
                "stored definition there, or unset RUNLANE_URL to connect from here."
            )
        found = asyncio.run(_check_on_server(url, api_key, server, tenant))
    else:
        found = asyncio.run(_check_here(server, directory, tenant or DEFAULT_TENANT))
    if json:
        print_json({"server": server, **_to_dict(found)})
    elif found.usable:
        for tool in found.tools:
            first = tool.description.strip().partition("\n")[0]
            write_line(f"{tool.name}{f'  {first}' if first else ''}")
        write_line(f"{format_count(len(found.tools), 'tool')}.")
    else:
        write_line(f"{found.error}: {found.message}", err=True)
    if not found.usable:
        raise typer.Exit(1)


def _to_dict(found: McpCheck) -> dict[str, Any]:
    return {"tools": to_dict(found)["tools"]} if found.usable else {"error": found.error, "message": found.message}


async def _check_on_server(url: str, api_key: str | None, name: str, tenant: str | None) -> McpCheck:
    from runlane.cli.backend import open_client

    async with open_client(url, api_key) as client:
        return await client.check_mcp_server(name, tenant=tenant)


async def _check_here(name: str, directory: Path | None, tenant: str) -> McpCheck:
    from runlane.access.secrets import SecretVault
    from runlane.cli.backend import open_app
    from runlane.cli.definition_lookup import definitions_folder, find_in_database, find_in_folder
    from runlane.cli.target import check_exists
    from runlane.definitions.schema.definition import McpServer
    from runlane.settings import load_settings
    from runlane.tools.mcp.check import check_server

    folder = definitions_folder(directory)
    server = None
    if directory is not None or folder.is_dir():
        server = find_in_folder(folder, "mcp_server", McpServer, name)
    else:
        check_exists(load_settings())
    async with open_app() as app:
        database = await app.database()
        server = server or await find_in_database(database, tenant, "mcp_server", McpServer, name)
        # The user of the command may start programs on this machine.
        settings = app.settings.model_copy(update={"mcp_stdio": True})
        return await check_server(settings, SecretVault(database, settings).values, tenant, server)
