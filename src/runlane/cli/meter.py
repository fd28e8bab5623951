"""What the commands for provider limits and usage do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

from runlane.agents.occupancy import Occupancy, read_occupancy
from runlane.app import App
from runlane.cli.own import own_app
from runlane.cli.show import acting, clock, print_json, print_table
from runlane.cli.terminal import say
from runlane.errors import InvalidRequest, nearest
from runlane.model.provider import LimitChange
from runlane.store import provider_limits
from runlane.store.database import Database
from runlane.store.provider_limits import SetLimits
from runlane.store.usage import GROUPS, read_usage

T = TypeVar("T")
_DEFAULT_DAYS = 30


def _with_app(work: Callable[[App, Database], Awaitable[T]]) -> T:
    async def run() -> T:
        async with own_app() as app:
            return await work(app, await app.database())

    return asyncio.run(run())


def show_limits(*, json: bool) -> None:
    """`runlane limits list`."""
    rows = _with_app(lambda app, database: read_occupancy(app.settings, database))
    if json:
        print_json([_flat(row) for row in rows])
        return
    print_table(
        ["credential", "in flight", "requests/min", "tokens/min", "waiting", "slowing down until", "set by"],
        [
            [
                row.limits.credential,
                _of(row.busy and row.busy.in_flight, row.limits.limits.in_flight),
                _of(row.busy and row.busy.requests, row.limits.limits.requests_per_minute),
                _of(row.busy and row.busy.tokens, row.limits.limits.tokens_per_minute),
                None if row.busy is None else row.busy.waiting,
                clock(row.backing_off_until_us),
                row.limits.updated_by or "default",
            ]
            for row in rows
        ],
        "No limits.",
    )


def change_limits(
    credential: str,
    *,
    in_flight: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    no_limit: str | None,
    json: bool,
) -> None:
    """`runlane limits set`."""
    removed = frozenset(part.strip().replace("-", "_") for part in (no_limit or "").split(",") if part.strip())
    change = LimitChange(in_flight, requests_per_minute, tokens_per_minute, removed)

    async def work(_app: App, database: Database) -> tuple[SetLimits, SetLimits]:
        known = [limits.credential for limits, _, _ in await provider_limits.list_limits(database)]
        changed = await provider_limits.set_limits(database, credential, change, actor=acting())
        if credential not in known:
            hint = nearest(credential, known)
            say(f'No call has counted against "{credential}" yet{hint}.', err=True)
        return changed

    old, new = _with_app(work)
    _print_change(old, new, json=json)


def reset_limits(credential: str, *, json: bool) -> None:
    """`runlane limits reset`."""
    old, new = _with_app(lambda app, database: provider_limits.reset_limits(database, credential, actor=acting()))
    _print_change(old, new, json=json)


def show_usage(*, tenant: str | None, first: str | None, last: str | None, group: str, json: bool) -> None:
    """`runlane usage`."""
    if group not in GROUPS:
        raise InvalidRequest(f'Usage is not grouped by "{group}"{nearest(group, GROUPS)}. Groups: {", ".join(GROUPS)}.')
    to = _day(last, "--to") or datetime.now(UTC).date()
    since = _day(first, "--from") or to - timedelta(days=_DEFAULT_DAYS)
    if since > to:
        raise InvalidRequest(f"--from={since} is after --to={to}. Give the earlier day first.")
    rows = _with_app(lambda app, database: read_usage(database, tenant, since, to, group))
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        [group, "calls", "tokens in", "tokens out", "cost usd", "calls without a price"],
        [
            [
                row.key,
                row.calls,
                row.tokens_in,
                row.tokens_out,
                None if row.cost_usd is None else f"{row.cost_usd:.6f}",
                row.unpriced_calls,
            ]
            for row in rows
        ],
        "No model was asked in these days.",
    )


def _day(text: str | None, option: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{option}={text} is no day. Form: 2026-01-31") from None


def _print_change(old: SetLimits, new: SetLimits, *, json: bool) -> None:
    before, now = asdict(old.limits), asdict(new.limits)
    changed = {name: {"old": before[name], "new": now[name]} for name in now if before[name] != now[name]}
    if json:
        print_json({"credential": new.credential, "limits": now, "changed": changed})
        return
    for name, values in changed.items():
        say(f"{new.credential}: {name} {values['old']} -> {values['new']}")
    if not changed:
        say(f"{new.credential}: nothing changed.")


def _of(used: int | None, limit: int | None) -> str:
    return f"{'-' if used is None else used} of {'no limit' if limit is None else limit}"


def _flat(row: Occupancy) -> dict[str, Any]:
    return {
        "credential": row.limits.credential,
        "limits": asdict(row.limits.limits),
        "now": None if row.busy is None else asdict(row.busy),
        "backing_off_until_us": row.backing_off_until_us,
        "backing_off_reason": row.backing_off_reason,
        "updated_at_us": row.limits.updated_at_us,
        "updated_by": row.limits.updated_by,
    }
