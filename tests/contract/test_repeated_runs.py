"""A run that repeats another one has its options: a restart does not evade the limits of the run that failed."""

from __future__ import annotations

import pytest

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.run import Status
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry, RetryKind
from runlane.store.orchestration.fork import fork_run
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.submit.repeats import forked_run
from tests.harness import Store, dead, entry_of
from tests.limits import LimitedStore, limit, shared

LIMITS = (limit("a", 1), shared("db"))


@pytest.fixture
async def limited(store: Store) -> LimitedStore:
    limited = LimitedStore(store)
    await limited.set_shared("db", 1)
    return limited


async def restart(store: Store, run_id: str) -> str:
    change = await retry_letter(store.database, run_id, LetterRetry(kind=RetryKind.RESTART), actor="ann")
    assert change.new_run_id is not None
    return change.new_run_id


@pytest.mark.parametrize("of", LIMITS, ids=["key", "shared"])
async def test_a_restart_waits_for_the_limit_of_its_source(limited: LimitedStore, of: ConcurrencyLimit) -> None:
    store = limited.store
    first = await limited.add(of)
    await store.finish(await store.claim_one(), dead())
    second = await limited.add(of)
    fresh = await restart(store, first)
    assert (await store.status(second), await store.status(fresh)) == (Status.QUEUED, Status.BLOCKED)
    await store.finish(await store.claim_one())
    await limited.admit()
    assert await store.status(fresh) is Status.QUEUED
    await limited.check()


@pytest.mark.parametrize("of", LIMITS, ids=["key", "shared"])
async def test_a_fork_waits_for_the_limit_of_its_source(limited: LimitedStore, of: ConcurrencyLimit) -> None:
    store = limited.store
    first = await limited.add(of, plan='{"pins":{}}')
    claimed = await store.claim_one()
    step = StepRecord("draft", 1, "draft", "llm", StepOutcome.DONE, output='"text"')
    await store.record(entry_of(claimed, steps=[step], finish=dead()))
    second = await limited.add(of)
    no, new_run = await forked_run(store.database, first, "draft", {})
    fork = await fork_run(store.database, first, no, new_run, actor="ann")
    assert (await store.status(second), fork.status) == (Status.QUEUED, Status.BLOCKED)
    await limited.check()


async def test_a_restart_has_the_tags_and_the_fairness_key_of_its_source(store: Store) -> None:
    first = await store.add(tags=("night", "report"), fairness_key="customer-7")
    await store.finish(await store.claim_one(), dead())
    fresh = await restart(store, first)
    assert (await store.get(fresh)).tags == ("night", "report")
    (row,) = await store.sql("select fairness_key from runs where id = :id", id=fresh)
    assert row["fairness_key"] == "customer-7"
    tagged = await store.sql("select tag from run_tags where run_id = :id order by tag", id=fresh)
    assert [row["tag"] for row in tagged] == ["night", "report"]
