"""What `runlane tools import-openapi` does: tools from the description of a web service, as files."""

from __future__ import annotations

import json as standard_json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from runlane.catalog.importers.openapi import ImportedTools, import_openapi
from runlane.cli.author import chosen_directory
from runlane.cli.show import print_json
from runlane.cli.terminal import write_line
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.errors import InvalidRequest

MAX_BYTES: Final = 64 * 1024 * 1024
_State = Literal["written", "unchanged", "kept"]


def write_tools(
    file: str,
    *,
    prefix: str,
    base_url: str | None,
    headers: Sequence[str],
    directory: Path | None,
    overwrite: bool,
    dry_run: bool,
    json: bool,
) -> int:
    """`runlane tools import-openapi`."""
    spec = _read(file)
    found = import_openapi(spec, name_prefix=prefix, base_url=base_url, headers=_headers(headers))
    # What would be refused later is told now, before anything is written.
    check_loaded(parse_bodies({"tools": found.tools}), ()).raise_errors()
    folder = chosen_directory(directory) / "tools"
    states: dict[str, _State] = {
        tool["name"]: _write(folder, tool, overwrite=overwrite, dry_run=dry_run) for tool in found.tools
    }
    if json:
        print_json(
            {
                "folder": str(folder),
                "dry_run": dry_run,
                "tools": [{"name": name, "state": state} for name, state in states.items()],
                "left_out": [{"operation": item.operation, "why": item.why} for item in found.left_out],
                "notes": [{"operation": item.operation, "why": item.why} for item in found.notes],
            }
        )
    else:
        _tell(found, states, folder, dry_run=dry_run)
    return 1 if "kept" in states.values() else 0


def _read(file: str) -> Any:
    try:
        text = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror or error}.") from None
    if len(text) > MAX_BYTES:
        raise InvalidRequest(f"{file} has more than {MAX_BYTES} bytes.")
    try:
        return orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"{file} is not JSON (line {error.lineno}, column {error.colno}: {error.msg}). "
            "Convert a description in YAML to JSON first."
        ) from None


def _headers(given: Sequence[str]) -> dict[str, str]:
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


def _tell(found: ImportedTools, states: Mapping[str, _State], folder: Path, *, dry_run: bool) -> None:
    for name, state in states.items():
        write_line(f"{state:9}  {name}")
    for item in found.notes:
        write_line(f"note: {item.operation}: {item.why}", err=True)
    for item in found.left_out:
        write_line(f"left out: {item.operation}: {item.why}", err=True)
    kept = [name for name, state in states.items() if state == "kept"]
    if kept:
        write_line(f"Kept as they are: {', '.join(kept[:10])}. --overwrite replaces them.", err=True)
    counts = {state: list(states.values()).count(state) for state in ("written", "unchanged", "kept")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    write_line(f"{'Would be in ' if dry_run else ''}{folder}: {told}, {len(found.left_out)} left out.")
