"""Caps and ordering keys while workers die: checked with the records of the tasks, not with those of the store."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from itertools import pairwise

import pytest

from runlane.store.queue.lanes import LaneChange, set_lane
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.sink import Span
from tests.chaos.test_storm import kill_now_and_then
from tests.scale import scaled

KILLS = scaled(12, 1000)


def most_at_once(spans: list[Span]) -> int:
    """Return the largest number of spans open at one moment."""
    edges: list[tuple[int, int]] = []
    for span in spans:
        assert span.ended_ns is not None
        edges += [(span.started_ns, 1), (span.ended_ns, -1)]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


async def test_a_lane_with_two_slots_never_runs_three(cluster: Cluster) -> None:
    await set_lane(await cluster.app.database(), "capped", LaneChange(max_slots=2))
    await cluster.start_workers(4)
    runs = await cluster.app.enqueue_many([("capped", {"milliseconds": 3})] * 500)
    await cluster.all_ended(120)
    await cluster.check_story()
    cluster.check_effects([run.run_id for run in runs])
    spans = cluster.sink.spans()
    assert len(spans) == 500
    assert most_at_once(spans) == 2
    assert len({span.pid for span in spans}) >= 2, "one worker did everything, which proves little"


def end_of(cluster: Cluster, span: Span) -> int:
    """When an attempt stopped: by itself, or with its process."""
    if span.ended_ns is not None:
        return span.ended_ns
    [process] = [process for process in cluster.processes if process.pid == span.pid]
    assert process.ended_ns is not None, f"{span} neither ended nor was killed"
    return process.ended_ns


def check_order(cluster: Cluster, accepted: dict[str, list[str]]) -> None:
    """Per key: the runs began in the order in which they were accepted, each after the one before had ended."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in cluster.sink.spans():
        spans[span.label.split("/")[0]].append(span)
    for key, run_ids in accepted.items():
        began = list(dict.fromkeys(span.run_id for span in spans[key]))
        assert began == run_ids, f"the order of {key} was not kept"
        for first, second in pairwise(spans[key]):
            assert end_of(cluster, first) <= second.started_ns, f"{first} and {second} overlap"


async def accepted_by_key(cluster: Cluster) -> dict[str, list[str]]:
    accepted: dict[str, list[str]] = defaultdict(list)
    for row in await cluster.rows("select id, ordering_key from runs order by accepted_at, id"):
        accepted[row["ordering_key"]].append(row["id"])
    return accepted


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_order_is_kept_per_key_with_three_enqueuers_and_kills(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    chance = random.Random(22)
    workers = await cluster.start_workers(3)
    enqueuers = [
        cluster.start("enqueuer", [sys.executable, "-m", "tests.chaos.chaos_enqueuer", name, "100", "10"])
        for name in ("a", "b", "c")
    ]

    async def kill_workers() -> None:
        # On a slow machine kills without an end would cost more than the runs gain between them.
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.8, 1.6))
            # If they were killed faster than they begin, the end would never come.
            await cluster.online(workers[1])
            # The oldest: on a slow machine the newest may not have begun yet, and killing it would prove nothing.
            workers.pop(0).kill()
            workers.append(cluster.start_worker())

    killing = asyncio.create_task(kill_workers())
    for enqueuer in enqueuers:
        assert await enqueuer.ended() == 0, enqueuer.log_text()
    await cluster.all_ended(120)
    killing.cancel()
    [failure] = await asyncio.gather(killing, return_exceptions=True)
    assert failure is None or isinstance(failure, asyncio.CancelledError), "the killing failed"
    assert len(await cluster.rows("select id from workers where status = 'lost'")) >= 2, (
        "too few kills to prove anything"
    )
    await cluster.check_story()
    accepted = await accepted_by_key(cluster)
    run_ids = [run_id for key in accepted.values() for run_id in key]
    assert len(run_ids) == 300
    cluster.check_effects(run_ids)
    check_order(cluster, accepted)
    # What one enqueuer asked for under one key is in the order in which it asked.
    labels = {span.run_id: span.label for span in cluster.sink.spans()}
    for key in accepted.values():
        for name in ("a", "b", "c"):
            own = [labels[run_id] for run_id in key if f"/{name}/" in labels[run_id]]
            assert own == sorted(own)


@pytest.mark.parametrize("on_dead", ["skip", "block"])
async def test_a_dead_run_skips_or_blocks_its_key_while_workers_die(cluster: Cluster, on_dead: str) -> None:
    chance = random.Random(23)
    await cluster.start_workers(3)
    killing = asyncio.create_task(kill_now_and_then(cluster, chance))
    for place in range(30):
        task = "hopeless" if place == 10 else "short"
        arguments = {"label": f"only/{place}"} | ({} if task == "hopeless" else {"milliseconds": 50})
        await cluster.app.enqueue(task, arguments, ordering_key="only", on_dead=on_dead)
    dead: list[dict[str, object]] = []

    async def died() -> bool:
        dead[:] = await cluster.rows("select * from runs where status = 'failed'")
        return bool(dead)

    await eventually(died, "the death of the hopeless run")
    if on_dead == "block":
        # With the key held by a dead run, the others stay blocked until an operator decides.
        assert dead[0]["holds_key"]
        assert await cluster.count("status = 'blocked'") == 19
        await cluster.app.release(str(dead[0]["id"]))
    await cluster.all_ended(60)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    await cluster.check_story()
    accepted = await accepted_by_key(cluster)
    cluster.check_effects(accepted["only"])
    check_order(cluster, accepted)
    assert await cluster.count("holds_key") == 0
    assert await cluster.count("status = 'completed'") == 29
