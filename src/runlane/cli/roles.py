"""`runlane roles`: the built-in roles, and custom ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_json, print_result, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.wire import to_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.access import Role
    from runlane.store.sql.database import Database

app = typer.Typer()


@app.command(name="list")
def list_roles(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the roles with their permissions."""

    async def on_database(database: Database) -> Sequence[Role]:
        from runlane.store.access.roles import list_roles

        return await list_roles(database)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.admin.roles(), on_database),
        ["role", "kind", "permissions"],
        lambda role: [role.name, "built in" if role.built_in else "custom", " ".join(sorted(role.permissions))],
        empty="No roles.",
        json=json,
        to_dict=to_dict,
    )


@app.command(name="set")
def set_role(
    name: Annotated[str, typer.Argument(help="Name of a custom role.")],
    permissions: Annotated[list[str], typer.Argument(help="Its permissions, such as runs:read runs:write.")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create or change a role. The change applies to the keys with this role from their next request on."""
    wanted = [part for text in permissions for part in text.replace(",", " ").split()]

    async def on_server(client: Client) -> tuple[Role | None, Role]:
        before = next((role for role in await client.admin.roles() if role.name == name), None)
        return before, await client.admin.set_role(name, wanted)

    async def on_database(database: Database) -> tuple[Role | None, Role]:
        from runlane.store.access.roles import set_role

        return await set_role(database, name, wanted, actor=audit_actor())

    old, new = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"role": to_dict(new), "old": None if old is None else to_dict(old)})
        return
    before = "none" if old is None else " ".join(sorted(old.permissions))
    write_line(f"{name}: {before} -> {' '.join(sorted(new.permissions))}")


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The role.")], url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a role that no key uses."""

    async def on_database(database: Database) -> Role:
        from runlane.store.access.roles import delete_role

        return await delete_role(database, name, actor=audit_actor())

    deleted = on_server_or_database(url, api_key, lambda client: client.admin.delete_role(name), on_database)
    print_result({"deleted": to_dict(deleted)}, f"{deleted.name}: deleted.", json=json)
