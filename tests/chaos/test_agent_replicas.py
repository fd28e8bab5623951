"""The unmodified LangGraph client behind a balancer without stickiness, while servers, Redis and workers go away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError

from runlane.testing import RedisServer
from tests.chaos.balancer import Balancer
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.forking import GRAPHS
from tests.scale import scaled

MODULE = "tests.chaos.chaos_graphs"
STREAMS = scaled(5, 50)
TICKS = scaled(15, 60)
PAUSE_SECONDS = 0.1
# Runs wait here until the disturbance is over, so that none ends before it.
GATE = "disturbed"
GATE_AT = TICKS - 3


@asynccontextmanager
async def client_of(url: str) -> AsyncGenerator[Any]:
    """Return the SDK's client. It opens a connection for each request, so that a balancer can choose each time."""
    client = get_client(url=url, api_key=None, headers={"Connection": "close"})
    try:
        yield client
    finally:
        await client.aclose()


async def graphs_cluster(make_cluster: MakeCluster, redis: RedisServer | None, workers: int = 2) -> Cluster:
    environment = {} if redis is None else {"RUNLANE_REDIS_URL": redis.url}
    cluster = await make_cluster("postgres", **environment, **GRAPHS)
    cluster.tasks = MODULE
    await cluster.start_workers(workers, concurrency=STREAMS + 5)
    return cluster


def ticks(count: int = TICKS) -> dict[str, Any]:
    return {"count": 0, "wanted": count, "pause_seconds": PAUSE_SECONDS}


@pytest.mark.parametrize("with_redis", [True, False])
async def test_requests_alternate_between_replicas(
    make_cluster: MakeCluster, request: pytest.FixtureRequest, with_redis: bool
) -> None:
    cluster = await graphs_cluster(make_cluster, request.getfixturevalue("chaos_redis") if with_redis else None)
    urls = await cluster.start_servers(2)
    async with Balancer(urls) as balancer, client_of(balancer.url) as client:
        thread = (await client.threads.create(metadata={"topic": "x"}))["thread_id"]
        values = await client.runs.wait(thread, "ticking", input=ticks(3))
        assert values["count"] == 3
        parts = [part async for part in client.runs.stream(thread, "ticking", input=ticks(6), stream_mode="custom")]
        assert [part.data["tick"] for part in parts if part.event == "custom"] == [3, 4, 5]
        assert parts[-1].event == "end"
        assert (await client.threads.get_state(thread))["values"]["count"] == 6
        assert len(await client.threads.get_history(thread, limit=100)) > 6
        await client.threads.update_state(thread, {"count": 10}, as_node="tick")
        assert (await client.threads.get(thread))["values"]["count"] == 16
        run = await client.runs.create(thread, "ticking", input={**ticks(1000), "count": 0})
        joining = asyncio.create_task(client.runs.join(thread, run["run_id"]))
        await eventually(lambda: _is(client, thread, run["run_id"], "running"), "the run to start")
        await client.runs.cancel(thread, run["run_id"], wait=True)
        await joining
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"
        assert len(await client.runs.list(thread)) == 3
        assert [item["thread_id"] for item in await client.threads.search(metadata={"topic": "x"})] == [thread]
        await client.store.put_item(("a",), "k", {"v": 1})
        assert (await client.store.get_item(("a",), "k"))["value"] == {"v": 1}
        await client.threads.delete(thread)
        with pytest.raises(NotFoundError):
            await client.threads.get(thread)
        assert min(balancer.used[0], balancer.used[1]) > 5
    await cluster.check_story()


async def _is(client: Any, thread: str, run_id: str, status: str) -> bool:
    return (await client.runs.get(thread, run_id))["status"] == status


class Reader:
    """One client that streams one run, as the SDK delivers it."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    async def read(self, url: str) -> None:
        async with client_of(url) as client:
            thread = (await client.threads.create())["thread_id"]
            given = {**ticks(), "gate": GATE, "gate_at": GATE_AT}
            stream = client.runs.stream(
                thread, "ticking", input=given, stream_mode="custom", config={"recursion_limit": TICKS + 5}
            )
            async for part in stream:
                self.parts.append(part)

    @property
    def begun(self) -> bool:
        return sum(part.event == "custom" for part in self.parts) >= 3

    def check(self) -> None:
        """Check that every event arrived once, in order, with the end."""
        assert [part.data["tick"] for part in self.parts if part.event == "custom"] == list(range(TICKS))
        # The end has no number, and the SDK repeats the last one for it.
        numbers = [int(part.id) for part in self.parts[:-1] if part.id is not None]
        assert numbers == sorted(set(numbers))
        assert self.parts[-1].event == "end"
        assert self.parts[-1].data["status"] == "success"


async def read_through(cluster: Cluster, url: str, disturb: Callable[[], Awaitable[None]]) -> None:
    """Stream runs and disturb what serves them, after all have begun and before any can end."""
    readers = [Reader() for _ in range(STREAMS)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(url))

        async def all_begun() -> bool:
            return all(reader.begun for reader in readers)

        await eventually(all_begun, "every stream to begin", 120)
        await disturb()
        assert all(reader.parts[-1].event != "end" for reader in readers)
        cluster.open_gate(GATE)
    for reader in readers:
        reader.check()


async def test_a_replica_killed_under_streams_costs_no_event(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster = await graphs_cluster(make_cluster, chaos_redis)
    victim, other = cluster.start_server(), cluster.start_server()
    async with Balancer([await cluster.url_of(victim), await cluster.url_of(other)]) as balancer:

        async def kill() -> None:
            victim.kill()

        await read_through(cluster, balancer.url, kill)
    rows = await cluster.rows("select attempt, status from runs")
    assert [(row["attempt"], row["status"]) for row in rows] == [(1, "completed")] * STREAMS
    await cluster.check_story()


async def test_redis_flushed_and_restarted_under_streams_costs_no_event(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster = await graphs_cluster(make_cluster, chaos_redis)
    urls = await cluster.start_servers(2)
    async with Balancer(urls) as balancer:

        async def disturb() -> None:
            client = redis.asyncio.from_url(chaos_redis.url)
            await client.flushall()
            await client.aclose()
            await asyncio.to_thread(chaos_redis.restart)

        await read_through(cluster, balancer.url, disturb)
    await cluster.check_story()


async def test_a_rolling_deploy_of_workers_loses_no_run_and_charges_no_attempt(make_cluster: MakeCluster) -> None:
    cluster = await graphs_cluster(make_cluster, None, workers=0)
    old = await cluster.start_workers(2, concurrency=STREAMS + 5, environment={"RUNLANE_DRAIN_HANDOVER": "immediate"})
    urls = await cluster.start_servers(2)
    async with Balancer(urls) as balancer:

        async def deploy() -> None:
            for worker in old:
                await cluster.start_workers(1, concurrency=STREAMS + 5)
                worker.signal(signal.SIGTERM)
                assert await worker.ended() == 0, worker.log_text()

        await read_through(cluster, balancer.url, deploy)
    rows = await cluster.rows("select status, failures, losses, max(attempt) over () as most from runs")
    assert {(row["status"], row["failures"], row["losses"]) for row in rows} == {("completed", 0, 0)}
    assert rows[0]["most"] > 1, "no run was handed over"
    await cluster.check_story()


async def test_a_run_that_kills_its_workers_ends_its_streams_with_an_error(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres", RUNLANE_MAX_LOSSES="2", **GRAPHS)
    cluster.tasks = MODULE
    workers = await cluster.start_workers(1)
    urls = await cluster.start_servers(2)
    # A reader at the replica that accepted the run, one at the other, and one that waits for the values.
    async with client_of(urls[0]) as first, client_of(urls[1]) as second:
        thread = (await first.threads.create())["thread_id"]
        run = await first.runs.create(thread, "poison", input={"count": 0, "log": []}, durability="sync")
        reading = [asyncio.create_task(_parts(client, thread, run["run_id"])) for client in (first, second)]
        joining = asyncio.create_task(second.runs.join(thread, run["run_id"]))

        async def ended() -> bool:
            if not workers[-1].alive:
                workers.append(cluster.start_worker())
            await cluster.skip_waits()
            return (await first.runs.get(thread, run["run_id"]))["status"] == "error"

        await eventually(ended, "the end of the run", 120)
        for parts in await asyncio.gather(*reading):
            attempts = [part.data["attempt"] for part in parts if part.event == "metadata"]
            assert attempts == list(range(1, len(attempts) + 1))
            assert len(attempts) == 3, "two losses are allowed"
            assert [part.event for part in parts[-2:]] == ["error", "end"]
            assert parts[-2].data["error"] == "WorkerLost"
        assert (await joining)["__error__"]["error"] == "WorkerLost"
        assert (await second.threads.get(thread))["status"] == "error"
        # A later run starts from the last whole superstep of the thread.
        assert (await second.threads.get_state(thread))["values"]["log"] == ["first"]
    stored = await cluster.rows("select outcome, worker_id from run_attempts order by attempt")
    assert [row["outcome"] for row in stored] == ["lost"] * 3
    assert len({row["worker_id"] for row in stored}) == 3
    await cluster.check_story()


async def _parts(client: Any, thread: str, run_id: str) -> list[Any]:
    return [part async for part in client.runs.join_stream(thread, run_id)]


async def test_a_thread_deleted_while_a_run_executes_elsewhere_leaves_nothing(make_cluster: MakeCluster) -> None:
    cluster = await graphs_cluster(make_cluster, None)
    urls = await cluster.start_servers(2)
    async with Balancer(urls) as balancer, client_of(balancer.url) as client:
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "gated", input={"count": 0, "log": []})
        later = await client.runs.create(thread, "gated", input={"count": 0, "log": []})
        await eventually(lambda: _waits(cluster), "the node that waits")
        deleting = asyncio.create_task(client.threads.delete(thread))
        await eventually(lambda: _cancels(cluster, run["run_id"]), "the cancellation of the run")
        cluster.open_gate("gate")
        await deleting

        async def nothing_left() -> bool:
            found = await cluster.rows(_LEFT.format(thread=thread))
            return [row["number"] for row in found] == [0] * len(found)

        await eventually(nothing_left, "everything of the thread to be gone")
        for run_id in (run["run_id"], later["run_id"]):
            with pytest.raises(NotFoundError):
                await client.runs.get(thread, run_id)


_LEFT = " union all ".join(
    [
        "select count(*) as number from threads where id = '{thread}'",
        *(
            f"select count(*) from {table} where thread = '{{thread}}'"
            for table in ("thread_runs", "checkpoints", "checkpoint_values", "checkpoint_writes")
        ),
    ]
)


async def _waits(cluster: Cluster) -> bool:
    file = cluster.folder / "places.log"
    return file.exists() and "wait.begin" in file.read_text()


async def _cancels(cluster: Cluster, run_id: str) -> bool:
    rows = await cluster.rows(f"select cancel_requested_at from runs where id = '{run_id}'")
    return not rows or rows[0]["cancel_requested_at"] is not None
