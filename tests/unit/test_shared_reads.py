"""Concurrent callers share reads, and none of them gets a result from before its call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from runlane.store.sql.shared_reads import MOST_KEYS, READS, SharedReads, one_by_one


class Table:
    """A table that changes; its reads return when they are released."""

    def __init__(self) -> None:
        self.version = 1
        self.reads: list[list[str]] = []
        self.release = asyncio.Event()

    async def read(self, keys: Sequence[str]) -> Mapping[str, str | BaseException]:
        self.reads.append(list(keys))
        seen = self.version
        await self.release.wait()
        return {key: KeyError(key) if key == "missing" else f"{key}{seen}" for key in keys}


async def test_callers_at_the_same_time_share_a_read() -> None:
    table = Table()
    shared = SharedReads(table.read)
    table.release.set()
    found = await asyncio.gather(*(shared.get(key) for key in ("a", "b", "a")))
    assert found == ["a1", "b1", "a1"]
    assert table.reads == [["a", "b"]]


async def test_a_caller_does_not_get_a_read_that_began_before() -> None:
    table = Table()
    shared = SharedReads(table.read)
    async with asyncio.timeout(60):
        early = asyncio.create_task(shared.get("a"))
        while len(table.reads) < 1:  # noqa: ASYNC110 - a read has no event of its own
            await asyncio.sleep(0)
        table.version = 2
        late = [asyncio.create_task(shared.get("a")) for _ in range(3)]
        table.release.set()
        assert await early == "a1"
        assert [await one for one in late] == ["a2"] * 3
    assert len(table.reads) == 2


async def test_calls_are_collected_while_reads_are_in_progress() -> None:
    table = Table()
    shared = SharedReads(table.read)
    async with asyncio.timeout(60):
        calls: list[asyncio.Task[str]] = []
        for number in range(READS):
            calls.append(asyncio.create_task(shared.get(f"first{number}")))
            while len(table.reads) <= number:  # noqa: ASYNC110 - a read has no event of its own
                await asyncio.sleep(0)
        calls += [asyncio.create_task(shared.get(str(number))) for number in range(MOST_KEYS + 1)]
        await asyncio.sleep(0)
        table.release.set()
        await asyncio.gather(*calls)
    assert [len(keys) for keys in table.reads] == [*[1] * READS, MOST_KEYS, 1]


async def test_an_error_reaches_its_own_caller() -> None:
    table = Table()
    shared = SharedReads(table.read)
    table.release.set()
    found = await asyncio.gather(shared.get("a"), shared.get("missing"), return_exceptions=True)
    assert found[0] == "a1"
    assert isinstance(found[1], KeyError)


async def test_a_read_that_fails_fails_for_all_and_the_next_one_is_tried() -> None:
    failures = [OSError("away")]

    async def read(keys: Sequence[str]) -> Mapping[str, str]:
        if failures:
            raise failures.pop()
        return {key: key for key in keys}

    shared = SharedReads(read)
    found = await asyncio.gather(shared.get("a"), shared.get("b"), return_exceptions=True)
    assert [type(one) for one in found] == [OSError, OSError]
    assert await shared.get("a") == "a"


async def test_a_caller_that_leaves_does_not_cancel_the_read_of_others() -> None:
    table = Table()
    shared = SharedReads(table.read)
    async with asyncio.timeout(60):
        leaving, staying = (asyncio.create_task(shared.get("a")) for _ in range(2))
        while not table.reads:  # noqa: ASYNC110 - a read has no event of its own
            await asyncio.sleep(0)
        leaving.cancel()
        table.release.set()
        assert await staying == "a1"
    assert leaving.cancelled() or leaving.cancelling()


async def test_equal_keys_are_read_once_and_others_at_the_same_time() -> None:
    asked: list[str] = []

    async def read(key: str) -> str:
        asked.append(key)
        if key == "bad":
            raise ValueError(key)
        return key.upper()

    shared = SharedReads(one_by_one(read))
    found = await asyncio.gather(*(shared.get(key) for key in ("a", "b", "a", "bad")), return_exceptions=True)
    assert found[:3] == ["A", "B", "A"]
    assert isinstance(found[3], ValueError)
    assert asked == ["a", "b", "bad"]
    with pytest.raises(ValueError, match="bad"):
        await shared.get("bad")
