"""A crash at every commit: the process dies at that moment, others continue, the run ends, nothing happens twice."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runlane.failpoints import POINTS
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.testing.crash_points import CrashPoint, Fate
from tests.chaos.cluster import TASKS, Cluster, MakeCluster, eventually

KEY = "one at a time"


@asynccontextmanager
async def survivor(cluster: Cluster) -> AsyncGenerator[None]:
    """A worker and maintenance services in this process, which continue after the other one has died."""
    worker = await cluster.app.worker(None, 10)
    duties = await cluster.app.maintenance_services()
    await worker.start()
    for duty in duties:
        duty.start()
    try:
        yield
    finally:
        await worker.stop()
        for duty in duties:
            await duty.stop()


async def killed(cluster: Cluster, point: str, environment: Mapping[str, str] | None = None) -> None:
    """Start a worker that dies at the point, and wait until it has."""
    victim = cluster.start_worker(crash=CrashPoint(point), environment=environment)
    assert await victim.ended() == -signal.SIGKILL, f"{point} was not reached:\n{victim.log_text()}"


async def check_end(cluster: Cluster, run_ids: list[str]) -> None:
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects(run_ids)
    assert await cluster.count("status = 'completed'") == len(run_ids)
    assert await cluster.count("holds_key") == 0


WORKER_POINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "claim.before_commit": ("short", {"milliseconds": 1}),
    "claim.committed": ("short", {"milliseconds": 1}),
    "record.before_commit": ("saving", {}),
    "record.committed": ("saving", {}),
    "finish.before_commit": ("short", {"milliseconds": 1}),
    "finish.committed": ("short", {"milliseconds": 1}),
    "timers.before_commit": ("later", {}),
    "timers.committed": ("later", {}),
    "register.committed": ("short", {"milliseconds": 1}),
}
ON_SQLITE = {"claim.before_commit", "claim.committed", "record.committed", "finish.before_commit", "finish.committed"}


@pytest.mark.parametrize(
    ("kind", "point"),
    [("postgres", point) for point in WORKER_POINTS] + [("sqlite", point) for point in sorted(ON_SQLITE)],
)
async def test_a_worker_dies_at(make_cluster: MakeCluster, kind: str, point: str) -> None:
    cluster = await make_cluster(kind)
    task, arguments = WORKER_POINTS[point]
    runs = [await cluster.app.enqueue(task, arguments) for _ in range(3)]
    runs += [await cluster.app.enqueue(task, arguments, ordering_key=KEY) for _ in range(3)]
    await killed(cluster, point)
    async with survivor(cluster):
        await cluster.all_ended()
    await check_end(cluster, [run.run_id for run in runs])


@pytest.mark.parametrize("point", ["reaper.before_commit", "reaper.committed"])
async def test_a_reaper_dies_at(cluster: Cluster, point: str) -> None:
    [first] = await cluster.start_workers(1)
    runs = [await cluster.app.enqueue("gated", {"gate": "go"}, ordering_key=key) for key in (KEY, None, KEY, None)]
    await cluster.running(3)
    first.kill()
    await killed(cluster, point)
    cluster.open_gate("go")
    async with survivor(cluster):
        await cluster.all_ended()
    await check_end(cluster, [run.run_id for run in runs])


@pytest.mark.parametrize("point", ["drain.begun", "sign_off.committed"])
async def test_a_draining_worker_dies_at(cluster: Cluster, point: str) -> None:
    worker = cluster.start_worker(crash=CrashPoint(point), environment={"RUNLANE_GRACE_SECONDS": "0.2"})
    await cluster.online(worker)
    runs = [await cluster.app.enqueue("gated", {"gate": "go"}, ordering_key=key) for key in (KEY, None, KEY, None)]
    await cluster.running(3)
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == -signal.SIGKILL
    cluster.open_gate("go")
    async with survivor(cluster):
        await cluster.all_ended()
    await check_end(cluster, [run.run_id for run in runs])


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("point", ["accept.before_commit", "accept.committed"])
async def test_an_enqueuer_dies_at(make_cluster: MakeCluster, kind: str, point: str) -> None:
    """It stored all or nothing before the crash, and a repeated request gets the same runs."""
    cluster = await make_cluster(kind)
    command = [sys.executable, "-m", "tests.chaos.chaos_enqueuer", "a", "6", "2"]
    assert await cluster.start("enqueuer", command, CrashPoint(point, 4)).ended() == -signal.SIGKILL
    assert await cluster.count("true") == (3 if point == "accept.before_commit" else 4)
    again = cluster.start("enqueuer", command)
    assert await again.ended() == 0, again.log_text()
    async with survivor(cluster):
        await cluster.all_ended()
    run_ids = [row["id"] for row in await cluster.rows("select id from runs")]
    assert len(run_ids) == 6
    await check_end(cluster, run_ids)


OPERATIONS = ("cancel", "approve", "retry", "release")


@pytest.mark.parametrize("point", ["operate.before_commit", "operate.committed"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operator_dies_at(cluster: Cluster, operation: str, point: str) -> None:
    """The change happened whole or not at all, and a repeated request has the same result."""
    async with survivor(cluster):
        if operation in ("retry", "release"):
            first = await cluster.app.enqueue("hopeless", ordering_key=KEY, on_dead="block")
            await cluster.app.wait(first.run_id, 60)
        else:
            first = await cluster.app.enqueue("short", {"milliseconds": 1}, ordering_key=KEY, hold=True)
        second = await cluster.app.enqueue("short", {"milliseconds": 1}, ordering_key=KEY)
        code = f"import asyncio, {TASKS} as tasks; asyncio.run(tasks.app.{operation}({first.run_id!r}))"
        command = [sys.executable, "-c", code]
        assert await cluster.start("operator", command, CrashPoint(point)).ended() == -signal.SIGKILL
        if point == "operate.before_commit":
            assert (await cluster.app.get(second.run_id)).status == "blocked"
            assert await cluster.start("operator", command).ended() == 0
        if operation == "retry":
            # It fails again, and blocks its key again.
            async def dead_again() -> bool:
                run = await cluster.app.get(first.run_id)
                return run.status == "failed" and run.attempt == 2

            await eventually(dead_again, "the second death")
            await cluster.app.release(first.run_id)
        assert (await cluster.app.wait(second.run_id, 60)).status == "completed"
    await cluster.all_ended()
    await cluster.check_story()
    expected = {"cancel": "cancelled", "approve": "completed", "retry": "failed", "release": "failed"}
    assert (await cluster.app.get(first.run_id)).status == expected[operation]
    assert await cluster.count("holds_key") == 0


@pytest.mark.parametrize("point", ["retention.before_commit", "retention.committed"])
async def test_retention_dies_at(cluster: Cluster, point: str) -> None:
    """Old runs are gone whole or not at all, and a live one is untouched."""
    async with survivor(cluster):
        runs = await cluster.app.enqueue_many([WORKER_POINTS["record.committed"]] * 3)
        await cluster.all_ended()
    held = await cluster.app.enqueue("short", {"milliseconds": 1}, hold=True)
    environment = {"RUNLANE_RETENTION_DAYS": "0.000001", "RUNLANE_RETENTION_SECONDS": "0.1"}
    await killed(cluster, point, environment)
    left = {row["id"] for row in await cluster.rows("select id from runs")}
    old = {run.run_id for run in runs}
    assert left == ({held.run_id} | old if point == "retention.before_commit" else {held.run_id})
    for table in ("run_inputs", "run_events"):
        assert {row["run_id"] for row in await cluster.rows(f"select distinct run_id from {table}")} == left
    await cluster.check_story()


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("point", ["retention.before_commit", "retention.committed"])
async def test_retention_that_cuts_events_dies_at(make_cluster: MakeCluster, kind: str, point: str) -> None:
    """A stream begins at `first_seq` of its run and still has its end; a waiting run has every event."""
    cluster = await make_cluster(kind)
    async with survivor(cluster):
        runs = await cluster.app.enqueue_many([WORKER_POINTS["record.committed"]] * 3)
        await cluster.all_ended()
    held = await cluster.app.enqueue("short", {"milliseconds": 1}, hold=True)
    await killed(cluster, point, {"RUNLANE_EVENTS_RETENTION_DAYS": "0.000001", "RUNLANE_RETENTION_SECONDS": "0.1"})
    kept: dict[str, list[int]] = {}
    for event in await cluster.events():
        kept.setdefault(event["run_id"], []).append(event["seq"])
    rows = {row["id"]: row for row in await cluster.rows("select id, first_seq, last_seq from runs")}
    assert set(rows) == {held.run_id, *(run.run_id for run in runs)}
    for run_id, row in rows.items():
        assert kept[run_id] == list(range(row["first_seq"], row["last_seq"] + 1))
        was_cut = point == "retention.committed" and run_id != held.run_id
        assert row["first_seq"] == (row["last_seq"] if was_cut else 1)


async def test_a_client_frozen_inside_a_claim_does_not_stop_a_capped_lane_forever(cluster: Cluster) -> None:
    """Its transaction holds the lane's lock. The server ends it, and another worker continues."""
    await set_lane(await cluster.app.database(), "capped", LaneChange(max_slots=1))
    frozen = cluster.start_worker(crash=CrashPoint("claim.before_commit", 1, Fate.FREEZE))
    await cluster.online(frozen)
    runs = await cluster.app.enqueue_many([("capped", {"milliseconds": 1})] * 5)

    async def stands_still() -> bool:
        return frozen.frozen

    await eventually(stands_still, "a frozen worker")
    [other] = await cluster.start_workers(1)
    await cluster.all_ended()
    assert {span.pid for span in cluster.sink.spans()} == {other.pid}
    assert {row["attempt"] for row in await cluster.rows("select attempt from runs")} == {1}, "the claim was kept"
    frozen.thaw()
    other.kill()
    fresh = await cluster.app.enqueue("capped", {"milliseconds": 1})
    assert (await cluster.app.wait(fresh.run_id, 60)).status == "completed"
    await cluster.check_story()
    cluster.check_effects([*(run.run_id for run in runs), fresh.run_id])


def test_no_point_is_forgotten() -> None:
    tested = {
        *WORKER_POINTS, "accept.before_commit", "accept.committed", "reaper.before_commit", "reaper.committed",
        "operate.before_commit", "operate.committed", "retention.before_commit", "retention.committed",
        "drain.begun", "sign_off.committed", "step.before_commit", "step.committed",
        # In tests/chaos/test_agent_takeover.py.
        "call.answered", "tool.answered", "journal.kept",
        # In tests/chaos/test_children.py.
        "child.announced", "child.started", "children.before_cancel",
        # In tests/chaos/test_graphs.py.
        "graph.before_commit", "graph.committed",
        # In tests/chaos/test_events.py.
        "dependents.before_commit", "dependents.committed", "triggers.matched", "triggers.claimed", "triggers.started",
        # In tests/chaos/test_schedules.py.
        "schedules.before_commit", "schedules.committed",
        # In tests/chaos/test_concurrency.py.
        "admit.before_commit", "admit.committed",
        # In tests/chaos/test_bulk_jobs.py.
        "bulk.before_commit", "bulk.item_committed",
        # In tests/chaos/test_webhooks.py.
        "webhook.claimed", "webhook.sent", "webhook.recorded",
        # In tests/chaos/test_memory.py.
        "memory.before_commit", "memory.committed", "words.before_commit", "words.committed",
        "replicate.read", "replicate.before_commit", "replicate.committed", "replicate.marked",
        # In tests/chaos/test_memory_index.py.
        "memory.embedded", "memory.indexed",
        # In tests/chaos/test_memory_handover.py.
        "handover.requested", "handover.replicated", "handover.released",
    }  # fmt: skip
    assert tested == set(POINTS)
