"""Flow control while the processes that start and execute runs are killed, counted from what is stored."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from runlane.domain.text import load_json
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.scale import scaled

NAMES = ("one", "two", "three")
STARTS = scaled(40, 300)


def starter(cluster: Cluster, name: str) -> Process:
    return cluster.start("starter", [sys.executable, "-m", "tests.chaos.chaos_starter", name, str(STARTS)])


async def accepted(cluster: Cluster, at_least: int) -> None:
    async def enough() -> bool:
        return (await cluster.rows("select count(*) as n from idempotency_keys"))[0]["n"] >= at_least

    await eventually(enough, f"{at_least} starts are accepted")


async def inputs(cluster: Cluster, target: str) -> list[dict[str, Any]]:
    rows = await cluster.rows(
        "select runs.id, runs.unique_key, runs.accepted_at, runs.ended_at, run_inputs.input from runs "
        f"join run_inputs on run_inputs.run_id = runs.id where target = '{target}' order by accepted_at, id"
    )
    return [{**row, "input": load_json(row["input"])} for row in rows]


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_every_rule_holds_although_processes_are_killed(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    workers = await cluster.start_workers(2, concurrency=4)
    starters = {name: starter(cluster, name) for name in NAMES}
    for number, name in enumerate(NAMES):
        await accepted(cluster, (number + 1) * STARTS // 3)
        starters[name].kill()
        starters[name] = starter(cluster, name)
        if number < len(workers):
            workers[number].kill()
            await cluster.start_workers(1, concurrency=4)
    for process in starters.values():
        assert await process.ended() == 0, process.log_text()
    await cluster.all_ended(120)
    await cluster.check_story()
    await check_batches(cluster)
    await check_debounced(cluster)
    await check_unique(cluster)
    assert await cluster.rows("select * from batch_items") == []


async def check_batches(cluster: Cluster) -> None:
    """Check that every input is in exactly one batch, in the order in which its process has sent it."""
    found = await inputs(cluster, "gather")
    batches = [[item["input"]["n"] for item in row["input"]["items"]] for row in found]
    collected = Counter(number for batch in batches for number in batch)
    assert collected == Counter(f"{name}-{number}" for name in NAMES for number in range(STARTS))
    assert max(len(batch) for batch in batches) <= 5
    for batch in batches:
        for name in NAMES:
            numbers = [int(item.rpartition("-")[2]) for item in batch if item.startswith(f"{name}-")]
            assert numbers == sorted(numbers)


async def check_debounced(cluster: Cluster) -> None:
    """Check that the last input of each document was used. How many starts a run has depends on their speed."""
    found = await inputs(cluster, "edit")
    last = {row["input"]["doc"]: row["input"]["n"] for row in found}
    assert last == dict.fromkeys(NAMES, STARTS - 1)
    assert len(NAMES) <= len(found) <= len(NAMES) * STARTS


async def check_unique(cluster: Cluster) -> None:
    """Check that no two runs of a customer were open at one moment."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in await inputs(cluster, "single"):
        spans[row["unique_key"]].append((row["accepted_at"], row["ended_at"]))
    assert len(spans) == 3
    for found in spans.values():
        for (_, ended_at), (accepted_at, _) in pairwise(sorted(found)):
            assert ended_at <= accepted_at
