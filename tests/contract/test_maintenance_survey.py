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
from runlane.store.maintenance import read_survey, survey_in
from runlane.store.orchestration.children import any_marked
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.timers import next_due_seconds
from runlane.store.queue.workers import renew
from runlane.store.sql.database import Session
from runlane.worker.maintenance_survey import HeartbeatSurvey
from tests.harness import Store, entry_of

SILENCE_SECONDS = 3600.0
HOUR_US = 3_600_000_000


class Woken:
    """Stands where a periodic service stands, and counts how often it is woken."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


async def due(store: Store, silence_seconds: float = SILENCE_SECONDS) -> Collection[MaintenanceService]:
    return (await read_survey(store.database, silence_seconds)).due


async def test_an_idle_system_has_nothing_due(store: Store) -> None:
    await store.worker()
    await store.add()
    await store.add(delay_us=HOUR_US)
    assert await read_survey(store.database, SILENCE_SECONDS) == await read_survey(store.database, SILENCE_SECONDS)
    survey = await read_survey(store.database, SILENCE_SECONDS)
    assert (survey.due, survey.workers) == (frozenset(), 1)


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
    survey = HeartbeatSurvey(SILENCE_SECONDS)
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
    survey = HeartbeatSurvey(SILENCE_SECONDS)
    worker = await store.worker()
    made: list[bool] = []
    for _ in range(6):
        await renew(store.database, worker, 60.0, 0, then=survey.job())
        made.append(survey.latest is not None)
    assert made == [True, False, False, True, False, False]


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
