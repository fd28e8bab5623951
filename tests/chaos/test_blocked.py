"""User code that blocks the event loop or the whole interpreter.

For a while it does not cost its worker the lease. A loop that is blocked for longer than RUNLANE_STALL_SECONDS does:
the runs of that worker move to another one, and its process ends if the loop never comes back.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from runlane.cli.process import STUCK_EXIT_CODE
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.scale import scaled

# The event loop is busy for longer than a lease, and the interpreter is held for longer than the silence that counts.
LEASE_SECONDS = scaled(6, 15)
BUSY_SECONDS = scaled(8, 20)
HELD_SECONDS = scaled(3, 10)


async def test_blocking_code_keeps_its_lease(make_cluster: MakeCluster) -> None:
    clusters = [await make_cluster(kind, RUNLANE_LEASE_SECONDS=str(LEASE_SECONDS)) for kind in ("postgres", "sqlite")]
    await asyncio.gather(*(check_blocking_code(cluster) for cluster in clusters))


async def check_blocking_code(cluster: Cluster) -> None:
    workers = await cluster.start_workers(2, concurrency=1)
    ids = {await cluster.online(worker) for worker in workers}
    busy = await cluster.app.enqueue("busy", {"seconds": BUSY_SECONDS})
    held = await cluster.app.enqueue("hold_gil", {"seconds": HELD_SECONDS})
    await cluster.running(2)
    # Another worker, to reap them if they were taken for dead.
    await cluster.start_workers(1, lanes="capped")
    one = await cluster.app.wait(held.run_id, 90)
    two = await cluster.app.wait(busy.run_id, 90)
    assert one.result["longest"] > HELD_SECONDS - 1, "another thread ran meanwhile, so nothing was held"
    assert two.result["turns"] > 1000
    assert (one.attempt, two.attempt) == (1, 1)
    assert await cluster.events("worker_lost") == []
    assert {key: status for key, status in (await cluster.workers()).items() if key in ids} == dict.fromkeys(
        ids, "online"
    )
    await cluster.check_story()
    cluster.check_effects([busy.run_id, held.run_id])


async def test_an_interpreter_held_in_the_middle_of_a_heartbeat_keeps_its_lease(cluster: Cluster) -> None:
    """The server ends a session that is idle inside a transaction; the liveness lock must outlast that."""
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


QUICK = {"RUNLANE_LEASE_SECONDS": "3", "RUNLANE_STALL_SECONDS": "4", "RUNLANE_HEARTBEAT_SECONDS": "0.2"}


async def start_frozen(cluster: Cluster) -> tuple[Process, Process, list[str]]:
    """A worker whose event loop is blocked by one of its four runs, another worker, and the runs."""
    frozen = cluster.start_worker()
    await cluster.online(frozen)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 3)
    await cluster.running(3)
    runs.append(await cluster.app.enqueue("freeze", {"gate": "thaw"}))
    await cluster.running(4)
    [other] = await cluster.start_workers(1)
    cluster.open_gate("go")
    return frozen, other, [run.run_id for run in runs]


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_loop_that_is_blocked_for_good_loses_its_runs_and_its_process(
    make_cluster: MakeCluster, kind: str
) -> None:
    cluster = await make_cluster(kind, **QUICK)
    frozen, other, run_ids = await start_frozen(cluster)
    await cluster.all_ended()
    assert await cluster.count("status = 'completed' and attempt = 2 and losses = 1") == len(run_ids)
    assert {span.pid for span in cluster.sink.spans() if span.attempt == 2} == {other.pid}
    assert await frozen.ended() == STUCK_EXIT_CODE
    [line] = [json.loads(line) for line in frozen.log_text().splitlines() if '"worker_stalled"' in line]
    assert "in freeze" in line["stack"], "the log does not show what blocks the loop"
    await cluster.check_story()
    cluster.check_effects(run_ids)


async def test_a_stalled_event_loop_continues_under_a_new_id(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres", **QUICK | {"RUNLANE_STALL_SECONDS": "10"})
    frozen, other, run_ids = await start_frozen(cluster)
    await cluster.logged(frozen, "worker_stalled")
    cluster.open_gate("thaw")
    await cluster.all_ended()
    await cluster.logged(frozen, "worker_online", 2)
    other.kill()
    more = await cluster.app.enqueue("short", {"milliseconds": 1})
    assert (await cluster.app.wait(more.run_id, 60)).attempt == 1
    assert {span.pid for span in cluster.sink.spans() if span.run_id == more.run_id} == {frozen.pid}
    await cluster.check_story()
    cluster.check_effects([*run_ids, more.run_id])
