"""Decide about slots, without a clock and a database: whether they are valid, due, missed, skipped or buffered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from runlane.domain.firing import MAX_BUFFERED, FiringOutcome, SlotTime
from runlane.domain.schedule import (
    MAX_CATCH_UP,
    CatchUp,
    Overlap,
    SchedulePreview,
    ScheduleSettings,
    ScheduleTiming,
    UpcomingSlot,
)
from runlane.domain.schedule_times import (
    ScheduleTimes,
    describe_times,
    mean_period_seconds,
    skipped_days,
)
from runlane.domain.time_zones import time_zone
from runlane.errors import InvalidRequest

# A slot that is decided within this time of being due is on time. Later, catch-up decides.
GRACE_US: Final = 60 * 1_000_000
# How many due slots of a schedule are examined at once after a long outage.
_AT_ONCE: Final = 20_000


def check_timing(
    timing: ScheduleTiming, *, anchor_us: int, now_us: int, min_period_seconds: float
) -> tuple[ScheduleTimes, int]:
    """Return the times and the first slot after now. InvalidRequest names the field, the problem and what to do."""
    period = mean_period_seconds(timing.spec)
    if period is not None and period < min_period_seconds:
        raise InvalidRequest(
            f"spec fires every {period:g} seconds on average; the shortest period of this tenant is "
            f"{min_period_seconds:g} seconds. Use a longer every_seconds, or have a platform admin lower "
            "min_schedule_seconds of the tenant."
        )
    times = ScheduleTimes(timing, anchor_us)
    first = times.after(now_us)
    if first is None:
        raise InvalidRequest(
            "spec has no time within the next 10 years. Correct its dates, or the exclusions, starts_at and ends_at."
        )
    return times, first


def warnings_of(timing: ScheduleTiming, now_us: int) -> tuple[str, ...]:
    """Return the warnings about a schedule that is accepted."""
    found = [
        f"On {day} clocks in {timing.zone} skip the hours of the cron expression, so it does not fire that day. Use a "
        "fixed minute to fire at the end of the gap."
        for day in skipped_days(timing, now_us)
    ]
    if isinstance(timing, ScheduleSettings) and timing.catch_up == "all" and timing.target.kind != "task":
        found.append(
            f"catch_up=all may start up to {MAX_CATCH_UP} runs of the {timing.target.kind} at once after an outage, "
            "and each may cost model calls. Consider catch_up=latest."
        )
    return tuple(found)


def upcoming(timing: ScheduleTiming, times: ScheduleTimes, seed: str, after_us: int, count: int) -> list[UpcomingSlot]:
    """Return the next slots after a time."""
    zone = time_zone(timing.zone)
    found: list[UpcomingSlot] = []
    slot = times.after(after_us)
    while slot is not None and len(found) < count:
        local = datetime.fromtimestamp(slot // 1_000_000, UTC).astimezone(zone).isoformat()
        found.append(UpcomingSlot(slot, times.slot_time(slot, seed).due_us, local))
        slot = times.after(slot)
    return found


def preview(timing: ScheduleTiming, *, now_us: int, count: int, min_period_seconds: float) -> SchedulePreview:
    """Return the meaning of a timing, without storing it."""
    times, _ = check_timing(timing, anchor_us=now_us, now_us=now_us, min_period_seconds=min_period_seconds)
    slots = upcoming(timing, times, "", now_us, count)
    return SchedulePreview(describe_times(timing), tuple(slots), warnings_of(timing, now_us))


@dataclass(frozen=True, slots=True)
class MissedSlots:
    """Consecutive slots for which no run was started."""

    first_us: int
    last_us: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The due slots of a schedule: those to act upon, in order, the missed ones, and the last slot that is decided."""

    slots: tuple[SlotTime, ...] = ()
    missed: tuple[MissedSlots, ...] = ()
    cursor_us: int = 0
    next: SlotTime | None = None


@dataclass(slots=True)
class _Missed:
    reason: str
    found: list[MissedSlots] = field(default_factory=list[MissedSlots])
    _run: list[int] = field(default_factory=list[int])

    def add(self, slot_us: int) -> None:
        self._run.append(slot_us)

    def close(self) -> None:
        if self._run:
            self.found.append(MissedSlots(self._run[0], self._run[-1], len(self._run), self.reason))
            self._run = []


def judge(
    times: ScheduleTimes,
    seed: str,
    *,
    cursor_us: int,
    now_us: int,
    catch_up: CatchUp,
    window_us: int,
    at_most: int | None = None,
    reason: str = "catch_up_window",
    on_time_us: int = GRACE_US,
) -> Judgement:
    """Decide about the slots after the cursor that are due. The newest one counts as on time within a minute.

    `at_most` bounds the slots to act upon; later ones are left for the next call. `reason` is that of missed slots.
    """
    due: list[SlotTime] = []
    for slot in islice(times.between(cursor_us, now_us), _AT_ONCE):
        at = times.slot_time(slot, seed)
        if at.due_us > now_us:
            break
        due.append(at)
    if len(due) == _AT_ONCE:
        # The last slots may be among those that catch-up starts, so the next call decides about them.
        due = due[:-MAX_CATCH_UP]
        chosen = set[int]()
    else:
        chosen = {at.slot_us for at in _chosen(due, now_us, catch_up, window_us, on_time_us)[:at_most]}
        if at_most is not None and len(chosen) == at_most:
            last = max(chosen, default=cursor_us)
            due = [at for at in due if at.slot_us <= last]
    missed = _Missed("superseded" if catch_up == "latest" and chosen else reason)
    for at in due:
        if at.slot_us in chosen:
            missed.close()
        else:
            missed.add(at.slot_us)
    missed.close()
    cursor_us = due[-1].slot_us if due else cursor_us
    following = times.after(cursor_us)
    return Judgement(
        tuple(at for at in due if at.slot_us in chosen),
        tuple(missed.found),
        cursor_us,
        None if following is None else times.slot_time(following, seed),
    )


def judge_span(
    times: ScheduleTimes, seed: str, *, cursor_us: int, now_us: int, catch_up: CatchUp, reason: str
) -> Judgement:
    """Decide about all slots from the cursor to now at once, however many: those of a pause, or before an edit.

    No slot counts as on time, and catch-up has no window.
    """
    slots, missed = list[SlotTime](), list[MissedSlots]()
    while True:
        judged = judge(
            times,
            seed,
            cursor_us=cursor_us,
            now_us=now_us,
            catch_up=catch_up,
            window_us=now_us,
            reason=reason,
            on_time_us=0,
        )
        missed = _joined(missed, judged.missed) if not slots else [*missed, *judged.missed]
        slots += judged.slots
        if judged.cursor_us == cursor_us:
            return Judgement(tuple(slots), tuple(missed), cursor_us, judged.next)
        cursor_us = judged.cursor_us


def _joined(earlier: list[MissedSlots], later: Sequence[MissedSlots]) -> list[MissedSlots]:
    """Return consecutive missed slots as one."""
    if not earlier or not later:
        return [*earlier, *later]
    first, following = earlier[-1], later[0]
    both = MissedSlots(first.first_us, following.last_us, first.count + following.count, following.reason)
    return [*earlier[:-1], both, *later[1:]]


def _chosen(due: Sequence[SlotTime], now_us: int, catch_up: CatchUp, window_us: int, on_time_us: int) -> list[SlotTime]:
    if not due:
        return []
    newest = due[-1]
    on_time = [newest] if now_us - newest.due_us < on_time_us else []
    if catch_up == "none":
        return on_time
    if catch_up == "latest":
        return [newest] if now_us - newest.due_us <= window_us else on_time
    within = [at for at in due if now_us - at.due_us <= window_us]
    return (within or on_time)[-MAX_CATCH_UP:]


@dataclass(slots=True)
class OpenRuns:
    """The open runs of a schedule and its buffered slots, while slots are decided one after the other."""

    open: int
    buffered: int

    def decide(self, overlap: Overlap, max_open: int) -> tuple[FiringOutcome, str | None]:
        """Return the outcome of the next slot and its reason, and count it.

        A slot that is buffered by `queue_one` or `cancel_previous` replaces those that were buffered before.
        """
        if overlap == "allow":
            if self.open >= max_open:
                return FiringOutcome.REFUSED, "max_open"
        elif overlap == "skip":
            if self.open:
                return FiringOutcome.SKIPPED_OVERLAP, "overlap"
        elif self.open or self.buffered:
            if overlap != "queue_all":
                self.buffered = 0
            elif self.buffered >= MAX_BUFFERED:
                return FiringOutcome.REFUSED, "buffer_full"
            self.buffered += 1
            return FiringOutcome.BUFFERED, "overlap"
        self.open += 1
        return FiringOutcome.STARTED, None
