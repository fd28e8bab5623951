"""Read schedules that are due or computed with another zone database, and delete firings past their retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Float, Integer, Text, bindparam, cast, delete, func, select, update

from runlane.domain.firing import FiringOutcome
from runlane.domain.time_zones import ZONES_VERSION
from runlane.store.schedules.rows import COLUMNS, StoredSchedule, stored
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, member, now_once, now_us
from runlane.store.sql.schema import schedule_firings, schedules
from runlane.store.sql.statement import Row, Statement

AT_ONCE: Final = 100
DELETED_AT_ONCE: Final = 1000
_ZONES_AT_ONCE: Final = 500
_POSTPONE_US: Final = 60 * 1_000_000
_s = schedules.c
_DUE = Statement(
    "due_schedules",
    select(*COLUMNS)
    .where(_s.next_due_at.is_not(None), _s.next_due_at <= now_once())
    .order_by(_s.next_due_at, _s.uid)
    .limit(lit(AT_ONCE))
    .offset(bindparam("skip", type_=Integer())),
    purpose="Read schedules that are due, longest overdue first.",
)
_NEXT_DUE = Statement(
    "next_due_schedule",
    select((func.min(_s.next_due_at) - now_us()).label("us")).where(_s.next_due_at.is_not(None)),
    purpose="Read when the next schedule is due.",
)
_POSTPONE = Statement(
    "postpone_schedules",
    update(schedules)
    .where(member(_s.uid, "uids"), _s.next_due_at <= now_us())
    .values(next_due_at=now_us() + lit(_POSTPONE_US)),
    purpose="Leave schedules that could not be decided for a minute.",
)
_OLD_ZONES = Statement(
    "schedules_of_other_zones",
    select(*COLUMNS)
    .where(_s.zone_version != bindparam("zones", type_=Text()))
    .order_by(_s.uid)
    .limit(lit(_ZONES_AT_ONCE))
    .with_for_update(of=schedules, skip_locked=True),
    purpose="Read schedules whose next slot was computed with another zone database.",
)
_MOVE = Statement(
    "recompute_schedules",
    lambda batch: (
        update(schedules)
        .where(_s.uid == batch.c.uid)
        .values(next_at=batch.c.next_at, next_due_at=batch.c.next_due_at, zone_version=batch.c.zones)
    ),
    {"uid": Text(), "next_at": BigInteger(), "next_due_at": BigInteger(), "zones": Text()},
    purpose="Store the next slots by this zone database.",
)
_newer = schedule_firings.alias("newer")
_old = (
    select(schedule_firings.c.schedule_uid, schedule_firings.c.slot)
    .where(
        schedule_firings.c.decided_at
        < now_us() - cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger),
        schedule_firings.c.outcome != lit(FiringOutcome.BUFFERED),
        ~schedule_firings.c.open,
        # The newest firing of a schedule is kept for as long as the schedule.
        schedule_firings.c.slot
        < select(func.max(_newer.c.slot))
        .where(_newer.c.schedule_uid == schedule_firings.c.schedule_uid)
        .scalar_subquery(),
    )
    .order_by(schedule_firings.c.decided_at)
    .limit(lit(DELETED_AT_ONCE))
    .cte("old")
)
_DELETE_OLD = Statement(
    "delete_old_firings",
    delete(schedule_firings)
    .where(
        schedule_firings.c.schedule_uid.in_(select(_old.c.schedule_uid)),
        select(lit(1))
        .where(_old.c.schedule_uid == schedule_firings.c.schedule_uid, _old.c.slot == schedule_firings.c.slot)
        .exists(),
    )
    .returning(schedule_firings.c.slot),
    purpose="Delete firings past their retention, but not the newest of a schedule.",
)


async def read_due(database: Database, skip: int = 0) -> Sequence[Row]:
    """Return the rows of due schedules; `skip` leaves out the first ones, which other processes decide about."""
    return await read(database, _DUE, skip=skip)


async def next_due_seconds(database: Database) -> float | None:
    """Return the time until the next schedule is due, negative if one is overdue; None if there is none."""
    found = (await database.query(_NEXT_DUE))[0]["us"]
    return None if found is None else found / 1_000_000


async def postpone(database: Database, uids: Sequence[str]) -> None:
    """Leave due schedules for a minute, so that they do not stand before others."""

    async def work(session: Session) -> None:
        await session.fetch(_POSTPONE, uids=session.texts(list(uids)))

    await database.transact(work)


async def recompute_zones(database: Database) -> int:
    """Compute the next slots of some schedules by the zone database of this process; return how many."""

    async def work(session: Session) -> int:
        found = [stored(row) for row in await session.fetch(_OLD_ZONES, zones=ZONES_VERSION)]
        await session.fetch(_MOVE, [_recomputed(schedule) for schedule in found])
        return len(found)

    return await database.transact(work)


def _recomputed(schedule: StoredSchedule) -> tuple[object, ...]:
    if schedule.next_at_us is None:
        return schedule.uid, None, None, ZONES_VERSION
    slot = schedule.times.after(schedule.cursor_at_us)
    if slot is None:
        return schedule.uid, None, None, ZONES_VERSION
    due = None if schedule.paused_at_us is not None else schedule.times.slot_time(slot, schedule.seed).due_us
    return schedule.uid, slot, due, ZONES_VERSION


async def delete_old_firings(session: Session, keep_seconds: float) -> int:
    """Delete some of the firings older than that; return how many."""
    return len(await session.fetch(_DELETE_OLD, keep_seconds=keep_seconds))
