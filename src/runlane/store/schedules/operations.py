"""Slots that a person decides about: a trigger, a backfill, and the slots of a pause when a schedule is resumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from sqlalchemy import BigInteger, Text, select

from runlane.domain.firing import Firing
from runlane.errors import Unavailable
from runlane.store.access.audit import append_audit
from runlane.store.schedules.firing import Applied, FiringPlan, apply_plans
from runlane.store.schedules.rows import StoredSchedule, firing_value
from runlane.store.sql.database import Database, Session
from runlane.store.sql.schema import schedule_firings
from runlane.store.sql.statement import Statement

_TRIES: Final = 5
_READ = Statement(
    "read_firings",
    lambda batch: (
        select(schedule_firings)
        .select_from(batch)
        .join(
            schedule_firings,
            (schedule_firings.c.schedule_uid == batch.c.uid) & (schedule_firings.c.slot == batch.c.slot),
        )
        .order_by(schedule_firings.c.slot)
    ),
    {"uid": Text(), "slot": BigInteger()},
    purpose="Read some firings of a schedule.",
)


class _DryRun(Exception):
    """Rolls a transaction back and carries its result."""

    def __init__(self, firings: list[Firing]) -> None:
        self.firings = firings


async def fire(
    database: Database,
    plan: Callable[[], Awaitable[FiringPlan]],
    *,
    actor: str,
    action: str,
    dry_run: bool = False,
    also: Callable[[Session, StoredSchedule], Awaitable[None]] | None = None,
) -> tuple[list[Firing], Applied]:
    """Carry out a plan for one schedule; return its firings as they are stored, and what to notify.

    `plan` reads the schedule and is called again if the schedule changes meanwhile. A dry run is the same transaction,
    rolled back: it returns exactly what would happen. `also` makes further changes in the transaction.
    """
    for _ in range(_TRIES):
        made = await plan()

        async def work(session: Session, made: FiringPlan = made) -> tuple[list[Firing], Applied] | None:
            applied = await apply_plans(session, [made], wait=True)
            if made.schedule.uid not in applied.firings:
                return None
            found = await session.fetch(_READ, [(made.schedule.uid, item.at.slot_us) for item in made.slots])
            firings = [firing_value(row) for row in found]
            if dry_run:
                raise _DryRun(firings)
            if also is not None:
                await also(session, made.schedule)
            else:
                new = {"slots": len(firings), "overlap": made.overlap}
                about = made.schedule
                await append_audit(session, actor=actor, tenant=about.tenant, action=action, subject=about.id, new=new)
            return firings, applied

        try:
            done = await database.transact(work)
        except _DryRun as result:
            return result.firings, Applied()
        if done is not None:
            return done
    raise Unavailable("The schedule keeps changing while its slots are decided. Try again.")
