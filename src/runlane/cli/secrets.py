"""`runlane secrets`: encrypted values that definitions refer to by name.

A value comes from a prompt, stdin or a file, because every process of the machine can see arguments.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.json_input import read_bytes
from runlane.cli.options import ApiKey, Json, Tenant, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows
from runlane.cli.terminal import read_hidden, write_line
from runlane.domain.secret import MAX_BYTES, RotatedSecrets, Secret, SecretUser, check_name, check_value
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.access.secrets import SecretVault
    from runlane.client import Client
    from runlane.store.sql.database import Database

app = typer.Typer()

_PAGE = 1000

SecretName = Annotated[str, typer.Argument(help="The name: letters, digits and _.", metavar="NAME")]


@app.command(name="set")
def set_secret(
    name: SecretName,
    from_file: Annotated[
        Path | None, typer.Option(help="Read the value from this file. Default: a prompt, or stdin in a pipe.")
    ] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Set a secret. Its value is read from a hidden prompt, stdin or a file, without a final newline."""
    check_name(name)
    value = check_value(_read_value(name, from_file))

    async def on_server(client: Client) -> Secret:
        return await client.secrets.set(name, value, tenant=tenant)

    async def on_database(database: Database) -> Secret:
        return (await _vault(database).set(tenant or DEFAULT_TENANT, name, value, actor=audit_actor()))[1]

    secret = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    print_result(
        asdict(secret), f"{secret.name}: version {secret.version}, encrypted with the key {secret.key_id}.", json=json
    )


@app.command(name="list")
def list_secrets(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the secrets with their versions. Values are never shown."""

    async def on_server(client: Client) -> Sequence[Secret]:
        return [secret async for secret in client.secrets.list(tenant=tenant)]

    async def on_database(database: Database) -> Sequence[Secret]:
        from runlane.store.access.secrets import list_secrets

        found: list[Secret] = []
        while page := await list_secrets(
            database, tenant or DEFAULT_TENANT, after=found[-1].name if found else None, limit=_PAGE
        ):
            found += page
        return found

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["secret", "tenant", "version", "key", "created", "updated", "by"],
        lambda row: [
            row.name, row.tenant, row.version, row.key_id, format_time(row.created_at_us),
            format_time(row.updated_at_us), row.updated_by,
        ],
        empty="No secrets. Set one: runlane secrets set NAME",
        json=json,
    )  # fmt: skip


@app.command(name="used-by")
def used_by(
    name: SecretName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """List the definitions that refer to a secret, even if it does not exist."""

    async def on_database(database: Database) -> Sequence[SecretUser]:
        from runlane.store.definition_users import find_secret_users

        return await find_secret_users(database, tenant or DEFAULT_TENANT, check_name(name))

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.secrets.used_by(name, tenant=tenant), on_database),
        ["kind", "definition", "name"],
        lambda row: [row.kind, row.id, row.name],
        empty="No definition refers to it.",
        json=json,
    )


@app.command()
def delete(
    name: SecretName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a secret. Definitions that refer to it fail from now on."""

    async def on_server(client: Client) -> Secret:
        return await client.secrets.delete(name, tenant=tenant)

    async def on_database(database: Database) -> Secret:
        from runlane.store.access.secrets import delete_secret

        return await delete_secret(database, tenant or DEFAULT_TENANT, name, actor=audit_actor())

    deleted = on_server_or_database(url, api_key, on_server, on_database)
    print_result({"deleted": asdict(deleted)}, f"{deleted.name}: deleted.", json=json)


@app.command()
def rotate(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant. Default: all tenants that you may see.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Re-encrypt secrets that use an older key with the first key. Safe to interrupt, repeat and use during runs.

    Exit code 1 if no configured key can decrypt some of the secrets.
    """

    async def on_database(database: Database) -> RotatedSecrets:
        return await _vault(database).rotate(actor=audit_actor(), tenant=tenant)

    done = on_server_or_database(url, api_key, lambda client: client.secrets.rotate(tenant=tenant), on_database)
    if json:
        print_json(asdict(done))
    else:
        for item in done.unreadable:
            write_line(
                f"unreadable: {item.name} of tenant {item.tenant}, encrypted with the key {item.key_id}", err=True
            )
        count = len(done.unreadable)
        write_line(f"{done.rotated} encrypted again with the key {done.key_id}, {count} unreadable.")
    raise typer.Exit(1 if done.unreadable else 0)


@app.command(name="new-key")
def new_key(json: Json = False) -> None:
    """Print a new key for RUNLANE_SECRET_KEY. It is not stored; keep a copy."""
    from runlane.access.keyring import key_id_of, new_key
    from runlane.settings import parse_secret_keys

    key = new_key()
    if json:
        print_json({"key": key, "key_id": key_id_of(parse_secret_keys(key)[0])})
        return
    write_line(key)
    write_line(
        "Set it as RUNLANE_SECRET_KEY for every server and worker, or write it to a file that RUNLANE_SECRET_KEY_FILE "
        "names, and keep a copy elsewhere: without it no secret can be read.",
        err=True,
    )


def _vault(database: Database) -> SecretVault:
    from runlane.access.secrets import SecretVault
    from runlane.settings import load_settings

    return SecretVault(database, load_settings())


def _read_value(name: str, from_file: Path | None) -> str:
    if from_file is None and sys.stdin.isatty():
        return read_hidden(f"Value of {name}: ")
    try:
        text = read_bytes(from_file, MAX_BYTES + 3).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The value is not UTF-8 text. Encode it first, for example as base64.") from None
    # Editors and echo end a file with a newline.
    return text.removesuffix("\n").removesuffix("\r")
