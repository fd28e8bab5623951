"""The verbs of schedules, for the API, the app and the command line: checked as a whole, then stored or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pydantic import ValidationError

from runlane.bus import Bus
from runlane.domain.firing import Firing
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.schedule import (
    CRONS,
    CRONS_ONLY,
    MAX_BACKFILL,
    Backfill,
    CatchUp,
    Overlap,
    Schedule,
    SchedulePreview,
    ScheduleSettings,
    ScheduleTiming,
    UpcomingSlot,
)
from runlane.domain.schedule_rules import preview, upcoming, warnings_of
from runlane.domain.task import Task
from runlane.domain.text import check_text
from runlane.domain.validation import first_problem
from runlane.errors import Conflict, InvalidRequest, UnknownSession, WrongState
from runlane.resources import Resources
from runlane.store.chat.turns import find_session
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.schedules.buffer import start_buffered
from runlane.store.schedules.changes import (
    check_version,
    delete_in,
    draft,
    insert_schedule,
    pause_in,
    read_limits,
    resume_in,
    update_schedule,
)
from runlane.store.schedules.firing import Applied, FiringPlan
from runlane.store.schedules.operations import fire
from runlane.store.schedules.rows import (
    StoredSchedule,
    find_schedule,
    latest_firings,
    list_firings,
    list_schedules,
    lock_schedule,
    schedule_value,
)
from runlane.store.schedules.synced import FILES
from runlane.store.sql.database import Session
from runlane.submit.schedule_plans import SchedulePlanner

MAX_REASON: Final = 1000
MAX_UPCOMING: Final = 100
MAX_LATEST: Final = 20


class Schedules:
    """Schedules of all tenants; every call names the tenant."""

    def __init__(self, planner: SchedulePlanner, bus: Bus) -> None:
        self.planner = planner
        self._database = planner.database
        self._bus = bus

    @classmethod
    def of(cls, connection: Resources, tasks: Mapping[str, Task]) -> Self:
        """Return the schedules of a process with these tasks."""
        settings = connection.settings
        planner = SchedulePlanner(connection.database, tasks, settings.max_input_bytes, settings.max_losses)
        return cls(planner, connection.bus)

    async def list(
        self, tenant: str | None, *, after: str | None = None, limit: int = 100, firings: int = 0
    ) -> list[Schedule]:
        """Return schedules by id, with up to `firings` of the latest ones; `after` is the last id of the last page."""
        found = await list_schedules(self._database, tenant, after=after, limit=limit)
        latest = await latest_firings(self._database, [one.uid for one in found], firings) if firings else {}
        return [replace(schedule_value(one), latest_firings=tuple(latest.get(one.uid, ()))) for one in found]

    async def get(self, tenant: str, schedule_id: str) -> Schedule:
        """Return one schedule."""
        return schedule_value(await find_schedule(self._database, tenant, schedule_id))

    async def create(
        self, tenant: str, settings: ScheduleSettings, *, actor: str, source: str = "api", paused: str | None = None
    ) -> Schedule:
        """Store a new schedule; `paused` is why it begins paused. Nothing is stored if a part of it is not valid."""
        _refuse_others(source, settings)
        limits = await read_limits(self._database, tenant)
        template = self.planner.template(settings.target)
        fresh = draft(tenant, settings, limits, actor=actor, source=source, template=template)
        await self._check(fresh)

        async def work(session: Session) -> None:
            await insert_schedule(session, fresh, limits.max_schedules)
            if paused is not None:
                await pause_in(session, fresh, paused, actor)

        await self._database.transact(work)
        return await self._stored(fresh)

    async def put(
        self,
        tenant: str,
        settings: ScheduleSettings,
        *,
        actor: str,
        version: int | None = None,
        source: str = "api",
    ) -> Schedule:
        """Replace the settings of a schedule. VersionMismatch if it does not have the expected version."""
        return await self._change(tenant, settings.id, lambda _: settings, actor, version, source)

    async def patch(
        self, tenant: str, schedule_id: str, fields: Mapping[str, Any], *, actor: str, version: int | None = None
    ) -> Schedule:
        """Change some settings of a schedule; a field that is None gets its default."""

        def merged(known: ScheduleSettings) -> ScheduleSettings:
            body = known.model_dump(mode="json", exclude_defaults=True) | dict(fields)
            return parse_schedule({name: value for name, value in body.items() if value is not None})

        if fields.get("id", schedule_id) != schedule_id:
            raise InvalidRequest("The id of a schedule cannot be changed. Create another one and delete this one.")
        return await self._change(tenant, schedule_id, merged, actor, version)

    async def _change(
        self,
        tenant: str,
        schedule_id: str,
        settings_of: Callable[[ScheduleSettings], ScheduleSettings],
        actor: str,
        version: int | None,
        source: str = "api",
    ) -> Schedule:
        limits = await read_limits(self._database, tenant)
        known = await find_schedule(self._database, tenant, schedule_id)
        check_version(known, version)
        refuse_foreign(known, source)
        settings = settings_of(known.settings)
        _refuse_others(source, settings)
        template = self.planner.template(settings.target)
        await self._check(draft(tenant, settings, limits, actor=actor, source=known.source, template=template))

        async def work(session: Session) -> StoredSchedule:
            current = await lock_schedule(session, tenant, schedule_id)
            check_version(current, known.version)
            fresh = draft(tenant, settings, limits, actor=actor, source=known.source, template=template, known=current)
            await update_schedule(session, current, fresh)
            return fresh

        return await self._stored(await self._database.transact(work))

    async def delete(
        self, tenant: str, schedule_id: str, *, actor: str, version: int | None = None, source: str = "api"
    ) -> Schedule:
        """Delete a schedule with its firings. Its runs stay, open ones too."""

        async def work(session: Session) -> StoredSchedule:
            known = await lock_schedule(session, tenant, schedule_id)
            check_version(known, version)
            refuse_foreign(known, source)
            await delete_in(session, known, actor)
            return known

        return schedule_value(await self._database.transact(work))

    async def pause(self, tenant: str, schedule_id: str, reason: str, *, actor: str) -> Schedule:
        """Pause a schedule: no slot starts a run until it is resumed. Repeating it changes the reason."""
        check_text(reason, "The reason", MAX_REASON)

        async def work(session: Session) -> None:
            await pause_in(session, await lock_schedule(session, tenant, schedule_id), reason, actor)

        await self._database.transact(work)
        return await self.get(tenant, schedule_id)

    async def resume(
        self, tenant: str, schedule_id: str, *, actor: str, catch_up: CatchUp = "none"
    ) -> tuple[Schedule, list[Firing]]:
        """Resume a schedule; return it and the firings of slots of the pause that `catch_up` has started."""

        async def plan() -> FiringPlan:
            known = await find_schedule(self._database, tenant, schedule_id)
            if known.paused_at_us is None:
                raise WrongState(f'The schedule "{schedule_id}" is not paused.')
            return await self.planner.resume(known, catch_up)

        released: list[ReleasedRun] = []

        async def also(session: Session, known: StoredSchedule) -> None:
            await resume_in(session, known, actor, catch_up)
            released[:] = await start_buffered(session, [known.uid])

        firings, applied = await fire(self._database, plan, actor=actor, action="", also=also)
        applied.add_released(released)
        self.notify(applied)
        return await self._stored(await find_schedule(self._database, tenant, schedule_id)), firings

    async def trigger(
        self,
        tenant: str,
        schedule_id: str,
        *,
        actor: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        overlap: Overlap = "allow",
    ) -> Firing:
        """Start a run of a schedule now, even of a paused one; return the decision, which names the run."""

        async def plan() -> FiringPlan:
            known = await find_schedule(self._database, tenant, schedule_id)
            return await self.planner.manual(known, overlap, input)

        firings, applied = await fire(self._database, plan, actor=actor, action="schedule.trigger")
        self.notify(applied)
        return firings[0]

    async def backfill(
        self,
        tenant: str,
        schedule_id: str,
        from_us: int,
        to_us: int,
        *,
        actor: str,
        overlap: Overlap = "queue_all",
        dry_run: bool = False,
    ) -> Backfill:
        """Decide about slots of the past that have started nothing. A dry run returns exactly what would happen."""

        async def plan() -> FiringPlan:
            known = await find_schedule(self._database, tenant, schedule_id)
            return await self.planner.backfill(known, _past_slots(known, from_us, to_us), overlap)

        firings, applied = await fire(self._database, plan, actor=actor, action="schedule.backfill", dry_run=dry_run)
        self.notify(applied)
        return Backfill(schedule_id, dry_run, tuple(firings))

    async def next(self, tenant: str, schedule_id: str, count: int = 10) -> list[UpcomingSlot]:
        """Return the next slots of a schedule; none while it is paused or when it has ended."""
        known = await find_schedule(self._database, tenant, schedule_id)
        if known.paused_at_us is not None or known.next_at_us is None:
            return []
        left = known.may_fire
        count = count if left is None else min(count, left)
        return upcoming(known.settings, known.times, known.seed, known.next_at_us - 1, count)

    async def firings(
        self, tenant: str, schedule_id: str, *, before_us: int | None = None, limit: int = 50
    ) -> Sequence[Firing]:
        """Return the decisions about slots, newest first; `before_us` is the last slot of the previous page."""
        known = await find_schedule(self._database, tenant, schedule_id)
        return await list_firings(self._database, known.uid, before_us=before_us, limit=limit)

    async def preview(self, tenant: str, timing: ScheduleTiming, count: int = 10) -> SchedulePreview:
        """Return the meaning of a timing, without storing it."""
        limits = await read_limits(self._database, tenant)
        return preview(timing, now_us=limits.now_us, count=count, min_period_seconds=limits.min_period_seconds)

    def notify(self, applied: Applied) -> None:
        """Notify workers and readers of the changes of a transaction."""
        self._bus.ring(applied.lanes)
        self._bus.publish(applied.notices)
        for run_id in applied.cancelled:
            self._bus.signal_cancel(run_id)

    async def _check(self, fresh: StoredSchedule) -> None:
        target = fresh.settings.target
        if target.session_id is not None:
            session = await find_session(self._database, target.session_id)
            if session.tenant != fresh.tenant:
                raise UnknownSession(target.session_id)
            if session.agent_id != target.name:
                raise InvalidRequest(
                    f'target.name="{target.name}": the session {target.session_id} is one with the agent '
                    f'"{session.agent_id}". Name that agent.'
                )
        await self.planner.check(fresh)

    async def _stored(self, fresh: StoredSchedule) -> Schedule:
        if fresh.next_due_at_us is not None:
            after_seconds = max(0.0, (fresh.next_due_at_us - fresh.now_us) / 1_000_000)
            self._bus.report_timer(after_seconds, MaintenanceService.SCHEDULES)
        found = await find_schedule(self._database, fresh.tenant, fresh.id)
        return schedule_value(found, warnings_of(found.settings, found.now_us))


def parse_schedule(body: Mapping[str, Any]) -> ScheduleSettings:
    """Return settings from JSON. InvalidRequest names the first field that is not valid."""
    return _parse(ScheduleSettings, body)


def parse_timing(body: Mapping[str, Any]) -> ScheduleTiming:
    """Return a timing from JSON."""
    return _parse(ScheduleTiming, body)


def _parse(kind: Any, body: Mapping[str, Any]) -> Any:
    try:
        return kind.model_validate(dict(body))
    except ValidationError as error:
        raise InvalidRequest(first_problem(error, "schedule")) from None


def _past_slots(known: StoredSchedule, from_us: int, to_us: int) -> list[int]:
    if from_us > to_us:
        raise InvalidRequest("from must not be later than to.")
    if to_us > known.now_us:
        raise InvalidRequest("to is in the future. A backfill is for slots of the past; use at most the current time.")
    slots: list[int] = []
    for slot in known.times.between(from_us - 1, to_us):
        slots.append(slot)
        if len(slots) > MAX_BACKFILL:
            raise InvalidRequest(
                f"The span has more than {MAX_BACKFILL} slots. Backfill it in parts: choose a smaller span."
            )
    return slots


def _refuse_others(source: str, settings: ScheduleSettings) -> None:
    """Refuse settings that belong to schedules of another source."""
    if (settings.target.kind == "assistant") != (source == CRONS):
        raise InvalidRequest(f"target.kind: {CRONS_ONLY}")


def refuse_foreign(known: StoredSchedule, source: str) -> None:
    """Raise Conflict for a schedule that is changed elsewhere."""
    if known.source == CRONS and source != CRONS:
        raise Conflict(
            f'The schedule "{known.id}" is a cron of the agent server. Change it there: PATCH /runs/crons/{known.id}'
        )
    if known.source == FILES:
        raise Conflict(
            f'The schedule "{known.id}" is defined in files and would be overwritten by the next sync. Change its file '
            "and sync, or pause it."
        )
