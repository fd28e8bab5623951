"""`runlane definitions`: the stored definitions, their versions, and the definitions that use them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Limit, Tenant, Url
from runlane.cli.output import print_json, print_rows
from runlane.definitions.files import FOLDERS
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.wire import to_dict

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.definitions.schema.definition import Kind
    from runlane.store.sql.database import Database

app = typer.Typer()


class DefinitionFolder(StrEnum):
    """The kinds of definitions, by the name of their folder. Schedules have commands of their own."""

    ORCHESTRATIONS = "orchestrations"
    AGENTS = "agents"
    TOOLS = "tools"
    MCP_SERVERS = "mcp-servers"
    TRIGGERS = "triggers"

    @property
    def kind(self) -> Kind:
        """The kind of the definitions in this folder."""
        return FOLDERS[self.replace("-", "_")]


Folder = Annotated[DefinitionFolder, typer.Argument(help="The kind of definition.", metavar="KIND")]
DefinitionName = Annotated[str, typer.Argument(help="The id of the definition; of a tool its name.", metavar="ID")]


@app.command(name="list")
def list_definitions(
    kind: Folder,
    limit: Limit = 100,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the current definitions of a kind, by id."""

    async def on_server(client: Client) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async for item in client.definitions(kind, tenant=tenant):
            found.append(item)
            if len(found) == limit:
                break
        return found

    async def on_database(database: Database) -> list[dict[str, Any]]:
        from runlane.store import definitions

        found = await definitions.list_definitions(database, tenant or DEFAULT_TENANT, kind.kind, limit=limit)
        return [to_dict(item) for item in found]

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["definition", "name", "version", "changed", "source"],
        lambda row: [row["id"], row["name"], row["version"][:12], row["updated_at"], row["source"]],
        empty=f"No {kind.replace('-', ' ')}.",
        json=json,
        to_dict=dict[str, Any],
    )


@app.command()
def show(
    kind: Folder,
    name: DefinitionName,
    version: Annotated[str | None, typer.Option(help="A version. Default: the current one.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Print a definition as JSON, as it is written in a file."""

    async def on_server(client: Client) -> Any:
        return (await client.definition(kind, name, version, tenant=tenant))["definition"]

    async def on_database(database: Database) -> Any:
        from runlane.store.definitions import find_definition, find_version

        owner = tenant or DEFAULT_TENANT
        if version is None:
            return (await find_definition(database, owner, kind.kind, name)).body
        return (await find_version(database, owner, kind.kind, name, version)).body

    print_json(on_server_or_database(url, api_key, on_server, on_database))


@app.command()
def versions(
    kind: Folder,
    name: DefinitionName,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the versions of a definition, newest first; at most 100."""

    async def on_server(client: Client) -> list[dict[str, Any]]:
        return await client.definition_versions(kind, name, tenant=tenant)

    async def on_database(database: Database) -> list[dict[str, Any]]:
        from runlane.store.definitions import list_versions

        found = await list_versions(database, tenant or DEFAULT_TENANT, kind.kind, name)
        return [to_dict(item) for item in found.versions]

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["version", "stored", "current"],
        lambda row: [row["version"], row["created_at"], "yes" if row["current"] else ""],
        empty="No versions.",
        json=json,
        to_dict=dict[str, Any],
    )


@app.command(name="used-by")
def used_by(
    kind: Folder,
    name: DefinitionName,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the definitions whose runs may use this one."""

    async def on_server(client: Client) -> list[dict[str, Any]]:
        return (await client.definition_users(kind, name, tenant=tenant))["used_by"]

    async def on_database(database: Database) -> list[dict[str, Any]]:
        from runlane.store.definition_users import find_users
        from runlane.store.definitions import find_definition

        owner = tenant or DEFAULT_TENANT
        await find_definition(database, owner, kind.kind, name)
        found = await find_users(database, owner, kind.kind, name)
        return [{key: row[key] for key in ("kind", "id", "name")} for row in found]

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["kind", "definition", "name"],
        lambda row: [row["kind"], row["id"], row["name"]],
        empty="No definition uses it.",
        json=json,
        to_dict=dict[str, Any],
    )
