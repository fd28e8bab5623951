"""`runlane keys`: API keys.

On a server the command needs a key with the permission. On the database it needs none, because the owner of a database
may do everything; the first key of a server is created this way.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Before, Json, Limit, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.access import ApiKey as StoredKey
from runlane.domain.access import MintedKey, given_key
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.store.sql.database import Database

app = typer.Typer()


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The purpose of the key.")],
    role: Annotated[str, typer.Option(help="viewer, operator, developer, platform_admin or a custom role.")],
    tenant: Annotated[
        str | None,
        typer.Option(help="The tenant it belongs to. Default: default; on a server, the tenant of the key in use."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires. Default: never.")] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Store the key of this file: sk-rl- and 64 hex digits. A key that is stored already stays as it is.",
            metavar="FILE",
        ),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a key and print it. It is not stored and cannot be shown again."""
    life_seconds = None if expires_days is None else expires_days * 86400
    given = None if key_file is None else _read_key(key_file)

    async def on_server(client: Client) -> tuple[StoredKey, str | None]:
        if given is not None:
            raise InvalidRequest("A server creates its keys itself. Use --key-file with RUNLANE_DATABASE_URL.")
        return await client.admin.create_key(name, role, tenant=tenant, expires_in_seconds=life_seconds)

    async def on_database(database: Database) -> tuple[StoredKey, str | None]:
        from runlane.store.access.keys import create_key

        owner = tenant or DEFAULT_TENANT
        return await create_key(
            database, name, role, tenant=owner, life_seconds=life_seconds, actor=audit_actor(), given=given
        )

    key, secret = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"key": None if given else secret, **asdict(key)})
        return
    if given is not None:
        write_line(f"Key {key.id} ({key.name}): role {key.role}, tenant {key.tenant}, {_state(key)}.")
        return
    write_line(secret or "The key was created by an earlier request, whose response was lost. Revoke it.")
    expires = format_time(key.expires_at_us)
    write_line(f"Key {key.id} ({key.name}): role {key.role}, tenant {key.tenant}, expires {expires}.")
    write_line("Keep it now: only its hash is stored, and it cannot be shown again.")


def _read_key(file: Path) -> MintedKey:
    try:
        return given_key(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}. Check --key-file.") from None


@app.command(name="list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    before: Before = None,
    limit: Limit = 100,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List keys, newest first."""

    async def on_server(client: Client) -> list[StoredKey]:
        return list(await client.admin.keys(tenant=tenant, before=before, limit=limit))

    async def on_database(database: Database) -> list[StoredKey]:
        from runlane.store.access.keys import list_keys

        return await list_keys(database, tenant=tenant, before=before, limit=limit)

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["key", "name", "prefix", "role", "tenant", "state", "created", "expires", "last used", "by"],
        lambda key: [
            key.id, key.name, key.prefix, key.role, key.tenant, _state(key), format_time(key.created_at_us),
            format_time(key.expires_at_us), format_time(key.last_used_at_us), key.created_by,
        ],
        empty="No keys. Create one: runlane keys create NAME --role platform_admin",
        json=json,
    )  # fmt: skip


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id of the key.", metavar="ID")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Reject a key from now on, on every server at once."""

    async def on_database(database: Database) -> StoredKey:
        from runlane.store.access.keys import revoke_key

        return await revoke_key(database, key, actor=audit_actor())

    revoked = on_server_or_database(url, api_key, lambda client: client.admin.revoke_key(key), on_database)
    print_result(
        asdict(revoked), f"{revoked.id} ({revoked.name}): revoked {format_time(revoked.revoked_at_us)}", json=json
    )


def _state(key: StoredKey) -> str:
    if key.revoked_at_us is not None:
        return "revoked"
    expired = key.expires_at_us is not None and key.expires_at_us <= time.time_ns() // 1000
    return "expired" if expired else "active"
