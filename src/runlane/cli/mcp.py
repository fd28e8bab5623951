"""`runlane mcp`: connect to an MCP server as a worker does, and list the tools that it offers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.options import Dir, Json
from runlane.cli.output import format_count, print_json
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runlane.definitions.schema.definition import McpServer
    from runlane.llm.models import ToolOffer

app = typer.Typer()


@app.command()
def check(
    server: Annotated[str, typer.Argument(help="Name of the server's definition.", metavar="SERVER")],
    directory: Dir = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant whose secrets are used. Default: default.")] = None,
    json: Json = False,
) -> None:
    """Connect to a server from here and list its tools, as agents see them. Exit code 1 if it cannot be used.

    The definition comes from the folder with definitions if it exists, else from the database; secrets come from the
    database.
    """
    from runlane.cli.target import refuse_url
    from runlane.tools.caller import ToolFailed

    refuse_url(
        "mcp check",
        "It connects from here and reads secrets, which a server does not return. Set RUNLANE_DATABASE_URL to the "
        "server's database, or unset RUNLANE_URL.",
    )
    try:
        definition, offers = asyncio.run(_list_tools(server, directory, tenant or DEFAULT_TENANT))
    except ToolFailed as failure:
        if json:
            print_json({"server": server, "error": failure.code, "message": failure.message})
        else:
            write_line(f"{failure.code}: {failure.message}", err=True)
        raise typer.Exit(1) from None
    if json:
        print_json({"server": server, "tools": [_to_dict(definition, offer) for offer in offers]})
        return
    for offer in offers:
        first = offer.description.strip().partition("\n")[0]
        write_line(f"{server}__{offer.name}{f'  {first}' if first else ''}")
    write_line(f"{format_count(len(offers), 'tool')}.")


def _to_dict(server: McpServer, offer: ToolOffer) -> dict[str, Any]:
    return {
        "name": f"{server.name}__{offer.name}",
        "description": offer.description,
        "effect": server.effects.get(offer.name, server.effect),
        "input_schema": dict(offer.input_schema),
    }


async def _list_tools(name: str, directory: Path | None, tenant: str) -> tuple[McpServer, Sequence[ToolOffer]]:
    from runlane.access.secrets import SecretVault
    from runlane.cli.backend import open_app
    from runlane.cli.definition_lookup import definitions_folder, find_in_database, find_in_folder
    from runlane.definitions.schema.definition import McpServer
    from runlane.outbound import Outbound
    from runlane.redaction import Redactor
    from runlane.tools.mcp import McpClients

    async with open_app() as app:
        database = await app.database()
        folder = definitions_folder(directory)
        if directory is not None or folder.is_dir():
            server = find_in_folder(folder, "mcp_server", McpServer, name)
        else:
            server = await find_in_database(database, tenant, "mcp_server", McpServer, name)
        # The user of the command may start programs on this machine.
        settings = app.settings.model_copy(update={"mcp_stdio": True})
        clients = McpClients(settings, SecretVault(database, settings).values, Outbound(settings))
        try:
            return server, await clients.tools(tenant, Redactor(), server)
        finally:
            await clients.close()
