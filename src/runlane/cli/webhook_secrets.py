"""`runlane webhooks secret`, `rotate` and `keys`: what verifies the messages of an endpoint, or webhooks of runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Json, Tenant, Url
from runlane.cli.output import format_time, print_json, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.webhook import WebhookKey, WebhookSecret
    from runlane.store.sql.database import Database
    from runlane.webhooks.endpoints import WebhookManager

EndpointOrDefault = Annotated[
    str | None,
    typer.Argument(help="An endpoint; without one, the default secret of the tenant's runs.", metavar="ENDPOINT"),
]


def rotate(
    endpoint_id: EndpointOrDefault = None,
    overlap_hours: Annotated[
        float, typer.Option(help="Hours during which messages are also signed with the previous secret.")
    ] = 24.0,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Replace the secret of an endpoint, or create or replace the default one. The new one is printed once."""

    async def on_server(client: Client) -> WebhookSecret:
        if endpoint_id is None:
            return await client.webhooks.rotate_default_secret(overlap_hours=overlap_hours, tenant=tenant)
        return await client.webhooks.rotate(endpoint_id, overlap_hours=overlap_hours)

    async def on_database(database: Database) -> WebhookSecret:
        manager, actor = webhook_manager(database), audit_actor()
        if endpoint_id is None:
            return await manager.rotate_default(tenant or DEFAULT_TENANT, overlap_hours=overlap_hours, actor=actor)
        return await manager.rotate(endpoint_id, overlap_hours=overlap_hours, actor=actor)

    print_secret(on_server_or_database(url, api_key, on_server, on_database), json=json)


def secret(
    endpoint_id: EndpointOrDefault = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Print the secret of an endpoint, or the default one. This is recorded in the audit log."""

    async def on_server(client: Client) -> WebhookSecret:
        if endpoint_id is None:
            return await client.webhooks.default_secret(tenant=tenant)
        return await client.webhooks.secret(endpoint_id)

    async def on_database(database: Database) -> WebhookSecret:
        manager, actor = webhook_manager(database), audit_actor()
        if endpoint_id is None:
            return await manager.reveal_default(tenant or DEFAULT_TENANT, actor=actor)
        return await manager.reveal(endpoint_id, actor=actor)

    print_secret(on_server_or_database(url, api_key, on_server, on_database), json=json)


def keys(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the public keys of endpoints with ed25519 signatures."""

    async def on_server(client: Client) -> Sequence[WebhookKey]:
        return await client.webhooks.keys(tenant=tenant)

    async def on_database(database: Database) -> Sequence[WebhookKey]:
        from runlane.store.webhooks.secrets import list_public_keys

        return await list_public_keys(database, tenant)

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["endpoint", "version", "public key", "valid until"],
        lambda key: [key.endpoint_id, key.version, key.public_key, format_time(key.valid_until_us)],
        empty="No public keys.",
        json=json,
    )


def webhook_manager(database: Database) -> WebhookManager:
    """Return the manager of the endpoints in a database."""
    from runlane.access.keyring import Keyring
    from runlane.settings import load_settings
    from runlane.webhooks.endpoints import WebhookManager

    settings = load_settings()
    return WebhookManager(database, settings, Keyring(settings))


def print_secret(secret: WebhookSecret, *, json: bool = False) -> None:
    """Print a secret, or the public key that takes its place."""
    if json:
        print_json(asdict(secret))
        return
    write_line(secret.secret or secret.public_key or "")
    if secret.previous_valid_until_us is not None:
        write_line(f"The previous secret signs, too, until {format_time(secret.previous_valid_until_us)}.", err=True)
