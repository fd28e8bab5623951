"""The command for MCP servers. Thin, like every command here."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.definitions import Dir
from runlane.cli.show import Json

mcp = typer.Typer(help="MCP servers: see which tools they offer.", no_args_is_help=True)

Server = Annotated[str, typer.Argument(help="The name of the server's definition.", metavar="SERVER")]
Tenant = Annotated[str | None, typer.Option(help="The tenant, whose secrets are used. Default: default.")]


@mcp.command()
def check(server: Server, directory: Dir = None, tenant: Tenant = None, json: Json = False) -> None:
    """Connect to a server from here and list its tools, as agents are offered them. Exit code 1 if it cannot be used.

    Its definition comes from the folder with definitions if it is there, else from the database; secrets come from
    the database.
    """
    from runlane.cli.connect import check_server

    raise typer.Exit(check_server(server, directory=directory, tenant=tenant, json=json))
