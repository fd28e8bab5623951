"""`runlane sync`: store the definitions of a folder, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, AppOption, Dir, DryRun, Json, TakeOver, Tenant, Url
from runlane.cli.output import format_count, print_json
from runlane.cli.terminal import write_line
from runlane.domain.source import check_source, source_of
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidDefinitions, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runlane.client import Client
    from runlane.definitions.files import DefinitionSource
    from runlane.definitions.loader import LoadedDefinitions
    from runlane.store.sql.database import Database

_SHOWN = 20


def sync(
    directory: Dir = None,
    dry_run: DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove definitions of the same source that are no longer in the folder.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(help="The project (RUNLANE_DEFINITIONS_SOURCE). Default: the name of the project folder."),
    ] = None,
    take_over: TakeOver = False,
    app: AppOption = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Store the definitions of a folder, all of them or none. Exit code 1 if there are errors.

    Definitions record their source. A sync changes and removes only those of its own source.
    """
    from runlane.cli.definition_lookup import definitions_folder
    from runlane.definitions.loader import parse_directory
    from runlane.settings import load_settings

    folder = definitions_folder(directory)
    loaded = parse_directory(folder)
    try:
        loaded.raise_errors()
        if not loaded.definitions:
            raise InvalidRequest(f"{folder} contains no definitions. Check the folder; see: runlane sync --help")
        options: dict[str, Any] = {
            "dry_run": dry_run,
            "remove_missing": prune,
            "source": check_source(source or load_settings().definitions_source or source_of(folder)),
            "take_over": take_over,
        }
        report = on_server_or_database(
            url,
            api_key,
            lambda client: _sync_server(client, folder, tenant, options),
            lambda database: _sync_database(database, loaded, tenant, options, app),
            creates=True,
        )
    except InvalidDefinitions as error:
        _print_errors(error, loaded, json=json)
        raise typer.Exit(1) from None
    warnings = [problem.to_dict() for problem in loaded.warnings]
    report["warnings"] = warnings + [warning for warning in report["warnings"] if warning not in warnings]
    if json:
        print_json(report)
    else:
        _print_report(report)


async def _sync_database(
    database: Database, loaded: LoadedDefinitions, tenant: str | None, options: dict[str, Any], app: str | None
) -> dict[str, Any]:
    from runlane.catalog.sync import sync_definitions
    from runlane.cli.app_loader import task_names
    from runlane.definitions.checks.environment import environment_of
    from runlane.settings import load_settings

    report = await sync_definitions(
        database,
        tenant or DEFAULT_TENANT,
        loaded,
        actor=audit_actor(),
        tasks=task_names(app),
        environment=environment_of(load_settings()),
        **options,
    )
    return report.to_dict()


async def _sync_server(client: Client, folder: Path, tenant: str | None, options: dict[str, Any]) -> dict[str, Any]:
    from runlane.definitions.files import FOLDERS, read_directory
    from runlane.definitions.problem import Problems

    items = read_directory(folder, Problems())
    names = {kind: name for name, kind in FOLDERS.items()}
    bodies: dict[str, list[Any]] = {name: [] for name in FOLDERS}
    for item in items:
        bodies[names[item.kind]].append(item.body)
    try:
        return await client.sync(bodies, tenant=tenant, **options)
    except InvalidDefinitions as error:
        # The server has the names of the definitions, not those of the files.
        error.problems = [(_with_file(location, items), message) for location, message in error.problems]
        raise


def _with_file(location: str, items: Sequence[DefinitionSource]) -> str:
    for item in items:
        within = str(type(item)(item.kind, item.body).location)
        if location == within or location.startswith(f"{within},"):
            return f"{item.file}: {location}"
    return location


def _print_errors(error: InvalidDefinitions, loaded: LoadedDefinitions, *, json: bool) -> None:
    if json:
        problems = [{"place": location, "message": message} for location, message in error.problems]
        print_json({"error": error.code, "problems": problems})
        return
    for location, message in error.problems:
        write_line(f"error: {location}: {message}", err=True)
    for problem in loaded.warnings:
        write_line(f"warning: {problem}", err=True)
    write_line(f"{format_count(len(error.problems), 'error')}; nothing was changed.", err=True)


def _print_report(report: dict[str, Any]) -> None:
    for item in report["items"]:
        if item["change"] != "unchanged":
            version = (item["version"] or item["old_version"] or "")[:12]
            write_line(f"{item['change']:8}  {item['kind']}:{item['id']}  {version}")
    for warning in report["warnings"]:
        write_line(f"warning: {_location(warning)}{warning['message']}", err=True)
    missing = report["missing"]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        write_line(f"No longer in the folder, kept: {shown}. Remove with: runlane sync --prune", err=True)
    counts = ", ".join(f"{report[change]} {change}" for change in ("added", "changed", "removed", "unchanged"))
    write_line(f"{'Would be: ' if report['dry_run'] else ''}{counts}. Source: {report['source']}.")


def _location(warning: dict[str, Any]) -> str:
    parts = [warning["file"], f"{warning['kind']}:{warning['id']}" if warning["kind"] else None]
    parts += [f'step "{warning["step"]}"' if warning["step"] else None, warning["field"]]
    location = ", ".join(part for part in parts if part)
    return f"{location}: " if location else ""
