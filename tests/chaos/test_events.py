"""Events, triggers and run dependencies while workers die: one run per event and trigger, no run before its parents."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.test_storm import kill_now_and_then
from tests.scale import scaled

TRIGGERS = [
    {"id": f"on-{name}", "event": event, "condition": condition, "task": "short",
     "input": {"milliseconds": 1, "label": "{{event.data.label}}"}}
    for name, event, condition in (
        ("all", "order.*", None), ("even", "order.paid", "event.data.number % 2 == 0"), ("none", "order.*", "False"),
    )
]  # fmt: skip


@asynccontextmanager
async def kills(cluster: Cluster, seed: int) -> AsyncGenerator[None]:
    """Kill workers now and then while the block runs."""
    killer = asyncio.create_task(kill_now_and_then(cluster, random.Random(seed)))
    try:
        yield
    finally:
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)


async def nothing_pending(cluster: Cluster) -> bool:
    rows = await cluster.rows(
        "select (select count(*) from stored_events where matched_at is null) "
        "+ (select count(*) from event_outcomes where outcome = 'pending') as n"
    )
    return rows[0]["n"] == 0


async def release_claims(cluster: Cluster) -> None:
    """Let the claims of killed evaluators expire, as they do after a quarter of a minute."""
    await cluster.rows("update event_outcomes set claimed_until = 0 where outcome = 'pending' returning event_id")


async def check_pairs(cluster: Cluster, events: int) -> None:
    """Check that each event has one outcome per trigger, and each started one its own run."""
    rows = await cluster.rows("select * from event_outcomes")
    counts = {name: sum(row["trigger"] == name for row in rows) for name in {row["trigger"] for row in rows}}
    assert counts == {"on-all": events, "on-even": events, "on-none": events}
    started = {(row["event_id"], row["trigger"]): row["run_id"] for row in rows if row["outcome"] == "started"}
    assert len(started) == events + events // 2
    assert {row["outcome"] for row in rows} == {"started", "filtered"}
    origins = await cluster.rows("select run_id, origin from run_inputs")
    found = [(json.loads(row["origin"]), row["run_id"]) for row in origins]
    assert sorted((origin["event"], origin["trigger"], run_id) for origin, run_id in found) == sorted(
        (*pair, run_id) for pair, run_id in started.items()
    )


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_each_event_starts_one_run_per_trigger_while_evaluators_are_killed(
    make_cluster: MakeCluster, kind: str
) -> None:
    cluster = await make_cluster(kind)
    await cluster.app.sync({"triggers": TRIGGERS})
    await cluster.start_workers(scaled(4, 8))
    async with kills(cluster, 7):
        for start in range(0, 200, 20):
            await cluster.app.broadcast_many(
                [
                    {"name": "order.paid", "data": {"number": number, "label": f"e{number}"}, "id": f"id-{number}"}
                    for number in range(start, start + 20)
                ]
            )
            await asyncio.sleep(0.2)
    await release_claims(cluster)
    await eventually(lambda: nothing_pending(cluster), "every decision", 90)
    await cluster.all_ended(90)
    await check_pairs(cluster, 200)
    await cluster.check_story()
    cluster.check_effects([row["run_id"] for row in await cluster.rows("select run_id from run_inputs")])


@pytest.mark.parametrize("point", ["triggers.matched", "triggers.claimed", "triggers.started"])
async def test_an_evaluator_that_dies_at_the_worst_moment(make_cluster: MakeCluster, point: str) -> None:
    cluster = await make_cluster("postgres")
    await cluster.app.sync({"triggers": TRIGGERS})
    doomed = cluster.start_worker(crash=CrashPoint(point))
    await cluster.online(doomed)
    await cluster.app.broadcast_many(
        [{"name": "order.paid", "data": {"number": n, "label": f"e{n}"}} for n in range(4)]
    )
    await doomed.ended()
    await release_claims(cluster)
    await cluster.start_workers(2)
    await eventually(lambda: nothing_pending(cluster), "every decision")
    await cluster.all_ended()
    await check_pairs(cluster, 4)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_no_run_begins_before_its_parents_have_ended(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    await cluster.start_workers(3)
    parents: dict[str, list[str]] = {}
    async with kills(cluster, 9):
        for chain in range(5):
            before = (await cluster.app.enqueue("short", {"milliseconds": 5, "label": f"c{chain}"})).run_id
            for link in range(10):
                after = [before]
                run = await cluster.app.enqueue("short", {"milliseconds": 5, "label": f"c{chain}-{link}"}, after=after)
                parents[run.run_id] = after
                before = run.run_id
        wide = await cluster.app.enqueue_many([("short", {"milliseconds": 5})] * 100)
        after = [run.run_id for run in wide]
        joined = await cluster.app.enqueue("short", {"milliseconds": 1}, after=after)
        parents[joined.run_id] = after
        await cluster.all_ended(120)
    assert await cluster.count("status = 'completed'") == 5 * 11 + 101
    assert await cluster.rows("select * from dependency_work") == []
    spans = cluster.sink.spans()
    began = {run_id: min(span.started_ns for span in spans if span.run_id == run_id) for run_id in parents}
    for run_id, after in parents.items():
        for parent in after:
            ends = [span.ended_ns for span in spans if span.run_id == parent and span.ended_ns is not None]
            assert ends, f"{parent} never completed its task"
            assert min(ends) <= began[run_id], f"{run_id} began before {parent} had ended"
    await cluster.check_story()


@pytest.mark.parametrize("point", ["dependents.before_commit", "dependents.committed"])
async def test_a_settler_that_dies_at_the_worst_moment(make_cluster: MakeCluster, point: str) -> None:
    cluster = await make_cluster("postgres")
    head = await cluster.app.enqueue("short", {"milliseconds": 1}, hold=True)
    await cluster.app.enqueue("short", {"milliseconds": 1}, after=[head.run_id], ordering_key="k")
    behind = await cluster.app.enqueue("short", {"milliseconds": 1}, ordering_key="k")
    await cluster.app.cancel(head.run_id)
    doomed = cluster.start_worker(crash=CrashPoint(point))
    await doomed.ended()
    await cluster.start_workers(1)
    await cluster.all_ended()
    assert await cluster.count("status = 'cancelled'") == 2
    assert (await cluster.app.get(behind.run_id)).status == "completed"
    await cluster.check_story()


async def test_a_chain_that_can_never_start_ends_while_workers_die(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres")
    await cluster.start_workers(2)
    head = await cluster.app.enqueue("short", {"milliseconds": 1}, hold=True)
    chain = [head.run_id]
    for number in range(300):
        key = "k" if number % 10 == 0 else None
        run = await cluster.app.enqueue("short", {"milliseconds": 1}, after=[chain[-1]], ordering_key=key)
        chain.append(run.run_id)
    async with kills(cluster, 11):
        await cluster.app.cancel(head.run_id)
        await cluster.all_ended(90)
    assert await cluster.count("status = 'cancelled'") == 301
    assert await cluster.count("holds_key") == 0
    assert await cluster.rows("select * from dependency_work") == []
    await cluster.check_story()
