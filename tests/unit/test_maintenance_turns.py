"""Passes of maintenance services that nothing has woken do not grow in number with the processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.maintenance.service import SHARED_FROM_SECONDS, PeriodicService, Turns

INTERVALS = 26


def last_in_turn(least: int, most: int) -> int:
    """Stands for the random number of turns that a process has skipped when it starts."""
    return least


class Counted(PeriodicService):
    """A service that counts its passes, for which every interval is over at once, a number of times."""

    def __init__(self, seconds: float = SHARED_FROM_SECONDS) -> None:
        super().__init__("counted", seconds, self._pass)
        self.passes = 0
        self.intervals = 0
        self.over = asyncio.Event()

    async def _pass(self) -> bool:
        self.passes += 1
        return False

    async def _woken_within(self, seconds: float) -> bool:
        if self.intervals < INTERVALS:
            self.intervals += 1
            return await super()._woken_within(0.0)
        self.over.set()
        return await super()._woken_within(3600.0)


async def passes_of(*services: Counted) -> int:
    for service in services:
        service.start()
    for service in services:
        await service.over.wait()
        await service.stop()
    return sum(service.passes for service in services)


@pytest.mark.parametrize("processes", [8, 52, 200])
async def test_many_processes_make_as_many_passes_as_few(processes: int) -> None:
    services = [Counted() for _ in range(processes)]
    for service in services:
        service.share(lambda: processes)
    # Up to four in each interval, and at most one more of each process, whose turns began in the middle.
    assert await passes_of(*services) <= 4 * INTERVALS + processes


@pytest.mark.parametrize("processes", [1, 3])
async def test_few_processes_make_a_pass_in_every_interval(processes: int) -> None:
    services = [Counted() for _ in range(processes)]
    for service in services:
        service.share(lambda: processes)
    assert await passes_of(*services) == processes * INTERVALS


async def test_a_short_interval_is_not_shared() -> None:
    service = Counted(SHARED_FROM_SECONDS / 2)
    service.share(lambda: 200)
    assert await passes_of(service) == INTERVALS


async def test_a_wake_up_needs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.maintenance.service.random.randint", last_in_turn)
    done = asyncio.Event()

    async def job() -> bool:
        done.set()
        return False

    service = PeriodicService("woken", 3600.0, job)
    service.share(lambda: 1000)
    service.start()
    service.wake()
    await done.wait()
    await service.stop()


def test_a_process_that_is_left_alone_takes_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.maintenance.service.random.randint", last_in_turn)
    processes = 100
    turns = Turns(lambda: processes)
    taken: list[Any] = [turns.take() for _ in range(26)]
    assert taken == [False] * 25 + [True]
    processes = 1
    assert turns.take()
