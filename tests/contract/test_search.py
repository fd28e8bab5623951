"""Finding runs: a page looks at a bounded number of them, and reports it."""

from __future__ import annotations

from typing import Any

from runlane.store.access.tenants import create_tenant
from runlane.store.queue.search import RunFilter, search_run_ids, search_runs
from tests.harness import Store


async def test_a_rare_run_is_found_over_pages_that_are_truncated(store: Store) -> None:
    accepted = [await store.add(target="rare" if number == 0 else "job") for number in range(8)]
    wanted = RunFilter(target="rare")
    cursor: str | None = None
    pages: list[tuple[int, bool]] = []
    found: list[str] = []
    while True:
        page = await search_runs(store.database, wanted, below=cursor, limit=5, window=3)
        pages.append((len(page.runs), page.truncated))
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [(0, True), (0, True), (1, False)]
    assert found == accepted[:1]


async def test_a_page_without_a_filter_is_never_truncated(store: Store) -> None:
    accepted = [await store.add() for _ in range(5)]
    page = await search_runs(store.database, RunFilter(), limit=4, window=2)
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
    ids, more = await search_run_ids(store.database, RunFilter(target="rare"), 3)
    assert (ids, more) == (accepted[:0:-1], True)
    ids, more = await search_run_ids(store.database, RunFilter(target="rare"), 5)
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
    wanted = RunFilter(target="rare", id_prefix=rare[: len("run_") + 16])
    page = await search_runs(store.database, wanted, limit=5, window=2)
    assert ([run.id for run in page.runs], page.cursor, page.truncated) == ([rare], None, False)
