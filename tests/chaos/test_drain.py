"""SIGTERM: a worker stops claiming, lets runs finish, hands the rest back, and is gone."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually


async def draining(cluster: Cluster, worker_id: str) -> None:
    async def told() -> bool:
        return (await cluster.workers())[worker_id] == "draining"

    await eventually(told, "a draining worker")


async def check_handed_back(cluster: Cluster, run_ids: list[str]) -> None:
    """The runs ended elsewhere, and neither a failure nor a loss was counted for the way there."""
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects(run_ids)
    assert await cluster.count("status = 'completed' and attempt = 2 and failures = 0 and losses = 0") == len(run_ids)
    assert {event["run_id"] for event in await cluster.events("handed_back")} == set(run_ids)
    assert await cluster.events("worker_lost") == []


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_runs_finish_within_the_grace_period(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    [worker] = await cluster.start_workers(1)
    worker_id = await cluster.online(worker)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 5)
    await cluster.running(5)
    worker.signal(signal.SIGTERM)
    await draining(cluster, worker_id)
    late = await cluster.app.enqueue("short", {"milliseconds": 1})
    cluster.open_gate("go")
    assert await worker.ended() == 0
    assert (await cluster.workers())[worker_id] == "offline"
    assert await cluster.count("status = 'completed' and attempt = 1") == 5
    assert (await cluster.app.get(late.run_id)).status == "queued", "a draining worker claimed a run"
    await cluster.check_story()
    cluster.check_effects([run.run_id for run in runs])


async def start_pair(cluster: Cluster, task: str, grace_seconds: str) -> tuple[Process, Process, list[str]]:
    """A worker with short grace that executes three runs, and one to go on with them."""
    [leaving] = await cluster.start_workers(1, environment={"RUNLANE_GRACE_SECONDS": grace_seconds})
    runs = await cluster.app.enqueue_many([(task, {"gate": "go"})] * 3)
    await cluster.running(3)
    [staying] = await cluster.start_workers(1)
    return leaving, staying, [run.run_id for run in runs]


@pytest.mark.parametrize("task", ["gated", "stubborn"])
async def test_what_does_not_finish_in_time_is_handed_back(cluster: Cluster, task: str) -> None:
    """A plain function that hears nothing keeps neither its run nor its process."""
    leaving, staying, run_ids = await start_pair(cluster, task, "0.5")
    leaving_id = await cluster.online(leaving)
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended() == 0
    assert (await cluster.workers())[leaving_id] == "offline"
    cluster.open_gate("go")
    await check_handed_back(cluster, run_ids)
    assert {span.pid for span in cluster.sink.spans() if span.attempt == 2} == {staying.pid}


async def test_a_second_signal_ends_the_grace_period(cluster: Cluster) -> None:
    leaving, _, run_ids = await start_pair(cluster, "gated", "600")
    leaving_id = await cluster.online(leaving)
    leaving.signal(signal.SIGTERM)
    await draining(cluster, leaving_id)
    assert leaving.alive
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended() == 0
    cluster.open_gate("go")
    await check_handed_back(cluster, run_ids)


async def test_a_worker_killed_while_it_drains_loses_nothing(cluster: Cluster) -> None:
    leaving, _, run_ids = await start_pair(cluster, "gated", "600")
    leaving_id = await cluster.online(leaving)
    leaving.signal(signal.SIGTERM)
    await draining(cluster, leaving_id)
    leaving.kill()
    cluster.open_gate("go")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects(run_ids)
    assert (await cluster.workers())[leaving_id] == "lost"
