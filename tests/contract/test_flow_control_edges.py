"""Edges of flow control: a batch that is just full, and a run that another transaction changes while it is replaced."""

from __future__ import annotations

import asyncio

import pytest

from runlane.domain.run import Accepted, Status
from runlane.store.failures.letters import LetterFilter, list_letters
from runlane.store.queue.dependency_rows import LOCK_RUNS
from runlane.store.queue.flow_starts import LockedByOthers, lock_keys_of
from runlane.store.sql.database import Session
from tests.contract.test_flow_control import SEVEN, batch, unique
from tests.contract.test_interleavings import all_wait, held_open, on_postgres
from tests.flow_control import accepted, run_timers, start
from tests.harness import Store, dead


async def test_a_batch_that_is_just_full_waits_for_no_further_start(store: Store) -> None:
    found = [await accepted(store, start(batch(3), {"customer": 7, "n": n})) for n in range(3)]
    await run_timers(store)
    assert await store.status(found[0].run_id) is Status.QUEUED


async def test_a_batch_that_fails_is_one_dead_letter(store: Store) -> None:
    found = [await accepted(store, start(batch(3), {"customer": 7, "n": n})) for n in range(3)]
    await run_timers(store)
    await store.finish(await store.claim_one(), dead())
    (letter,) = (await list_letters(store.database, LetterFilter())).dead_letters
    assert {item.run_id for item in found} == {letter.run_id}


@on_postgres
async def test_a_start_that_replaces_a_locked_run_is_decided_again(store: Store) -> None:
    first = await accepted(store, start(unique("replace"), SEVEN))

    async def lock(session: Session) -> None:
        await session.fetch(LOCK_RUNS, ids=session.texts([first.run_id]))

    async with held_open(store, lock):
        replacing = asyncio.create_task(store.accept(start(unique("replace"), SEVEN)))
        await all_wait(store, replacing)
        assert replacing.done()
        with pytest.raises(LockedByOthers):
            await replacing
    assert await store.count("runs") == 1
    second = await accepted(store, start(unique("replace"), SEVEN))
    assert second.replaced_run_id == first.run_id
    assert await store.status(first.run_id) is Status.CANCELLED


@on_postgres
async def test_a_start_waits_for_its_own_key_alone(store: Store) -> None:
    """A key with many starts does not delay the starts of others."""
    rate = {"rate_limit": {"key": "{{customer}}", "max": 1, "per_seconds": 60}}
    busy = start(rate, SEVEN)
    async with held_open(store, lambda session: lock_keys_of(session, [busy])):
        other = await asyncio.wait_for(accepted(store, start(rate, {"customer": 8})), 30)
        same = asyncio.create_task(store.accept(start(rate, SEVEN)))
        await all_wait(store, same)
        assert not same.done()
    assert isinstance((await same)[0], Accepted)
    assert await store.status(other.run_id) is Status.QUEUED
