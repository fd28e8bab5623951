"""Prepare a restored database, so that its processes do not repeat what happened after the backup.

The slots of schedules that passed since the backup are recorded as missed, and webhook messages that were not delivered
at the time of the backup become failed deliveries, which a replay sends. Each part is safe to repeat. Leases need no
change: they have expired, and the reaper requeues the runs of their workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import bindparam, func, select, update

from runlane.domain.firing import FiringKind
from runlane.domain.schedule_rules import judge_span
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.webhook import DeliveryStatus
from runlane.errors import Unavailable
from runlane.store.access.audit import append_audit
from runlane.store.queue.lane_holds import hold_lane, list_holds
from runlane.store.queue.lanes import list_lanes
from runlane.store.schedules.due import AT_ONCE, read_due
from runlane.store.schedules.firing import Advance, FiringPlan, apply_plans
from runlane.store.schedules.rows import StoredSchedule, stored
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import webhook_deliveries
from runlane.store.sql.statement import Statement

HOLD_OWNER: Final = "restore"
HOLD_REASON: Final = "The database was restored. Release the hold when its runs may start."
NOT_SENT: Final = "Not sent, because the database was restored from a backup. Replay the delivery to send it."
# The number of passes over the due schedules. A pass decides about all schedules that it reads.
_MAX_PASSES: Final = 10_000

_open = webhook_deliveries.c.status.in_((lit(DeliveryStatus.PENDING), lit(DeliveryStatus.DELIVERING)))
_COUNT_UNSENT = Statement(
    "count_unsent_deliveries",
    select(func.count().label("n")).where(_open, webhook_deliveries.c.next_at.is_not(None)),
    purpose="Count the webhook deliveries that are not sent yet.",
)
_STOP_UNSENT = Statement(
    "fail_unsent_deliveries",
    update(webhook_deliveries)
    .where(_open, webhook_deliveries.c.next_at.is_not(None))
    .values(
        status=lit(DeliveryStatus.FAILED),
        next_at=None,
        ended_at=now_us(),
        fence=webhook_deliveries.c.fence + lit(1),
        error=bindparam("error"),
    )
    .returning(webhook_deliveries.c.id),
    purpose="End the deliveries that a backup contains as not sent.",
)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The changes in a restored database. `continuing` runs continue from their state in the backup."""

    continuing: int
    schedules: int
    missed_slots: int
    deliveries: int
    held_lanes: tuple[str, ...]


async def recover(
    database: Database, *, skip_slots: bool, stop_deliveries: bool, hold_lanes: bool, dry_run: bool, actor: str
) -> Recovery:
    """Prepare a restored database before its processes start, and return what was changed, or would be."""
    lanes = await list_lanes(database)
    schedules, missed = await _skip_slots(database, dry_run=dry_run) if skip_slots else (0, 0)
    deliveries = await _stop_deliveries(database, dry_run=dry_run) if stop_deliveries else 0
    held = tuple(lane.name for lane in lanes) if hold_lanes else ()
    if not dry_run:
        for name in held:
            if not any(hold.owner == HOLD_OWNER for hold in await list_holds(database, name)):
                await hold_lane(database, name, owner=HOLD_OWNER, reason=HOLD_REASON, actor=actor)
        await database.transact(lambda session: _audit(session, actor, schedules, missed, deliveries))
    return Recovery(sum(lane.queued + lane.running for lane in lanes), schedules, missed, deliveries, held)


async def _audit(session: Session, actor: str, schedules: int, missed: int, deliveries: int) -> None:
    new = {"schedules": schedules, "missed_slots": missed, "deliveries": deliveries}
    await append_audit(
        session, actor=actor, tenant=DEFAULT_TENANT, action="database.recovered", subject="database", new=new
    )


async def _skip_slots(database: Database, *, dry_run: bool) -> tuple[int, int]:
    """Record the slots that passed as missed; return the number of schedules and of slots."""
    schedules = missed = skip = 0
    for _ in range(_MAX_PASSES):
        plans = [_skipping(stored(row)) for row in await read_due(database, skip)]
        if not plans:
            return schedules, missed
        if not dry_run:
            decided = await database.transact(partial(_apply, plans=plans))
            plans = [plan for plan in plans if plan.schedule.uid in decided]
        else:
            skip += AT_ONCE
        schedules += len(plans)
        missed += sum(item.count for plan in plans for item in plan.missed)
    raise Unavailable("Schedules become due while their slots are skipped. Stop all processes, and try again.")


def _skipping(schedule: StoredSchedule) -> FiringPlan:
    judged = judge_span(
        schedule.times,
        schedule.seed,
        cursor_us=schedule.cursor_at_us,
        now_us=schedule.now_us,
        catch_up="none",
        reason="restored",
    )
    advance = Advance(judged.cursor_us, judged.next)
    return FiringPlan(schedule, FiringKind.TICK, schedule.settings.overlap, (), judged.missed, advance)


async def _apply(session: Session, plans: Sequence[FiringPlan]) -> set[str]:
    """Carry out plans without slots, which start nothing; return the schedules that had not changed."""
    return set((await apply_plans(session, plans, wait=True)).firings)


async def _stop_deliveries(database: Database, *, dry_run: bool) -> int:
    if dry_run:
        return int((await read(database, _COUNT_UNSENT))[0]["n"])
    return len(await database.transact(lambda session: session.fetch(_STOP_UNSENT, error=NOT_SENT)))
