"""User code that blocks the event loop or the whole interpreter does not cost its worker the lease."""

from __future__ import annotations

import asyncio

from tests.chaos.cluster import Cluster, MakeCluster, eventually


async def test_blocking_code_keeps_its_lease(make_cluster: MakeCluster) -> None:
    clusters = [await make_cluster(kind) for kind in ("postgres", "sqlite")]
    await asyncio.gather(*(check_blocking_code(cluster) for cluster in clusters))


async def check_blocking_code(cluster: Cluster) -> None:
    workers = await cluster.start_workers(2, concurrency=1)
    ids = {await cluster.online(worker) for worker in workers}
    busy = await cluster.app.enqueue("busy", {"seconds": 20})
    held = await cluster.app.enqueue("hold_gil", {"seconds": 10})
    await cluster.running(2)
    # Somebody to reap them, if they were taken for dead.
    await cluster.start_workers(1, lanes="capped")
    one = await cluster.app.wait(held.run_id, 90)
    two = await cluster.app.wait(busy.run_id, 90)
    assert one.result["longest"] > 9, "another thread ran meanwhile, so nothing was held"
    assert two.result["turns"] > 1000
    assert (one.attempt, two.attempt) == (1, 1)
    assert await cluster.events("worker_lost") == []
    assert {key: status for key, status in (await cluster.workers()).items() if key in ids} == dict.fromkeys(
        ids, "online"
    )
    await cluster.check_story()
    cluster.check_effects([busy.run_id, held.run_id])


async def test_an_interpreter_held_in_the_middle_of_a_heartbeat_keeps_its_lease(cluster: Cluster) -> None:
    """The server ends a session that stands still inside a transaction; the liveness lock must outlast that."""
    held = cluster.start_worker(environment={"CHAOS_HOLD_IN_HEARTBEAT": "8"})
    worker_id = await cluster.online(held)
    run = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.running()
    await cluster.start_workers(1)
    cluster.open_gate("hold")

    async def standing_still() -> bool:
        return (cluster.folder / "held").exists()

    await eventually(standing_still, "a heartbeat that stands still")
    [row] = await cluster.rows(f"select heartbeat_at from workers where id = '{worker_id}'")

    async def heartbeat_again() -> bool:
        rows = await cluster.rows(f"select heartbeat_at from workers where id = '{worker_id}'")
        return rows[0]["heartbeat_at"] > row["heartbeat_at"]

    await eventually(heartbeat_again, "the next heartbeat")
    cluster.open_gate("go")
    ended = await cluster.app.wait(run.run_id, 60)
    assert ended.attempt == 1
    assert await cluster.events("worker_lost") == []
    assert (await cluster.workers())[worker_id] == "online"
