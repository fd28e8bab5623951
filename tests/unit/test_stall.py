"""A worker's blocked event loop is noticed from another thread."""

from __future__ import annotations

import asyncio
import threading
import time

from runlane.settings import load_settings
from runlane.worker.health import WorkerHealth
from runlane.worker.stall import LoopWatch, stall_limit


def test_an_event_loop_may_stall_for_four_leases_by_default() -> None:
    assert stall_limit(load_settings(lease_seconds=5)) == 20
    assert stall_limit(load_settings(lease_seconds=5, stall_seconds=5)) == 5


def hold_the_loop(held: threading.Event, release: threading.Event) -> None:
    held.set()
    release.wait(60)


async def test_a_blocked_loop_is_stalled_until_it_answers() -> None:
    health = WorkerHealth(1)
    watch = LoopWatch(asyncio.get_running_loop(), health, stall_seconds=0.05)
    held, release = threading.Event(), threading.Event()
    seen: dict[str, object] = {}

    def look() -> None:
        held.wait(60)
        watch.restart()
        while not watch.hopeless:
            watch.ping()
            time.sleep(0.01)
        seen["blocked"] = watch.stalled
        seen["stack"] = watch.stack()
        release.set()

    thread = threading.Thread(target=look)
    thread.start()
    hold_the_loop(held, release)
    thread.join()
    health.claim_loop_turned_at = time.monotonic() + 3600
    answered_before = health.loop_turned_at
    watch.ping()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen["blocked"]
    assert "hold_the_loop" in str(seen["stack"])
    assert health.loop_turned_at > answered_before


def test_a_claim_loop_counts_only_while_the_worker_claims() -> None:
    loop = asyncio.new_event_loop()
    health = WorkerHealth(1, claim_loop_turned_at=time.monotonic() - 100)
    watch = LoopWatch(loop, health, stall_seconds=60)
    assert watch.stalled
    health.draining = True
    assert not watch.stalled
    loop.close()


def test_a_worker_that_gave_up_its_lease_is_not_ready() -> None:
    health = WorkerHealth(1, stalled=True)
    assert health.problems() == ["the lease was abandoned: the event loop is blocked"]
