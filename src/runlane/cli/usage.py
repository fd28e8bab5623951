"""`runlane usage`: the calls, tokens and cost of models."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_rows
from runlane.domain.usage import GROUPS, UsageRow
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.store.sql.database import Database

_DEFAULT_DAYS = 30


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant. Default: all.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="The first day (UTC), such as 2026-01-31. Default: 30 days ago.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last day. Default: today.")] = None,
    group: Annotated[str, typer.Option(help="One line for each day, agent or model.")] = "day",
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show the calls, tokens and cost of models. A call without a known price counts as unpriced, not as free."""
    if group not in GROUPS:
        raise InvalidRequest(f'"{group}" is not a valid group{nearest(group, GROUPS)}. Groups: {", ".join(GROUPS)}.')
    end = _parse_day(last, "--to") or datetime.now(UTC).date()
    start = _parse_day(first, "--from") or end - timedelta(days=_DEFAULT_DAYS)
    if start > end:
        raise InvalidRequest(f"--from={start} is after --to={end}. Give the earlier day first.")

    async def on_server(client: Client) -> Sequence[UsageRow]:
        return (await client.usage(tenant=tenant, first=start, last=end, group=group)).usage

    async def on_database(database: Database) -> Sequence[UsageRow]:
        from runlane.store.usage import read_usage

        return await read_usage(database, tenant, start, end, group)

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        [group, "calls", "tokens in", "tokens out", "cost usd", "calls without a price"],
        lambda row: [
            row.key,
            row.calls,
            row.tokens_in,
            row.tokens_out,
            None if row.cost_usd is None else f"{row.cost_usd:.6f}",
            row.unpriced_calls,
        ],
        empty="No model was called in this period.",
        json=json,
    )


def _parse_day(text: str | None, option: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{option}={text} is not a valid day. Form: 2026-01-31") from None
