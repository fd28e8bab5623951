"""Runs that wait for a person: one answer wins, nothing is lost while everything is restarted or edited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import httpx2
import pytest

from runlane import Status
from runlane.errors import UnknownDefinition
from runlane.store.orchestration.inbox import InboxFilter, read_inbox
from runlane.testing import PostgresServer
from tests.chaos.chaos_answerer import LOST
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.flows import Flows, ask, human, in_a_row
from tests.chaos.reader import API, Reader

ROUNDS = 4
ASKING = in_a_row(ask("before"), human("q"), ask("after"))


async def test_of_two_answers_at_the_same_time_one_wins(cluster: Cluster) -> None:
    flows = Flows(cluster)
    await cluster.start_workers(1)
    for number in range(ROUNDS):
        run_id = await flows.start(ASKING)
        await flows.has(run_id, Status.PAUSED)
        gate = f"gate-{number}"
        people = [
            cluster.start(name, [sys.executable, "-m", "tests.chaos.chaos_answerer", run_id, name, gate])
            for name in ("ada", "bob")
        ]

        async def ready(gate: str = gate) -> bool:
            return all((cluster.folder / f"{gate}-{name}").exists() for name in ("ada", "bob"))

        await eventually(ready, "two people ready", every=0.01)
        cluster.open_gate(gate)
        assert sorted([await person.ended() for person in people]) == [0, LOST], [
            person.log_text() for person in people
        ]
        assert (await cluster.app.wait(run_id, 30)).status is Status.COMPLETED
        assert flows.counts() == {"before": number + 1, "after": number + 1}
        assert len(await flows.paths(run_id, "resumed")) == 1
        await flows.check_once(run_id)
    await cluster.check_story()


async def test_of_two_answers_over_http_one_is_a_conflict(cluster: Cluster) -> None:
    flows = Flows(cluster)
    await cluster.start_workers(1)
    urls = await cluster.start_servers(2)
    async with httpx2.AsyncClient(timeout=30) as client:
        for number in range(ROUNDS):
            run_id = await flows.start(ASKING)
            await flows.has(run_id, Status.PAUSED)
            body = {"response": {"decision": "approve"}}
            answers = await asyncio.gather(
                *(client.post(f"{url}{API}/runs/{run_id}/resume", json=body) for url in urls)
            )
            assert sorted(answer.status_code for answer in answers) == [202, 409], [a.text for a in answers]
            assert (await cluster.app.wait(run_id, 30)).status is Status.COMPLETED
            assert flows.counts()["after"] == number + 1


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may restart without harm to others."""
    with PostgresServer() as server:
        yield server
        server.kill()


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "crash"])
async def test_a_restart_of_everything_while_paused_loses_nothing(
    make_cluster: MakeCluster, own_postgres: PostgresServer, crash: bool
) -> None:
    cluster = await make_cluster(url=own_postgres.create_database("paused"))
    flows = Flows(cluster)
    workers = await cluster.start_workers(2)
    run_id = await flows.start(ASKING)
    [url] = await cluster.start_servers(1)
    reader = Reader(run_id)
    reading = asyncio.create_task(reader.read(url))
    await flows.has(run_id, Status.PAUSED)
    for worker in workers:
        worker.kill()
    if crash:
        own_postgres.kill()
    await asyncio.to_thread(own_postgres.restart)
    [worker] = await cluster.start_workers(1)
    assert (await cluster.app.get(run_id)).status is Status.PAUSED
    [waiting], _ = await read_inbox(await cluster.app.database(), InboxFilter("default"))
    assert waiting.request["prompt"] == "Go on?"
    assert flows.counts() == {"before": 1}
    await cluster.app.resume(run_id, {"decision": "approve"})
    ended = await cluster.app.wait(run_id, 30)
    assert ended.result == "said"
    assert flows.counts() == {"before": 1, "after": 1}
    assert [call["pid"] for call in flows.calls()][-1] == worker.pid
    await flows.check_once(run_id)
    await cluster.check_story()
    # The connection that stayed open has received the rest, or a new one does.
    async with asyncio.timeout(30):
        await asyncio.gather(reading, return_exceptions=True)
        if not reader.done:
            await reader.read(url)
    stored = [event["seq"] for event in await cluster.events()]
    assert [event.seq for event in reader.received] == stored


async def test_a_removed_definition_does_not_break_the_runs_that_have_begun(cluster: Cluster) -> None:
    flows = Flows(cluster)
    [first] = await cluster.start_workers(1)
    run_id = await flows.start(ASKING)
    await flows.has(run_id, Status.PAUSED)
    await flows.sync()
    with pytest.raises(UnknownDefinition):
        await cluster.app.orchestrate("flow")
    first.kill()
    # The new worker has none of it in memory.
    await cluster.start_workers(1)
    await cluster.app.resume(run_id, {"decision": "approve"})
    assert (await cluster.app.wait(run_id, 30)).status is Status.COMPLETED
    assert flows.counts() == {"before": 1, "after": 1}
