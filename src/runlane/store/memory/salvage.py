"""Set a damaged memory file aside, with an honest list of what it had that the database has not.

The list is read from the damaged file as far as that is possible, and is marked if it is incomplete.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

_LOST = (
    "select memory_id, seq, op_id, kind, subject, state, created_at from memory_ops where state <> 'applied' "
    "order by memory_id, seq"
)
_SIDE_FILES = ("-wal", "-shm", "-clock")


def set_aside(path: Path, problems: Sequence[str]) -> tuple[Path, Path]:
    """Move a damaged file and its log away. Return its new path and the path of the report."""
    lost, complete, reason = _unreplicated(path)
    moved = path.with_name(
        f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09}"
    )
    path.rename(moved)
    for suffix in _SIDE_FILES:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(moved.with_name(moved.name + suffix))
    report = moved.with_name(moved.name + ".json")
    content: dict[str, Any] = {
        "file": moved.name,
        "problems": list(problems),
        "complete": complete,
        "reason": reason,
        "not_replicated": lost,
    }
    report.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return moved, report


def earlier_reports(path: Path) -> list[str]:
    """Return the reports of files that were set aside before."""
    return sorted(str(found) for found in path.parent.glob(f"{path.name}.broken-*.json"))


def _unreplicated(path: Path) -> tuple[list[dict[str, Any]], bool, str]:
    lost: list[dict[str, Any]] = []
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection:
            connection.row_factory = sqlite3.Row
            for row in connection.execute(_LOST):
                lost.append(dict(row))  # noqa: PERF401 - what was read before an error is kept
    except sqlite3.DatabaseError as error:
        return lost, False, f"The file could not be read to its end: {error}. More operations may be lost."
    return lost, True, "The log of operations was readable; these operations were not replicated."
