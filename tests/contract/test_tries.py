"""Tries: what people see as the attempt of a run. Only a failure or a lost worker leads to another one."""

from __future__ import annotations

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.maintenance.reaper import Reaper
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.revival import retry_run
from tests.harness import Store


async def test_claims_after_a_pause_or_a_handover_are_not_a_new_try(store: Store) -> None:
    run_id = await store.add(max_attempts=2)
    worker = await store.worker()
    assert (await store.get(run_id)).tries == 0
    seen: list[tuple[int, int]] = []
    for finish in (
        Finish(AttemptOutcome.PAUSED, Status.PAUSED),
        Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED),
        Finish(AttemptOutcome.RETRY_LATER, Status.QUEUED),
        Finish(AttemptOutcome.FAILED, Status.QUEUED, error='{"type":"ValueError"}'),
        Finish(AttemptOutcome.FAILED, Status.FAILED, error='{"type":"ValueError"}'),
    ):
        claimed = await store.claim_one(worker)
        run = await store.get(run_id)
        assert claimed.tries == run.tries
        seen.append((run.attempt, run.tries))
        await store.finish(claimed, finish)
        if finish.status is Status.PAUSED:
            await store.sql("update runs set status = 'queued'")
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
    failed = await store.get(run_id)
    assert (failed.status, failed.tries) == (Status.FAILED, 2)
    await retry_run(store.database, run_id)
    assert (await store.claim_one(worker)).tries == 1
    tries = [event.data["tries"] for event in await store.events(run_id) if event.type == "worker_picked_up"]
    assert tries == [1, 1, 1, 1, 2, 1]


async def test_a_lost_worker_leads_to_another_try(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    await store.claim_one(worker)
    await store.expire(worker)
    await Reaper(store.settings, store.database, MemoryBus()).run_once()
    assert (await store.claim_one(await store.worker())).tries == 2
    assert (await store.get(run_id)).tries == 2
