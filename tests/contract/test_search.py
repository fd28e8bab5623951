"""Finding runs: every filter by an index or on a bounded number of runs, and pages that neither lose nor repeat one."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

import pytest

from runlane.domain.run import Run, Status
from runlane.domain.text import dump_json
from runlane.store.access.tenants import create_tenant
from runlane.store.failures.bulk_items import preview_items
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.run_counts import count_runs
from runlane.store.queue.run_ranges import RunIndex
from runlane.store.queue.search import MAX_SKEW_US, RunFilter, search_runs
from runlane.store.sql.database import open_database
from runlane.testing import DatabaseClock
from tests.harness import Store, dead, failed_once, new_run, settings_for

TENANTS = ("default", "acme", "small")
TARGETS = ("job", "mail", "orchestration:report")
LANES = ("default", "media")
ORIGINS = (None, None, '{"schedule": "nightly", "slot": 1}', '{"schedule": "hourly", "slot": 1}')
TAGS = ((), (), ("nightly",), ("nightly", "eu"), ("eu",))


async def some_runs(store: Store, count: int = 90) -> list[Run]:
    """Accept runs of several tenants, targets and lanes, and bring them into every status."""
    choose = random.Random(7)
    for tenant in TENANTS[1:]:
        await create_tenant(store.database, tenant, actor="test")
    requests = [
        new_run(
            tenant=choose.choice(TENANTS),
            target=choose.choice(TARGETS),
            lane=choose.choice(LANES),
            tags=choose.choice(TAGS),
            ordering_key=choose.choice((None, None, f"key-{number % 3}")),
            origin=choose.choice(ORIGINS),
            hold=number % 13 == 0,
            delay_us=3_600_000_000 if number % 11 == 0 else 0,
        )
        for number in range(count)
    ]
    # A key belongs to a tenant; here all of them are the default tenant's.
    requests = [request._replace(ordering_key=None) if request.tenant != "default" else request for request in requests]
    await store.add_all(*requests)
    for request in requests[:: len(TENANTS) + 4]:
        await cancel_run(store.database, request.id)
    worker = await store.worker()
    claims = await store.claim(worker, count // 2, targets=TARGETS)
    for number, claimed in enumerate(claims):
        if number % 3:
            await store.finish(claimed, dead() if number % 5 == 0 else None)
    await store.sql("update runs set status = 'paused' where id = :id", id=claims[0].run_id)
    return [await store.get(request.id) for request in requests]


def matches(run: Run, wanted: RunFilter) -> bool:
    """Return what the filter means, independent of any index."""
    return (
        (not wanted.statuses or run.status in wanted.statuses)
        and wanted.target in (None, run.target)
        and wanted.lane in (None, run.lane)
        and wanted.tenant in (None, run.tenant)
        and (not wanted.ids or run.id in wanted.ids)
        and (wanted.ordering_key is None or (run.ordering_key == wanted.ordering_key and run.tenant == "default"))
        and {*wanted.tags} <= {*run.tags}
        and wanted.schedule_id in (None, run.schedule_id)
        and (wanted.text is None or wanted.text in run.target)
        and (wanted.accepted_from_us is None or run.accepted_at_us >= wanted.accepted_from_us)
        and (wanted.accepted_before_us is None or run.accepted_at_us < wanted.accepted_before_us)
    )


def combinations(runs: list[Run]) -> list[RunFilter]:
    half = runs[len(runs) // 2].accepted_at_us
    choices: dict[str, tuple[Any, ...]] = {
        "tenant": (None, "default", "small"),
        "statuses": ((), (Status.FAILED,), (Status.QUEUED, Status.RUNNING), (Status.PAUSED, Status.COMPLETED)),
        "target": (None, "mail"),
        "lane": (None, "media"),
        "tags": ((), ("nightly",), ("nightly", "eu")),
        "text": (None, "rep"),
        "accepted_from_us": (None, half),
    }
    wanted = [RunFilter(**dict(zip(choices, values, strict=True))) for values in product(*choices.values())]
    beside: tuple[dict[str, Any], ...] = ({}, {"tags": ("nightly",)}, {"statuses": (Status.BLOCKED, Status.FAILED)})
    bounds: list[dict[str, Any]] = [{"ordering_key": "key-1"}, {"ids": tuple(run.id for run in runs[::2])}]
    for scheduled in (None, "nightly"):
        wanted += [RunFilter(**bound, **one, schedule_id=scheduled) for bound in bounds for one in beside]
        wanted += [RunFilter(**one, schedule_id="nightly", tenant=scheduled and "acme") for one in beside]
    return [*wanted, RunFilter(ids=tuple(run.id for run in runs), ordering_key="key-1"), RunFilter(schedule_id="none")]


async def test_every_combination_of_filters_lists_exactly_the_matching_runs(store: Store) -> None:
    runs = await some_runs(store)
    assert {run.status for run in runs} == {*Status}
    by_age = sorted(runs, key=lambda run: run.id, reverse=True)
    filters = combinations(runs)
    assert {wanted.index for wanted in filters} == {*RunIndex} - {RunIndex.PARENT}
    for wanted in filters:
        expected = [run.id for run in by_age if matches(run, wanted)]
        page = await search_runs(store.database, wanted, limit=len(runs) + 1)
        assert ([run.id for run in page.runs], page.cursor) == (expected, None), wanted


@pytest.mark.parametrize("window", [3, 10_000])
async def test_pages_neither_lose_nor_repeat_a_run(store: Store, window: int) -> None:
    runs = await some_runs(store)
    by_age = sorted(runs, key=lambda run: run.id, reverse=True)
    for wanted in (
        RunFilter(),
        RunFilter(tenant="default"),
        RunFilter(statuses=(Status.QUEUED, Status.COMPLETED, Status.RUNNING)),
        RunFilter(lane="media"),
        RunFilter(tags=("nightly",), target="mail"),
        RunFilter(schedule_id="nightly"),
        RunFilter(schedule_id="hourly", lane="media"),
        RunFilter(tenant="default", text="job"),
    ):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await search_runs(store.database, wanted, below=cursor, limit=4, window=window)
            found += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == [run.id for run in by_age if matches(run, wanted)], wanted


async def test_filters_without_an_index_are_checked_run_by_run(store: Store) -> None:
    everything = await some_runs(store)
    started = [run for run in everything if run.claimed_at_us is not None and run.status.terminal]
    worker = started[0].worker_id
    assert worker is not None
    failed = next(run for run in everything if run.status is Status.FAILED)
    error = failed.error or {}
    code = error.get("code") or error["type"]
    slow, paid, child = started[0].id, started[1].id, started[2].id
    await store.sql("update runs set ended_at = claimed_at + 90000000 where id = :id", id=slow)
    await store.sql("update run_attempts set started_at = started_at - 90000000 where run_id = :id", id=slow)
    for number, cost in enumerate((0.25, 0.5)):
        await store.sql(
            "insert into run_calls (run_id, path, key, attempt, kind, payload, cost_usd, at) "
            f"values (:id, 'answer', 'k{number}', 1, 'model', '{{}}', {cost}, 0)",
            id=paid,
        )
    await store.sql(
        "insert into idempotency_keys (key, fingerprint, run_id, created_at) values ('c', '', :id, 0)", id=child
    )
    await store.sql(
        "insert into run_children (key, run_id, path, begun_at) values ('c', :id, 'call', 0)", id=everything[0].id
    )
    pinned = everything[1]
    for run, plan in (
        (pinned, {"pins": {pinned.target: "v1", "other": "v2"}}),
        (everything[2], {"pins": {"other": "v1"}}),
    ):
        await store.sql("update run_inputs set plan = :plan where run_id = :id", plan=dump_json(plan), id=run.id)

    async def found(**wanted: Any) -> set[str]:
        chosen = RunFilter(**wanted)
        page = await search_runs(store.database, chosen, limit=200)
        # A bulk job selects what a list shows.
        selected, more = await preview_items(store.database, chosen, 200)
        assert (selected, more) == ([run.id for run in page.runs], False), chosen
        return {run.id for run in page.runs}

    assert await found(worker_id=worker) == {run.id for run in everything if run.worker_id == worker}
    assert await found(worker_id="wrk_none") == set()
    assert failed.id in await found(error_code=code)
    assert await found(error_code=code) <= {run.id for run in everything if run.error is not None}
    assert await found(error_code="no_such_code") == set()
    assert await found(definition="v1") == {pinned.id}
    assert await found(definition="v2") == set()
    assert await found(definition="v1", target=pinned.target) == {pinned.id}
    assert await found(min_duration_us=80_000_000, statuses=(Status.COMPLETED, Status.FAILED)) == {slow}
    assert slow not in await found(max_duration_us=80_000_000)
    assert await found(min_cost_usd=0.75) == {paid}
    assert await found(min_cost_usd=0.75, tenant="elsewhere") == set()
    assert paid not in await found(max_cost_usd=0.74)
    assert await found(roots_only=True) == {run.id for run in everything} - {child}
    assert await found(session_id="no_such_session") == set()
    assert await found(parent=everything[0].id) == {child}
    assert await found(parent=child) == set()


async def test_a_rare_text_is_found_over_pages_that_are_truncated(store: Store) -> None:
    accepted = [await store.add(target="rare" if number == 0 else "job") for number in range(8)]
    cursor: str | None = None
    pages: list[tuple[int, bool]] = []
    found: list[str] = []
    while True:
        page = await search_runs(store.database, RunFilter(text="RAR"), below=cursor, limit=5, window=3)
        pages.append((len(page.runs), page.truncated))
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [(0, True), (0, True), (1, False)]
    assert found == accepted[:1]


async def test_a_page_by_an_index_is_never_truncated(store: Store) -> None:
    accepted = [await store.add() for _ in range(5)]
    rare = await store.add(target="rare", lane="rare", tags=("rare",))
    await store.add_all(*(new_run() for _ in range(5)))
    for wanted in (RunFilter(target="rare"), RunFilter(lane="rare"), RunFilter(tags=("rare",))):
        page = await search_runs(store.database, wanted, limit=4, window=2)
        assert ([run.id for run in page.runs], page.cursor, page.truncated) == ([rare], None, False)
    page = await search_runs(store.database, RunFilter(), below=rare, limit=4, window=2)
    assert ([run.id for run in page.runs], page.truncated) == (accepted[:0:-1], False)
    rest = await search_runs(store.database, RunFilter(), below=page.cursor, limit=4, window=2)
    assert ([run.id for run in rest.runs], rest.cursor) == (accepted[:1], None)


async def test_a_window_counts_the_tenants_own_runs_alone(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    own = await store.add(tenant="acme", target="rare")
    for _ in range(6):
        await store.add()
    page = await search_runs(store.database, RunFilter(tenant="acme", text="RAR"), limit=5, window=3)
    assert ([run.id for run in page.runs], page.truncated, page.cursor) == ([own], False, None)


async def test_a_bulk_change_finds_what_is_beyond_a_full_page(store: Store) -> None:
    accepted = [await store.add(target="rare") for _ in range(4)]
    ids, more = await preview_items(store.database, RunFilter(target="rare"), 3)
    assert (ids, more) == (accepted[:0:-1], True)
    ids, more = await preview_items(store.database, RunFilter(target="rare"), 5)
    assert (len(ids), more) == (4, False)


async def test_runs_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    accepted = [await store.add() for _ in range(3)]
    other = await store.add(tenant="acme")

    async def found(**wanted: Any) -> list[str]:
        return [run.id for run in (await search_runs(store.database, RunFilter(**wanted), limit=10, window=2)).runs]

    assert await found(id_prefix="run_") == [other, *accepted[::-1]]
    for run_id in accepted:
        # Time and a counter, which are unique within one process.
        assert await found(id_prefix=run_id[: len("run_") + 16]) == [run_id]
        assert await found(id_prefix=run_id) == [run_id]
    assert await found(id_prefix=other[:-1], tenant="acme") == [other]
    assert await found(id_prefix=other[:-1], tenant="default") == []
    assert await found(id_prefix="run_ffffffff") == []


async def test_a_window_does_not_reach_below_the_ids_of_a_prefix(store: Store) -> None:
    await store.add()
    rare = await store.add(target="rare")
    await store.add()
    wanted = RunFilter(text="rare", id_prefix=rare[: len("run_") + 16])
    page = await search_runs(store.database, wanted, limit=5, window=2)
    assert ([run.id for run in page.runs], page.cursor, page.truncated) == ([rare], None, False)


async def test_runs_are_found_by_their_ids_and_those_of_others_are_not(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    mine, other = await store.add(), await store.add(tenant="acme")
    for tenant, expected in ((None, [other, mine]), ("default", [mine]), ("acme", [other])):
        wanted = RunFilter(ids=(mine, other, "run_unknown"), tenant=tenant)
        assert [run.id for run in (await search_runs(store.database, wanted)).runs] == expected


@pytest.mark.parametrize("url", ["sqlite_url", "copied_postgres"])
async def test_a_range_of_times_follows_the_clock_of_the_database(url: str, request: pytest.FixtureRequest) -> None:
    """Ids have the clock of the process; the database's may be ahead, as under a test clock."""
    settings = settings_for(request.getfixturevalue(url))
    async with DatabaseClock(settings) as clock, AsyncExitStack() as stack:
        database = await open_database(settings)
        stack.push_async_callback(database.close)
        store = Store(settings, database)
        old = await store.add()
        between = await store.get(await store.add())
        await clock.advance(7 * 86400)
        new = await store.add()

        async def found(**wanted: Any) -> list[str]:
            return [run.id for run in (await search_runs(store.database, RunFilter(**wanted))).runs]

        middle = between.accepted_at_us + 86_400_000_000
        assert await found(accepted_from_us=middle) == [new]
        assert await found(accepted_before_us=middle, tenant="default") == [between.id, old]
        assert await found(accepted_from_us=between.accepted_at_us, accepted_before_us=middle) == [between.id]
        assert await found(accepted_from_us=middle + 7 * 86_400_000_000) == []


async def test_a_range_of_times_finds_runs_of_processes_whose_clock_is_wrong(store: Store) -> None:
    run = await store.get(await store.add())
    for skew_us in (-MAX_SKEW_US + 1_000_000, MAX_SKEW_US - 1_000_000):
        at = run.accepted_at_us + skew_us
        await store.sql("update runs set accepted_at = :at where id = :id", at=at, id=run.id)
        wanted = RunFilter(accepted_from_us=at, accepted_before_us=at + 1)
        assert [found.id for found in (await search_runs(store.database, wanted)).runs] == [run.id]


async def test_counts_are_exact_up_to_their_bound(store: Store) -> None:
    runs = await some_runs(store)
    for tenant, target, lane in product((None, "default", "acme"), (None, "mail"), (None, "media")):
        wanted = RunFilter(tenant=tenant, target=target, lane=lane)
        counts = await count_runs(store.database, tenant, target=target, lane=lane)
        expected = {status: sum(run.status is status and matches(run, wanted) for run in runs) for status in Status}
        assert {item.status: item.count for item in counts} == expected
        assert all(item.exact for item in counts)
    bounded = {item.status: item for item in await count_runs(store.database, most=2)}
    assert (bounded[Status.QUEUED].count, bounded[Status.QUEUED].exact) == (2, False)
    assert (bounded[Status.PAUSED].count, bounded[Status.PAUSED].exact) == (1, True)


async def test_a_run_that_changes_its_status_is_on_the_page_at_every_moment(store: Store) -> None:
    """One statement reads all ranges: a run cannot leave one before it is read and enter another that was read."""
    run_id = await store.add()
    worker = await store.worker()
    seen: set[Status] = set()
    ended = False

    async def look() -> None:
        while not ended:
            page = await search_runs(store.database, RunFilter(tenant="default"))
            assert [run.id for run in page.runs] == [run_id]
            seen.add(page.runs[0].status)

    looking = asyncio.create_task(look())
    try:
        for _ in range(20):
            await store.finish(await store.claim_one(worker), failed_once())
            await store.make_due()
        await store.finish(await store.claim_one(worker))
    finally:
        ended = True
        await looking
    assert len(seen) > 1
