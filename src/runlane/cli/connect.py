"""What `runlane mcp check` does: it connects to an MCP server as a worker would, and tells what is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runlane.cli.author import chosen_directory
from runlane.cli.show import print_json
from runlane.cli.target import refuse_url
from runlane.cli.terminal import write_line
from runlane.definitions.loader import parse_directory
from runlane.definitions.schema.definition import McpServer
from runlane.definitions.versions import restore
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json
from runlane.errors import InvalidDefinitions, UnknownDefinition

if TYPE_CHECKING:
    from runlane.llm.models import ToolOffer
    from runlane.store.sql.database import Database


def check_server(name: str, *, directory: Path | None, tenant: str | None, json: bool) -> int:
    """`runlane mcp check`."""
    refuse_url(
        "mcp check",
        "It connects from here and reads secrets, which a server does not give away. Set RUNLANE_DATABASE_URL to the "
        "server's database, or unset RUNLANE_URL.",
    )
    from runlane.tools.caller import ToolFailed

    try:
        server, offers = asyncio.run(_check(name, directory, tenant or DEFAULT_TENANT))
    except ToolFailed as failure:
        if json:
            print_json({"server": name, "error": failure.code, "message": failure.message})
        else:
            write_line(f"{failure.code}: {failure.message}", err=True)
        return 1
    if json:
        print_json({"server": name, "tools": [_tool_row(server, offer) for offer in offers]})
        return 0
    for offer in offers:
        first = offer.description.strip().partition("\n")[0]
        write_line(f"{name}__{offer.name}{f'  {first}' if first else ''}")
    write_line(f"{len(offers)} tool{'' if len(offers) == 1 else 's'}.")
    return 0


def _tool_row(server: McpServer, offer: ToolOffer) -> dict[str, Any]:
    return {
        "name": f"{server.name}__{offer.name}",
        "description": offer.description,
        "effect": server.effects.get(offer.name, server.effect),
        "input_schema": dict(offer.input_schema),
    }


async def _check(name: str, directory: Path | None, tenant: str) -> tuple[McpServer, Sequence[ToolOffer]]:
    from runlane.access.secrets import SecretVault
    from runlane.cli.own import own_app
    from runlane.outbound import Outbound
    from runlane.redaction import Redactor
    from runlane.tools.mcp import McpClients

    app = own_app()
    try:
        await app.connect()
        database = await app.database()
        folder = chosen_directory(directory)
        in_folder = directory is not None or folder.is_dir()
        server = _in_folder(folder, name) if in_folder else await _in_database(database, tenant, name)
        # Whoever types the command may start programs here.
        settings = app.settings.model_copy(update={"mcp_stdio": True})
        clients = McpClients(settings, SecretVault(database, settings).values, Outbound(settings))
        try:
            return server, await clients.tools(tenant, Redactor(), server)
        finally:
            await clients.close()
    finally:
        await app.close()


def _in_folder(folder: Path, name: str) -> McpServer:
    loaded = parse_directory(folder)
    known = [parsed.definition for parsed in loaded.definitions]
    servers = {item.id: item for item in known if isinstance(item, McpServer)}
    if name in servers:
        return servers[name]
    own = [
        problem for problem in loaded.errors if problem.location.kind == "mcp_server" and problem.location.id == name
    ]
    if own:
        raise InvalidDefinitions([(str(problem.location), problem.message) for problem in own])
    raise UnknownDefinition("mcp_server", name, servers)


async def _in_database(database: Database, tenant: str, name: str) -> McpServer:
    from runlane.store.definitions import find_definition

    _, found = await find_definition(database, tenant, "mcp_server", name)
    server = restore("mcp_server", dump_json(dict(found.body)))
    assert isinstance(server, McpServer)  # noqa: S101 - what its kind says
    return server
