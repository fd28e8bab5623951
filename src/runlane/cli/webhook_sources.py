"""`runlane webhook-sources`: senders of incoming webhooks.

The secret comes from a prompt, stdin or a file, because every process of the machine can see arguments.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.json_input import read_bytes
from runlane.cli.options import ApiKey, Json, Tenant, Url
from runlane.cli.output import format_time, print_result, print_rows
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.webhook_source import DEFAULT_RATE, MAX_SECRET, Verifier
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.webhook_source import WebhookSource
    from runlane.store.sql.database import Database

app = typer.Typer()

SourceName = Annotated[str, typer.Argument(help="Name of the source.", metavar="NAME")]
_Changed = tuple["WebhookSource", str | None, str | None]


@app.command(name="set")
def set_source(
    name: SourceName,
    verifier: Annotated[str, typer.Option(help="standard, github, stripe, slack, hmac or bearer.")],
    secret_file: Annotated[
        Path | None, typer.Option(help="Read the secret from this file; - reads stdin. Default: one is generated.")
    ] = None,
    event: Annotated[str | None, typer.Option(help="Beginning of the event names. Default: NAME.")] = None,
    header: Annotated[str, typer.Option(help="For hmac: the header with the signature.")] = "X-Signature",
    prefix: Annotated[str, typer.Option(help="For hmac: the prefix of the signature, such as sha256=.")] = "",
    encoding: Annotated[str, typer.Option(help="For hmac: hex or base64.")] = "hex",
    id_header: Annotated[str | None, typer.Option(help="For hmac and bearer: the header with the sender's id.")] = None,
    rate: Annotated[int, typer.Option(help="Maximum number of requests in a minute.")] = DEFAULT_RATE,
    enabled: Annotated[
        bool, typer.Option("--enable/--disable", help="Requests to a disabled source receive 404.")
    ] = True,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a source, or replace its settings and its secret. The path of a new one is printed once."""
    if verifier not in set(Verifier):
        raise InvalidRequest(f"--verifier={verifier} must be one of {', '.join(Verifier)}.")
    secret = None if secret_file is None else _read_secret(secret_file)
    given: dict[str, Any] = {"secret": secret, "event": event, "rate_per_minute": rate, "enabled": enabled}
    options: dict[str, Any] = {"header": header, "prefix": prefix, "encoding": encoding, "id_header": id_header}

    async def on_server(client: Client) -> _Changed:
        return await client.webhook_sources.set(name, verifier, **given, **options, tenant=tenant)

    async def on_database(database: Database) -> _Changed:
        from runlane.access.keyring import Keyring
        from runlane.domain.webhook_source import SourceOptions
        from runlane.settings import load_settings
        from runlane.triggers.webhooks import SourceChange, set_source

        change = SourceChange(Verifier(verifier), options=SourceOptions(**options), **given)
        done = await set_source(
            database, Keyring(load_settings()), tenant or DEFAULT_TENANT, name, change, actor=audit_actor()
        )
        return done.source, done.hook_path, done.secret

    _print(on_server_or_database(url, api_key, on_server, on_database, creates=True), json=json)


@app.command(name="list")
def list_sources(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the sources, without secrets and paths."""

    async def on_server(client: Client) -> Sequence[WebhookSource]:
        return await client.webhook_sources.list(tenant=tenant)

    async def on_database(database: Database) -> Sequence[WebhookSource]:
        from runlane.store.events.sources import list_sources

        return await list_sources(database, tenant or DEFAULT_TENANT)

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["source", "verifier", "events", "state", "per minute", "changed"],
        lambda source: [
            source.name,
            source.verifier,
            f"{source.event}.*",
            "enabled" if source.enabled else "disabled",
            source.rate_per_minute,
            format_time(source.updated_at_us),
        ],
        empty="No webhook sources.",
        json=json,
    )


@app.command(name="show")
def show_source(
    name: SourceName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show a source, without its secret and its path."""

    async def on_server(client: Client) -> WebhookSource:
        return await client.webhook_sources.get(name, tenant=tenant)

    async def on_database(database: Database) -> WebhookSource:
        from runlane.store.events.sources import find_source

        return await find_source(database, tenant or DEFAULT_TENANT, name)

    found = on_server_or_database(url, api_key, on_server, on_database)
    state = "enabled" if found.enabled else "disabled"
    line = f"{found.name}: {found.verifier}, events {found.event}.*, {state}, {found.rate_per_minute} per minute"
    print_result(asdict(found), line, json=json)


@app.command(name="token")
def rotate_token(
    name: SourceName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Give a source a new path; requests to the old path are rejected."""

    async def on_server(client: Client) -> _Changed:
        return await client.webhook_sources.rotate_token(name, tenant=tenant)

    async def on_database(database: Database) -> _Changed:
        from runlane.triggers.webhooks import rotate_token

        done = await rotate_token(database, tenant or DEFAULT_TENANT, name, actor=audit_actor())
        return done.source, done.hook_path, done.secret

    _print(on_server_or_database(url, api_key, on_server, on_database), json=json)


@app.command(name="delete")
def delete_source(
    name: SourceName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a source; its events stay."""

    async def on_server(client: Client) -> WebhookSource:
        return await client.webhook_sources.delete(name, tenant=tenant)

    async def on_database(database: Database) -> WebhookSource:
        from runlane.store.events.sources import delete_source

        return await delete_source(database, tenant or DEFAULT_TENANT, name, actor=audit_actor())

    deleted = on_server_or_database(url, api_key, on_server, on_database)
    print_result(asdict(deleted), f"{deleted.name}: deleted.", json=json)


def _print(changed: _Changed, *, json: bool) -> None:
    source, path, secret = changed
    lines = [f"{source.name}: {source.verifier}, events {source.event}.*"]
    if path is not None:
        lines.append(f"Path, shown once: {path}")
    if secret is not None:
        lines.append(f"Secret, shown once: {secret}")
    print_result({**asdict(source), "hook_path": path, "secret": secret}, "\n".join(lines), json=json)


def _read_secret(file: Path) -> str:
    text = read_bytes(None if str(file) == "-" else file, MAX_SECRET + 2)
    try:
        return text.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is not text in UTF-8.") from None
