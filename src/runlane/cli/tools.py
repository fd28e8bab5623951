"""`runlane tools`: definitions of tools, generated from the OpenAPI description of a web service."""

from __future__ import annotations

import json as standard_json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runlane.cli.options import Dir, DryRun, Json
from runlane.cli.output import print_json
from runlane.cli.terminal import write_line
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from runlane.catalog.importers.openapi import ImportedTools

app = typer.Typer()

_State = Literal["written", "unchanged", "kept"]


@app.command(name="import-openapi")
def import_openapi(
    file: Annotated[
        str, typer.Argument(help="The description, OpenAPI 3.0 or 3.1 as JSON; - reads stdin.", metavar="FILE")
    ],
    prefix: Annotated[str, typer.Option(help="Prefix of the name of every tool, such as shop_.")] = "",
    base_url: Annotated[
        str | None, typer.Option(help="URL of the service. Default: the first server of the description.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="Sent with every call, such as 'Authorization: Bearer {secret.SHOP_TOKEN}'. May be repeated."
        ),
    ] = None,
    directory: Dir = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a tool for every operation of a web service; report skipped operations with the reason.

    Exit code 1 if a tool was not written because its file exists.
    """
    from runlane.catalog.importers.openapi import import_openapi
    from runlane.cli.definition_lookup import definitions_folder
    from runlane.cli.json_input import read_json_file
    from runlane.definitions.loader import check_loaded, parse_bodies

    description = read_json_file(file, " Convert a description in YAML to JSON first.")
    imported = import_openapi(description, name_prefix=prefix, base_url=base_url, headers=_parse_headers(header or []))
    # Report what a sync would refuse before any file is written.
    check_loaded(parse_bodies({"tools": imported.tools}), ()).raise_errors()
    folder = definitions_folder(directory) / "tools"
    states: dict[str, _State] = {
        tool["name"]: _write(folder, tool, overwrite=overwrite, dry_run=dry_run) for tool in imported.tools
    }
    if json:
        print_json(
            {
                "folder": str(folder),
                "dry_run": dry_run,
                "tools": [{"name": name, "state": state} for name, state in states.items()],
                "left_out": [asdict(item) for item in imported.left_out],
                "notes": [asdict(item) for item in imported.notes],
            }
        )
    else:
        _print_report(imported, states, folder, dry_run=dry_run)
    raise typer.Exit(1 if "kept" in states.values() else 0)


def _parse_headers(given: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition(":")
        if not separator or not name.strip() or not value.strip():
            raise InvalidRequest(
                "A header is written as 'Name: value', such as 'Authorization: Bearer {secret.TOKEN}'."
            )
        headers[name.strip()] = value.strip()
    return headers


def _write(folder: Path, tool: Mapping[str, Any], *, overwrite: bool, dry_run: bool) -> _State:
    path = folder / f"{tool['name']}.json"
    text = standard_json.dumps(tool, indent=2, ensure_ascii=False) + "\n"
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return "unchanged"
        if not overwrite:
            return "kept"
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return "written"


def _print_report(imported: ImportedTools, states: Mapping[str, _State], folder: Path, *, dry_run: bool) -> None:
    for name, state in states.items():
        write_line(f"{state:9}  {name}")
    for item in imported.notes:
        write_line(f"note: {item.operation}: {item.why}", err=True)
    for item in imported.left_out:
        write_line(f"left out: {item.operation}: {item.why}", err=True)
    kept = [name for name, state in states.items() if state == "kept"]
    if kept:
        write_line(f"Kept as they are: {', '.join(kept[:10])}. --overwrite replaces them.", err=True)
    found = list(states.values())
    counts = ", ".join(f"{found.count(state)} {state}" for state in ("written", "unchanged", "kept"))
    write_line(f"{'Would be in ' if dry_run else ''}{folder}: {counts}, {len(imported.left_out)} left out.")
