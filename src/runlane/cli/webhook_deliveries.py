"""`runlane webhooks deliveries`, `delivery` and `replay`: list and show sent messages, and send them again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Before, Json, Limit, Tenant, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.webhook import WebhookDelivery, WebhookDeliveryLog
    from runlane.store.sql.database import Database


def deliveries(
    endpoint: Annotated[str | None, typer.Option(help="Only those of this endpoint.")] = None,
    status: Annotated[str | None, typer.Option(help="pending, delivering, held, delivered, failed, discarded.")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    tenant: Tenant = None,
    before: Before = None,
    limit: Limit = 50,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List deliveries, newest first."""

    async def on_server(client: Client) -> Sequence[WebhookDelivery]:
        filters = {"endpoint_id": endpoint, "status": status, "run_id": run, "tenant": tenant}
        return await client.webhooks.deliveries(before=before, limit=limit, **filters)

    async def on_database(database: Database) -> Sequence[WebhookDelivery]:
        from runlane.store.webhooks.deliveries import list_deliveries

        return await list_deliveries(
            database, tenant=tenant, endpoint=endpoint, status=status, run_id=run, before=before, limit=limit
        )

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["delivery", "type", "status", "tries", "next", "answer", "endpoint", "run"],
        lambda row: [
            row.id,
            row.type,
            row.status,
            f"{row.tries}/{row.max_tries}",
            format_time(row.next_at_us),
            row.status_code or row.error,
            row.endpoint_id,
            row.run_id,
        ],
        empty="No deliveries.",
        json=json,
    )


def delivery(
    delivery_id: Annotated[str, typer.Argument(help="The delivery's id.", metavar="DELIVERY")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show a delivery: its message, and every attempt with the response."""

    async def on_database(database: Database) -> WebhookDeliveryLog:
        from runlane.store.webhooks.deliveries import read_delivery

        return await read_delivery(database, delivery_id)

    log = on_server_or_database(url, api_key, lambda client: client.webhooks.delivery(delivery_id), on_database)
    if json:
        print_json(asdict(log))
        return
    tries = counted(log.max_tries, "try", "tries")
    write_line(f"{log.id}: {log.type}, {log.status}, {log.tries} of {tries}, message {log.message_id}")
    write_line(log.body)
    for item in log.attempts:
        outcome = item.error or f"answered {item.status_code}"
        write_line(f"{item.number}. {format_time(item.started_at_us)}, {item.duration_us / 1000:.0f} ms: {outcome}")


def replay(
    delivery_id: Annotated[
        str | None, typer.Argument(help="A delivery; without one, all that failed.", metavar="DELIVERY")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Only those of this endpoint.")] = None,
    since: Annotated[str | None, typer.Option(help="Only those since this time: 2026-01-31T12:00:00Z.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only those of this type.")] = None,
    max_tries: Annotated[int, typer.Option(min=1, max=10, help="Maximum number of attempts of a replay.")] = 1,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Send messages again, with their ids and the current secret."""
    if delivery_id is not None:
        _replay_one(delivery_id, max_tries, url, api_key, json=json)
        return
    filters: dict[str, Any] = {"endpoint_id": endpoint, "since": since, "type": type_, "tenant": tenant}

    async def on_server(client: Client) -> int:
        return await client.webhooks.replay_all(max_tries=max_tries, **filters)

    async def on_database(database: Database) -> int:
        from runlane.domain.timestamps import parse_timestamp
        from runlane.store.webhooks.deliveries import replay_all

        return await replay_all(
            database,
            tenant or DEFAULT_TENANT,
            endpoint=endpoint,
            status="failed",
            type=type_,
            run_id=None,
            since_us=parse_timestamp(since),
            max_tries=max_tries,
            actor=audit_actor(),
        )

    replayed = on_server_or_database(url, api_key, on_server, on_database)
    print_result({"replayed": replayed}, f"{counted(replayed, 'message is', 'messages are')} sent again.", json=json)


def _replay_one(delivery_id: str, max_tries: int, url: str | None, api_key: str | None, *, json: bool) -> None:
    async def on_server(client: Client) -> WebhookDelivery:
        return await client.webhooks.replay(delivery_id, max_tries=max_tries)

    async def on_database(database: Database) -> WebhookDelivery:
        from runlane.store.webhooks.deliveries import replay_delivery

        return await replay_delivery(database, delivery_id, max_tries=max_tries, actor=audit_actor())

    new = on_server_or_database(url, api_key, on_server, on_database)
    print_result(asdict(new), f"{new.id}: sends {new.message_id} again.", json=json)
