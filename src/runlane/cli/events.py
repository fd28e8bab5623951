"""`runlane events`: events of a tenant, and the outcomes of triggers for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.json_input import read_value
from runlane.cli.options import ApiKey, Before, Json, Limit, Tenant, Url
from runlane.cli.output import format_time, print_result, print_rows, shorten
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.tenant_event import EventReceipt, TenantEvent, TriggerOutcome
    from runlane.store.sql.database import Database

app = typer.Typer()

_SHOWN_DATA = 80


@app.command(name="send")
def send(
    name: Annotated[str, typer.Argument(help="Name of the event, in words separated by dots, such as order.paid.")],
    data: Annotated[
        str | None, typer.Option(help="The data of the event as JSON; @FILE reads a file, - reads stdin.")
    ] = None,
    id: Annotated[  # noqa: A002 - the word of the API
        str | None,
        typer.Option(help="The sender's id of the event; an event with an id that is already stored is ignored."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The subject of the event, such as a customer.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Store an event. Triggers that listen to it start runs, and runs that wait for it continue."""
    value = None if data is None else read_value(data, "--data")

    async def on_server(client: Client) -> EventReceipt:
        return await client.broadcast(name, value, id=id, key=key, tenant=tenant)

    async def on_database(database: Database) -> EventReceipt:
        from runlane.domain.tenant_event import new_event
        from runlane.settings import load_settings
        from runlane.triggers.sending import send_events

        event = new_event(name, value, id, key)
        return (await send_events(database, load_settings(), tenant or DEFAULT_TENANT, [event], "api"))[0]

    receipt = on_server_or_database(url, api_key, on_server, on_database)
    line = f"{receipt.event_id}: {receipt.name}{' was stored before' if receipt.duplicate else ''}"
    print_result(asdict(receipt), line, json=json)


@app.command(name="list")
def list_stored(
    name: Annotated[str | None, typer.Option(help="Only events of this name.")] = None,
    key: Annotated[str | None, typer.Option(help="Only events with this key.")] = None,
    limit: Limit = 100,
    before: Before = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the stored events, newest first."""

    async def on_server(client: Client) -> Sequence[TenantEvent]:
        from runlane.cli.run_backend import first

        return await first(client.stored_events(name=name, key=key, before=before, tenant=tenant), limit)

    async def on_database(database: Database) -> Sequence[TenantEvent]:
        from runlane.store.events.reading import list_events

        owner = tenant or DEFAULT_TENANT
        found, more = await list_events(database, owner, name=name, key=key, before=before, limit=limit)
        while more and len(found) < limit:
            page, more = await list_events(
                database, owner, name=name, key=key, before=found[-1].id, limit=limit - len(found)
            )
            found += page
        return found

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["event", "received", "name", "key", "source", "data"],
        lambda event: [
            event.id,
            format_time(event.received_at_us),
            event.name,
            event.key or "-",
            event.source,
            shorten(dump_json(event.data), _SHOWN_DATA),
        ],
        empty="No events.",
        json=json,
    )


@app.command(name="show")
def show(
    event: Annotated[str, typer.Argument(help="Id of the event.", metavar="EVENT")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show a stored event with its data."""

    async def on_server(client: Client) -> TenantEvent:
        return await client.stored_event(event, tenant=tenant)

    async def on_database(database: Database) -> TenantEvent:
        from runlane.store.events.reading import find_event

        return await find_event(database, tenant or DEFAULT_TENANT, event)

    found = on_server_or_database(url, api_key, on_server, on_database)
    head = f"{found.id}: {found.name}, received {format_time(found.received_at_us)} from {found.source}"
    about = head if found.key is None else f"{head}, key {found.key}"
    print_result(asdict(found), f"{about}\n{dump_json(found.data)}", json=json)


@app.command(name="outcomes")
def outcomes(
    event: Annotated[str, typer.Argument(help="Id of the event.", metavar="EVENT")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the outcome of each trigger for an event."""

    async def on_server(client: Client) -> Sequence[TriggerOutcome]:
        return await client.event_outcomes(event, tenant=tenant)

    async def on_database(database: Database) -> Sequence[TriggerOutcome]:
        from runlane.store.events.reading import outcomes_of_event

        return await outcomes_of_event(database, tenant or DEFAULT_TENANT, event)

    print_outcomes(on_server_or_database(url, api_key, on_server, on_database), json=json)


def print_outcomes(found: Sequence[TriggerOutcome], *, json: bool) -> None:
    """Print outcomes of events as a table, or as JSON."""
    print_rows(
        found,
        ["event", "trigger", "outcome", "run", "decided", "reason"],
        lambda item: [
            item.event_id,
            item.trigger,
            item.outcome,
            item.run_id or "-",
            format_time(item.decided_at_us),
            item.reason or "-",
        ],
        empty="No outcomes.",
        json=json,
    )
