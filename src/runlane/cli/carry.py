"""What the commands for bundles do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runlane.cli.either import with_either
from runlane.cli.show import acting, print_json
from runlane.cli.terminal import write_line
from runlane.definitions.files import FOLDERS
from runlane.definitions.schema.definition import KINDS, Kind
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.store.sql.database import Database


def write_bundle(
    ids: Sequence[str] | None,
    *,
    out: Path | None,
    alone: bool,
    tenant: str | None,
    url: str | None,
    api_key: str | None,
) -> None:
    """`runlane bundle export`."""
    names = list(ids or ())

    async def on_server(client: Client) -> dict[str, Any]:
        chosen = {"orchestrations": names} if names else None
        return await client.export_bundle(chosen, with_used=not alone, tenant=tenant)

    async def on_database(database: Database) -> dict[str, Any]:
        from runlane.catalog.bundles import export_bundle

        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        only: dict[Kind, list[str]] | None = {"orchestration": names} if names else None
        return await export_bundle(database, tenant or DEFAULT_TENANT, now, only=only, with_used=not alone)

    bundle = with_either(url, api_key, on_server, on_database)
    if out is None:
        print_json(bundle)
        return
    out.write_bytes(orjson.dumps(bundle, option=orjson.OPT_INDENT_2) + b"\n")
    lists = ("orchestrations", "agents", "custom_tools", "mcp_servers")
    write_line(f"Wrote {out}: {', '.join(f'{len(bundle[name])} {name}' for name in lists)}.")


def read_bundle(
    file: str,
    *,
    only: str | None,
    keep_existing: bool,
    source: str | None,
    take_over: bool,
    dry_run: bool,
    tenant: str | None,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> int:
    """`runlane bundle import`."""
    bundle = _load(file)
    chosen = _chosen(only)

    async def on_server(client: Client) -> dict[str, Any]:
        folders = {kind: folder for folder, kind in FOLDERS.items()}
        named = {folders[kind]: names for kind, names in chosen.items()} if chosen else None
        return await client.import_bundle(
            bundle,
            named,
            keep_existing=keep_existing,
            source=source,
            take_over=take_over,
            dry_run=dry_run,
            tenant=tenant,
        )

    async def on_database(database: Database) -> dict[str, Any]:
        from runlane.catalog.bundles import import_bundle
        from runlane.definitions.checks.environment import environment_of
        from runlane.settings import load_settings

        report = await import_bundle(
            database,
            tenant or DEFAULT_TENANT,
            bundle,
            actor=acting(),
            only=chosen,
            keep_existing=keep_existing,
            source=source,
            take_over=take_over,
            dry_run=dry_run,
            environment=environment_of(load_settings()),
        )
        return report.to_dict()

    told = with_either(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json(told)
    else:
        _tell(told)
    return 1 if told["skipped"] else 0


def _tell(told: dict[str, Any]) -> None:
    for item in told["items"]:
        reason = f"  {item['reason']}" if item["reason"] else ""
        write_line(f"{item['status']:9}  {item['kind']}:{item['id']}{reason}")
    for warning in told["warnings"]:
        where = f"{warning['kind']}:{warning['id']}" + (f', step "{warning["step"]}"' if warning["step"] else "")
        write_line(f"warning: {where}: {warning['message']}", err=True)
    for secret in told["secrets"]:
        write_line(f"needs the secret {secret['name']}: {secret['kind']}:{secret['id']}, {secret['field']}")
    counts = ", ".join(f"{told[status]} {status}" for status in ("imported", "unchanged", "skipped"))
    write_line(f"{'Would be: ' if told['dry_run'] else ''}{counts}.")


def _load(file: str) -> Any:
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror or error}.") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{file} is not JSON: {error.msg} in line {error.lineno}.") from None


def _chosen(only: str | None) -> dict[Kind, list[str]] | None:
    if only is None:
        return None
    chosen: dict[Kind, list[str]] = {}
    for part in (part.strip() for part in only.split(",") if part.strip()):
        kind, separator, name = part.partition(":")
        if kind not in KINDS or not separator or not name:
            raise InvalidRequest(
                f'"{part}" names no definition{nearest(kind, KINDS)}. Form: kind:id, such as orchestration:review. '
                f"Kinds: {', '.join(KINDS)}."
            )
        chosen.setdefault(kind, []).append(name)
    return chosen
