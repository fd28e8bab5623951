"""The runs of a worker that dies, freezes or has neighbours."""

from __future__ import annotations

import signal

from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.scale import scaled


async def test_a_killed_workers_run_starts_again_elsewhere(make_cluster: MakeCluster) -> None:
    # A lease that long distinguishes a takeover from a lease that expired.
    cluster = await make_cluster(shipped_defaults=True, RUNLANE_LEASE_SECONDS="600")
    first, second = await cluster.start_workers(2)
    accepted = await cluster.app.enqueue("gated", {"gate": "go"})
    [run] = await cluster.running()
    victim, survivor = (first, second) if run["worker_id"] == await cluster.online(first) else (second, first)
    lost = await cluster.online(victim)
    victim.kill()

    async def started_again() -> bool:
        return any(span.pid == survivor.pid for span in cluster.sink.spans())

    await eventually(started_again, "a start elsewhere")
    cluster.open_gate("go")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects([accepted.run_id])
    [event] = await cluster.events("worker_lost")
    assert lost in event["data"]
    assert (await cluster.workers())[lost] == "lost"


async def test_a_worker_restarted_at_once_takes_nothing_over_by_name(cluster: Cluster) -> None:
    [first] = await cluster.start_workers(1)
    old_id = await cluster.online(first)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 4)
    await cluster.running(4)
    first.kill()
    [second] = await cluster.start_workers(1)
    new_id = await cluster.online(second)
    assert new_id != old_id
    cluster.open_gate("go")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects([run.run_id for run in runs])
    for run in runs:
        story = [
            (event.type, event.attempt, event.data.get("worker_id")) for event in await cluster.app.events(run.run_id)
        ]
        assert story == [
            ("queued", 0, None),
            ("worker_picked_up", 1, old_id),
            ("worker_lost", 1, old_id),
            ("worker_picked_up", 2, new_id),
            ("done", 2, None),
        ]
        assert (await cluster.app.get(run.run_id)).losses == 1


async def test_a_frozen_worker_leaves_nothing_behind_when_it_thaws(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(RUNLANE_LEASE_SECONDS="3", RUNLANE_HEARTBEAT_SECONDS="0.3")
    [frozen] = await cluster.start_workers(1)
    old_id = await cluster.online(frozen)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go", "note": True})] * 8)
    await cluster.running(8)
    frozen.freeze()
    [other] = await cluster.start_workers(1)
    cluster.open_gate("go")
    await cluster.all_ended()
    tables = ("runs", "run_events", "run_attempts", "run_results", "run_steps", "dead_letters")
    before = [await cluster.rows(f"select * from {table} order by 1, 2") for table in tables]
    frozen.thaw()

    async def under_a_new_id() -> bool:
        return await cluster.online(frozen) != old_id

    # The thawed tasks pass the gate and try to log, to finish and to have their effect.
    await eventually(under_a_new_id, "the thawed worker under a new id")
    other.signal(signal.SIGTERM)
    await other.ended()
    fresh = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.app.wait(fresh.run_id, 60)
    after = [await cluster.rows(f"select * from {table} order by 1, 2") for table in tables]
    for table, old, new in zip(tables, before, after, strict=True):
        kept = [row for row in new if fresh.run_id not in (row.get("id"), row.get("run_id"))]
        assert kept == old, f"the frozen worker changed {table}"
    assert (await cluster.workers())[old_id] == "lost"
    await cluster.check_story()
    cluster.check_effects([*(run.run_id for run in runs), fresh.run_id])
    [pid] = {span.pid for span in cluster.sink.spans() if span.run_id == fresh.run_id}
    assert pid == frozen.pid


async def test_neighbours_that_come_and_go_take_nothing_from_a_busy_worker(cluster: Cluster) -> None:
    [busy] = await cluster.start_workers(1, concurrency=20)
    busy_id = await cluster.online(busy)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 20)
    await cluster.running(20)
    for turn in range(scaled(4, 6)):
        neighbour = cluster.start_worker()
        await cluster.online(neighbour)
        neighbour.signal(signal.SIGTERM if turn % 2 else signal.SIGINT)
        assert await neighbour.ended() == 0
        assert (await cluster.workers())[busy_id] == "online"
    assert await cluster.count(f"status = 'running' and attempt = 1 and worker_id = '{busy_id}'") == 20
    assert not await cluster.events("worker_lost")
    cluster.open_gate("go")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects([run.run_id for run in runs])
    assert {row["attempt"] for row in await cluster.rows("select attempt from runs")} == {1}
