"""SIGTERM: a worker stops claiming, lets runs finish, hands the rest back, and is gone."""

from __future__ import annotations

import json
import signal

import httpx2
import pytest

from tests.chaos.cluster import RUNLANE, TASKS, Cluster, MakeCluster, Process, eventually
from tests.chaos.flows import Flows, ask, in_a_row


async def draining(cluster: Cluster, worker_id: str) -> None:
    async def is_draining() -> bool:
        return (await cluster.workers())[worker_id] == "draining"

    await eventually(is_draining, "a draining worker")


async def check_handed_back(cluster: Cluster, run_ids: list[str]) -> None:
    """Check that the runs ended elsewhere, without a failure or a loss for the handover."""
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
    """Start a worker with a short grace period that executes three runs, and one to continue them."""
    [leaving] = await cluster.start_workers(1, environment={"RUNLANE_GRACE_SECONDS": grace_seconds})
    runs = await cluster.app.enqueue_many([(task, {"gate": "go"})] * 3)
    await cluster.running(3)
    [staying] = await cluster.start_workers(1)
    return leaving, staying, [run.run_id for run in runs]


@pytest.mark.parametrize("task", ["gated", "stubborn"])
async def test_runs_that_do_not_finish_in_time_are_handed_back(cluster: Cluster, task: str) -> None:
    """A plain function that ignores the drain keeps neither its run nor its process."""
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


STEPS = in_a_row(*(ask(f"step{number}") for number in range(1, 7)))


async def drain_in_the_first_step(
    cluster: Cluster, delays: dict[str, float], **settings: str
) -> tuple[Flows, str, Process, Process]:
    """A worker that gets SIGTERM in the first of six steps, and one to take over."""
    flows = Flows(cluster)
    flows.script(delays)
    [leaving] = await cluster.start_workers(1, environment=settings)
    run_id = await flows.start(STEPS)
    await flows.called("step1")
    leaving.signal(signal.SIGTERM)
    return flows, run_id, leaving, cluster.start_worker()


async def test_an_orchestration_completes_within_the_grace_period(cluster: Cluster) -> None:
    flows, run_id, leaving, _ = await drain_in_the_first_step(
        cluster, {f"step{number}": 0.2 for number in range(1, 7)}, RUNLANE_GRACE_SECONDS="120"
    )
    assert await leaving.ended() == 0
    run = await cluster.app.get(run_id)
    assert (run.status, run.attempt) == ("completed", 1)
    assert {call["pid"] for call in flows.calls()} == {leaving.pid}
    assert await cluster.events("handed_back") == []
    await cluster.check_story()


async def test_an_orchestration_is_handed_back_when_the_grace_period_is_nearly_over(cluster: Cluster) -> None:
    """It continues after the signal, and stops between two steps, before it would be interrupted."""
    flows, run_id, leaving, staying = await drain_in_the_first_step(
        cluster, {"step1": 2.0, "step2": 12.0}, RUNLANE_GRACE_SECONDS="16"
    )
    assert await leaving.ended() == 0
    assert (await cluster.app.wait(run_id, 60)).attempt == 2
    assert {call["step"] for call in flows.calls() if call["pid"] == leaving.pid} == {"step1", "step2"}
    assert set(flows.counts().values()) == {1}, "a step was interrupted and made again"
    assert {call["pid"] for call in flows.calls() if call["step"] == "step3"} == {staying.pid}
    assert await cluster.count("status = 'completed' and failures = 0 and losses = 0") == 1
    await cluster.check_story()


async def test_an_immediate_handover_ends_with_the_current_step(cluster: Cluster) -> None:
    flows, run_id, leaving, staying = await drain_in_the_first_step(
        cluster, {"step1": 2.0}, RUNLANE_GRACE_SECONDS="120", RUNLANE_DRAIN_HANDOVER="immediate"
    )
    assert await leaving.ended() == 0
    assert (await cluster.app.wait(run_id, 60)).attempt == 2
    assert {call["step"] for call in flows.calls() if call["pid"] == leaving.pid} == {"step1"}
    assert {call["pid"] for call in flows.calls() if call["step"] == "step2"} == {staying.pid}
    assert len(await cluster.events("handed_back")) == 1
    await cluster.check_story()


async def test_a_scale_down_repeats_at_most_one_step_of_each_run_that_it_moves(cluster: Cluster) -> None:
    """An autoscaler removes three of four busy workers, the youngest first."""
    flows = Flows(cluster)
    names = [f"step{number}" for number in range(1, 6)]
    flows.script(dict.fromkeys(names, 0.8))
    await flows.sync({"id": "flow", "steps": in_a_row(*(ask(name) for name in names))})
    # Every slot of every worker is taken.
    workers = await cluster.start_workers(4, concurrency=2, environment={"RUNLANE_GRACE_SECONDS": "2"})
    runs = [(await cluster.app.orchestrate("flow", "m")).run_id for _ in range(8)]
    await flows.called("step1", times=8)
    assert {call["pid"] for call in flows.calls()} == {worker.pid for worker in workers}
    for worker in reversed(workers[1:]):
        worker.signal(signal.SIGTERM)
    for worker in workers[1:]:
        assert await worker.ended() == 0
    await cluster.all_ended()
    await cluster.check_story()
    assert await cluster.count("status = 'completed' and failures = 0 and losses = 0") == len(runs)
    assert await cluster.events("worker_lost") == []
    moves = await cluster.events("handed_back")
    assert moves
    assert len(flows.calls()) <= len(runs) * len(names) + len(moves)


async def test_a_server_answers_probes_while_its_worker_drains(cluster: Cluster) -> None:
    server = cluster.start("server", [*RUNLANE, "serve", f"{TASKS}:app", "--port", "0", "--worker"])
    url = await cluster.url_of(server)
    run = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.running()
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        assert (await client.get("/ready")).status_code == 200
        server.signal(signal.SIGTERM)

        async def not_ready() -> bool:
            return (await client.get("/ready")).status_code == 503

        await eventually(not_ready, "/ready to be 503")
        stopping = await cluster.logged(server, "stopping")
        assert "Ctrl-C" in stopping["hint"]
        await cluster.logged(server, "worker_draining")
        assert (await client.get("/health")).status_code == 200
        answer = await client.get("/ready")
        assert (answer.status_code, json.loads(answer.content)["problems"]) == (503, ["stopping"])
        assert (await cluster.app.get(run.run_id)).status == "running"
    cluster.open_gate("go")
    assert await server.ended() == 0
    ended = await cluster.app.get(run.run_id)
    assert (ended.status, ended.attempt) == ("completed", 1)
