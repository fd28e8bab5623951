"""The decision about slots: firing, overlap, accept of the run and the next slot, all in one transaction.

The primary key of the firing is the guarantee that a slot is decided once. A process that loses the race for a
schedule, or dies before the commit, has changed nothing; after the commit everything is done. Several schedules share
a transaction. Locks are taken in one order everywhere: ordering keys and tenants, then runs, then schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from runlane.domain.events import Notice
from runlane.domain.firing import Firing, FiringKind, FiringOutcome, SlotTime
from runlane.domain.run import Accepted, Status
from runlane.domain.schedule import Overlap
from runlane.domain.schedule_rules import MissedSlots, OpenRuns
from runlane.failpoints import failpoint
from runlane.store.access.tenants import tenant_lock
from runlane.store.queue.ordering import ReleasedRun, key_locks
from runlane.store.queue.run_changes import RunChange, cancel_in, lock_key_of
from runlane.store.schedules import firing_statements as sql
from runlane.store.schedules.buffer import start_buffered
from runlane.store.schedules.messages import report_firings
from runlane.store.schedules.rows import StoredSchedule
from runlane.store.schedules.starting import PreparedRun, StartFailure, start_runs
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Row


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """A slot to act upon, with its run, or with the reason why there is none."""

    at: SlotTime
    run: PreparedRun | StartFailure


@dataclass(frozen=True, slots=True)
class Advance:
    """The last decided slot of a schedule, the next one, and the current template of its task."""

    cursor_us: int
    next: SlotTime | None
    template: str | None = None


@dataclass(frozen=True, slots=True)
class FiringPlan:
    """The plan for a schedule, prepared outside of the transaction from the schedule as it was read."""

    schedule: StoredSchedule
    kind: FiringKind
    overlap: Overlap
    slots: tuple[SlotPlan, ...] = ()
    missed: tuple[MissedSlots, ...] = ()
    advance: Advance | None = None


@dataclass(slots=True)
class Applied:
    """The result of a transaction: firings by schedule, and the notices to send after its commit."""

    firings: dict[str, list[Firing]] = field(default_factory=dict[str, list[Firing]])
    lanes: set[str] = field(default_factory=set[str])
    notices: list[Notice] = field(default_factory=list[Notice])
    cancelled: list[str] = field(default_factory=list[str])

    def add_released(self, released: Iterable[ReleasedRun]) -> None:
        """Note runs that became ready."""
        for run in released:
            self.notices.append(Notice(run.run_id, run.last_seq))
            if run.status is Status.QUEUED:
                self.lanes.add(run.lane)

    def add_cancelled(self, change: RunChange) -> None:
        """Note a run that was cancelled."""
        self.cancelled.append(change.run_id)
        self.lanes.update(change.ready_lanes)
        self.notices += change.notices


@dataclass(slots=True)
class _Pass:
    """The state of one transaction."""

    now_us: int
    open: dict[str, list[Row]]
    buffered: dict[str, list[int]]
    decided: dict[tuple[str, int], Row]
    rows: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    starts: list[tuple[FiringPlan, SlotPlan, PreparedRun]] = field(
        default_factory=list[tuple[FiringPlan, SlotPlan, PreparedRun]]
    )
    replaced: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    # The buffered slots that count as started, and how many of a schedule are replaced now.
    counted: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    uncounted: dict[str, int] = field(default_factory=dict[str, int])
    hooked: set[str] = field(default_factory=set[str])
    cancels: dict[str, str] = field(default_factory=dict[str, str])


async def apply_plans(session: Session, plans: Sequence[FiringPlan], *, wait: bool = False) -> Applied:
    """Carry out the plans of schedules that have not changed since they were read; the others are left out.

    Without `wait`, schedules that another transaction has locked are left out, too.
    """
    locked_runs = await _lock_runs(session, plans)
    uids = session.texts(sorted({plan.schedule.uid for plan in plans}))
    current = {row["uid"]: row for row in await session.fetch(sql.LOCK if wait else sql.TRY_LOCK, uids=uids)}
    valid = [plan for plan in plans if _unchanged(plan, current.get(plan.schedule.uid))]
    applied = Applied()
    if not valid:
        return applied
    state = await _read_state(session, valid, max(row["now"] for row in current.values()))
    valid = [plan for plan in valid if _holds_locks(plan, state, locked_runs)]
    for plan in valid:
        applied.firings[plan.schedule.uid] = []
        _decide(plan, state, applied)
        if plan.kind is FiringKind.BACKFILL:
            await _shrink_missed(session, plan, state)
    await _start(session, state, applied)
    await _write(session, valid, state, applied)
    await report_firings(session, [(plan.schedule, applied.firings[plan.schedule.uid]) for plan in valid])
    failpoint("schedules.before_commit")
    return applied


async def _lock_runs(session: Session, plans: Sequence[FiringPlan]) -> set[str]:
    """Take the locks that the plans need before rows of schedules are locked; return the open runs to cancel."""
    cancelling = sorted({plan.schedule.uid for plan in plans if plan.overlap == "cancel_previous"})
    found = list[Row]()
    if cancelling:
        found += await session.fetch(sql.OPEN, uids=session.texts(cancelling))
    keys = [plan.schedule.ordering_key for plan in plans] + [row["ordering_key"] for row in found]
    limited = {plan.schedule.tenant for plan in plans if plan.schedule.limited}
    await session.lock(exclusive=[*key_locks(keys), *(tenant_lock(tenant) for tenant in limited)])
    run_ids = sorted(row["run_id"] for row in found)
    if run_ids:
        await session.fetch(sql.LOCK_RUNS, ids=session.texts(run_ids))
    return set(run_ids)


def _unchanged(plan: FiringPlan, row: Row | None) -> bool:
    schedule = plan.schedule
    if row is None or row["version"] != schedule.version:
        return False
    return plan.advance is None or row["cursor_at"] == schedule.cursor_at_us


async def _read_state(session: Session, plans: Sequence[FiringPlan], now_us: int) -> _Pass:
    uids = session.texts(sorted({plan.schedule.uid for plan in plans}))
    state = _Pass(now_us, {}, {}, {})
    closed: list[tuple[object, ...]] = []
    for row in await session.fetch(sql.OPEN, uids=uids):
        if row["status"] is None or row["ended_at"] is not None:
            closed.append((row["schedule_uid"], row["slot"]))
        else:
            state.open.setdefault(row["schedule_uid"], []).append(row)
    await session.fetch(sql.CLOSE, closed)
    for row in await session.fetch(sql.BUFFERED, uids=uids):
        state.buffered.setdefault(row["schedule_uid"], []).append(row["slot"])
        if row["kind"] == FiringKind.TICK:
            state.counted.add((row["schedule_uid"], row["slot"]))
    slots = [(plan.schedule.uid, item.at.slot_us) for plan in plans for item in plan.slots]
    slots += [(plan.schedule.uid, missed.first_us) for plan in plans for missed in plan.missed]
    state.decided = {(row["uid"], row["slot"]): row for row in await session.fetch(sql.DECIDED, slots)}
    return state


def _holds_locks(plan: FiringPlan, state: _Pass, locked_runs: set[str]) -> bool:
    """Return False if a run was started after the locks were taken; the next pass takes the locks of that run, too."""
    if plan.overlap != "cancel_previous":
        return True
    return all(row["run_id"] in locked_runs for row in state.open.get(plan.schedule.uid, ()))


def _decide(plan: FiringPlan, state: _Pass, applied: Applied) -> None:
    schedule = plan.schedule
    settings = schedule.settings
    opened = [
        row
        for row in state.open.get(schedule.uid, ())
        if settings.paused_counts or row["status"] != Status.PAUSED.value
    ]
    waiting = list(state.buffered.get(schedule.uid, ()))
    counts = OpenRuns(len(opened), len(waiting))
    for missed in plan.missed:
        if (schedule.uid, missed.first_us) not in state.decided:
            _add(state, applied, plan, SlotTime(missed.first_us, missed.first_us), FiringOutcome.MISSED, missed=missed)
    for item in plan.slots:
        known = state.decided.get((schedule.uid, item.at.slot_us))
        if known is not None and not (plan.kind is FiringKind.BACKFILL and may_fill(known["outcome"])):
            continue
        if plan.overlap == "cancel_previous" and item is not plan.slots[-1]:
            _add(state, applied, plan, item.at, FiringOutcome.REPLACED, "overlap")
            continue
        before = OpenRuns(counts.open, counts.buffered)
        outcome, reason = counts.decide(plan.overlap, settings.max_open)
        if outcome in (FiringOutcome.STARTED, FiringOutcome.BUFFERED) and isinstance(item.run, StartFailure):
            counts = before
            _add(state, applied, plan, item.at, FiringOutcome.FAILED_TO_START, item.run.code, detail=item.run.detail)
        elif outcome is FiringOutcome.STARTED and isinstance(item.run, PreparedRun):
            state.starts.append((plan, item, item.run))
        elif outcome is FiringOutcome.BUFFERED and isinstance(item.run, PreparedRun):
            if plan.overlap != "queue_all":
                _replace(state, applied, plan, waiting)
            waiting.append(item.at.slot_us)
            _add(state, applied, plan, item.at, outcome, reason, prepared=item.run.to_text())
            state.hooked |= {row["run_id"] for row in opened}
            if plan.overlap == "cancel_previous":
                state.cancels |= {row["run_id"]: f"schedule:{schedule.id}" for row in opened}
        else:
            _add(state, applied, plan, item.at, outcome, reason)


def may_fill(outcome: str) -> bool:
    """Return whether a backfill may start a slot that has this outcome: nothing was started for it."""
    return outcome not in (FiringOutcome.STARTED, FiringOutcome.BUFFERED)


def _replace(state: _Pass, applied: Applied, plan: FiringPlan, waiting: list[int]) -> None:
    """Replace the buffered slots by a newer one."""
    uid = plan.schedule.uid
    state.replaced += [(uid, slot, FiringOutcome.REPLACED.value, "overlap", None, None) for slot in waiting]
    state.uncounted[uid] = state.uncounted.get(uid, 0) + sum((uid, slot) in state.counted for slot in waiting)
    fresh = applied.firings[uid]
    for position, firing in enumerate(fresh):
        if firing.slot_us in waiting:
            fresh[position] = replace(firing, outcome=FiringOutcome.REPLACED)
    waiting.clear()


def _add(
    state: _Pass,
    applied: Applied,
    plan: FiringPlan,
    at: SlotTime,
    outcome: FiringOutcome,
    reason: str | None = None,
    *,
    detail: str | None = None,
    run_id: str | None = None,
    prepared: str | None = None,
    missed: MissedSlots | None = None,
) -> None:
    last_us, count = (missed.last_us, missed.count) if missed is not None else (None, 1)
    reason = missed.reason if missed is not None else reason
    firing = Firing(at.slot_us, at.due_us, state.now_us, plan.kind, outcome, reason, detail, run_id, last_us, count)
    applied.firings[plan.schedule.uid].append(firing)
    state.rows.append(sql.firing_row(plan.schedule.uid, firing, prepared))


async def _shrink_missed(session: Session, plan: FiringPlan, state: _Pass) -> None:
    """Remove the slots of a backfill from the missed firings that include them."""
    slots = [item.at.slot_us for item in plan.slots]
    if not slots:
        return
    schedule = plan.schedule
    found = await session.fetch(sql.MISSED, uid=schedule.uid, first=slots[0], last=slots[-1])
    for row in found:
        span = await session.fetch(sql.DECIDED_BETWEEN, uid=schedule.uid, after=row["slot"], until=row["last_slot"])
        # Slots that an earlier backfill has taken out of the span are not counted in it any more.
        taken = {firing["slot"] for firing in span}
        inside = {slot for slot in slots if row["slot"] <= slot <= row["last_slot"]} - taken
        left = row["count"] - len(inside)
        if not inside or left <= 0:
            continue
        first: int | None = row["slot"]
        while first is not None and first in inside | taken:
            first = schedule.times.after(first)
        if first is None:
            continue
        firing = Firing(
            first, first, row["decided_at"], FiringKind(row["kind"]), FiringOutcome.MISSED, row["reason"], None, None,
            row["last_slot"], left,
        )  # fmt: skip
        state.rows.append(sql.firing_row(schedule.uid, firing, None))


async def _start(session: Session, state: _Pass, applied: Applied) -> None:
    changes: list[RunChange] = []
    verdicts = await start_runs(session, [run for _, _, run in state.starts], changes)
    for change in changes:
        applied.add_cancelled(change)
    for (plan, item, _), verdict in zip(state.starts, verdicts, strict=True):
        if isinstance(verdict, Accepted):
            _add(state, applied, plan, item.at, FiringOutcome.STARTED, run_id=verdict.run_id)
            applied.add_released([ReleasedRun(verdict.run_id, verdict.lane, verdict.status, 1)])
        else:
            _add(state, applied, plan, item.at, FiringOutcome.FAILED_TO_START, verdict.code, detail=verdict.detail)


async def _write(session: Session, plans: Sequence[FiringPlan], state: _Pass, applied: Applied) -> None:
    await session.fetch(sql.PUT_FIRINGS, _last_of_each(state.rows))
    await session.fetch(sql.SETTLE_BUFFERED, state.replaced)
    if state.hooked:
        await session.fetch(sql.HOOK_RUNS, ids=session.texts(sorted(state.hooked)))
    for run_id, actor in sorted(state.cancels.items()):
        await lock_key_of(session, run_id)
        applied.add_cancelled(await cancel_in(session, run_id, actor=actor))
    await session.fetch(sql.ADVANCE, [_advanced(plan, applied, state) for plan in plans if plan.advance is not None])
    uids = {plan.schedule.uid for plan in plans}
    waits = [uid for uid in uids if state.buffered.get(uid) or any(_is_buffered(f) for f in applied.firings[uid])]
    if waits:
        # A run may have ended since it was read, or a slot before these was refused.
        applied.add_released(await start_buffered(session, waits))


def _is_buffered(firing: Firing) -> bool:
    return firing.outcome is FiringOutcome.BUFFERED


def _last_of_each(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return one row per firing: Postgres rejects a statement that changes a row twice."""
    return list({row[:2]: row for row in rows}.values())


def _advanced(plan: FiringPlan, applied: Applied, state: _Pass) -> tuple[object, ...]:
    assert plan.advance is not None  # noqa: S101 - the caller has checked it
    schedule, following = plan.schedule, plan.advance.next
    counted = (FiringOutcome.STARTED, FiringOutcome.BUFFERED)
    fired = sum(firing.outcome in counted for firing in applied.firings[schedule.uid])
    # A replaced slot starts no run.
    fired -= state.uncounted.get(schedule.uid, 0)
    left = schedule.may_fire
    if following is None or (left is not None and fired >= left):
        return schedule.uid, plan.advance.cursor_us, None, None, fired, plan.advance.template
    return schedule.uid, plan.advance.cursor_us, following.slot_us, following.due_us, fired, plan.advance.template
