"""Rules of flow control together with concurrency limits: whichever rule delays or ends a run, its slots are exact."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.domain.run import Status
from runlane.errors import ConcurrencyLimited
from tests.flow_control import accepted, described, pass_time, run_timers, start
from tests.harness import Store
from tests.limits import LimitedStore

ONE: dict[str, Any] = {"concurrency": [{"key": "{{customer}}", "max_running": 1}]}
SEVEN = {"customer": "customer-7"}


@pytest.fixture
def limited(store: Store) -> LimitedStore:
    return LimitedStore(store)


async def end_first(limited: LimitedStore) -> None:
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()


async def test_a_run_that_expires_before_it_is_admitted_waits_no_more(limited: LimitedStore) -> None:
    first = await accepted(limited.store, start(ONE, SEVEN))
    second = await accepted(limited.store, start({**ONE, "expires_after_seconds": 60}, SEVEN))
    third = await accepted(limited.store, start(ONE, SEVEN))
    assert [item.status for item in (first, second, third)] == [Status.QUEUED, Status.BLOCKED, Status.BLOCKED]
    await pass_time(limited.store, 61)
    await run_timers(limited.store)
    assert await limited.store.status(second.run_id) is Status.CANCELLED
    assert await limited.waiting() == [third.run_id]
    await end_first(limited)
    assert await limited.store.status(third.run_id) is Status.QUEUED
    await limited.check()


async def test_an_admitted_run_that_expires_frees_its_slot(limited: LimitedStore) -> None:
    first = await accepted(limited.store, start({**ONE, "expires_after_seconds": 60}, SEVEN))
    second = await accepted(limited.store, start(ONE, SEVEN))
    await pass_time(limited.store, 61)
    await run_timers(limited.store)
    await limited.admit()
    assert await limited.store.status(first.run_id) is Status.CANCELLED
    assert await limited.store.status(second.run_id) is Status.QUEUED
    await limited.check()


async def test_a_replaced_run_frees_its_slot_for_the_one_that_replaces_it(limited: LimitedStore) -> None:
    rules = {**ONE, "unique": {"key": "{{customer}}", "on_conflict": "replace"}}
    first = await accepted(limited.store, start(rules, SEVEN))
    second = await accepted(limited.store, start(rules, SEVEN))
    await limited.admit()
    assert await limited.store.status(first.run_id) is Status.CANCELLED
    assert await limited.store.status(second.run_id) is Status.QUEUED
    await limited.check()


async def test_a_throttled_run_takes_its_slot_when_it_is_due(limited: LimitedStore) -> None:
    rules = {**ONE, "throttle": {"key": "{{customer}}", "max": 1, "per_seconds": 60}}
    await accepted(limited.store, start(rules, SEVEN))
    second = await accepted(limited.store, start(rules, SEVEN))
    assert second.status is Status.SCHEDULED
    assert described(await limited.store.get(second.run_id)).startswith("throttled until ")
    await limited.check()
    await pass_time(limited.store, 61)
    await run_timers(limited.store)
    await limited.admit()
    assert await limited.store.status(second.run_id) is Status.BLOCKED
    assert described(await limited.store.get(second.run_id)) == "1 of 1 runs for customer-7 are queued or running"
    await end_first(limited)
    assert await limited.store.status(second.run_id) is Status.QUEUED
    await limited.check()


@pytest.mark.parametrize(
    "rule",
    [
        {"debounce": {"key": "{{customer}}", "delay_seconds": 60}},
        {"batch": {"key": "{{customer}}", "max_size": 10, "max_wait_seconds": 60}},
    ],
    ids=["debounce", "batch"],
)
async def test_joined_starts_take_one_slot_when_their_run_is_due(limited: LimitedStore, rule: dict[str, Any]) -> None:
    await accepted(limited.store, start(ONE, SEVEN))
    joined = [await accepted(limited.store, start({**ONE, **rule}, SEVEN)) for _ in range(3)]
    assert len({item.run_id for item in joined}) == 1
    await limited.admit()
    assert await limited.slots() != {}
    assert await limited.waiting() == []
    await pass_time(limited.store, 61)
    await run_timers(limited.store)
    await limited.admit()
    assert await limited.waiting() == [joined[0].run_id]
    await end_first(limited)
    assert await limited.store.status(joined[0].run_id) is Status.QUEUED
    await limited.check()


async def test_a_start_that_a_limit_rejects_uses_nothing_of_a_rate_limit(limited: LimitedStore) -> None:
    rules = {
        "concurrency": [{"key": "{{customer}}", "max_running": 1, "strategy": "reject_new"}],
        "rate_limit": {"key": "{{customer}}", "max": 2, "per_seconds": 3600},
    }
    await accepted(limited.store, start(rules, SEVEN))
    for _ in range(3):
        (verdict,) = await limited.store.accept(start(rules, SEVEN))
        assert isinstance(verdict, ConcurrencyLimited)
    await end_first(limited)
    await accepted(limited.store, start(rules, SEVEN))
    await limited.check()


async def test_a_skipped_start_leaves_the_slot_that_it_would_have_taken(limited: LimitedStore) -> None:
    several: dict[str, Any] = {"concurrency": [{"key": "{{customer}}", "max_running": 2}]}
    rules = {**several, "unique": {"key": "{{customer}}", "on_conflict": "skip"}}
    await accepted(limited.store, start(rules, SEVEN))
    assert (await accepted(limited.store, start(rules, SEVEN))).run_id == ""
    await limited.admit()
    other = await accepted(limited.store, start(several, SEVEN))
    assert other.status is Status.QUEUED
    await limited.check()
