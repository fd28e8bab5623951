"""What the commands for secrets do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runlane.access.keyring import key_id_of, new_key
from runlane.cli.either import with_either
from runlane.cli.show import acting, clock, print_json, print_table
from runlane.cli.terminal import read_hidden, write_line
from runlane.domain.secret import MAX_BYTES, Secret, check_name, check_value
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest
from runlane.settings import load_settings, parse_secret_keys

if TYPE_CHECKING:
    from runlane.access.secrets import SecretVault
    from runlane.client import Client
    from runlane.store.sql.database import Database

_PAGE = 1000


def keep(
    name: str, *, from_file: Path | None, tenant: str | None, url: str | None, api_key: str | None, json: bool
) -> None:
    """`runlane secrets set`."""
    check_name(name)
    value = check_value(_value(name, from_file))

    async def on_server(client: Client) -> Secret:
        return await client.secrets.set(name, value, tenant=tenant)

    async def on_database(database: Database) -> Secret:
        return (await _vault(database).set(tenant or DEFAULT_TENANT, name, value, actor=acting()))[1]

    secret = with_either(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json(asdict(secret))
    else:
        write_line(f"{secret.name}: version {secret.version}, kept with the key {secret.key_id}.")


def show(*, tenant: str | None, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane secrets list`."""

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

    rows = with_either(url, api_key, on_server, on_database)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["secret", "tenant", "version", "key", "created", "updated", "by"],
        [
            [row.name, row.tenant, row.version, row.key_id, clock(row.created_at_us), clock(row.updated_at_us),
             row.updated_by]
            for row in rows
        ],
        "No secrets. Set one: runlane secrets set NAME",
    )  # fmt: skip


def drop(name: str, *, tenant: str | None, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane secrets delete`."""

    async def on_server(client: Client) -> Secret:
        return await client.secrets.delete(name, tenant=tenant)

    async def on_database(database: Database) -> Secret:
        from runlane.store.access.secrets import delete_secret

        return await delete_secret(database, tenant or DEFAULT_TENANT, name, actor=acting())

    gone = with_either(url, api_key, on_server, on_database)
    if json:
        print_json({"deleted": asdict(gone)})
    else:
        write_line(f"{gone.name}: deleted.")


def rotate_keys(*, tenant: str | None, url: str | None, api_key: str | None, json: bool) -> int:
    """`runlane secrets rotate`."""

    async def on_server(client: Client) -> dict[str, Any]:
        return asdict(await client.secrets.rotate(tenant=tenant))

    async def on_database(database: Database) -> dict[str, Any]:
        done = await _vault(database).rotate(actor=acting(), tenant=tenant)
        unreadable = [(item.tenant, item.name, item.key_id) for item in done.unreadable]
        return {"key_id": done.key_id, "rotated": done.rotated, "unreadable": unreadable}

    told = with_either(url, api_key, on_server, on_database)
    unreadable: Sequence[tuple[str, str, str]] = told["unreadable"]
    if json:
        print_json(
            {**told, "unreadable": [dict(zip(("tenant", "name", "key_id"), item, strict=True)) for item in unreadable]}
        )
    else:
        for owner, name, key_id in unreadable:
            write_line(f"unreadable: {name} of tenant {owner}, kept with the key {key_id}", err=True)
        write_line(f"{told['rotated']} encrypted anew with the key {told['key_id']}, {len(unreadable)} unreadable.")
    return 1 if unreadable else 0


def print_key(*, json: bool) -> None:
    """`runlane secrets new-key`."""
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

    return SecretVault(database, load_settings())


def _value(name: str, from_file: Path | None) -> str:
    if from_file is None and sys.stdin.isatty():
        return read_hidden(f"Value of {name}: ")
    try:
        raw = sys.stdin.buffer.read(MAX_BYTES + 3) if from_file is None else _read(from_file)
    except OSError as error:
        raise InvalidRequest(f"{from_file} cannot be read: {error.strerror or error}.") from None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The value is not UTF-8 text. Encode it first, as base64 for example.") from None
    # Editors and echo end a file with one.
    return text.removesuffix("\n").removesuffix("\r")


def _read(file: Path) -> bytes:
    with file.open("rb") as reading:
        return reading.read(MAX_BYTES + 3)
