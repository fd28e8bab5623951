"""What commands print: tables for people, JSON for programs, plain text in pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from runlane.cli.terminal import console, styled, write_block, write_cells, write_line

T = TypeVar("T")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
    write_block(text.decode())


def print_result(value: Any, line: str, *, json: bool) -> None:
    """Print the value as JSON, or the line."""
    if json:
        print_json(value)
    else:
        write_line(line)


def print_rows(
    rows: Sequence[T],
    columns: Sequence[str],
    cells: Callable[[T], Sequence[Any]],
    *,
    empty: str,
    json: bool,
    to_dict: Callable[[T], Mapping[str, Any]] = asdict,
) -> None:
    """Print rows as a table, or as JSON."""
    if json:
        print_json([to_dict(row) for row in rows])
    else:
        print_table(columns, [cells(row) for row in rows], empty)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """Print a table on a terminal, tab-separated lines with a heading in a pipe."""
    if not sys.stdout.isatty():
        write_cells(list(columns))
        for row in rows:
            write_cells([format_cell(value) for value in row])
        return
    if not rows:
        write_line(empty)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*(styled(format_cell(value)) for value in row))
    console().print(table)


def print_changes(name: str, changed: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the old and the new value of each changed field."""
    for field, values in changed.items():
        write_line(f"{name}: {field} {values['old']} -> {values['new']}")
    if not changed:
        write_line(f"{name}: nothing changed.")


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the old and the new value of each field that differs."""
    return {name: {"old": old[name], "new": new[name]} for name in old if old[name] != new[name]}


def format_cell(value: Any) -> str:
    return "-" if value is None else str(value)


def format_time(at_us: int | None) -> str:
    """Return a stored time as UTC with milliseconds."""
    if at_us is None:
        return "-"
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def format_span(from_us: int | None, to_us: int | None) -> str:
    """Return the time between two stored times."""
    return "-" if from_us is None or to_us is None else format_seconds((to_us - from_us) / 1_000_000)


def format_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shorten(value: Any, max_length: int) -> str:
    """Return the text of a value on one line, at most `max_length` characters long."""
    line = " ".join(str("" if value is None else value).split())
    return line if len(line) <= max_length else line[: max_length - 3] + "..."


def split_names(names: str | None) -> list[str]:
    """Return the names in a comma-separated option."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]
