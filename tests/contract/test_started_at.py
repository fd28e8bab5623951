"""A run has started when its first attempt did, however many attempts follow."""

from __future__ import annotations

from runlane.domain.run import Run, Status
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.search import RunFilter, running_in, search_runs
from runlane.store.sql.database import Session
from tests.harness import Store


async def shown(store: Store, run_id: str) -> list[Run]:
    """Return the run as it is read alone, and in every list that has it."""

    async def work(session: Session) -> list[Run]:
        return await running_in(session, None, 10)

    return [
        await store.get(run_id),
        *(await search_runs(store.database, RunFilter())).runs,
        *(await search_runs(store.database, RunFilter(tenant="default"))).runs,
        *await store.database.transact(work),
    ]


async def test_the_first_start_is_shown_and_the_latest_claim_beside_it(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    assert {run.started_at_us for run in await shown(store, run_id)} == {None}
    first = await store.claim_one(worker)
    assert {(run.started_at_us, run.claimed_at_us) for run in await shown(store, run_id)} == {
        (first.claimed_at_us, first.claimed_at_us)
    }
    await store.finish(first, Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED))
    second = await store.claim_one(worker)
    assert second.claimed_at_us > first.claimed_at_us
    while_running = await shown(store, run_id)
    assert len(while_running) == 4
    assert {(run.started_at_us, run.claimed_at_us) for run in while_running} == {
        (first.claimed_at_us, second.claimed_at_us)
    }
    await store.finish(second)
    assert {run.started_at_us for run in await shown(store, run_id)} == {first.claimed_at_us}
