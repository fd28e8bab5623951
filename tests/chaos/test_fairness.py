"""Fair lanes while workers are killed: counted from the starts that the tasks recorded themselves."""

from __future__ import annotations

import pytest

from runlane.store.access.tenants import create_tenant
from tests.chaos.cluster import Cluster, MakeCluster, eventually

GREEDY, MODEST = "greedy", "modest"
SLOTS = 2
WORKERS = 2


async def started(cluster: Cluster, at_least: int) -> None:
    async def enough() -> bool:
        return len({span.run_id for span in cluster.sink.spans()}) >= at_least

    await eventually(enough, f"{at_least} runs started")


async def ranks(cluster: Cluster) -> dict[str, tuple[int, int]]:
    rows = await cluster.rows("select id, rank, start_tag from runs")
    return {row["id"]: (row["rank"], row["start_tag"]) for row in rows}


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_ten_runs_get_their_share_although_workers_are_killed(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    database = await cluster.app.database()
    for tenant in (GREEDY, MODEST):
        await create_tenant(database, tenant, actor="test")
    greedy = await cluster.app.enqueue_many([("short", {"milliseconds": 20})] * 200, tenant=GREEDY)
    workers = await cluster.start_workers(WORKERS, concurrency=SLOTS)
    await started(cluster, 10)
    before = await ranks(cluster)
    modest = await cluster.app.enqueue_many([("short", {"milliseconds": 20})] * 10, tenant=MODEST)
    kills = 0
    for victim in workers:
        begun = len({span.run_id for span in cluster.sink.spans()})
        victim.kill()
        kills += 1
        await cluster.start_workers(1, concurrency=SLOTS)
        await started(cluster, min(begun + 4, 205))
    await cluster.all_ended(120)
    ids = [run.run_id for run in (*greedy, *modest)]
    await cluster.check_story()
    cluster.check_effects(ids)
    # A run that was requeued has the rank that it was accepted with.
    after = await ranks(cluster)
    assert {run_id: after[run_id] for run_id in before} == before
    first: dict[str, int] = {}
    for span in sorted(cluster.sink.spans(), key=lambda span: span.started_ns):
        first.setdefault(span.run_id, span.started_ns)
    order = sorted(first, key=lambda run_id: first[run_id])
    tag_of = {run_id: after[run_id][1] for run_id in order}
    modest_ids = {run.run_id for run in modest}
    # Runs begin in the order of their tags, but for those that were claimed at the same time by other workers.
    earliest = min(tag_of[run_id] for run_id in modest_ids)
    between = [run_id for run_id in order if tag_of[run_id] >= earliest and run_id not in modest_ids]
    last_modest = max(order.index(run_id) for run_id in modest_ids)
    begun_before = sum(order.index(run_id) < last_modest for run_id in between)
    assert begun_before <= 10 + WORKERS * SLOTS * (kills + 2)
