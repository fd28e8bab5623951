"""Problems with events, triggers, incoming webhooks and dependent runs, for `runlane doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Text, exists, func, literal, select

from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import dependency_work, event_outcomes, event_rates, stored_events, webhook_sources
from runlane.store.sql.statement import Statement

_LATE_US: Final = 60 * 1_000_000
_DAY_US: Final = 86_400 * 1_000_000
_NAMED: Final = 5
_s = webhook_sources.c
_COUNTS = Statement(
    "event_health",
    select(
        select(func.count())
        .where(stored_events.c.matched_at.is_(None), stored_events.c.received_at < now_us() - lit(_LATE_US))
        .scalar_subquery()
        .label("unmatched"),
        select(func.count())
        .where(dependency_work.c.created_at < now_us() - lit(_LATE_US))
        .scalar_subquery()
        .label("unsettled"),
    ),
    purpose="Count events and dependent runs that no process has handled for a minute.",
)
_FAILED = Statement(
    "failing_triggers",
    select(event_outcomes.c.trigger)
    .where(event_outcomes.c.outcome == lit("failed"), event_outcomes.c.decided_at > now_us() - lit(_DAY_US))
    .distinct()
    .order_by(event_outcomes.c.trigger)
    .limit(lit(_NAMED)),
    purpose="Find triggers that failed to start a run within a day.",
)
# The first verified request of a source makes the row of its rate.
_verified = exists().where(event_rates.c.key == literal("source:", Text()) + _s.tenant + literal(":", Text()) + _s.name)
_UNVERIFIED = Statement(
    "unverified_webhook_sources",
    select(_s.name)
    .where(_s.enabled, _s.created_at < now_us() - lit(_DAY_US), ~_verified)
    .order_by(_s.name)
    .limit(lit(_NAMED)),
    purpose="Find sources of incoming webhooks without a verified request.",
)


@dataclass(frozen=True, slots=True)
class EventHealth:
    """Events and dependents that wait for a process; triggers that failed; sources without a verified request."""

    unmatched: int
    unsettled: int
    failed: tuple[str, ...]
    unverified: tuple[str, ...]


async def read_event_health(database: Database) -> EventHealth:
    """Return the problems with the events of all tenants."""
    (counts,) = await database.query(_COUNTS)
    return EventHealth(
        counts["unmatched"],
        counts["unsettled"],
        tuple(row["trigger"] for row in await database.query(_FAILED)),
        tuple(row["name"] for row in await database.query(_UNVERIFIED)),
    )
