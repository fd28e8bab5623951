"""Plans for slots of schedules: which slots are due, and the run of each, checked and pinned like any other request.

A plan is made outside of a transaction from a schedule as it was read; `store.schedules.firing` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from runlane.domain.firing import FiringKind, SlotTime
from runlane.domain.flow_control import parse_flow_control
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.options import RunOptions
from runlane.domain.run import RunHook
from runlane.domain.schedule import BUFFERING, CatchUp, Overlap, ScheduleTarget
from runlane.domain.schedule_rules import judge, judge_span
from runlane.domain.task import Task, input_json
from runlane.domain.text import dump_json
from runlane.errors import RunlaneError, Unavailable, UnknownTask
from runlane.event_loop.offload import offload_if
from runlane.store.definitions import pins
from runlane.store.queue.accept import NewRun
from runlane.store.schedules.firing import Advance, FiringPlan, SlotPlan
from runlane.store.schedules.rows import StoredSchedule
from runlane.store.schedules.starting import PreparedRun, StartFailure, start_failure
from runlane.store.sql.database import Database
from runlane.submit.chat import ChatRequest, chat_run
from runlane.submit.flow_control import StartFlow, rule_input, start_flow
from runlane.submit.orchestrations import StartRequest, orchestration_run
from runlane.submit.tasks import SubmitRules, TaskRequest, capped_losses, new_run, task_run

if TYPE_CHECKING:
    from runlane.store.threads.thread_start import ThreadStart

# How many slots of one schedule a pass acts upon; the next pass continues.
_SLOTS_AT_ONCE: Final = 200
_MAX_ATTEMPTS: Final = 3
# For this long, a process without the code of a task leaves a schedule without a template to other processes.
_LEAVE_US: Final = 5_000_000


@dataclass(slots=True)
class SchedulePlanner:
    """Makes plans. `tasks` are those of this process; a process without code has none."""

    database: Database
    tasks: Mapping[str, Task]
    max_input_bytes: int
    max_losses: int
    _pins: dict[tuple[str, str, str], dict[str, str]] = field(
        default_factory=dict[tuple[str, str, str], dict[str, str]]
    )

    def begin_pass(self) -> None:
        """Forget the versions that were read for earlier plans."""
        self._pins.clear()

    def _leave(self, schedule: StoredSchedule) -> bool:
        target = schedule.settings.target
        if target.kind != "task" or target.name in self.tasks or schedule.template is not None:
            return False
        return schedule.now_us - (schedule.next_due_at_us or 0) < _LEAVE_US

    async def tick(self, schedule: StoredSchedule) -> FiringPlan | None:
        """Return the plan for a schedule that is due; None if a process with the code of its task should decide."""
        if self._leave(schedule):
            return None
        settings = schedule.settings
        left = schedule.may_fire
        judged = await offload_if(
            schedule.times.are_many(schedule.cursor_at_us, schedule.now_us),
            judge,
            schedule.times,
            schedule.seed,
            cursor_us=schedule.cursor_at_us,
            now_us=schedule.now_us,
            catch_up=settings.catch_up,
            window_us=round(settings.catch_up_window_seconds * 1_000_000),
            at_most=_SLOTS_AT_ONCE if left is None else min(left, _SLOTS_AT_ONCE),
        )
        slots = await self._slots(schedule, judged.slots, FiringKind.TICK, settings.overlap)
        advance = Advance(judged.cursor_us, judged.next, self._template(schedule))
        return FiringPlan(schedule, FiringKind.TICK, settings.overlap, slots, judged.missed, advance)

    async def resume(self, schedule: StoredSchedule, catch_up: CatchUp) -> FiringPlan:
        """Return the plan for the slots of a pause: those that `catch_up` chooses of all of them, none by default."""
        self.begin_pass()
        settings = schedule.settings
        judged = await offload_if(
            schedule.times.are_many(schedule.cursor_at_us, schedule.now_us),
            judge_span,
            schedule.times,
            schedule.seed,
            cursor_us=schedule.cursor_at_us,
            now_us=schedule.now_us,
            catch_up=catch_up,
            reason="paused",
        )
        # A schedule with max_firings ends with its last start, so the later slots are not its own.
        slots = await self._slots(schedule, judged.slots[: schedule.may_fire], FiringKind.TICK, settings.overlap)
        advance = Advance(judged.cursor_us, judged.next, self._template(schedule))
        return FiringPlan(schedule, FiringKind.TICK, settings.overlap, slots, judged.missed, advance)

    async def manual(self, schedule: StoredSchedule, overlap: Overlap, given: Mapping[str, Any] | None) -> FiringPlan:
        """Return the plan for a run that a person triggers; its slot is now."""
        self.begin_pass()
        at = SlotTime(schedule.now_us, schedule.now_us)
        slots = await self._slots(schedule, [at], FiringKind.MANUAL, overlap, given)
        return FiringPlan(schedule, FiringKind.MANUAL, overlap, slots)

    async def backfill(self, schedule: StoredSchedule, slots_us: Sequence[int], overlap: Overlap) -> FiringPlan:
        """Return the plan for slots of the past."""
        self.begin_pass()
        times = [SlotTime(slot, slot) for slot in slots_us]
        slots = await self._slots(schedule, times, FiringKind.BACKFILL, overlap)
        return FiringPlan(schedule, FiringKind.BACKFILL, overlap, slots)

    async def check(self, schedule: StoredSchedule) -> None:
        """Raise the error that a run of the schedule would have now."""
        target = schedule.settings.target
        if target.kind == "task" and self.tasks and target.name not in self.tasks:
            raise UnknownTask(target.name, self.tasks)
        self.begin_pass()
        if await self._thread_start(schedule, RunOptions()) is None:
            await self._run(schedule, RunOptions(), None)

    def template(self, target: ScheduleTarget) -> dict[str, Any] | None:
        """Return what a run of the target needs in a process without its code; None if this process lacks the code."""
        task = self.tasks.get(target.name) if target.kind == "task" else None
        if task is None:
            return None
        template: dict[str, Any] = {
            "lane": task.lane,
            "max_attempts": task.max_attempts,
            "max_losses": task.max_losses,
        }
        if task.flow_control is not None:
            template["flow_control"] = task.flow_control.model_dump(mode="json", exclude_unset=True)
        return template

    def _template(self, schedule: StoredSchedule) -> str | None:
        template = self.template(schedule.settings.target)
        return None if template is None else dump_json(template)

    async def _slots(
        self,
        schedule: StoredSchedule,
        slots: Sequence[SlotTime],
        kind: FiringKind,
        overlap: Overlap,
        given: Mapping[str, Any] | None = None,
    ) -> tuple[SlotPlan, ...]:
        previous = schedule.last_slot_us
        found: list[SlotPlan] = []
        for at in slots:
            found.append(SlotPlan(at, await self._prepare(schedule, at, kind, overlap, previous, given)))
            previous = at.slot_us
        return tuple(found)

    async def _prepare(
        self,
        schedule: StoredSchedule,
        at: SlotTime,
        kind: FiringKind,
        overlap: Overlap,
        previous_us: int | None,
        given: Mapping[str, Any] | None,
    ) -> PreparedRun | StartFailure:
        settings = schedule.settings
        options = RunOptions(
            idempotency_key=f"schedule:{schedule.id}:{at.slot_us}",
            priority=settings.priority,
            ordering_key=settings.ordering_key,
            on_dead=settings.on_dead,
            webhook_url=settings.webhook_url,
            tags=settings.tags,
        )
        try:
            start = await self._thread_start(schedule, options)
            run = await self._run(schedule, options, given) if start is None else start.run
        except Unavailable:
            raise
        except RunlaneError as error:
            return start_failure(error)
        origin = {"schedule": schedule.id, "slot": at.slot_us, "previous_slot": previous_us, "kind": kind.value}
        # The end of the run starts a waiting slot, if the policy lets slots wait.
        hooks = RunHook.SCHEDULE if {settings.overlap, overlap} & BUFFERING else 0
        run = run._replace(origin=dump_json(origin), hooks=run.hooks | hooks)
        target = settings.target
        if start is not None:
            thread = start.with_run(run)
            return PreparedRun(thread.run, thread=thread)
        return PreparedRun(run, target.session_id, target.name, settings.message)

    async def _thread_start(self, schedule: StoredSchedule, options: RunOptions) -> ThreadStart | None:
        """Return how a run of a cron enters its thread; None for other schedules."""
        if schedule.settings.target.kind != "assistant":
            return None
        # Imported here: most processes have no crons, and the modules of threads need memory.
        from runlane.submit.cron_runs import cron_run
        from runlane.submit.graphs import graph_starts

        (start,) = await graph_starts(
            self.database,
            [cron_run(schedule.settings, options)],
            max_input_bytes=self.max_input_bytes,
            max_losses=self.max_losses,
            tenant=schedule.tenant,
            trace=None,
            actor=f"schedule:{schedule.id}",
        )
        return start

    async def _run(self, schedule: StoredSchedule, options: RunOptions, given: Mapping[str, Any] | None) -> NewRun:
        settings, target = schedule.settings, schedule.settings.target
        arguments = settings.input if given is None else given
        rules: SubmitRules = {
            "tasks": self.tasks,
            "max_input_bytes": self.max_input_bytes,
            "max_losses": self.max_losses,
            "tenant": schedule.tenant,
            "trace": None,
        }
        if target.kind == "chat":
            chat = ChatRequest(target.name, settings.message, target.session_id, arguments, options)
            return await chat_run(self.database, chat, target.session_id or "", **rules)
        if target.kind in ("orchestration", "agent"):
            pinned = await self._pinned(schedule.tenant, target.kind, target.name)
            start = StartRequest(target.name, settings.message, arguments, options, pinned, kind=target.kind)
            return await orchestration_run(self.database, start, **rules)
        task = self.tasks.get(target.name)
        if task is not None:
            request = TaskRequest(target.name, arguments, options)
            return task_run(task, request, self.max_input_bytes, self.max_losses, tenant=schedule.tenant)
        template = schedule.template or {}
        text, flow = _by_template(template, target.name, options, arguments)
        return new_run(
            target.name,
            text,
            options,
            lane=template.get("lane", DEFAULT_LANE),
            max_attempts=template.get("max_attempts", _MAX_ATTEMPTS),
            max_losses=capped_losses(template.get("max_losses"), self.max_losses),
            tenant=schedule.tenant,
            trace=None,
            flow=flow,
        )

    async def _pinned(self, tenant: str, kind: Literal["agent", "orchestration"], name: str) -> dict[str, str]:
        key = (tenant, kind, name)
        if key not in self._pins:
            self._pins[key] = await pins(self.database, tenant, name, kind)
        return self._pins[key]


def _by_template(
    template: Mapping[str, Any], name: str, options: RunOptions, arguments: Mapping[str, Any]
) -> tuple[str, StartFlow | None]:
    """Return the input of a run, and the flow control that its task had when a process with the task planned it."""
    text = input_json(arguments, name).decode()
    declared = template.get("flow_control")
    if declared is None:
        return text, None
    flow = start_flow(parse_flow_control(declared), options, arguments)
    return (text, None) if flow is None else rule_input(flow, text)
