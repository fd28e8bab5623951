"""`runlane limits`: the rate limits of model providers in the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import changes, format_time, print_changes, print_json, print_rows, split_names
from runlane.cli.terminal import write_line
from runlane.domain.rate_limit import CredentialUsage, LimitChange, ProviderLimits
from runlane.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.store.sql.database import Database

app = typer.Typer()

_LIMITS = ("in_flight", "requests_per_minute", "tokens_per_minute")

Credential = Annotated[
    str,
    typer.Argument(
        help="The provider key: openai, anthropic, ...; openai@acme is the key of the tenant acme, openai:llm.local "
        "another server.",
        metavar="CREDENTIAL",
    ),
]


@app.command(name="list")
def list_limits(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the credentials with their limits and current usage."""

    async def on_database(database: Database) -> Sequence[CredentialUsage]:
        from runlane.rate_limits.usage import read_occupancy

        return await read_occupancy(database)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.limits(), on_database),
        ["credential", "in flight", "requests/min", "tokens/min", "waiting", "slowing down until", "set by"],
        _cells,
        empty="No limits.",
        json=json,
        to_dict=_to_dict,
    )


@app.command(name="set")
def set_limits(
    credential: Credential,
    in_flight: Annotated[int | None, typer.Option(help="Concurrent calls; 0 pauses the provider.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Calls that may start within a minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Input and output tokens of calls within a minute.")
    ] = None,
    no_limit: Annotated[
        str | None,
        typer.Option(help="Limits to remove, comma-separated: in_flight, requests_per_minute, tokens_per_minute."),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change limits during operation. Other limits are kept. Every worker applies the change within about a second."""
    removed = frozenset(part.replace("-", "_") for part in split_names(no_limit))
    change = LimitChange(in_flight, requests_per_minute, tokens_per_minute, removed)

    async def on_server(client: Client) -> tuple[list[str], ProviderLimits, ProviderLimits]:
        before = {item.credential: item.limits for item in await client.limits()}
        given = {name: getattr(change, name) for name in _LIMITS if getattr(change, name) is not None}
        after = await client.set_limits(credential, **given, **dict.fromkeys(removed))
        return list(before), before.get(credential, ProviderLimits()), after.limits

    async def on_database(database: Database) -> tuple[list[str], ProviderLimits, ProviderLimits]:
        from runlane.settings import load_settings
        from runlane.store.rate_limits import limits

        known = [setting.credential for setting, _, _ in await limits.list_limits(database)]
        old, new = await limits.set_limits(database, credential, change, actor=audit_actor())
        return [*known, *load_settings().providers], old.limits, new.limits

    known, old, new = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if credential not in known:
        write_line(f'No call has counted against "{credential}" yet{nearest(credential, known)}.', err=True)
    _print_change(credential, old, new, json=json)


@app.command()
def reset(credential: Credential, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Reset all limits of a credential to the defaults."""

    async def on_server(client: Client) -> tuple[ProviderLimits, ProviderLimits]:
        before = {item.credential: item.limits for item in await client.limits()}
        after = (await client.reset_limits(credential)).limits
        return before.get(credential, after), after

    async def on_database(database: Database) -> tuple[ProviderLimits, ProviderLimits]:
        from runlane.store.rate_limits import limits

        old, new = await limits.reset_limits(database, credential, actor=audit_actor())
        return old.limits, new.limits

    _print_change(credential, *on_server_or_database(url, api_key, on_server, on_database), json=json)


def _print_change(credential: str, old: ProviderLimits, new: ProviderLimits, *, json: bool) -> None:
    changed = changes(asdict(old), asdict(new))
    if json:
        print_json({"credential": credential, "limits": asdict(new), "changed": changed})
    else:
        print_changes(credential, changed)


def _to_dict(row: CredentialUsage) -> dict[str, Any]:
    return {
        "credential": row.credential,
        "limits": asdict(row.limits),
        "now": asdict(row.now),
        "backing_off_until_us": row.backing_off_until_us,
        "backing_off_reason": row.backing_off_reason or "",
        "updated_at_us": row.updated_at_us,
        "updated_by": row.updated_by,
    }


def _cells(row: CredentialUsage) -> list[Any]:
    return [
        row.credential,
        _of_limit(row.now.in_flight, row.in_flight),
        _of_limit(row.now.requests, row.requests_per_minute),
        _of_limit(row.now.tokens, row.tokens_per_minute),
        row.now.waiting,
        format_time(row.backing_off_until_us),
        row.updated_by or "default",
    ]


def _of_limit(used: int, limit: int | None) -> str:
    return f"{used} of {'no limit' if limit is None else limit}"
