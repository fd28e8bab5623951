"""What the commands for authors of definitions do: validate, sync, graph, schema."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runlane.cli.either import with_either
from runlane.cli.show import acting, print_json
from runlane.cli.target import URL_VARIABLE
from runlane.cli.terminal import say_block, write_line
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.files import FOLDERS, DefinitionSource, read_directory
from runlane.definitions.json_schema import schema_of
from runlane.definitions.loader import LoadedDefinitions, load_directory, parse_directory
from runlane.definitions.mermaid import mermaid
from runlane.definitions.problem import Problem, Problems
from runlane.definitions.schema.definition import KINDS, Orchestration
from runlane.definitions.secret_references import secret_names
from runlane.definitions.svg import svg as draw_svg
from runlane.definitions.versions import restore
from runlane.domain.source import check_source, source_of
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json
from runlane.errors import InvalidDefinitions, InvalidRequest, NotFound, RunlaneError, UnknownDefinition, nearest
from runlane.settings import DEFINITIONS_FOLDER, load_settings

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.store.sql.database import Database

_SHOWN = 20


def chosen_directory(given: Path | None) -> Path:
    """The folder with definitions: the one that is named, that of the settings, or the default."""
    return given or load_settings().definitions_dir or DEFINITIONS_FOLDER


@dataclass(frozen=True, slots=True)
class Ownership:
    """Which definitions a sync may change and remove."""

    source: str | None
    prune: bool
    take_over: bool


def chosen_source(given: str | None, directory: Path) -> str:
    """Return the source of a sync: the given one, that of the settings, or the name of the project folder."""
    return check_source(given or load_settings().definitions_source or source_of(directory))


def validate_directory(given: Path | None, *, app: str | None, strict: bool, json: bool) -> int:
    """`runlane validate`."""
    directory = chosen_directory(given)
    loaded = load_directory(directory, tasks=_tasks(app), environment=environment_of(load_settings()))
    loaded = replace(loaded, problems=[*loaded.problems, *asyncio.run(_missing_secrets(loaded))])
    failed = bool(loaded.errors or (strict and loaded.warnings))
    if json:
        print_json(
            {
                "valid": not loaded.errors,
                "definitions": len(loaded.definitions),
                "problems": [problem.to_dict() for problem in loaded.problems],
            }
        )
        return 1 if failed else 0
    for problem in (*loaded.errors, *loaded.warnings):
        write_line(f"{problem.severity}: {problem}")
    count = _count(len(loaded.definitions), "definition")
    if loaded.errors:
        write_line(f"{directory}: {_count(len(loaded.errors), 'error')}, {_count(len(loaded.warnings), 'warning')}.")
        return 1
    write_line(f"{directory}: {count}, {_count(len(loaded.warnings), 'warning')}, no errors.")
    return 1 if failed else 0


async def _missing_secrets(loaded: LoadedDefinitions) -> Sequence[Problem]:
    """What is not set of the secrets, if there is a database that can tell; to check definitions none is needed."""
    if not any(secret_names(parsed.definition) for parsed in loaded.definitions):
        return []
    settings = load_settings()
    if settings.sqlite_path is not None and not settings.sqlite_path.exists():
        return []
    if settings.database_url is None and os.environ.get(URL_VARIABLE):
        # The definitions are meant for a server; what is set in a local file says nothing about it.
        return []
    from runlane.catalog.missing_secrets import missing_secrets
    from runlane.store.sql.database import open_database
    from runlane.store.sql.migrate import check_schema

    try:
        database = await open_database(settings, 2)
    except (RunlaneError, OSError):
        return []
    try:
        await check_schema(database, settings.shown_database)
        return await missing_secrets(database, DEFAULT_TENANT, loaded.definitions)
    except RunlaneError:
        return []
    finally:
        await database.close()


def sync_directory(
    given: Path | None,
    *,
    dry_run: bool,
    ownership: Ownership,
    app: str | None,
    tenant: str | None,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> int:
    """`runlane sync`."""
    directory = chosen_directory(given)
    loaded = parse_directory(directory)
    try:
        loaded.raise_errors()
        if not loaded.definitions:
            raise InvalidRequest(
                f"There are no definitions in {directory}. "
                "Check the folder; see what it should have: runlane sync --help"
            )
        owner = replace(ownership, source=chosen_source(ownership.source, directory))
        told = with_either(
            url,
            api_key,
            lambda client: _sync_server(client, directory, dry_run=dry_run, ownership=owner, tenant=tenant),
            lambda database: _sync_database(database, loaded, dry_run=dry_run, ownership=owner, tenant=tenant, app=app),
            creates=True,
        )
    except InvalidDefinitions as error:
        _tell_errors(error, loaded, json=json)
        return 1
    warnings = [problem.to_dict() for problem in loaded.warnings]
    told["warnings"] = warnings + [warning for warning in told["warnings"] if {**warning} not in warnings]
    if json:
        print_json(told)
    else:
        _tell_sync(told)
    return 0


async def _sync_database(
    database: Database,
    loaded: LoadedDefinitions,
    *,
    dry_run: bool,
    ownership: Ownership,
    tenant: str | None,
    app: str | None,
) -> dict[str, Any]:
    from runlane.catalog.sync import sync_definitions

    report = await sync_definitions(
        database,
        tenant or DEFAULT_TENANT,
        loaded,
        actor=acting(),
        dry_run=dry_run,
        remove_missing=ownership.prune,
        source=ownership.source,
        take_over=ownership.take_over,
        tasks=_tasks(app),
        environment=environment_of(load_settings()),
    )
    return report.to_dict()


async def _sync_server(
    client: Client, directory: Path, *, dry_run: bool, ownership: Ownership, tenant: str | None
) -> dict[str, Any]:
    items = read_directory(directory, Problems())
    names = {kind: folder for folder, kind in FOLDERS.items()}
    bodies: dict[str, list[Any]] = {folder: [] for folder in FOLDERS}
    for item in items:
        bodies[names[item.kind]].append(item.body)
    try:
        return await client.sync(
            bodies,
            dry_run=dry_run,
            remove_missing=ownership.prune,
            source=ownership.source,
            take_over=ownership.take_over,
            tenant=tenant,
        )
    except InvalidDefinitions as error:
        # The server knows the definitions by name only.
        error.problems = [(_with_file(place, items), message) for place, message in error.problems]
        raise


def _with_file(place: str, items: Sequence[DefinitionSource]) -> str:
    for item in items:
        within = str(DefinitionSource(item.kind, item.body).location)
        if place == within or place.startswith(f"{within},"):
            return f"{item.file}: {place}"
    return place


def _tell_errors(error: InvalidDefinitions, loaded: LoadedDefinitions, *, json: bool) -> None:
    if json:
        problems = [{"place": place, "message": message} for place, message in error.problems]
        print_json({"error": error.code, "problems": problems})
        return
    for place, message in error.problems:
        write_line(f"error: {place}: {message}", err=True)
    _print_warnings(loaded.warnings)
    write_line(f"{_count(len(error.problems), 'error')}; nothing was changed.", err=True)


def _tell_sync(told: dict[str, Any]) -> None:
    for item in told["items"]:
        if item["change"] != "unchanged":
            version = (item["version"] or item["old_version"] or "")[:12]
            write_line(f"{item['change']:8}  {item['kind']}:{item['id']}  {version}")
    for warning in told["warnings"]:
        write_line(f"warning: {_placed(warning)}{warning['message']}", err=True)
    if told["missing"]:
        shown = ", ".join(told["missing"][:_SHOWN]) + (", ..." if len(told["missing"]) > _SHOWN else "")
        write_line(f"Not in the folder any more, kept: {shown}. Remove with: runlane sync --prune", err=True)
    counts = ", ".join(f"{told[change]} {change}" for change in ("added", "changed", "removed", "unchanged"))
    write_line(f"{'Would be: ' if told['dry_run'] else ''}{counts}. Source: {told['source']}.")


def _placed(warning: dict[str, Any]) -> str:
    parts = [warning["file"], f"{warning['kind']}:{warning['id']}" if warning["kind"] else None]
    parts += [f'step "{warning["step"]}"' if warning["step"] else None, warning["field"]]
    told = ", ".join(part for part in parts if part)
    return f"{told}: " if told else ""


def _print_warnings(warnings: Sequence[Problem]) -> None:
    for problem in warnings:
        write_line(f"warning: {problem}", err=True)


def draw(
    name: str,
    *,
    svg: bool,
    out: Path | None,
    directory: Path | None,
    tenant: str | None,
    url: str | None,
    api_key: str | None,
) -> None:
    """`runlane graph`."""
    folder = chosen_directory(directory)
    if url is None and (directory is not None or folder.is_dir()):
        found = _in_folder(folder, name)
    else:
        found = with_either(
            url,
            api_key,
            lambda client: _on_server(client, name, tenant),
            lambda database: _in_database(database, name, tenant or DEFAULT_TENANT),
        )
    text = draw_svg(found) if svg else mermaid(found)
    if out is None:
        say_block(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
        write_line(f"Wrote {out}.")


def _in_folder(folder: Path, name: str) -> Orchestration:
    loaded = parse_directory(folder)
    known = [parsed.definition for parsed in loaded.definitions]
    orchestrations = {item.id: item for item in known if isinstance(item, Orchestration)}
    if name in orchestrations:
        return orchestrations[name]
    own = [
        problem for problem in loaded.errors if problem.location.kind == "orchestration" and problem.location.id == name
    ]
    if own:
        raise InvalidDefinitions([(str(problem.location), problem.message) for problem in own])
    raise UnknownDefinition("orchestration", name, orchestrations)


async def _on_server(client: Client, name: str, tenant: str | None) -> Orchestration:
    told = await client.definition("orchestrations", name, tenant=tenant)
    return _restored(told["definition"])


async def _in_database(database: Database, name: str, tenant: str) -> Orchestration:
    from runlane.store.definitions import find_definition

    _, found = await find_definition(database, tenant, "orchestration", name)
    return _restored(dict(found.body))


def _restored(body: dict[str, Any]) -> Orchestration:
    found = restore("orchestration", dump_json(body))
    assert isinstance(found, Orchestration)  # noqa: S101 - what its kind says
    return found


def print_schema(kind: str | None) -> None:
    """`runlane schema`."""
    if kind is None:
        print_json({known: schema_of(known) for known in KINDS})
        return
    wanted = kind.replace("-", "_").removesuffix("s")
    if wanted not in KINDS:
        raise NotFound(f'There is no schema "{kind}"{nearest(wanted, KINDS)}. Schemas: {", ".join(KINDS)}.')
    print_json(schema_of(wanted))


def _tasks(app: str | None) -> list[str] | None:
    if app is None:
        return None
    from runlane.cli.process import find_app

    return sorted(find_app(app).tasks)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
