"""The maintenance survey finds exactly the services that have work, and wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.run import ORCHESTRATION, Status
from runlane.maintenance.survey import Survey
from runlane.store.access.servers import renew_server
from runlane.store.maintenance import MaintenanceSurvey, read_survey, survey_in
from runlane.store.orchestration.children import any_marked
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.timers import next_due_seconds
from runlane.store.queue.workers import renew
from runlane.store.sql.database import Session
from runlane.worker.health import WorkerHealth
from runlane.worker.heartbeat import Heartbeat
from runlane.worker.maintenance_survey import HeartbeatSurvey
from tests.harness import Store, entry_of

SILENCE_SECONDS = 3600.0
HEARTBEAT_SECONDS = 0.5
HOUR_US = 3_600_000_000


class Woken:
    """Stands where a periodic service stands, and counts how often it is woken."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


def make_heartbeat(store: Store, bus: MemoryBus) -> Heartbeat:
    def ignore(*given: object) -> None: ...

    return Heartbeat(
        store.settings, lanes=(), targets=(), capacity=1, health=WorkerHealth(1, count_active=lambda: 0),
        on_registered=ignore, on_lost=ignore, on_interrupts=ignore, on_stuck=ignore, on_survey=bus.report_survey,
        on_drain=ignore,
    )  # fmt: skip


async def due(store: Store, silence_seconds: float = SILENCE_SECONDS) -> Collection[MaintenanceService]:
    return (await read_survey(store.database, silence_seconds)).due


async def test_an_idle_system_has_nothing_due(store: Store) -> None:
    await store.worker()
    await store.add()
    await store.add(delay_us=HOUR_US)
    assert await read_survey(store.database, SILENCE_SECONDS) == await read_survey(store.database, SILENCE_SECONDS)
    survey = await read_survey(store.database, SILENCE_SECONDS)
    assert (survey.due, survey.workers, survey.processes) == (frozenset(), 1, 1)
    await renew_server(store.database, "srv_1", "host", 1, "0.1.0", {})
    survey = await read_survey(store.database, SILENCE_SECONDS)
    assert (survey.workers, survey.processes) == (1, 2)


async def test_a_due_run_is_for_the_timers(store: Store) -> None:
    await store.add(delay_us=1)
    assert await due(store) == {MaintenanceService.TIMERS}


async def test_a_paused_run_that_is_due_is_for_the_timers(store: Store) -> None:
    await store.add(target=f"{ORCHESTRATION}o", plan='{"pins":{}}')
    (claimed,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    await store.record(entry_of(claimed, Finish(AttemptOutcome.PAUSED, Status.PAUSED, delay_us=0)))
    assert await due(store) == {MaintenanceService.TIMERS}


async def test_a_silent_worker_is_for_the_reaper(store: Store) -> None:
    await store.worker()
    assert await due(store, silence_seconds=0.0) == {MaintenanceService.REAPER}


async def test_the_next_due_time_is_that_of_the_earliest_run(store: Store) -> None:
    assert await store.database.transact(next_due_seconds) is None
    await store.add(delay_us=2 * HOUR_US)
    await store.add(delay_us=HOUR_US)
    left = await store.database.transact(next_due_seconds)
    assert left is not None
    assert 3500 < left <= 3600


async def test_a_renewal_makes_the_survey_in_its_transaction(store: Store) -> None:
    worker = await store.worker()
    await store.add(delay_us=1)
    survey = HeartbeatSurvey(SILENCE_SECONDS, HEARTBEAT_SECONDS)
    assert await renew(store.database, worker, 60.0, 0, then=survey.job()) == []
    assert survey.latest is not None
    assert survey.latest.due == {MaintenanceService.TIMERS}
    survey.failed()
    # After a failure the lease comes first.
    assert survey.job() is None
    assert survey.latest is None


async def test_many_workers_take_turns(store: Store) -> None:
    for _ in range(8):
        await store.worker()
    survey = HeartbeatSurvey(SILENCE_SECONDS, HEARTBEAT_SECONDS)
    worker = await store.worker()
    made: list[bool] = []
    for _ in range(6):
        await renew(store.database, worker, 60.0, 0, then=survey.job())
        made.append(survey.latest is not None)
    assert made == [True, False, False, True, False, False]


async def test_a_worker_among_many_surveys_every_four_seconds(store: Store) -> None:
    for _ in range(50):
        await store.worker()
    survey = HeartbeatSurvey(SILENCE_SECONDS, HEARTBEAT_SECONDS)
    worker = await store.worker()
    made: list[int] = []
    for beat in range(17):
        await renew(store.database, worker, 60.0, 0, then=survey.job())
        if survey.latest is not None:
            made.append(beat)
        assert survey.left_to_others == (survey.latest is None)
    assert made == [0, 8, 16]


async def test_a_process_with_a_worker_among_many_makes_no_survey_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns that its worker leaves to others count; the clock passes 0.5 s with each heartbeat."""
    now, own_surveys = [1000.0], [0]
    monkeypatch.setattr("runlane.maintenance.survey.time.monotonic", lambda: now[0])
    monkeypatch.setattr(MemoryBus, "reaches_others", True)
    bus = MemoryBus()
    survey = Survey(store.settings, store.database, bus, {})
    bus.on_maintenance(survey._receive)

    async def counted(*given: Any) -> MaintenanceSurvey:
        own_surveys[0] += 1
        return await read_survey(*given)

    monkeypatch.setattr("runlane.maintenance.survey.read_survey", counted)
    heartbeat = make_heartbeat(store, bus)
    for _ in range(50):
        await store.worker()
    worker = await store.worker()
    for beat in range(32):
        now[0] += HEARTBEAT_SECONDS
        await renew(store.database, worker, 60.0, 0, then=heartbeat._survey.job())
        heartbeat._report_survey()
        await asyncio.sleep(0)
        if beat % 8 == 4:
            await survey._run_once()
    assert own_surveys == [0]
    assert bus.live_processes == 51
    # A worker that cannot renew its lease leaves the survey to its process.
    now[0] += 2.0
    await survey._run_once()
    assert own_surveys == [1]


async def test_the_survey_wakes_the_services_that_have_work(store: Store) -> None:
    woken: dict[MaintenanceService, Any] = {service: Woken() for service in MaintenanceService}
    bus = MemoryBus()
    survey = Survey(store.settings, store.database, bus, woken)
    await store.add(delay_us=1)
    await survey._run_once()
    assert {service for service in MaintenanceService if woken[service].count} == {MaintenanceService.TIMERS}
    survey.start()
    bus.report_survey([MaintenanceService.REAPER])
    assert woken[MaintenanceService.REAPER].count == 1
    await survey.stop()
    bus.report_survey([MaintenanceService.REAPER])
    assert woken[MaintenanceService.REAPER].count == 1


async def test_a_process_whose_worker_surveys_does_not_survey_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: dict[MaintenanceService, Any] = {service: Woken() for service in MaintenanceService}
    bus = MemoryBus()
    monkeypatch.setattr(MemoryBus, "reaches_others", True)
    survey = Survey(store.settings, store.database, bus, woken)
    await store.add(delay_us=1)
    survey._receive([], surveyed=True)
    await survey._run_once()
    assert woken[MaintenanceService.TIMERS].count == 0


async def test_a_timer_of_this_process_fires_at_its_time(store: Store) -> None:
    bus = MemoryBus()
    fired = asyncio.Event()

    def receive(due: Collection[MaintenanceService], *, surveyed: bool) -> None:
        assert (list(due), surveyed) == ([MaintenanceService.TIMERS], False)
        fired.set()

    bus.on_maintenance(receive)
    bus.report_timer(3600)
    bus.report_timer(0.01)
    bus.report_timer(7200)
    await fired.wait()
    bus.report_timer(3600)
    await bus.stop()


async def test_the_survey_reads_in_any_transaction(store: Store) -> None:
    async def work(session: Session) -> int:
        return (await survey_in(session, SILENCE_SECONDS)).workers

    assert await store.database.transact(work) == 0
    assert not await any_marked(store.database)
