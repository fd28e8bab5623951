"""Concurrency limits while workers die: counted from the records of the tasks, not from those of the store."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence

import pytest

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.text import dump_json
from runlane.store.queue.accept import NewRun
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster
from tests.chaos.sink import Span
from tests.chaos.test_crash_points import check_end, survivor
from tests.chaos.test_order import end_of
from tests.harness import new_run
from tests.limits import limit, shared
from tests.scale import scaled

KEYS = {"a": 1, "b": 2, "c": 5}
SHARED = 4


def limited_run(key: str, *more: ConcurrencyLimit, milliseconds: float = 3) -> NewRun:
    arguments = {"milliseconds": milliseconds, "label": key}
    return new_run(target="short", input=dump_json(arguments), max_losses=1000, limits=(limit(key, KEYS[key]), *more))


def most_at_once(cluster: Cluster, spans: Sequence[Span]) -> int:
    """Return the largest number of attempts at one moment; one whose worker was killed ended with it."""
    edges = [(span.started_ns, 1) for span in spans] + [(end_of(cluster, span), -1) for span in spans]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_no_key_runs_more_than_its_number_while_workers_die(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    chance = random.Random(31)
    await cluster.app.set_concurrency_limit("gpu", SHARED)
    connection = await cluster.app.connect()
    count = scaled(180, 3_000)
    # Together they take more than two seconds, so some of the workers are killed before the last run has ended.
    runs = [limited_run(chance.choice("abc"), shared("gpu"), milliseconds=50) for _ in range(count)]
    workers = await cluster.start_workers(3)

    async def kill_workers() -> None:
        # A number and not a time: on a busy machine, workers would be killed as fast as they start.
        for _ in range(scaled(12, 200)):
            await asyncio.sleep(chance.uniform(0.3, 0.8))
            await cluster.online(workers[1])
            workers.pop(0).kill()
            workers.append(cluster.start_worker())

    killing = asyncio.create_task(kill_workers())
    for first in range(0, count, 20):
        await connection.accept(runs[first : first + 20])
    await cluster.all_ended(120)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert killing.cancelled() or killing.exception() is None, "the killing broke off"
    await cluster.check_story()
    cluster.check_effects([run.id for run in runs])
    spans = cluster.sink.spans()
    for key, number in KEYS.items():
        assert most_at_once(cluster, [span for span in spans if span.label == key]) <= number
    assert most_at_once(cluster, spans) <= SHARED
    assert await cluster.rows("select * from limit_slots") == []
    assert await cluster.rows("select * from limit_waits") == []
    assert len(await cluster.rows("select id from workers where status = 'lost'")) >= 1, "no kill proves nothing"


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("postgres", "admit.before_commit"),
        ("postgres", "admit.committed"),
        ("postgres", "finish.committed"),
        ("sqlite", "finish.committed"),
    ],
)
async def test_a_process_dies_between_an_end_and_the_next_admission(
    make_cluster: MakeCluster, kind: str, point: str
) -> None:
    cluster = await make_cluster(kind)
    await cluster.app.set_concurrency_limit("gpu", 1)
    runs = [limited_run("a", shared("gpu")) for _ in range(4)]
    await (await cluster.app.connect()).accept(runs)
    victim = cluster.start_worker(crash=CrashPoint(point))
    assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    async with survivor(cluster):
        await cluster.all_ended()
    await check_end(cluster, [run.id for run in runs])
    assert await cluster.rows("select * from limit_slots") == []
