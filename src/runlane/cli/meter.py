"""What the commands for provider limits and usage do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runlane.cli.either import with_either
from runlane.cli.show import acting, clock, print_json, print_table
from runlane.cli.terminal import write_line
from runlane.client.wire import micros
from runlane.domain.rate_limit import LimitChange, ProviderLimits
from runlane.errors import InvalidRequest, nearest
from runlane.rate_limits.usage import CredentialUsage, read_occupancy
from runlane.settings import load_settings
from runlane.store.rate_limits import limits
from runlane.store.rate_limits.limits import LimitSetting
from runlane.store.rate_limits.usage import CredentialInUse
from runlane.store.sql.database import Database
from runlane.store.usage import GROUPS, UsageRow, read_usage

if TYPE_CHECKING:
    from runlane.client import Client

_DEFAULT_DAYS = 30
_LIMITS = ("in_flight", "requests_per_minute", "tokens_per_minute")


def show_limits(*, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane limits list`."""

    async def on_server(client: Client) -> Sequence[CredentialUsage]:
        return [_occupancy(told) for told in await client.limits()]

    rows = with_either(url, api_key, on_server, read_occupancy)
    if json:
        print_json([_flat(row) for row in rows])
        return
    print_table(
        ["credential", "in flight", "requests/min", "tokens/min", "waiting", "slowing down until", "set by"],
        [
            [
                row.limits.credential,
                _of(row.busy.in_flight, row.limits.limits.in_flight),
                _of(row.busy.requests, row.limits.limits.requests_per_minute),
                _of(row.busy.tokens, row.limits.limits.tokens_per_minute),
                row.busy.waiting,
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
    url: str | None,
    api_key: str | None,
    json: bool,
) -> None:
    """`runlane limits set`."""
    removed = frozenset(part.strip().replace("-", "_") for part in (no_limit or "").split(",") if part.strip())
    change = LimitChange(in_flight, requests_per_minute, tokens_per_minute, removed)

    async def on_server(client: Client) -> tuple[Sequence[str], LimitSetting, LimitSetting]:
        before = await _limits_on(client)
        given = {name: getattr(change, name) for name in _LIMITS if getattr(change, name) is not None}
        now = _set_limits(await client.set_limits(credential, **given, **dict.fromkeys(removed)))
        return list(before), before.get(credential, LimitSetting(credential, ProviderLimits())), now

    async def on_database(database: Database) -> tuple[Sequence[str], LimitSetting, LimitSetting]:
        counted = [limits.credential for limits, _, _ in await limits.list_limits(database)]
        known = [*counted, *load_settings().providers]
        return known, *await limits.set_limits(database, credential, change, actor=acting())

    known, old, new = with_either(url, api_key, on_server, on_database, creates=True)
    if credential not in known:
        hint = nearest(credential, known)
        write_line(f'No call has counted against "{credential}" yet{hint}.', err=True)
    _print_change(old, new, json=json)


def reset_limits(credential: str, *, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane limits reset`."""

    async def on_server(client: Client) -> tuple[LimitSetting, LimitSetting]:
        before = (await _limits_on(client)).get(credential)
        now = _set_limits(await client.reset_limits(credential))
        return before or now, now

    old, new = with_either(
        url,
        api_key,
        on_server,
        lambda database: limits.reset_limits(database, credential, actor=acting()),
    )
    _print_change(old, new, json=json)


def show_usage(
    *,
    tenant: str | None,
    first: str | None,
    last: str | None,
    group: str,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> None:
    """`runlane usage`."""
    if group not in GROUPS:
        raise InvalidRequest(f'Usage is not grouped by "{group}"{nearest(group, GROUPS)}. Groups: {", ".join(GROUPS)}.')
    to = _day(last, "--to") or datetime.now(UTC).date()
    since = _day(first, "--from") or to - timedelta(days=_DEFAULT_DAYS)
    if since > to:
        raise InvalidRequest(f"--from={since} is after --to={to}. Give the earlier day first.")

    async def on_server(client: Client) -> Sequence[UsageRow]:
        told = await client.usage(tenant=tenant, first=since, last=to, group=group)
        return [UsageRow(**item) for item in told["usage"]]

    rows = with_either(url, api_key, on_server, lambda database: read_usage(database, tenant, since, to, group))
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


def _print_change(old: LimitSetting, new: LimitSetting, *, json: bool) -> None:
    before, now = asdict(old.limits), asdict(new.limits)
    changed = {name: {"old": before[name], "new": now[name]} for name in now if before[name] != now[name]}
    if json:
        print_json({"credential": new.credential, "limits": now, "changed": changed})
        return
    for name, values in changed.items():
        write_line(f"{new.credential}: {name} {values['old']} -> {values['new']}")
    if not changed:
        write_line(f"{new.credential}: nothing changed.")


def _of(used: int | None, limit: int | None) -> str:
    return f"{'-' if used is None else used} of {'no limit' if limit is None else limit}"


def _flat(row: CredentialUsage) -> dict[str, Any]:
    return {
        "credential": row.limits.credential,
        "limits": asdict(row.limits.limits),
        "now": asdict(row.busy),
        "backing_off_until_us": row.backing_off_until_us,
        "backing_off_reason": row.backing_off_reason,
        "updated_at_us": row.limits.updated_at_us,
        "updated_by": row.limits.updated_by,
    }


async def _limits_on(client: Client) -> dict[str, LimitSetting]:
    return {told["credential"]: _set_limits(told) for told in await client.limits()}


def _set_limits(told: Mapping[str, Any]) -> LimitSetting:
    limits = ProviderLimits(*(told[name] for name in _LIMITS))
    return LimitSetting(told["credential"], limits, micros(told["updated_at"]), told["updated_by"])


def _occupancy(told: Mapping[str, Any]) -> CredentialUsage:
    now = told["now"]
    busy = CredentialInUse(
        now["in_flight"], now["requests_this_minute"], now["tokens_this_minute"], now["waiting_processes"]
    )
    until = micros(told["backing_off_until"])
    return CredentialUsage(_set_limits(told), busy, until, told["backing_off_reason"] or "")
