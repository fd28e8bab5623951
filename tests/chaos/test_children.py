"""Runs that other runs have started, over real processes: whatever dies, a cancelled family ends as a whole."""

from __future__ import annotations

import signal
import sys
from itertools import pairwise
from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.run import ORCHESTRATION
from runlane.testing.crash_points import CrashPoint, Fate
from tests.chaos.agents import has_status
from tests.chaos.cluster import Cluster, MakeCluster, eventually

NAMES = ("outer", "middle", "inner")


def bodies() -> dict[str, list[dict[str, Any]]]:
    """Orchestrations whose agents call the next one as a tool; the last one asks a person."""
    question = {"id": "ask", "type": "human", "human_prompt": "Go on?", "output_key": "ask"}
    found: dict[str, list[dict[str, Any]]] = {
        "orchestrations": [{"id": NAMES[-1], "steps": [question], "max_losses": 100}], "agents": [], "tools": [],
    }  # fmt: skip
    for name, other in pairwise(NAMES):
        step = {"id": "work", "type": "agent", "agent_id": f"agent_{name}", "output_key": "work"}
        answers = [{"tool": f"call_{other}", "arguments": {"message": "go"}}, "done"]
        tool = {"name": f"call_{other}", "tool_type": "orchestration", "orchestration_id": other}
        agent = {"id": f"agent_{name}", "model": "scripted", "tools": [tool["name"]], "answers": answers}
        found["orchestrations"].append({"id": name, "steps": [step], "max_losses": 100})
        found["agents"].append(agent)
        found["tools"].append(tool)
    return found


@pytest.fixture
async def family(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> Cluster:
    cluster = await make_cluster(getattr(request, "param", "postgres"))
    await sync_definitions(await cluster.app.database(), "default", parse_bodies(bodies()), actor="test")
    return cluster


async def ids_of(cluster: Cluster) -> dict[str, str]:
    rows = await cluster.rows("select id, target from runs")
    return {row["target"].removeprefix(ORCHESTRATION): row["id"] for row in rows}


async def cancelled_by_one_that_dies(cluster: Cluster, run_id: str) -> None:
    """Cancel a run in a process that dies right after the commit."""
    command = [sys.executable, "-m", "tests.chaos.chaos_canceller", run_id]
    canceller = cluster.start("canceller", command, CrashPoint("operate.committed"))
    assert await canceller.ended() == -signal.SIGKILL, canceller.log_text()


async def check_all_cancelled(cluster: Cluster, *names: str) -> None:
    """These runs are there and no others, and all of them were cancelled."""
    await cluster.all_ended()
    assert set(await ids_of(cluster)) == set(names)
    assert await cluster.count("status <> 'cancelled'") == 0

    async def settled() -> bool:
        return not await cluster.rows("select key from run_children where cancel_at is not null")

    await eventually(settled, "nothing left to cancel")
    await cluster.check_story()


@pytest.mark.parametrize("family", ["postgres", "sqlite"], indirect=True)
async def test_the_whole_family_ends_when_every_process_died_after_the_cancel(family: Cluster) -> None:
    (worker,) = await family.start_workers(1)
    first = (await family.app.orchestrate(NAMES[0], "go")).run_id

    async def asked() -> bool:
        ids = await ids_of(family)
        return NAMES[-1] in ids and await family.count(f"id = '{ids[NAMES[-1]]}' and status = 'paused'") == 1

    await eventually(asked, "the question of the last one")
    worker.kill()
    await cancelled_by_one_that_dies(family, first)
    assert await family.count("status = 'cancelled'") == 0, "the first one was running, and no worker has ended it yet"
    assert await family.count("ended_at is null") == len(NAMES)
    # Each of them dies when it is about to cancel one more.
    for _ in range(2):
        victim = family.start_worker(crash=CrashPoint("children.before_cancel"))
        assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    await family.start_workers(1)
    await check_all_cancelled(family, *NAMES)


@pytest.mark.parametrize(
    ("point", "expected"),
    [("child.announced", NAMES[:1]), ("accept.before_commit", NAMES[:1]), ("child.started", NAMES[:2])],
)
async def test_a_parent_that_is_cancelled_around_the_start_of_its_child(
    point: str, expected: tuple[str, ...], family: Cluster
) -> None:
    first = (await family.app.orchestrate(NAMES[0], "go")).run_id
    victim = family.start_worker(crash=CrashPoint(point))
    assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    assert set(await ids_of(family)) == set(expected)
    assert len(await family.rows("select key from run_children")) == 1
    await cancelled_by_one_that_dies(family, first)
    await family.start_workers(1)
    await family.all_ended()
    if point == "child.started":
        # The child may have started a child before it noticed its cancel.
        expected = tuple(await ids_of(family))
    await check_all_cancelled(family, *expected)


async def test_a_worker_that_froze_before_the_start_of_a_child_starts_none_when_it_wakes(family: Cluster) -> None:
    first = (await family.app.orchestrate(NAMES[0], "go")).run_id
    frozen = family.start_worker(
        crash=CrashPoint("child.announced", fate=Fate.FREEZE), environment={"RUNLANE_LEASE_SECONDS": "3"}
    )

    async def stopped() -> bool:
        return frozen.frozen

    await eventually(stopped, "the worker to freeze")
    await cancelled_by_one_that_dies(family, first)
    await family.start_workers(1)
    await check_all_cancelled(family, NAMES[0])
    frozen.thaw()
    frozen.signal(signal.SIGTERM)
    await frozen.ended()
    await check_all_cancelled(family, NAMES[0])


async def test_a_family_whose_members_lose_their_workers_ends_well(family: Cluster) -> None:
    """A worker dies after each of announced, started and seen, and every child is started once."""
    await family.app.orchestrate(NAMES[0], "go")
    for point in ("child.announced", "child.started", "child.announced"):
        victim = family.start_worker(crash=CrashPoint(point))
        assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    await family.start_workers(1)

    async def last() -> str | None:
        return (await ids_of(family)).get(NAMES[-1])

    await has_status(family, await eventually(last, "the last one"), Status.PAUSED)
    await family.app.resume((await ids_of(family))[NAMES[-1]], "yes")
    await family.all_ended()
    assert sorted(row["status"] for row in await family.rows("select status from runs")) == ["completed"] * 3
    await family.check_story()
