"""Bulk jobs: each run at most once, whatever happens to the processes that work on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from runlane import failpoints
from runlane.bus.memory import MemoryBus
from runlane.domain.bulk import BulkActionName, BulkState, ItemState
from runlane.domain.dead_letter import LetterState
from runlane.domain.run import Status
from runlane.domain.tags import MAX_TAGS
from runlane.errors import InvalidInput, InvalidRequest, RunNotFound, UnknownLane
from runlane.failures import bulk_runner, requests
from runlane.failures.bulk_runner import BulkRunner
from runlane.failures.requests import BulkChange, create_bulk, preview_bulk
from runlane.store.access.audit import list_audit
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.failures.bulk_items import list_items, preview_items, settle_item
from runlane.store.failures.bulk_jobs import (
    count_overdue_jobs,
    delete_old_job,
    hold_job,
    list_jobs,
    next_job_seconds,
    read_job,
    stop_job,
    take_job,
)
from runlane.store.failures.letters import LetterFilter, count_open_letters, list_letters, read_letter
from runlane.store.queue.claim import Claimed
from runlane.store.queue.lanes import LaneChange, declare_lanes, set_lane
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.sql.database import open_database
from tests.harness import Store, completed, dead, entry_of, new_run, settings_for

EVERY_RUN = RunFilter()
OPEN = tuple(status for status in Status if not status.terminal)


class Killed(BaseException):
    """Ends a runner as a crash would: nothing after the failpoint happens."""


def runner_of(store: Store) -> BulkRunner:
    return BulkRunner(store.database, MemoryBus())


async def finish(store: Store, job_id: str) -> None:
    bulk = runner_of(store)
    while (await read_job(store.database, job_id)).state is BulkState.RUNNING:
        await bulk.run_once()


async def dead_runs(store: Store, count: int, **fields: Any) -> list[str]:
    worker = await store.worker()
    await store.add_all(*(new_run(**fields) for _ in range(count)))
    claims: list[Claimed] = []
    while batch := await store.claim(worker, 10):
        claims += batch
    await store.record(*(entry_of(claimed, dead()) for claimed in claims))
    return sorted(claimed.run_id for claimed in claims)


def request(action: str, **fields: Any) -> BulkChange:
    return BulkChange(BulkActionName(action), **fields)


async def revivals(store: Store) -> Counter[str]:
    rows = await store.sql("select run_id from run_events where type = 'revived'")
    return Counter(row["run_id"] for row in rows)


async def test_a_replay_retries_each_dead_letter_once_and_lowers_its_priority(store: Store) -> None:
    ids = await dead_runs(store, 30)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    await finish(store, job.id)
    done = await read_job(store.database, job.id)
    assert (done.state, done.total, done.changed, done.refused) == (BulkState.COMPLETED, 30, 30, 0)
    assert await revivals(store) == Counter(ids)
    assert {(await store.get(run_id)).priority for run_id in ids} == {-10}
    assert (await count_open_letters(store.database)).count == 0


async def test_processes_that_share_a_job_or_die_in_it_change_each_run_once(store: Store) -> None:
    ids = await dead_runs(store, 60)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    crashes = iter([5, 11, 17, 23])
    left = next(crashes)

    def crash(point: str) -> None:
        nonlocal left
        left -= point in ("bulk.before_commit", "bulk.item_committed")
        if left == 0:
            left = next(crashes, -1)
            raise Killed(point)

    bulk = [runner_of(store) for _ in range(3)]
    failpoints.install(crash)
    try:
        for _ in range(20):
            await asyncio.gather(*(one.run_once() for one in bulk), return_exceptions=True)
            # A process that died has left its lease.
            await store.sql("update bulk_jobs set lease_until = 0")
    finally:
        failpoints.install(None)
    await finish(store, job.id)
    assert await revivals(store) == Counter(ids)
    assert (await read_job(store.database, job.id)).changed == 60


async def test_a_stopped_job_changes_nothing_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await dead_runs(store, 40)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter(), rate=10))
    await runner_of(store).run_once()
    stopped = await stop_job(store.database, job.id, actor="ann")
    assert (stopped.state, stopped.changed, stopped.stopped_by) == (BulkState.STOPPED, 10, "ann")
    assert not await runner_of(store).run_once()
    assert (await stop_job(store.database, job.id, actor="bob")).stopped_by == "ann"
    assert sum((await revivals(store)).values()) == 10
    # The newest come first; a new job takes the others.
    rest = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    assert rest.total == 30
    await finish(store, rest.id)
    assert await revivals(store) == Counter(ids)


async def test_a_stop_waits_for_the_run_that_is_being_changed(postgres_url: str) -> None:
    """On SQLite, which has one transaction at a time, there is nothing to wait for."""
    settings = settings_for(postgres_url)
    store = Store(settings, await open_database(settings))
    await declare_lanes(store.database, {"default"})
    await dead_runs(store, 1)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    holding, go = asyncio.Event(), asyncio.Event()
    taken = await take_job(store.database, "own", job.id)
    assert taken is not None

    async def work(session: Any) -> None:
        assert await hold_job(session, taken)
        assert await settle_item(session, job.id, 1)
        holding.set()
        await go.wait()

    changing = asyncio.create_task(store.database.transact(work))
    await holding.wait()
    stopping = asyncio.create_task(stop_job(store.database, job.id, actor="ann"))
    await asyncio.wait([stopping], timeout=0.2)
    assert not stopping.done()
    go.set()
    await changing
    assert (await stopping).changed == 1
    await store.database.close()


async def test_a_rate_paces_a_job_over_processes(store: Store) -> None:
    await dead_runs(store, 5)
    job = await create_bulk(store.database, request("replay", selection=LetterFilter(), rate=2))
    assert await runner_of(store).run_once()
    assert (await read_job(store.database, job.id)).changed == 2
    other = runner_of(store)
    assert not await other.run_once()
    assert 0 < (await next_job_seconds(store.database) or 0) <= 1
    assert other.wait_seconds() <= 1
    await store.sql("update bulk_jobs set next_at = 0")
    assert await other.run_once()
    assert (await read_job(store.database, job.id)).changed == 4


async def test_starts_are_spread_evenly(store: Store) -> None:
    ids = await dead_runs(store, 4)
    options = {"delay_seconds": 60, "spread_seconds": 4000}
    job = await create_bulk(store.database, request("replay", selection=LetterFilter(), options=options))
    await finish(store, job.id)
    runs = [await store.get(run_id) for run_id in reversed(ids)]
    assert {run.status for run in runs} == {Status.SCHEDULED}
    due = [run.due_at_us or 0 for run in runs]
    # A thousand seconds apart, plus the time between the transactions.
    assert all(900 < (later - earlier) / 1_000_000 < 1100 for earlier, later in pairwise(due))


async def test_runs_that_died_too_often_are_left_out_unless_forced(store: Store) -> None:
    (often, once) = await dead_runs(store, 2)
    await store.sql("update dead_letters set times_died = 5 where run_id = :id", id=often)
    job = await create_bulk(store.database, request("replay", ids=[often, once]))
    await finish(store, job.id)
    items = (await list_items(store.database, job.id)).items
    assert [(item.run_id, item.state, item.code) for item in items] == [
        (often, ItemState.REFUSED, "died_too_often"),
        (once, ItemState.CHANGED, None),
    ]
    forced = await create_bulk(store.database, request("replay", ids=[often], options={"force": True}))
    await finish(store, forced.id)
    assert await store.status(often) is Status.QUEUED


async def test_refused_runs_have_reasons_and_pages(store: Store) -> None:
    ids = await dead_runs(store, 3)
    job = await create_bulk(store.database, request("cancel", ids=ids))
    await finish(store, job.id)
    done = await read_job(store.database, job.id)
    assert (done.changed, done.refused) == (0, 3)
    first = await list_items(store.database, job.id, state=ItemState.REFUSED, limit=2)
    rest = await list_items(store.database, job.id, state=ItemState.REFUSED, limit=2, after=int(first.next_cursor or 0))
    assert [item.run_id for item in (*first.items, *rest.items)] == ids
    assert {item.code for item in first.items} == {"wrong_state"}
    assert "Only a run that has not ended" in (first.items[0].reason or "")
    assert rest.next_cursor is None


async def test_cancel_priority_and_lane(store: Store) -> None:
    ids = sorted(run.run_id for run in await store.add_all(*(new_run() for _ in range(5))))
    await set_lane(store.database, "slow", LaneChange(), create=True)
    wanted = RunFilter(statuses=OPEN, lane="default")
    for action, options in (("priority", {"priority": 7}), ("lane", {"lane": "slow"})):
        job = await create_bulk(store.database, request(action, selection=wanted, options=options))
        assert job.total == 5
        await finish(store, job.id)
    assert {((run := await store.get(run_id)).priority, run.lane) for run_id in ids} == {(7, "slow")}
    cancelled = await create_bulk(store.database, request("cancel", selection=RunFilter(statuses=OPEN, lane="slow")))
    await finish(store, cancelled.id)
    assert {await store.status(run_id) for run_id in ids} == {Status.CANCELLED}
    with pytest.raises(UnknownLane):
        await create_bulk(store.database, request("lane", ids=ids, options={"lane": "nowhere"}))


async def test_tags_are_added_and_removed_in_bulk_whatever_the_status(store: Store) -> None:
    ids = sorted(run.run_id for run in await store.add_all(*(new_run(tags=("new", "eu")) for _ in range(3))))
    await store.finish(await store.claim_one())
    full = await store.add(tags=tuple(f"t{number:02}" for number in range(MAX_TAGS)))
    job = await create_bulk(
        store.database, request("tag", selection=EVERY_RUN, options={"add": ["seen"], "remove": ["new"]}, actor="me")
    )
    await finish(store, job.id)
    done = await read_job(store.database, job.id)
    assert (done.changed, done.refused) == (3, 1)
    assert {(await store.get(run_id)).tags for run_id in ids} == {("eu", "seen")}
    found = (await search_runs(store.database, RunFilter(tags=("seen",)))).runs
    assert sorted(run.id for run in found) == ids
    (refused,) = (await list_items(store.database, job.id, state=ItemState.REFUSED)).items
    assert (refused.run_id, refused.code) == (full, "invalid_request")
    assert len(await list_audit(store.database, action="run.tag")) == 3
    for options, problem in (
        ({}, "Nothing to change"),
        ({"add": ["a b"]}, "not a valid tag"),
        ({"add": ["a"], "remove": ["a"]}, "added and removed"),
        ({"replace": ["a"]}, "replace"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            await create_bulk(store.database, request("tag", ids=ids, options=options))


async def test_runs_of_a_schedule_are_selected_by_it(store: Store) -> None:
    scheduled = await store.add(origin='{"schedule": "nightly"}')
    await store.add()
    ids, more = await preview_items(store.database, RunFilter(schedule_id="nightly"), 10)
    assert (ids, more) == ([scheduled], False)


async def test_letters_are_discarded_acknowledged_and_assigned_in_bulk(store: Store) -> None:
    await dead_runs(store, 3)
    for action, options in (("assign", {"to": "ann"}), ("acknowledge", {"note": "seen"}), ("discard", {"note": "old"})):
        job = await create_bulk(store.database, request(action, selection=LetterFilter(), options=options))
        await finish(store, job.id)
        assert (await read_job(store.database, job.id)).changed == 3
    page = await list_letters(store.database, LetterFilter((LetterState.DISCARDED,)))
    assert {(letter.note, letter.assigned_to) for letter in page.dead_letters} == {("old", "ann")}


async def test_restarts_in_bulk_resolve_their_letters(store: Store) -> None:
    ids = await dead_runs(store, 3)
    job = await create_bulk(store.database, request("replay", ids=ids, options={"kind": "restart"}))
    await finish(store, job.id)
    items = (await list_items(store.database, job.id)).items
    fresh = [item.new_run_id for item in items]
    assert len({*fresh}) == 3
    assert None not in fresh
    for _ in range(3):
        await store.finish(await store.claim_one(), completed())
    for run_id in ids:
        letter = await read_letter(store.database, run_id)
        assert letter is not None
        assert (letter.state, letter.run_status) == (LetterState.RESOLVED, Status.FAILED)


async def test_restarts_wait_while_a_limit_of_the_tenant_is_reached(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    ids = await dead_runs(store, 2, tenant="acme")
    await set_tenant(store.database, "acme", TenantChange(max_queued=1), actor="test")
    job = await create_bulk(store.database, request("replay", ids=ids, options={"kind": "restart"}))
    await runner_of(store).run_once()
    waiting = await read_job(store.database, job.id)
    assert (waiting.state, waiting.changed, waiting.refused) == (BulkState.RUNNING, 1, 0)
    await store.finish(await store.claim_one())
    await store.sql("update bulk_jobs set next_at = 0")
    await finish(store, job.id)
    assert (await read_job(store.database, job.id)).changed == 2


async def test_a_preview_is_exact_and_changes_nothing(store: Store) -> None:
    ids = await dead_runs(store, 7)
    preview = await preview_bulk(store.database, request("replay", selection=LetterFilter()))
    assert (preview.total, preview.run_ids) == (7, tuple(reversed(ids)))
    assert (await list_jobs(store.database)).jobs == ()
    job = await create_bulk(store.database, request("replay", selection=LetterFilter()))
    assert job.total == preview.total


async def test_a_request_is_checked_as_a_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_id, other) = await dead_runs(store, 2)
    await create_tenant(store.database, "acme", actor="test")
    monkeypatch.setattr(requests, "MAX_JOB_RUNS", 1)
    for wrong, problem in (
        (request("replay", selection=LetterFilter(target="other")), "matches nothing"),
        (request("replay", selection=LetterFilter()), "more than 1 runs"),
        (request("replay"), "either a filter or ids"),
        (request("replay", ids=[run_id], selection=LetterFilter()), "either a filter or ids"),
        (request("replay", ids=[run_id], rate=0), "rate=0"),
        (request("replay", ids=[run_id], options={"kind": "undo"}), "kind"),
        (request("replay", ids=[run_id], options={"state": {"a": 1}}), "from_step and state"),
        (request("priority", ids=[run_id], options={"priority": 101}), "priority"),
        (request("priority", ids=[run_id]), "priority: Field required"),
        (request("cancel", ids=[run_id], options={"colour": 1}), "colour"),
    ):
        for work in (create_bulk, preview_bulk):
            with pytest.raises((InvalidRequest, InvalidInput), match=problem):
                await work(store.database, wrong)
    for ids in ([run_id, "run_unknown"], [run_id, other]):
        with pytest.raises(RunNotFound):
            await create_bulk(store.database, request("cancel", ids=ids, tenant="acme"))
    assert await store.count("bulk_jobs") == await store.count("bulk_items") == 0


async def test_jobs_are_listed_per_tenant_and_deleted_when_old(store: Store) -> None:
    ids = await dead_runs(store, 2)
    mine = await create_bulk(store.database, request("replay", ids=ids[:1], tenant="default", actor="ann"))
    all_of_them = await create_bulk(store.database, request("replay", ids=ids[1:]))
    page = await list_jobs(store.database)
    assert [job.id for job in page.jobs] == [all_of_them.id, mine.id]
    assert [job.id for job in (await list_jobs(store.database, tenant="default")).jobs] == [mine.id]
    assert await count_overdue_jobs(store.database) == 0
    await store.sql("update bulk_jobs set next_at = next_at - 120000000")
    assert await count_overdue_jobs(store.database) == 2
    await finish(store, mine.id)
    await finish(store, all_of_them.id)
    assert not await store.database.transact(lambda session: delete_old_job(session, 3600))
    await store.sql("update bulk_jobs set ended_at = 1 where id = :id", id=mine.id)
    assert await store.database.transact(lambda session: delete_old_job(session, 3600))
    assert [job.id for job in (await list_jobs(store.database)).jobs] == [all_of_them.id]
    assert await store.count("bulk_items") == 1


async def test_one_run_that_cannot_be_changed_does_not_stop_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await dead_runs(store, 3)
    job = await create_bulk(store.database, request("acknowledge", ids=ids))
    settle = bulk_runner.settle_item

    async def broken(session: Any, job_id: str, no: int) -> bool:
        settled = await settle(session, job_id, no)
        if no == 2 and not broken_once:
            broken_once.append(no)
            raise ZeroDivisionError
        return settled

    broken_once: list[int] = []
    monkeypatch.setattr(bulk_runner, "settle_item", broken)
    await finish(store, job.id)
    items = (await list_items(store.database, job.id)).items
    assert [item.code for item in items] == [None, "internal_error", None]
