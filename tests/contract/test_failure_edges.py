"""Edges of dead letters and bulk jobs: pages of one moment, fences of processes, two restarts at once."""

from __future__ import annotations

import pytest

from runlane.domain.dead_letter import LetterState, RetryKind
from runlane.errors import WrongState
from runlane.failures.letter_retry import PreparedRetry, lock_retry, prepare_letter, retry_letter_in
from runlane.failures.options import LetterRetry
from runlane.store.failures.bulk_items import list_items
from runlane.store.failures.bulk_jobs import TakenJob, hold_job, leave_job, take_job
from runlane.store.failures.letters import LetterFilter, list_letters, read_letter
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Session
from tests.contract.test_bulk_jobs import create_bulk, dead_runs, request
from tests.harness import Store


async def test_letters_of_one_moment_are_paged_without_loss(store: Store) -> None:
    ids = await dead_runs(store, 3)
    await store.sql("update dead_letters set died_at = 5")
    seen: list[str] = []
    cursor: str | None = None
    for _ in ids:
        page = await list_letters(store.database, LetterFilter(), cursor=cursor, limit=1)
        seen += [letter.run_id for letter in page.dead_letters]
        cursor = page.next_cursor
    assert seen == sorted(ids, reverse=True)


async def test_a_process_that_has_lost_a_bulk_job_changes_nothing_more(store: Store) -> None:
    await dead_runs(store, 2)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    late = await take_job(store.database, "a", job.id)
    assert late is not None
    assert await take_job(store.database, "b", job.id) is None
    assert await take_job(store.database, "b") is None
    await store.sql("update bulk_jobs set lease_until = 1")
    current = await take_job(store.database, "b", job.id)
    assert current is not None

    async def holds(taken: TakenJob) -> bool:
        return await store.database.transact(lambda session: hold_job(session, taken))

    assert [await holds(late), await holds(current)] == [False, True]
    await leave_job(store.database, late, 0)
    assert await take_job(store.database, "c", job.id) is None


async def test_a_bulk_job_has_as_many_runs_as_its_limit(store: Store) -> None:
    ids = await dead_runs(store, 3)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter(), limit=2))
    items = (await list_items(store.database, job.id)).items
    assert ([item.run_id for item in items], job.total) == (sorted(ids, reverse=True)[:2], 2)


async def test_of_two_restarts_of_a_letter_at_once_one_is_refused(store: Store) -> None:
    """Both have read the letter while it was open."""
    (run_id,) = await dead_runs(store, 1)
    how = LetterRetry(kind=RetryKind.RESTART)
    first, second = [await prepare_letter(store.database, run_id, how, 0) for _ in range(2)]
    started = await carry_out(store, run_id, first)
    with pytest.raises(WrongState, match="changed at the same time"):
        await carry_out(store, run_id, second)
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    assert (letter.state, letter.retry_run_id) == (LetterState.RETRYING, started.new_run_id)
    assert await store.count("runs") == 2


@pytest.mark.parametrize("kinds", [(RetryKind.RESTART, RetryKind.RESUME), (RetryKind.RESUME, RetryKind.RESTART)])
async def test_of_a_resume_and_a_restart_of_a_letter_at_once_one_is_refused(
    store: Store, kinds: tuple[RetryKind, RetryKind]
) -> None:
    """Both have read the letter while it was open. The run would be executed twice."""
    (run_id,) = await dead_runs(store, 1)
    first, second = [await prepare_letter(store.database, run_id, LetterRetry(kind=kind), 0) for kind in kinds]
    await carry_out(store, run_id, first)
    with pytest.raises(WrongState, match="changed at the same time"):
        await carry_out(store, run_id, second)
    assert await store.sql("select count(*) as n from runs where status = 'queued'") == [{"n": 1}]


async def carry_out(store: Store, run_id: str, prepared: PreparedRetry) -> RunChange:
    """Retry a letter as it was prepared."""

    async def work(session: Session) -> RunChange:
        await lock_retry(session, run_id, prepared)
        return await retry_letter_in(session, run_id, prepared, actor="test")

    return await store.database.transact(work)
