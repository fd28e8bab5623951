"""`runlane bundle`: definitions in one file, to move them between installations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, DryRun, Json, TakeOver, Tenant, Url
from runlane.cli.output import print_json, split_names
from runlane.cli.terminal import write_line
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.definitions.schema.definition import Kind
    from runlane.store.sql.database import Database

app = typer.Typer()


@app.command(name="export")
def export_bundle(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Orchestrations. Default: all definitions.", metavar="[ORCH]...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Exclude the definitions that the orchestrations use.")
    ] = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Write a bundle of all definitions, or of some orchestrations with everything they use.

    Bundles contain no secrets.
    """
    import orjson

    names = list(ids or ())

    async def on_server(client: Client) -> dict[str, Any]:
        return await client.export_bundle(
            {"orchestrations": names} if names else None, with_used=not alone, tenant=tenant
        )

    async def on_database(database: Database) -> dict[str, Any]:
        from datetime import UTC, datetime

        from runlane.catalog.bundles import export_bundle

        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        only: dict[Kind, list[str]] | None = {"orchestration": names} if names else None
        return await export_bundle(database, tenant or DEFAULT_TENANT, now, only=only, with_used=not alone)

    bundle = on_server_or_database(url, api_key, on_server, on_database)
    if out is None:
        print_json(bundle)
        return
    out.write_bytes(orjson.dumps(bundle, option=orjson.OPT_INDENT_2) + b"\n")
    lists = ("orchestrations", "agents", "custom_tools", "mcp_servers", "schedules", "triggers")
    write_line(f"Wrote {out}: {', '.join(f'{len(bundle[name])} {name}' for name in lists)}.")


@app.command(name="import")
def import_bundle(
    file: Annotated[str, typer.Argument(help="The file with the bundle; - reads stdin.", metavar="FILE")],
    only: Annotated[
        str | None,
        typer.Option(help="Only these definitions, comma-separated, such as orchestration:review,agent:writer."),
    ] = None,
    keep_existing: Annotated[
        bool, typer.Option("--keep-existing", help="Skip definitions that exist instead of changing them.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(help="The project that owns the definitions. Default: none; the first sync then owns them."),
    ] = None,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Store the definitions of a bundle and report the outcome of each. Exit code 1 if some were skipped."""
    from runlane.cli.json_input import read_json_file
    from runlane.definitions.files import FOLDERS

    bundle = read_json_file(file)
    chosen = _parse_only(only)
    options: dict[str, Any] = {
        "keep_existing": keep_existing,
        "source": source,
        "take_over": take_over,
        "dry_run": dry_run,
    }

    async def on_server(client: Client) -> dict[str, Any]:
        folders = {kind: folder for folder, kind in FOLDERS.items()}
        named = {folders[kind]: names for kind, names in chosen.items()} if chosen else None
        return await client.import_bundle(bundle, named, tenant=tenant, **options)

    async def on_database(database: Database) -> dict[str, Any]:
        from runlane.catalog.bundles import import_bundle
        from runlane.definitions.checks.environment import environment_of
        from runlane.settings import load_settings

        owner, environment = tenant or DEFAULT_TENANT, environment_of(load_settings())
        report = await import_bundle(
            database, owner, bundle, actor=audit_actor(), only=chosen, environment=environment, **options
        )
        return report.to_dict()

    report = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json(report)
    else:
        _print_report(report)
    raise typer.Exit(1 if report["skipped"] else 0)


def _print_report(report: dict[str, Any]) -> None:
    for item in report["items"]:
        reason = f"  {item['reason']}" if item["reason"] else ""
        write_line(f"{item['status']:9}  {item['kind']}:{item['id']}{reason}")
    for warning in report["warnings"]:
        where = f"{warning['kind']}:{warning['id']}" + (f', step "{warning["step"]}"' if warning["step"] else "")
        write_line(f"warning: {where}: {warning['message']}", err=True)
    for secret in report["secrets"]:
        write_line(f"needs the secret {secret['name']}: {secret['kind']}:{secret['id']}, {secret['field']}")
    counts = ", ".join(f"{report[status]} {status}" for status in ("imported", "unchanged", "skipped"))
    write_line(f"{'Would be: ' if report['dry_run'] else ''}{counts}.")


def _parse_only(only: str | None) -> dict[Kind, list[str]] | None:
    from runlane.definitions.schema.definition import KINDS

    if only is None:
        return None
    chosen: dict[Kind, list[str]] = {}
    for part in split_names(only):
        kind, separator, name = part.partition(":")
        if kind not in KINDS or not separator or not name:
            raise InvalidRequest(
                f'"{part}" is not a valid definition{nearest(kind, KINDS)}. Form: kind:id, such as '
                f"orchestration:review. Kinds: {', '.join(KINDS)}."
            )
        chosen.setdefault(kind, []).append(name)
    return chosen
