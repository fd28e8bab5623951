"""Runs of graphs whose worker is killed or frozen: their state is that of other runs, and no answer is misplaced."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from runlane import Run, Status
from runlane.domain.text import load_json
from runlane.testing.crash_points import CrashPoint
from tests.chaos.chaos_graphs import PLACES, QUESTIONS
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.forking import GRAPHS
from tests.graph_runs import GraphThread
from tests.harness import Store
from tests.scale import SOAK

MODULE = "tests.chaos.chaos_graphs"
INPUT: dict[str, Any] = {"count": 0, "log": []}
# What a run without kills leaves; the answer to each question is its own name.
LOG = [
    "first", "approve=approve0", "w0", "w1", "w2", "join", "before", "inner=inner0", "other=other0", "after",
    "confirm=confirm0", "confirm=confirm1", "last",
]  # fmt: skip
# One kill in every node, and one after every answer; in a soak, at every place of every node.
KILLS = (
    PLACES if SOAK else [place for place in PLACES if place.endswith((".begin", ".answered0")) and place[1] not in "02"]
)
FEW = PLACES if SOAK else [place for place in PLACES if place.endswith(".answered0")]


async def _thread(cluster: Cluster, graph_id: str, name: str) -> GraphThread:
    cluster.tasks = MODULE
    store = Store(cluster.app.settings, await cluster.app.database())
    return await GraphThread(store, await cluster.app.connect(), graph_id, name).create()


async def _ended(cluster: Cluster, run_id: str) -> Run:
    """Wait for the end of a run, with a worker that is replaced whenever it dies."""

    async def ended() -> Run | None:
        run = await cluster.app.get(run_id)
        if run.status.terminal:
            return run
        if not any(process.alive for process in cluster.processes):
            cluster.start_worker(concurrency=5)
        await cluster.skip_waits()
        return None

    return await eventually(ended, "the end of the run", 120)


async def _answered(cluster: Cluster, thread: GraphThread, durability: str) -> dict[str, Any]:
    """Execute the graph and answer each of its questions with its own name. Return the final state."""
    run = await _ended(cluster, await thread.start(input=INPUT, durability=durability))
    for question in QUESTIONS:
        assert run.status is Status.COMPLETED, run.error
        (asked,) = run.result["__interrupt__"]
        assert asked["value"] == {"question": question}
        run = await _ended(cluster, await thread.start(command={"resume": question}, durability=durability))
    assert run.status is Status.COMPLETED, run.error
    return run.result


def _places(cluster: Cluster) -> Counter[str]:
    return Counter(line.split()[0] for line in (cluster.folder / "places.log").read_text().splitlines())


@pytest.mark.parametrize(("kind", "durability", "kills"), [("postgres", "sync", KILLS), ("sqlite", "async", FEW)])
async def test_a_kill_in_every_node_changes_nothing(
    make_cluster: MakeCluster, kind: str, durability: str, kills: Sequence[str]
) -> None:
    cluster = await make_cluster(kind, **GRAPHS)
    thread = await _thread(cluster, "approvals", "killed")
    for place in kills:
        (cluster.folder / f"kill-{place}").touch()
    state = await _answered(cluster, thread, durability)
    assert state == {"count": 12, "log": LOG}
    assert len([process for process in cluster.processes if not process.alive]) == len(kills)
    assert not list(cluster.folder.glob("kill-*"))
    if durability == "sync":
        # A finished superstep is never executed again.
        places = _places(cluster)
        for node in ("first", "join", "before", "after", "last"):
            assert places[f"{node}.begin"] == 1 + sum(place.startswith(f"{node}.") for place in kills), node
    row = await thread.row()
    assert (row["status"], row["open_runs"], row["state_values"]) == ("idle", 0, state)
    await cluster.check_story()


POINTS = [("graph.before_commit", 3), ("graph.committed", 3), ("graph.committed", 4)]


@pytest.mark.parametrize(("point", "nth"), POINTS)
async def test_a_worker_dies_around_the_commit_of_a_checkpoint(make_cluster: MakeCluster, point: str, nth: int) -> None:
    cluster = await make_cluster(**GRAPHS)
    thread = await _thread(cluster, "gated", "crashed")
    cluster.open_gate("gate")
    run_id = await thread.start(input=INPUT, durability="sync")
    victim = cluster.start_worker(crash=CrashPoint(point, nth))
    assert await victim.ended() == -signal.SIGKILL, f"{point} was not reached:\n{victim.log_text()}"
    run = await _ended(cluster, run_id)
    assert run.result == {"count": 3, "log": ["first", "wait", "last"]}
    claims = [load_json(event["data"]) for event in await cluster.events("worker_picked_up")]
    assert [claim["tries"] for claim in claims] == [1, 2]
    await cluster.check_story()


async def _contents(cluster: Cluster) -> dict[str, list[Any]]:
    tables = (
        "checkpoints",
        "checkpoint_values",
        "checkpoint_writes",
        "run_events",
        "thread_runs",
        "threads",
        "run_results",
    )
    return {table: sorted(repr(row) for row in await cluster.rows(f"select * from {table}")) for table in tables}


async def test_a_worker_that_was_frozen_past_its_lease_changes_nothing(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(RUNLANE_LEASE_SECONDS="2", RUNLANE_STALL_SECONDS="600", **GRAPHS)
    thread = await _thread(cluster, "gated", "frozen")
    frozen = (await cluster.start_workers(1))[0]
    run_id = await thread.start(input=INPUT)

    async def waits() -> bool:
        file = cluster.folder / "places.log"
        return file.exists() and _places(cluster)["wait.begin"] == 1

    await eventually(waits, "the node that waits")
    registered = await cluster.online(frozen)
    frozen.freeze()
    await cluster.start_workers(1)
    cluster.open_gate("gate")
    run = await cluster.app.wait(run_id, 60)
    assert run.result == {"count": 3, "log": ["first", "wait", "last"]}
    before = await _contents(cluster)
    frozen.thaw()
    await eventually(lambda: _registered_again(cluster, frozen, registered), "the frozen worker registered again")
    assert await _contents(cluster) == before
    await cluster.check_story()


async def _registered_again(cluster: Cluster, worker: Process, earlier: str) -> bool:
    """Return whether a worker has noticed its loss, and the node that it executed has returned."""
    return await cluster.online(worker) != earlier and _places(cluster)["wait.end"] == 2
