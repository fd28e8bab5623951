"""`runlane webhooks`: endpoints that receive messages about runs, their deliveries, and replays."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Json, Tenant, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows, split_names
from runlane.cli.terminal import write_line
from runlane.cli.webhook_deliveries import deliveries, delivery, replay
from runlane.cli.webhook_secrets import keys, print_secret, rotate, secret, webhook_manager
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import counted
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.webhook import WebhookAttempt, WebhookEndpoint, WebhookSecret
    from runlane.store.sql.database import Database

app = typer.Typer()
for _command in (deliveries, delivery, replay, rotate, secret, keys):
    app.command()(_command)

EndpointId = Annotated[str, typer.Argument(help="The endpoint's id.", metavar="ENDPOINT")]
Types = Annotated[str | None, typer.Option(help="Types of messages, comma-separated. Default: all.")]
Targets = Annotated[str | None, typer.Option(help="Only messages about these targets, comma-separated.")]
LanesOnly = Annotated[str | None, typer.Option("--lanes", help="Only messages about runs of these lanes.")]
Include = Annotated[str | None, typer.Option(help="Fields to include for ended runs: input,result.")]
Tags = Annotated[str | None, typer.Option("--tags", help="Only messages about runs with one of these tags.")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", help='A header, such as "X-Team: {secret.TEAM}". May be repeated; "" removes all.'),
]
Rate = Annotated[float | None, typer.Option(help="Maximum number of deliveries per second.")]
InFlight = Annotated[int | None, typer.Option(help="Maximum number of concurrent deliveries.")]
Ordered = Annotated[bool | None, typer.Option("--ordered/--unordered", help="Deliver the messages of a run in order.")]
Description = Annotated[str | None, typer.Option(help="A description for people.")]


@app.command(name="list")
def list_endpoints(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the endpoints with their health."""

    async def on_server(client: Client) -> Sequence[WebhookEndpoint]:
        return [endpoint async for endpoint in client.webhooks.list(tenant=tenant)]

    async def on_database(database: Database) -> Sequence[WebhookEndpoint]:
        from runlane.store.webhooks.endpoints import list_endpoints

        return await list_endpoints(database, tenant)

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["endpoint", "tenant", "url", "types", "health", "failures", "last success"],
        lambda row: [
            row.id,
            row.tenant,
            row.url,
            ",".join(row.types) or "all",
            row.health,
            row.failures,
            format_time(row.last_success_at_us),
        ],
        empty="No webhook endpoints. Create one: runlane webhooks create URL",
        json=json,
    )


@app.command()
def show(endpoint_id: EndpointId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show an endpoint with its settings and health."""

    async def on_database(database: Database) -> WebhookEndpoint:
        from runlane.store.webhooks.endpoints import find_endpoint

        return await find_endpoint(database, endpoint_id)

    found = on_server_or_database(url, api_key, lambda client: client.webhooks.get(endpoint_id), on_database)
    _print_endpoint(found, json=json)


@app.command()
def create(
    destination: Annotated[str, typer.Argument(help="URL of the receiver: https://host/path.", metavar="URL")],
    types: Types = None,
    targets: Targets = None,
    lanes: LanesOnly = None,
    tags: Tags = None,
    include: Include = None,
    header: Headers = None,
    rate: Rate = None,
    in_flight: InFlight = None,
    ordered: Ordered = None,
    description: Description = None,
    signature: Annotated[str, typer.Option(help="hmac or ed25519.")] = "hmac",
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create an endpoint. Its secret is printed once."""
    fields = _fields(types, include, rate, in_flight, ordered, description)
    fields |= _filter(targets, lanes, tags) | _headers(header)

    async def on_server(client: Client) -> tuple[WebhookEndpoint, WebhookSecret | None]:
        return await client.webhooks.create(destination, tenant=tenant, signature=signature, **fields)

    async def on_database(database: Database) -> tuple[WebhookEndpoint, WebhookSecret | None]:
        from runlane.webhooks.endpoints import endpoint_fields

        given = endpoint_fields({"url": destination, **fields})
        return await webhook_manager(database).create(
            tenant or DEFAULT_TENANT, given, signature=signature, actor=audit_actor()
        )

    endpoint, secret = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"endpoint": asdict(endpoint), "secret": None if secret is None else asdict(secret)})
        return
    write_line(f"{endpoint.id}: {endpoint.url}")
    if secret is not None:
        print_secret(secret)


@app.command(name="set")
def set_endpoint(
    endpoint_id: EndpointId,
    destination: Annotated[str | None, typer.Option("--to", help="The new URL of the receiver.")] = None,
    types: Types = None,
    targets: Targets = None,
    lanes: LanesOnly = None,
    tags: Tags = None,
    include: Include = None,
    header: Headers = None,
    rate: Rate = None,
    in_flight: InFlight = None,
    ordered: Ordered = None,
    description: Description = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change an endpoint. An option that is not given stays as it is; an empty one (--types "") is reset."""
    fields = _fields(types, include, rate, in_flight, ordered, description)
    fields |= _filter(targets, lanes, tags) | _headers(header)
    if destination is not None:
        fields["url"] = destination
    if not fields:
        raise InvalidRequest("Nothing to change. See: runlane webhooks set --help")

    async def on_database(database: Database) -> WebhookEndpoint:
        from runlane.webhooks.endpoints import endpoint_fields

        return await webhook_manager(database).change(endpoint_id, endpoint_fields(fields), actor=audit_actor())

    changed = on_server_or_database(url, api_key, lambda client: client.webhooks.set(endpoint_id, fields), on_database)
    _print_endpoint(changed, json=json)


@app.command()
def enable(
    endpoint_id: EndpointId,
    held: Annotated[str, typer.Option(help="What to do with the messages that it missed: send or discard.")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Enable an endpoint, and send or discard the messages that it missed."""
    if held not in ("send", "discard"):
        raise InvalidRequest(f'--held "{held}" must be send or discard.')

    async def on_database(database: Database) -> tuple[WebhookEndpoint, int]:
        from runlane.store.webhooks.endpoints import enable_endpoint

        return await enable_endpoint(database, endpoint_id, send_held=held == "send", actor=audit_actor())

    endpoint, count = on_server_or_database(
        url, api_key, lambda client: client.webhooks.enable(endpoint_id, held=held), on_database
    )
    one, many = "message is sent", "messages are sent"
    if held != "send":
        one, many = "message was discarded", "messages were discarded"
    print_result(
        {"endpoint": asdict(endpoint), "held": held, "deliveries": count},
        f"{endpoint.id}: enabled; {counted(count, one, many)}.",
        json=json,
    )


@app.command()
def disable(
    endpoint_id: EndpointId,
    reason: Annotated[str, typer.Option(help="The reason, for other people.")] = "disabled by an operator",
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Disable an endpoint. Its messages are held until it is enabled."""

    async def on_database(database: Database) -> WebhookEndpoint:
        from runlane.store.webhooks.endpoints import disable_endpoint

        return await disable_endpoint(database, endpoint_id, reason, actor=audit_actor())

    endpoint = on_server_or_database(
        url, api_key, lambda client: client.webhooks.disable(endpoint_id, reason), on_database
    )
    print_result(asdict(endpoint), f"{endpoint.id}: disabled ({endpoint.disabled_reason}).", json=json)


@app.command(name="test")
def send_test(endpoint_id: EndpointId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Send a test message once. Exit code 1 if the endpoint does not accept it."""

    async def on_database(database: Database) -> WebhookAttempt:
        return await webhook_manager(database).test(endpoint_id, actor=audit_actor())

    attempt = on_server_or_database(url, api_key, lambda client: client.webhooks.test(endpoint_id), on_database)
    answered = f"answered {attempt.status_code}" if attempt.status_code is not None else attempt.error
    print_result(asdict(attempt), f"{endpoint_id}: {answered}, {attempt.duration_us / 1000:.0f} ms.", json=json)
    raise typer.Exit(0 if attempt.error_kind is None else 1)


@app.command()
def delete(endpoint_id: EndpointId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Delete an endpoint. Undelivered messages are discarded."""

    async def on_database(database: Database) -> WebhookEndpoint:
        from runlane.store.webhooks.endpoints import delete_endpoint

        return await delete_endpoint(database, endpoint_id, actor=audit_actor())

    gone = on_server_or_database(url, api_key, lambda client: client.webhooks.delete(endpoint_id), on_database)
    print_result(asdict(gone), f"{gone.id}: deleted.", json=json)


@app.command(name="types")
def types_(json: Json = False) -> None:
    """List the types of messages; with --json also their JSON Schemas and examples."""
    from runlane.domain.webhook_events import WebhookType, describe_type

    found = [describe_type(kind) for kind in WebhookType]
    if json:
        print_json(found)
        return
    for kind in found:
        write_line(f"{kind['type']:<22} {kind['description']}")


def _fields(
    types: str | None,
    include: str | None,
    rate: float | None,
    in_flight: int | None,
    ordered: bool | None,
    description: str | None,
) -> dict[str, Any]:
    """Return the fields of an endpoint that were given."""
    fields: dict[str, Any] = {
        "types": None if types is None else split_names(types),
        "include": None if include is None else split_names(include),
        "rate_per_second": rate,
        "max_in_flight": in_flight,
        "ordered": ordered,
        "description": description,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _filter(targets: str | None, lanes: str | None, tags: str | None) -> dict[str, Any]:
    """Return the filter of an endpoint, if a part of it was given."""
    given = {"target": targets, "lane": lanes, "tag": tags}
    if all(value is None for value in given.values()):
        return {}
    return {"filter": {name: values for name, value in given.items() if (values := split_names(value))}}


def _headers(given: list[str] | None) -> dict[str, Any]:
    """Return the headers of an endpoint, if some were given."""
    if given is None:
        return {}
    headers: dict[str, str] = {}
    for line in filter(None, given):
        name, separator, value = line.partition(":")
        if not separator:
            raise InvalidRequest(f'"{line}" is not a header. Write it as "Name: value".')
        headers[name.strip()] = value.strip()
    return {"headers": headers}


def _print_endpoint(endpoint: WebhookEndpoint, *, json: bool) -> None:
    if json:
        print_json(asdict(endpoint))
        return
    write_line(f"{endpoint.id}: {endpoint.url}, {endpoint.health}")
    for name in (
        "description",
        "types",
        "filter",
        "include",
        "headers",
        "signature",
        "rate_per_second",
        "max_in_flight",
        "ordered",
    ):
        value = getattr(endpoint, name)
        if value or value is False:
            write_line(f"  {name:<16} {value}")
    if endpoint.disabled_reason is not None:
        write_line(f"  {'disabled':<16} {format_time(endpoint.disabled_at_us)}: {endpoint.disabled_reason}")
    if endpoint.failures:
        write_line(f"  {'failures':<16} {endpoint.failures} in a row since {format_time(endpoint.first_failure_at_us)}")
