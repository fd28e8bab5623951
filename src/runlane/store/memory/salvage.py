"""Set a damaged memory file aside, and report the operations in it that were not replicated to the database.

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

from runlane.store.memory.words_file import delete_words

# Entries that were added without an idempotency key are not in the log.
_LOST = (
    "select memory_id, seq, op_id, kind, subject, state, created_at from memory_ops where state <> 'applied'",
    (
        "select e.memory_id, e.seq, e.id as op_id, 'add_entry' as kind, e.id as subject, "
        "case when m.parked then 'blocked' else 'pending' end as state, e.created_at "
        "from memories m join memory_entries e on e.memory_id = m.id and e.seq > m.applied_seq where not exists "
        "(select 1 from memory_ops o where o.memory_id = e.memory_id and o.seq = e.seq)"
    ),
)
_SIDE_FILES = ("-wal", "-shm", "-clock")


def set_aside(path: Path, problems: Sequence[str]) -> tuple[Path, Path]:
    """Move a damaged file and its log away. Return its new path and the path of the report."""
    lost, complete, reason = _unreplicated(path)
    moved = path.with_name(
        f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09}"
    )
    report = moved.with_name(moved.name + ".json")
    content: dict[str, Any] = {
        "file": moved.name,
        "problems": list(problems),
        "complete": complete,
        "reason": reason,
        "not_replicated": lost,
    }
    # Written first: after a crash in between, or on a full disk, no file is missing without a report.
    report.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    path.rename(moved)
    for suffix in _SIDE_FILES:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(moved.with_name(moved.name + suffix))
    delete_words(path)
    return moved, report


def earlier_reports(path: Path) -> list[str]:
    """Return the reports of files that were set aside before."""
    return sorted(str(found) for found in path.parent.glob(f"{path.name}.broken-*.json"))


def _unreplicated(path: Path) -> tuple[list[dict[str, Any]], bool, str]:
    lost: list[dict[str, Any]] = []
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection:
            connection.row_factory = sqlite3.Row
            for statement in _LOST:
                for row in connection.execute(statement):
                    lost.append(dict(row))  # noqa: PERF401 - what was read before an error is kept
    except sqlite3.DatabaseError as error:
        return _ordered(lost), False, f"The file could not be read to its end: {error}. More operations may be lost."
    return _ordered(lost), True, "The log of operations was readable; these operations were not replicated."


def _ordered(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lost, key=lambda op: (op["memory_id"], op["seq"]))
