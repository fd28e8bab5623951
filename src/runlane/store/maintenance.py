"""The maintenance survey: read which maintenance services have work, in one statement."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Exists, Float, bindparam, exists, func, or_, select

from runlane.domain.maintenance import MaintenanceService
from runlane.domain.run import Status
from runlane.store.access.servers import SERVING
from runlane.store.events.waiting import UNSEARCHED
from runlane.store.failures.bulk_jobs import IS_DUE as BULK_IS_DUE
from runlane.store.queue.early_ends import NEXT_EXPIRY
from runlane.store.queue.workers import LIVE, micros
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, now_once, now_us
from runlane.store.sql.schema import (
    dependency_work,
    event_outcomes,
    limit_waits,
    run_children,
    runs,
    schedules,
    stored_events,
    workers,
)
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.claims import DUE


@dataclass(frozen=True, slots=True)
class MaintenanceSurvey:
    """The services that have work, and the numbers of live workers and of live processes with maintenance."""

    due: frozenset[MaintenanceService]
    workers: int
    processes: int


def _is_due(status: Status) -> Exists:
    return exists().where(runs.c.status == lit(status), runs.c.due_at.is_not(None), runs.c.due_at <= now_once())


_silent = workers.c.heartbeat_at < now_us() - micros(bindparam("silence_seconds", type_=Float()))
_SURVEY = Statement(
    "maintenance_survey",
    select(
        # The reaper decides whether a silent worker is lost.
        exists().where(workers.c.status.in_(LIVE), or_(workers.c.lease_until < now_us(), _silent)).label("reaper"),
        or_(_is_due(Status.SCHEDULED), _is_due(Status.PAUSED), now_once() >= NEXT_EXPIRY).label("timers"),
        exists().where(run_children.c.cancel_at.is_not(None)).label("children"),
        BULK_IS_DUE.label("bulk"),
        exists().where(schedules.c.next_due_at.is_not(None), schedules.c.next_due_at <= now_once()).label("schedules"),
        exists().select_from(dependency_work).label("dependents"),
        exists().select_from(limit_waits).label("admission"),
        or_(
            exists().where(stored_events.c.matched_at.is_(None)),
            exists().where(UNSEARCHED),
            exists().where(event_outcomes.c.outcome == lit("pending"), event_outcomes.c.claimed_until <= now_once()),
        ).label("triggers"),
        DUE.label("webhooks"),
        select(func.count()).where(workers.c.status.in_(LIVE)).scalar_subquery().label("workers"),
        select(func.count()).where(SERVING).scalar_subquery().label("servers"),
    ),
    purpose="Find out which maintenance services have work.",
)


async def survey_in(session: Session, silence_seconds: float) -> MaintenanceSurvey:
    """Read the survey in a transaction."""
    return _survey_of((await session.fetch(_SURVEY, silence_seconds=silence_seconds))[0])


async def read_survey(database: Database, silence_seconds: float) -> MaintenanceSurvey:
    """Read the survey."""
    return _survey_of((await read(database, _SURVEY, silence_seconds=silence_seconds))[0])


def _survey_of(row: Row) -> MaintenanceSurvey:
    due = frozenset(service for service in MaintenanceService if row[service])
    return MaintenanceSurvey(due, row["workers"], row["workers"] + row["servers"])
