"""Read the problems of schedules, for `runlane doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from sqlalchemy import case, exists, func, select

from runlane.domain.firing import FiringKind, FiringOutcome
from runlane.store.schedules.rows import parse_settings
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import definitions, schedule_firings, schedules
from runlane.store.sql.statement import Statement

_LATE_US: Final = 60 * 1_000_000
_NAMED: Final = 5
_MOST: Final = 10_000
_s, _f = schedules.c, schedule_firings.c
_newest = (
    select(func.max(_f.slot))
    .where(_f.schedule_uid == _s.uid, _f.kind == lit(FiringKind.TICK))
    .correlate(schedules)
    .scalar_subquery()
)
_failed = exists().where(
    _f.schedule_uid == _s.uid, _f.slot == _newest, _f.outcome == lit(FiringOutcome.FAILED_TO_START)
)
_late = case((_s.next_due_at < now_us() - lit(_LATE_US), lit(1)), else_=lit(0))
_COUNTS = Statement(
    "count_active_schedules",
    select(func.count().label("active"), func.coalesce(func.sum(_late), lit(0)).label("overdue")).where(
        _s.paused_at.is_(None), _s.next_at.is_not(None)
    ),
    purpose="Count active schedules, and those that are overdue.",
)
_FAILED = Statement(
    "failed_schedules",
    select(_s.id).where(_s.paused_at.is_(None), _failed).order_by(_s.id).limit(lit(_NAMED)),
    purpose="Find schedules whose last slot did not start.",
)
_TARGETS = Statement(
    "schedule_targets",
    select(_s.tenant, _s.id, _s.settings).where(_s.paused_at.is_(None)).order_by(_s.id).limit(lit(_MOST)),
    purpose="Read what schedules start.",
)
_DEFINED = Statement(
    "defined_targets",
    select(definitions.c.tenant, definitions.c.kind, definitions.c.id).where(
        definitions.c.removed_at.is_(None), definitions.c.kind.in_([lit("orchestration"), lit("agent")])
    ),
    purpose="Read which orchestrations and agents exist.",
)


@dataclass(frozen=True, slots=True)
class ScheduleHealth:
    """The numbers of active and overdue schedules, and some that failed, lack their target or cannot be read."""

    active: int
    overdue: int
    failed: tuple[str, ...]
    dangling: tuple[str, ...]
    unreadable: tuple[str, ...]


async def read_schedule_health(database: Database) -> ScheduleHealth:
    """Return the problems with the schedules of all tenants."""
    counts = (await database.query(_COUNTS))[0]
    failed = tuple(row["id"] for row in await database.query(_FAILED))
    targets = await database.query(_TARGETS)
    defined = {(row["tenant"], row["kind"], row["id"]) for row in await database.query(_DEFINED)}
    dangling: list[str] = []
    unreadable: list[str] = []
    for row in targets:
        try:
            target = parse_settings(row["settings"]).target
        except ValidationError:
            unreadable.append(row["id"])
            continue
        kind = "agent" if target.kind == "chat" else target.kind
        if kind not in ("task", "assistant") and (row["tenant"], kind, target.name) not in defined:
            dangling.append(row["id"])
    return ScheduleHealth(
        counts["active"], counts["overdue"], failed, tuple(dangling[:_NAMED]), tuple(unreadable[:_NAMED])
    )
