"""Dead letters: what remains of a run that failed for good, complete enough to understand and repeat it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import FromClause, Integer, Text, bindparam, delete, insert, select
from sqlalchemy.sql.base import Executable

from runlane.domain.text import dump_json, load_json
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import member, now_us
from runlane.store.sql.schema import dead_letters, run_attempts, run_inputs, run_results, runs
from runlane.store.sql.statement import Row, Statement

_DEAD = Statement(
    "read_failed_runs",
    select(runs.c.id, runs.c.target, runs.c.lane, run_inputs.c.input, run_results.c.error)
    .select_from(
        runs.join(run_inputs, run_inputs.c.run_id == runs.c.id).join(run_results, run_results.c.run_id == runs.c.id)
    )
    .where(member(runs.c.id, "ids")),
    purpose="Read the runs that become dead letters.",
)
_ATTEMPTS = Statement(
    "read_attempts_of_runs",
    select(run_attempts)
    .where(member(run_attempts.c.run_id, "ids"))
    .order_by(run_attempts.c.run_id, run_attempts.c.attempt),
    purpose="Read the attempts of the runs that become dead letters.",
)


def _bury(batch: FromClause) -> Executable:
    b = batch.c
    return insert(dead_letters).from_select(
        ["run_id", "target", "lane", "input", "error", "attempts", "died_at"],
        select(b.run_id, b.target, b.lane, b.input, b.error, b.attempts, now_us()).select_from(batch),
    )


_ADD = Statement(
    "add_dead_letters",
    _bury,
    {
        "run_id": Text(),
        "target": Text(),
        "lane": Text(),
        "input": Text(),
        "error": Text(),
        "attempts": Text(),
    },
    purpose="Add dead letters.",
)
DELETE_DEAD_LETTER = Statement(
    "delete_dead_letter",
    delete(dead_letters).where(dead_letters.c.run_id == bindparam("run_id")),
    purpose="Delete the dead letter of a run that is retried.",
)
_LIST = Statement(
    "list_dead_letters",
    select(dead_letters).order_by(dead_letters.c.died_at.desc()).limit(bindparam("limit", type_=Integer())),
    purpose="Read the newest dead letters.",
)
_READ = Statement(
    "read_dead_letter",
    select(dead_letters).where(dead_letters.c.run_id == bindparam("run_id")),
    purpose="Read a dead letter.",
)


async def add_dead_letters(session: Session, run_ids: Sequence[str]) -> None:
    """Write the dead letters of runs that failed in this transaction."""
    ids = session.texts(list(run_ids))
    attempts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await session.fetch(_ATTEMPTS, ids=ids):
        attempts[row["run_id"]].append(attempt_value(row))
    rows = await session.fetch(_DEAD, ids=ids)
    await session.fetch(
        _ADD,
        [
            (
                row["id"],
                row["target"],
                row["lane"],
                row["input"],
                row["error"],
                dump_json(attempts[row["id"]]),
            )
            for row in rows
        ],
    )


async def read_dead_letter(database: Database, run_id: str) -> dict[str, Any] | None:
    """Return the dead letter of a run, or None."""
    rows = await read(database, _READ, run_id=run_id)
    return letter_value(rows[0]) if rows else None


async def list_dead_letters(database: Database, limit: int = 100) -> list[dict[str, Any]]:
    """Return the newest dead letters."""
    return [letter_value(row) for row in await read(database, _LIST, limit=limit)]


def attempt_value(row: Row) -> dict[str, Any]:
    """Return an attempt as JSON."""
    return {
        "attempt": row["attempt"],
        "worker_id": row["worker_id"],
        "started_at_us": row["started_at"],
        "ended_at_us": row["ended_at"],
        "outcome": row["outcome"],
        "error": load_json(row["error"]) if row["error"] else None,
    }


def letter_value(row: Row) -> dict[str, Any]:
    """Return a dead letter as JSON."""
    return {
        "run_id": row["run_id"],
        "target": row["target"],
        "lane": row["lane"],
        "input": load_json(row["input"]),
        "error": load_json(row["error"]),
        "attempts": load_json(row["attempts"]),
        "died_at_us": row["died_at"],
    }
