"""The figures of the whole installation that operators monitor, read when metrics are collected.

Each number is read from an index, so that a scrape costs the same with ten or a million runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Float, Integer, cast, func, select

from runlane.domain.quota import DAY_US, RUNS_PER_DAY
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_once
from runlane.store.sql.schema import run_waits, runs, schedules, tenant_quotas, tenants, usage_daily
from runlane.store.sql.statement import Statement

# A question is urgent if it is due within this time.
_SOON_US: Final = 15 * 60 * 1_000_000
_MOST: Final = 200
_MICROS: Final = 1_000_000
COST_PER_DAY: Final = "cost_usd_per_day"

_open_question = (
    run_waits.c.kind == lit("human"),
    run_waits.c.answered_at.is_(None),
    run_waits.c.settled_at.is_(None),
)
_QUESTIONS = Statement(
    "open_questions",
    select(
        func.count().label("n"),
        func.coalesce(now_once() - func.min(run_waits.c.opened_at), lit(0)).label("oldest_us"),
        func.count(run_waits.c.due_at).filter(run_waits.c.due_at < now_once() + lit(_SOON_US)).label("due"),
    ).where(*_open_question),
    purpose="Count the questions that wait for a person, for metrics.",
)
_SCHEDULES = Statement(
    "schedule_lag",
    select(func.coalesce(now_once() - func.min(schedules.c.next_due_at), lit(0)).label("lag_us")).where(
        schedules.c.paused_at.is_(None), schedules.c.next_at.is_not(None)
    ),
    purpose="Read how late the latest schedule is, for metrics.",
)
_OLDEST_ENDED = Statement(
    "oldest_ended_run",
    select((now_once() - runs.c.ended_at).label("age_us"))
    .where(runs.c.ended_at.is_not(None), ~runs.c.holds_key)
    .order_by(runs.c.ended_at)
    .limit(lit(1)),
    purpose="Read the age of the oldest ended run that retention may delete.",
)
_today = cast(now_once() // lit(DAY_US), Integer)
_spent = (
    select(func.coalesce(func.sum(usage_daily.c.cost_usd), cast(lit(0), Float())))
    .where(usage_daily.c.tenant == tenants.c.id, usage_daily.c.day == _today)
    .scalar_subquery()
)
_BUDGETS = Statement(
    "tenant_budgets",
    select(tenants.c.id, (cast(_spent, Float()) / cast(tenants.c.max_cost_usd_per_day, Float())).label("share"))
    .where(tenants.c.max_cost_usd_per_day > lit(0))
    .order_by(tenants.c.id)
    .limit(lit(_MOST)),
    purpose="Read what tenants have spent of their daily budgets, for metrics.",
)
_q = tenant_quotas.c
_QUOTAS = Statement(
    "tenant_quota_use",
    select(_q.tenant, _q.name, _q.day, _today.label("today"), (cast(_q.used, Float()) / _q.most).label("share"))
    .where(_q.most > lit(0), _q.used.is_not(None))
    .order_by(_q.tenant, _q.name)
    .limit(lit(_MOST)),
    purpose="Read what tenants have used of their quotas, for metrics.",
)


@dataclass(frozen=True, slots=True)
class AllowanceUse:
    """The share of a budget or a quota that a tenant has used; 1 is all of it."""

    tenant: str
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class OperationGauges:
    """Questions, schedules, retention and allowances at one moment. Ages are in seconds, 0 when there is nothing."""

    questions: int
    oldest_question_seconds: float
    questions_due_soon: int
    schedule_lag_seconds: float
    oldest_ended_seconds: float
    allowances: Sequence[AllowanceUse]


async def oldest_ended_seconds(database: Database) -> float | None:
    """Return the age of the oldest ended run that retention may delete; None if no run has ended."""
    rows = await database.query(_OLDEST_ENDED)
    return max(0, rows[0]["age_us"]) / _MICROS if rows else None


async def read_operation_gauges(database: Database) -> OperationGauges:
    """Return the numbers of this moment."""
    (questions,) = await database.query(_QUESTIONS)
    (schedule,) = await database.query(_SCHEDULES)
    allowances = [AllowanceUse(row["id"], COST_PER_DAY, row["share"]) for row in await database.query(_BUDGETS)]
    for row in await database.query(_QUOTAS):
        # The count of an earlier day does not apply to today.
        share = 0.0 if row["name"] == RUNS_PER_DAY and row["day"] != row["today"] else row["share"]
        allowances.append(AllowanceUse(row["tenant"], row["name"], share))
    return OperationGauges(
        questions["n"],
        max(0, questions["oldest_us"]) / _MICROS,
        questions["due"],
        max(0, schedule["lag_us"]) / _MICROS,
        await oldest_ended_seconds(database) or 0.0,
        allowances,
    )
