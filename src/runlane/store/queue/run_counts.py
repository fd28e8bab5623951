"""Counts of runs by status, through the indexes of lists: exact up to a bound, so that they are always fast."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, get_args

from sqlalchemy import Integer, Select, Text, bindparam, func, literal, select, union_all

from runlane.domain.run import Status
from runlane.domain.views import StatusCount
from runlane.store.queue.run_ranges import FOUND, RunIndex, in_range, ranges_of
from runlane.store.queue.search import RunFilter
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, optional
from runlane.store.sql.schema import tenants
from runlane.store.sql.statement import Dialect, Statement

# The maximum number of counted runs of each status.
MAX_COUNTED: Final = 1_000

_INDEXES: Final = tuple(index for index in RunIndex if index.by_status)


def _count(index: RunIndex, dialect: Dialect) -> Statement:
    parts: list[Select[Any, int]] = []
    for ended in (True, False):
        ranges = ranges_of(index, dialect, ended=ended)
        some = select(lit(1).label("one")).select_from(FOUND).where(*in_range(index, ranges, ended=ended))
        bounded = some.limit(bindparam("most", type_=Integer())).correlate(ranges).subquery("bounded")
        count = select(func.count()).select_from(bounded).scalar_subquery()
        parts.append(select(ranges.c.status, count.label("count")).select_from(ranges))
    c = FOUND.c
    running = select(literal(Status.RUNNING.value, Text()).label("status"), func.count().label("count")).where(
        c.status == lit(Status.RUNNING),
        member(c.tenant, "tenants"),
        optional("target", c.target),
        optional("lane", c.lane),
    )
    about = f"Count runs by status, through the index by {index.replace('_', ' ')}."
    return Statement(f"count_by_{index}", union_all(*parts, running), purpose=about)


COUNTS: Final = {dialect: {index: _count(index, dialect) for index in _INDEXES} for dialect in get_args(Dialect)}
_TENANTS = Statement(
    "tenants_to_count", select(tenants.c.id), purpose="Read the ids of all tenants, for counts of all."
)


async def count_runs(
    database: Database,
    tenant: str | None = None,
    *,
    target: str | None = None,
    lane: str | None = None,
    most: int = MAX_COUNTED,
) -> tuple[StatusCount, ...]:
    """Count the runs in each status: of a tenant or of all, of a target, in a lane."""
    index = RunFilter(target=target, lane=lane, statuses=tuple(Status)).index

    async def work(session: Session) -> tuple[StatusCount, ...]:
        owners = [tenant] if tenant is not None else [row["id"] for row in await session.fetch(_TENANTS)]
        params: dict[str, Any] = {
            "tenants": session.texts(owners),
            "waiting_statuses": session.texts([status.value for status in Status if status.waiting]),
            "ended_statuses": session.texts([status.value for status in Status if status.terminal]),
            "target": target,
            "lane": lane,
            "most": most + 1,
        }
        counts: Counter[str] = Counter()
        for row in await session.fetch(COUNTS[session.dialect][index], **params):
            counts[row["status"]] += row["count"]
        return tuple(_bounded(status, counts[status], most) for status in Status)

    return await database.transact(work)


def _bounded(status: Status, count: int, most: int) -> StatusCount:
    is_exact = count <= most or status is Status.RUNNING
    return StatusCount(status, count if is_exact else most, is_exact)
