"""Runs as lines of JSON or CSV. Pages are read while the response is sent."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

import orjson

from runlane.domain.run import RunSummary
from runlane.domain.wire import to_dict
from runlane.queries import with_usage
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.sql.database import Database

MAX_EXPORTED: Final = 100_000
_PAGE: Final = 1000
COLUMNS: Final = (
    "run_id", "tenant", "target", "lane", "status", "priority", "attempt", "tries", "failures", "losses",
    "ordering_key", "accepted_at", "due_at", "started_at", "ended_at", "worker_id", "progress", "progress_note", "tags",
    "total_cost_usd", "total_tokens",
)  # fmt: skip
# A spreadsheet executes a cell that begins with one of these characters.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


async def export_runs(
    database: Database,
    wanted: RunFilter,
    limit: int,
    turn: Callable[[], AbstractAsyncContextManager[None]],
    *,
    as_csv: bool,
) -> AsyncGenerator[bytes]:
    """Yield the matching runs, newest first, one page at a time. Each page counts as a search of the caller."""
    cursor: str | None = None
    left = limit
    if as_csv:
        yield _csv_line(COLUMNS)
    while left > 0:
        async with turn():
            found = await search_runs(database, wanted, below=cursor, limit=min(_PAGE, left))
            bodies = [_fields(run) for run in await with_usage(database, found.runs)]
        if as_csv:
            yield b"".join(_csv_line([_cell(body.get(name)) for name in COLUMNS]) for body in bodies)
        else:
            yield b"".join(orjson.dumps(body) + b"\n" for body in bodies)
        left -= len(bodies)
        cursor = found.cursor
        if cursor is None:
            return


def _fields(run: RunSummary) -> dict[str, Any]:
    body = to_dict(run)
    return {name: body[name] for name in COLUMNS}


def _cell(value: Any) -> str:
    """Return a value as a cell that spreadsheets do not execute."""
    text = "" if value is None else str(value)
    if isinstance(value, list | tuple):
        text = " ".join(cast("list[str]", value))
    return f"'{text}" if text.startswith(_FORMULA) and not isinstance(value, int | float) else text


def _csv_line(cells: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()
