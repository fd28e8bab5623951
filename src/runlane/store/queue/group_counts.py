"""Counts of open runs by lane or target and status. They are exact up to a bound, so that they are always fast."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Select, func, select

from runlane.domain.run import Status
from runlane.domain.views import GroupCount, StatusCount
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, optional
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement

# Waiting runs that are counted.
MAX_COUNTED: Final = 100_000
GroupName = Literal["lane", "target"]


def _open_by(name: GroupName) -> Statement:
    column = runs.c[name]
    waiting = _some(column, runs.c.ended_at.is_(None), runs.c.status != lit(Status.RUNNING))
    running = _some(column, runs.c.status == lit(Status.RUNNING))
    either = waiting.union_all(running).subquery("open_runs")
    return Statement(
        f"count_open_by_{name}",
        select(either.c.name, either.c.status, func.count().label("count")).group_by(either.c.name, either.c.status),
        purpose=f"Count open runs by {name} and status, up to a bound.",
    )


def _some(column: ColumnElement[Any], *conditions: ColumnElement[bool]) -> Select[Any, Any]:
    found = (
        select(column.label("name"), runs.c.status)
        .where(*conditions, optional("tenant", runs.c.tenant))
        .limit(lit(MAX_COUNTED + 1))
        .subquery()
    )
    return select(found.c.name, found.c.status)


_COUNT: Final[dict[GroupName, Statement]] = {"lane": _open_by("lane"), "target": _open_by("target")}


async def count_open_by(database: Database, group: GroupName, tenant: str | None) -> tuple[GroupCount, ...]:
    """Return the number of open runs of each lane or target, by status."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in await database.query(_COUNT[group], tenant=tenant):
        counts[row["name"], row["status"]] += row["count"]
    exact = sum(counts.values()) <= MAX_COUNTED
    names = sorted({name for name, _ in counts})
    return tuple(
        GroupCount(
            name,
            tuple(
                StatusCount(status, counts[name, status], exact)
                for status in Status
                if not status.terminal and counts[name, status]
            ),
        )
        for name in names
    )
