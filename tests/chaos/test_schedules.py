"""Schedules with any number of processes: one firing and one run per slot, none missing, none early."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from runlane.errors import Unavailable
from runlane.submit.schedules import parse_schedule
from runlane.testing import DatabaseClock, PostgresServer
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import TASKS, Cluster, MakeCluster, Process, eventually
from tests.chaos.proxy import Proxy
from tests.scale import scaled

PROCESSES = {"postgres": scaled(3, 8), "sqlite": scaled(2, 4)}
SCHEDULES = {"postgres": scaled(80, 500), "sqlite": scaled(20, 200)}
ROUNDS = {"postgres": scaled(4, 20), "sqlite": scaled(3, 10)}
_BROKEN = (AssertionError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, Unavailable)
# A process whose own clock is an hour ahead of the database's.
_AHEAD = """
import sys, time
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + 3600
time.time_ns = lambda: nanoseconds() + 3600 * 10**9
sys.argv = ["runlane", "worker", "{app}", "--concurrency", "2"]
from runlane.cli import main
main()
"""


async def create(cluster: Cluster, count: int, **fields: Any) -> None:
    """Store schedules that are due at every full hour."""
    verbs = await cluster.app.schedules()
    for number in range(count):
        body = {
            "id": f"s{number:03}",
            "target": {"kind": "task", "name": "short"},
            "input": {"milliseconds": 1},
            "spec": [{"cron": "0 * * * *"}],
            "overlap": "allow",
            "max_open": 1000,
            "catch_up": "all",
            "catch_up_window_seconds": 86400,
            **fields,
        }
        await verbs.create("default", parse_schedule(body), actor="test")


async def next_hour(clock: DatabaseClock) -> None:
    """Move the time to just after the next full hour."""
    now = await clock.now()
    full = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    await clock.advance(full - now + timedelta(milliseconds=5))


async def decided(cluster: Cluster) -> int:
    with suppress(*_BROKEN):
        return int((await cluster.rows("select count(*) as n from schedule_firings"))[0]["n"])
    return 0


async def all_decided(cluster: Cluster, count: int) -> None:
    async def reached() -> bool:
        return await decided(cluster) >= count

    await eventually(reached, f"{count} decided slots", 120, every=0.1)


async def check_slots(cluster: Cluster, schedules: int, slots: int) -> None:
    """Check that each slot of each schedule was decided once, not early, and has exactly one run."""
    firings = await cluster.rows(
        "select s.id, f.slot, f.outcome, f.decided_at, f.run_id from schedule_firings f "
        "join schedules s on s.uid = f.schedule_uid order by s.id, f.slot"
    )
    assert {row["outcome"] for row in firings} == {"started"}
    by_schedule: dict[str, list[int]] = {}
    for row in firings:
        assert row["decided_at"] >= row["slot"], "a slot was decided before its time"
        by_schedule.setdefault(row["id"], []).append(row["slot"])
    assert len(by_schedule) == schedules
    for found in by_schedule.values():
        first = found[0]
        assert found == [first + number * 3_600_000_000 for number in range(slots)], "a slot is missing"
    started = {row["run_id"] for row in firings}
    runs = {row["id"] for row in await cluster.rows("select id from runs")}
    assert started == runs
    assert len(firings) == len(runs) == schedules * slots


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_one_firing_and_one_run_per_slot_with_kills_and_a_restart(
    make_cluster: MakeCluster, chaos_postgres: PostgresServer, kind: str
) -> None:
    cluster = await make_cluster(kind)
    schedules, rounds, processes = SCHEDULES[kind], ROUNDS[kind], PROCESSES[kind]
    chance = random.Random(13)
    async with DatabaseClock(cluster.app.settings) as clock:
        await create(cluster, schedules)
        await cluster.start_workers(processes, concurrency=4)
        for number in range(1, rounds + 1):
            await next_hour(clock)
            victim = chance.choice([process for process in cluster.processes if process.alive])
            # In the middle of the work of this round, wherever that is.
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            victim.kill()
            other = cluster.start_worker(concurrency=4)
            if number == 2 and kind == "postgres":
                await asyncio.to_thread(chaos_postgres.restart)
            with suppress(*_BROKEN):
                await cluster.online(other)
            while sum(process.alive for process in cluster.processes) < processes:
                cluster.start_worker(concurrency=4)
            await all_decided(cluster, number * schedules)
        await cluster.all_ended(120)
        await check_slots(cluster, schedules, rounds)


async def no_open_transactions(cluster: Cluster) -> bool:
    """End the transactions that a cut has left open. They hold their locks until the server ends them."""
    ended = await cluster.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and backend_type = 'client backend' and xact_start is not null and pid <> pg_backend_pid()"
    )
    return not ended


async def test_slots_of_a_time_without_the_database_are_caught_up_with_by_policy(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    expected = {
        "none": [("missed", 3)],
        "latest": [("missed", 2), ("started", 1)],
        "all": [("missed", 1), ("started", 1), ("started", 1)],
    }
    async with DatabaseClock(cluster.app.settings) as clock, Proxy(cluster.url) as proxy:
        verbs = await cluster.app.schedules()
        for policy in expected:
            body = {
                "id": policy,
                "target": {"kind": "task", "name": "short"},
                "input": {"milliseconds": 1},
                "spec": [{"every_seconds": 200}],
                "overlap": "allow",
                "catch_up": policy,
                "catch_up_window_seconds": 400,
            }
            await verbs.create("default", parse_schedule(body), actor="test")
        await cluster.start_workers(2, environment={"RUNLANE_DATABASE_URL": proxy.url})
        proxy.black_hole()
        await eventually(lambda: no_open_transactions(cluster), "the end of interrupted transactions")
        # Three slots pass, of which two are in the window; the next one is not due within the test.
        await clock.advance(timedelta(seconds=700))
        assert await decided(cluster) == 0
        proxy.heal()
        await all_decided(cluster, sum(len(firings) for firings in expected.values()))
        await cluster.all_ended()
    for policy, firings in expected.items():
        found = reversed(await verbs.firings("default", policy))
        assert [(firing.outcome.value, firing.count) for firing in found] == firings


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("point", ["schedules.before_commit", "schedules.committed"])
async def test_a_process_that_dies_around_the_commit_changes_nothing_or_everything(
    make_cluster: MakeCluster, point: str, kind: str
) -> None:
    cluster = await make_cluster(kind)
    async with DatabaseClock(cluster.app.settings) as clock:
        await create(cluster, 3)
        dying: Process = cluster.start_worker(crash=CrashPoint(point))
        await cluster.online(dying)
        await next_hour(clock)
        await dying.ended()
        assert await decided(cluster) == (0 if point == "schedules.before_commit" else 3)
        await cluster.start_workers(1)
        await all_decided(cluster, 3)
        await cluster.all_ended()
        await check_slots(cluster, 3, 1)


async def test_a_process_whose_clock_is_ahead_starts_nothing_early(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    async with DatabaseClock(cluster.app.settings) as clock:
        await create(cluster, 5)
        code = _AHEAD.format(app=f"{TASKS}:app")
        ahead = cluster.start("worker", [sys.executable, "-c", code])
        await cluster.online(ahead)
        run = await cluster.app.enqueue("short", {"milliseconds": 1})
        # It works, and nothing is due by the clock of the database.
        await cluster.app.wait(run.run_id, timeout=60)
        assert await decided(cluster) == 0
        await next_hour(clock)
        await all_decided(cluster, 5)
        firings = await cluster.rows("select slot, decided_at from schedule_firings")
        assert all(row["decided_at"] >= row["slot"] for row in firings)


async def test_a_buffered_slot_starts_once_although_the_worker_of_the_run_before_it_dies(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster()
    async with DatabaseClock(cluster.app.settings) as clock:
        await create(cluster, 1, overlap="queue_all", target={"kind": "task", "name": "gated"}, input={"gate": "g"})
        (dying,) = await cluster.start_workers(1, crash=CrashPoint("finish.before_commit"))
        for number in range(1, 4):
            await next_hour(clock)
            await all_decided(cluster, number)
        await cluster.running()
        cluster.open_gate("g")
        await dying.ended()
        await cluster.start_workers(2)

        async def three_ended() -> bool:
            return await cluster.count("ended_at is not null") == 3

        await eventually(three_ended, "the end of three runs")
        await check_slots(cluster, 1, 3)
