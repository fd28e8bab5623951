"""`runlane validate`, `runlane graph` and `runlane schema`: check definitions, draw them, describe their files."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, AppOption, Dir, Json, Tenant, Url
from runlane.cli.output import format_count, print_json
from runlane.cli.terminal import write_block, write_line
from runlane.domain.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.definitions.loader import LoadedDefinitions
    from runlane.definitions.problem import Problem
    from runlane.definitions.schema.definition import Orchestration
    from runlane.store.sql.database import Database


def validate(
    directory: Dir = None,
    app: AppOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 even if there are only warnings.")] = False,
    json: Json = False,
) -> None:
    """Validate definitions; report each problem with its location and fix. Exit code 1 if there are errors."""
    from runlane.cli.app_loader import task_names
    from runlane.cli.definition_lookup import definitions_folder
    from runlane.definitions.checks.environment import environment_of
    from runlane.definitions.loader import load_directory
    from runlane.settings import load_settings

    folder = definitions_folder(directory)
    loaded = load_directory(folder, tasks=task_names(app), environment=environment_of(load_settings()))
    loaded = replace(loaded, problems=[*loaded.problems, *asyncio.run(_missing_secrets(loaded))])
    if json:
        problems = [problem.to_dict() for problem in loaded.problems]
        print_json({"valid": not loaded.errors, "definitions": len(loaded.definitions), "problems": problems})
    else:
        for problem in (*loaded.errors, *loaded.warnings):
            write_line(f"{problem.severity}: {problem}")
        warnings = format_count(len(loaded.warnings), "warning")
        if loaded.errors:
            write_line(f"{folder}: {format_count(len(loaded.errors), 'error')}, {warnings}.")
        else:
            write_line(f"{folder}: {format_count(len(loaded.definitions), 'definition')}, {warnings}, no errors.")
    raise typer.Exit(1 if loaded.errors or (strict and loaded.warnings) else 0)


async def _missing_secrets(loaded: LoadedDefinitions) -> Sequence[Problem]:
    """Return the secrets that are not set, if a database is available; validation does not need one."""
    from runlane.cli.target import URL_VARIABLE
    from runlane.definitions.secret_references import secret_names
    from runlane.errors import RunlaneError
    from runlane.settings import load_settings

    settings = load_settings()
    if not any(secret_names(parsed.definition) for parsed in loaded.definitions):
        return []
    if settings.sqlite_path is not None and not settings.sqlite_path.exists():
        return []
    if settings.database_url is None and os.environ.get(URL_VARIABLE):
        # The definitions are meant for a server, whose secrets the local file does not have.
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


def graph(
    orchestration: Annotated[str, typer.Argument(help="Id of the orchestration.", metavar="ORCH")],
    svg: Annotated[bool, typer.Option("--svg", help="Draw SVG instead of Mermaid text.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    directory: Dir = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Draw an orchestration: from the folder with definitions if it exists, else from the database or a server."""
    from runlane.cli.definition_lookup import definitions_folder, find_in_database, find_in_folder, restore_definition
    from runlane.definitions.mermaid import mermaid
    from runlane.definitions.schema.definition import Orchestration
    from runlane.definitions.svg import svg as draw_svg

    async def on_server(client: Client) -> Orchestration:
        found = await client.definition("orchestrations", orchestration, tenant=tenant)
        return restore_definition("orchestration", Orchestration, found["definition"])

    async def on_database(database: Database) -> Orchestration:
        owner = tenant or DEFAULT_TENANT
        return await find_in_database(database, owner, "orchestration", Orchestration, orchestration)

    folder = definitions_folder(directory)
    if url is None and (directory is not None or folder.is_dir()):
        found = find_in_folder(folder, "orchestration", Orchestration, orchestration)
    else:
        found = on_server_or_database(url, api_key, on_server, on_database)
    text = draw_svg(found) if svg else mermaid(found)
    if out is None:
        write_block(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
        write_line(f"Wrote {out}.")


def schema(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="orchestration, agent, tool, mcp_server, schedule or trigger. Default: all.", metavar="[KIND]"
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of definition files, for editors."""
    from runlane.definitions.json_schema import schema_of
    from runlane.definitions.schema.definition import KINDS
    from runlane.errors import NotFound, nearest

    if kind is None:
        print_json({known: schema_of(known) for known in KINDS})
        return
    wanted = kind.replace("-", "_").removesuffix("s")
    if wanted not in KINDS:
        raise NotFound(f'The schema "{kind}" does not exist{nearest(wanted, KINDS)}. Schemas: {", ".join(KINDS)}.')
    print_json(schema_of(wanted))
