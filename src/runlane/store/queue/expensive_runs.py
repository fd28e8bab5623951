"""The most expensive runs of a period, found through the figures of its hours.

The cost of an hour bounds the cost of each run that ended in it. Hours are examined from the most expensive one on,
until no other hour can have a run that costs more than the runs that were found.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from sqlalchemy import BigInteger, Integer, bindparam, func, select

from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.domain.usage import ExpensiveRun, ExpensiveRuns
from runlane.store.queue.run_series import HAS_STEPS, HOUR, read_series_rows
from runlane.store.sql.database import Database, read_clock
from runlane.store.sql.expressions import lit, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import run_calls, runs
from runlane.store.sql.statement import Statement

# How many hours are examined. With more, the runs of other hours are left out, and the result is not complete.
MAX_HOURS: Final = 100
_SECOND_US: Final = 1_000_000
_cost = func.sum(run_calls.c.cost_usd)
_named = (runs.c.id, runs.c.tenant, runs.c.target, runs.c.status, runs.c.ended_at)
_MOST = Statement(
    "most_expensive_runs",
    select(*_named, _cost.label("cost_usd"), func.sum(run_calls.c.tokens_in + run_calls.c.tokens_out).label("tokens"))
    .select_from(runs.join(run_calls, run_calls.c.run_id == runs.c.id))
    .where(
        runs.c.ended_at.is_not(None),
        runs.c.ended_at >= bindparam("from_us", type_=BigInteger()),
        runs.c.ended_at < bindparam("to_us", type_=BigInteger()),
        optional("tenant", runs.c.tenant),
        HAS_STEPS,
        # Calls of tools have no cost, and neither have models without a known price.
        run_calls.c.cost_usd > lit(0),
    )
    .group_by(*_named)
    .order_by(_cost.desc(), runs.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the most expensive runs that ended within a time.",
)


async def read_expensive_runs(
    database: Database, tenant: str | None, first: date, last: date, limit: int
) -> ExpensiveRuns:
    """Return the most expensive runs of a tenant, or of all, that ended between two days, both included (UTC)."""
    start, end = _midnight_us(first), _midnight_us(last + timedelta(days=1))
    found, complete = await find_expensive_runs(database, tenant, start, end, limit)
    return ExpensiveRuns(tenant, first.isoformat(), last.isoformat(), tuple(found), complete)


def _midnight_us(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp()) * _SECOND_US


async def find_expensive_runs(
    database: Database, tenant: str | None, from_us: int, to_us: int, limit: int, *, max_hours: int = MAX_HOURS
) -> tuple[list[ExpensiveRun], bool]:
    """Return the runs that ended within a time and cost the most, and whether every hour was taken into account."""
    first = from_us // _SECOND_US // HOUR * HOUR
    end = min(to_us, await read_clock(database) + 1) // _SECOND_US + 1
    rows, counted = await read_series_rows(database, HOUR, first, end, tenant=tenant)
    costs: dict[int, float] = {}
    for row in rows:
        costs[row.bucket] = costs.get(row.bucket, 0.0) + row.counts.cost_usd
    # The cost of hours that are not counted yet is unknown.
    times = [(max(first, counted or first) * _SECOND_US, to_us, float("inf"))]
    hours = sorted(((cost, bucket) for bucket, cost in costs.items() if cost > 0), reverse=True)
    times += [(bucket * _SECOND_US, (bucket + HOUR) * _SECOND_US, cost) for cost, bucket in hours]
    found: list[ExpensiveRun] = []
    for number, (since, until, most) in enumerate(times):
        if len(found) == limit and most <= found[-1].cost_usd:
            return found, True
        if number > max_hours:
            return found, False
        bounds = {"from_us": max(since, from_us), "to_us": min(until, to_us)}
        given = {"tenant": tenant, "limit": limit, "orchestration": ORCHESTRATION, "agent": AGENT}
        more = await database.query(_MOST, **bounds, **given)
        found += [from_row(ExpensiveRun, row, status=Status(row["status"])) for row in more]
        found = sorted(found, key=lambda run: (-run.cost_usd, run.id))[:limit]
    return found, True
