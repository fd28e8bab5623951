"""Printing: tables for people, JSON for programs, plain text in pipes."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer

from runlane.cli.terminal import console, say_block, say_cells, styled, write_line

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
    say_block(text.decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """A table on a terminal; tab-separated lines with a heading in a pipe."""
    if not sys.stdout.isatty():
        say_cells(list(columns))
        for row in rows:
            say_cells([_cell(value) for value in row])
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
        table.add_row(*(styled(_cell(value)) for value in row))
    console().print(table)


def clock(at_us: int | None) -> str:
    """A stored time for people."""
    if at_us is None:
        return "-"
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def span(from_us: int | None, to_us: int | None) -> str:
    """How long something took."""
    if from_us is None or to_us is None:
        return "-"
    seconds = (to_us - from_us) / 1_000_000
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
    )


def acting() -> str:
    """Who the audit log says did it."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # An account without a name, as in some containers.
        return "cli"


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
