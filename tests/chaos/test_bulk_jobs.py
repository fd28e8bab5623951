"""A bulk replay whose processes are killed, and which is stopped in the middle: each run is replayed once."""

from __future__ import annotations

from collections import Counter

import pytest

from runlane.domain.bulk import BulkActionName, BulkState
from runlane.failures.requests import BulkChange, create_bulk
from runlane.store.failures.bulk_jobs import read_job, stop_job
from runlane.store.failures.letters import LetterFilter, count_open_letters
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.harness import Store, dead, entry_of, new_run
from tests.scale import scaled

RUNS = scaled(400, 10_000)
BATCH = 500


async def bury(cluster: Cluster) -> list[str]:
    """Store runs that failed for good."""
    store = Store(cluster.app.settings, await cluster.app.database())
    worker = await store.worker()
    buried: list[str] = []
    while len(buried) < RUNS:
        await store.add_all(*(new_run(lane="buried") for _ in range(min(BATCH, RUNS - len(buried)))))
        while claims := await store.claim(worker, BATCH):
            await store.record(*(entry_of(claimed, dead()) for claimed in claims))
            buried += [claimed.run_id for claimed in claims]
    return buried


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_each_run_is_replayed_once(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    database = await cluster.app.database()
    ids = await bury(cluster)
    # Fast enough for the test, and slow enough to be stopped in the middle.
    wanted = BulkChange(BulkActionName.REPLAY, LetterFilter(), rate=RUNS / 4)
    job_id = (await create_bulk(database, wanted)).id

    async def changed(at_least: int) -> bool:
        return (await read_job(database, job_id)).changed >= at_least

    for crash in (CrashPoint("bulk.before_commit", RUNS // 8), CrashPoint("bulk.item_committed", RUNS // 8)):
        victim = cluster.start_worker(lanes="default", crash=crash)
        assert await victim.ended() == -9
    assert await changed(RUNS // 8)
    # The runs stay queued: no worker serves their lane.
    workers = await cluster.start_workers(2, lanes="default")
    await eventually(lambda: changed(RUNS // 2), "half of the job")
    stopped = await stop_job(database, job_id, actor="test")
    assert stopped.state is BulkState.STOPPED
    revived = await cluster.events("revived")
    assert len(revived) == stopped.changed
    rest = await create_bulk(database, BulkChange(BulkActionName.REPLAY, LetterFilter()))
    assert rest.total == RUNS - stopped.changed
    workers[0].kill()

    async def completed() -> bool:
        return (await read_job(database, rest.id)).state is BulkState.COMPLETED

    await eventually(completed, "the end of the second job")
    assert Counter(event["run_id"] for event in await cluster.events("revived")) == Counter(ids)
    assert await cluster.count("status = 'queued'") == RUNS
    assert (await count_open_letters(database)).count == 0
    assert (await read_job(database, job_id)).changed == stopped.changed
