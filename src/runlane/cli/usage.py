"""`runlane usage`: the calls, tokens and cost of models."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import format_time, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.usage import GROUPS, ExpensiveRuns, UsageRow
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.store.sql.database import Database

_DEFAULT_DAYS = 30
_RUN = "run"


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant. Default: all.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="The first day (UTC), such as 2026-01-31. Default: 30 days ago.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last day. Default: today.")] = None,
    group: Annotated[
        str, typer.Option(help="One line for each day, agent, model or tenant; run lists the most expensive runs.")
    ] = "day",
    limit: Annotated[int, typer.Option(min=1, max=100, help="For --group run: how many runs.")] = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show the calls, tokens and cost of models. Calls without a known price are counted as unpriced, not as free."""
    groups = (*GROUPS, _RUN)
    if group not in groups:
        raise InvalidRequest(f'"{group}" is not a valid group{nearest(group, groups)}. Groups: {", ".join(groups)}.')
    end = _parse_day(last, "--to") or datetime.now(UTC).date()
    start = _parse_day(first, "--from") or end - timedelta(days=_DEFAULT_DAYS)
    if start > end:
        raise InvalidRequest(f"--from={start} is after --to={end}. Give the earlier day first.")
    if group == _RUN:
        _print_runs(tenant, start, end, limit, url, api_key, json=json)
        return

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


def _print_runs(
    tenant: str | None, start: date, end: date, limit: int, url: str | None, api_key: str | None, *, json: bool
) -> None:
    async def on_server(client: Client) -> ExpensiveRuns:
        return await client.expensive_runs(tenant=tenant, first=start, last=end, limit=limit)

    async def on_database(database: Database) -> ExpensiveRuns:
        from runlane.store.queue.expensive_runs import read_expensive_runs

        return await read_expensive_runs(database, tenant, start, end, limit)

    found = on_server_or_database(url, api_key, on_server, on_database)
    print_rows(
        found.runs,
        ["run", "target", "status", "cost usd", "tokens", "ended"],
        lambda run: [
            run.id, run.target, run.status, f"{run.cost_usd:.6f}", run.tokens, format_time(run.ended_at_us),
        ],
        empty="No run with a known cost ended in this period.",
        json=json,
    )  # fmt: skip
    if not found.complete:
        write_line("Only the most expensive hours of this period were examined. Choose a shorter one.", err=True)


def _parse_day(text: str | None, option: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{option}={text} is not a valid day. Form: 2026-01-31") from None
