"""Pages of the events of a run are bounded in bytes, in both directions, and so are the reads of feeds."""

from __future__ import annotations

import pytest

from runlane.store.queue import events as events_module
from runlane.store.queue.event_pages import EventQuery, read_event_range
from runlane.store.queue.events import INLINE_BYTES, PART_BYTES, read_lines, read_page, read_part
from tests.harness import Store, entry_of

_LARGE = PART_BYTES * 2 // 5
_DATA = [
    '{"message":"small","path":"a"}',
    *(f'{{"message":"{number}{"x" * _LARGE}","path":"b"}}' for number in range(4)),
    f'{{"message":"{"y" * INLINE_BYTES}","path":"a"}}',
]
# A claimed run has the events of its acceptance and of its claim.
_FIRST = 3
_LAST = _FIRST + len(_DATA) - 1


@pytest.fixture
async def run_id(store: Store) -> str:
    await store.add()
    claimed = await store.claim_one()
    for data in _DATA:
        await store.record(entry_of(claimed, events=[("log", data)]))
    return claimed.run_id


async def test_a_part_has_a_bound_in_bytes_and_says_whether_more_follow(store: Store, run_id: str) -> None:
    found: list[str] = []
    after, more, parts = _FIRST - 1, True, 0
    while more:
        lines, more = await read_part(store.database, run_id, after, 500)
        assert sum(len(line.data) for line in lines) <= PART_BYTES
        found += [line.data for line in lines]
        after, parts = lines[-1].seq, parts + 1
    assert (found, parts) == (_DATA, 2)
    assert [line.seq for line in await read_page(store.database, run_id, 0, 500)] == [1, 2, 3, 4, 5]
    assert not (await read_part(store.database, run_id, _LAST, 500)).more
    assert (await read_part(store.database, run_id, 0, 2)).more


async def test_an_event_that_is_larger_than_a_part_is_a_part_of_its_own(store: Store, run_id: str) -> None:
    lines, more = await read_part(store.database, run_id, _FIRST, 500, 1000)
    assert ([line.seq for line in lines], more) == ([_FIRST + 1], True)


async def test_small_events_are_read_by_one_statement(
    store: Store, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(events_module, "_LARGE")
    assert len((await read_part(store.database, run_id, 0, 3)).lines) == 3
    with pytest.raises(NameError):
        await read_part(store.database, run_id, 0, 4)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("prefix", [None, "b"])
async def test_a_range_has_a_bound_in_bytes(store: Store, run_id: str, newest_first: bool, prefix: str | None) -> None:
    after, before = _FIRST - 1, _LAST + 1
    found: list[int] = []
    pages = 0
    while True:
        wanted = EventQuery(after, before, 500, newest_first=newest_first, path_prefix=prefix)
        page = await read_event_range(store.database, run_id, wanted)
        assert sum(len(line.data) for line in page.lines) <= PART_BYTES
        found += [line.seq for line in page.lines]
        pages += 1
        if page.looked_at is None:
            break
        after, before = (after, page.looked_at) if newest_first else (page.looked_at, before)
    wanted_numbers = [seq for seq, data in enumerate(_DATA, _FIRST) if prefix is None or f'"path":"{prefix}"' in data]
    assert found == sorted(wanted_numbers, reverse=newest_first)
    assert pages >= 2


async def test_feeds_do_not_read_large_values(store: Store, run_id: str) -> None:
    found = await read_lines(store.database, [(run_id, _FIRST - 1)], 500)
    assert [line.data or "" for line in found[run_id]] == [_DATA[0], "", "", "", "", ""]
