"""Shared concurrency limits: changes are exact when they return, and a limit in use is not deleted."""

from __future__ import annotations

import asyncio

import pytest

from runlane.domain.concurrency import shared_limit_key
from runlane.domain.run import Status
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.queue.admission import keys_with_room
from runlane.store.queue.shared_limits import (
    delete_shared_limit,
    find_shared_limit,
    list_shared_limits,
    set_shared_limit,
)
from tests.harness import Store, new_run
from tests.limits import LimitedStore, limit, shared
from tests.scale import scaled

GPU = shared_limit_key("default", "gpu")


@pytest.fixture
def limited(store: Store) -> LimitedStore:
    return LimitedStore(store)


async def counts(limited: LimitedStore) -> tuple[int, int, int]:
    rows = await limited.store.sql("select status from runs")
    found = [row["status"] for row in rows]
    return found.count("running"), found.count("queued"), found.count("blocked")


async def test_a_lower_number_takes_slots_from_queued_runs_at_once(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 6)
    for number in range(8):
        await limited.add(limit(f"k{number}", 1), shared("gpu"))
    await limited.store.claim(await limited.store.worker(), 2)
    assert await counts(limited) == (2, 4, 2)
    await set_shared_limit(limited.store.database, "default", "gpu", 3, actor="test")
    assert await counts(limited) == (2, 1, 5)
    await set_shared_limit(limited.store.database, "default", "gpu", 1, actor="test")
    # Running runs are not stopped.
    assert await counts(limited) == (2, 0, 6)
    await limited.admit()
    assert await counts(limited) == (2, 0, 6)
    await limited.check()


async def test_a_higher_number_admits_waiting_runs_by_their_age(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 0)
    ids = [item.run_id for item in await limited.store.add_all(*[new_run(limits=(shared("gpu"),)) for _ in range(40)])]
    assert await counts(limited) == (0, 0, 40)
    await limited.set_shared("gpu", 25)
    assert await counts(limited) == (0, 25, 15)
    assert {await limited.store.status(run_id) for run_id in ids[:25]} == {Status.QUEUED}
    await limited.check()


async def test_zero_starts_nothing_and_says_so(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 0)
    run_id = await limited.add(shared("gpu"))
    reason = (await limited.store.get(run_id)).waiting_reason
    assert reason is not None
    assert reason["message"] == "The concurrency limit for gpu is 0, so no run starts"
    assert await limited.store.claim(await limited.store.worker()) == []


async def test_a_limit_reports_its_use(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    for _ in range(3):
        await limited.add(shared("gpu"))
    (found,) = await list_shared_limits(limited.store.database, "default")
    assert (found.name, found.max_running, found.admitted, found.waiting) == ("gpu", 1, 1, 2)
    assert await list_shared_limits(limited.store.database, "other") == []
    assert (await find_shared_limit(limited.store.database, "default", "gpu")).updated_by == "test"


async def test_a_limit_in_use_is_not_deleted(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    await limited.add(shared("gpu"))
    with pytest.raises(Conflict, match="1 runs are admitted"):
        await delete_shared_limit(limited.store.database, "default", "gpu", actor="test")
    await limited.store.finish(await limited.store.claim_one())
    await delete_shared_limit(limited.store.database, "default", "gpu", actor="test")
    with pytest.raises(NotFound):
        await find_shared_limit(limited.store.database, "default", "gpu")
    actions = [row["action"] for row in await limited.store.sql("select action from audit order by id")]
    assert actions == ["concurrency_limit.set", "concurrency_limit.delete"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 129])
async def test_a_bad_name_is_refused(limited: LimitedStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid name"):
        await set_shared_limit(limited.store.database, "default", name, 1, actor="test")


async def test_a_bad_number_is_refused(limited: LimitedStore) -> None:
    with pytest.raises(InvalidRequest, match="max_running=-1"):
        await set_shared_limit(limited.store.database, "default", "gpu", -1, actor="test")


async def test_changes_and_claims_at_once_never_admit_more(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 5)
    for number in range(10):
        await limited.add(limit(f"k{number}", 1), shared("gpu"))
    worker = await limited.store.worker()

    async def change(number: int) -> None:
        await set_shared_limit(limited.store.database, "default", "gpu", number, actor="test")

    for number in (1, 4, 0, 3):
        await asyncio.gather(change(number), limited.store.claim(worker, 1))
        await limited.admit()
        running, queued, _ = await counts(limited)
        assert queued == 0 or running + queued <= number
        await limited.check()


async def test_the_fallback_finds_runs_that_a_process_left(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    first, second = [await limited.add(limit(key, 1), shared("gpu")) for key in "ab"]
    assert (await keys_with_room(limited.store.database, ""))[0] == []
    await limited.store.finish(await limited.store.claim_one())
    # The process ends here, between the commit and the admission.
    limited.freed.clear()
    keys, after = await keys_with_room(limited.store.database, "")
    assert (keys, after) == ([GPU], "")
    await limited.admitter.admit(keys)
    assert [await limited.store.status(run_id) for run_id in (first, second)] == [Status.COMPLETED, Status.QUEUED]


async def test_a_small_key_starts_within_two_turnovers_behind_a_long_queue(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 2)
    batch = [new_run(limits=(limit("a", 1_000), shared("gpu"))) for _ in range(scaled(300, 10_000))]
    for first in range(0, len(batch), 1000):
        await limited.store.add_all(*batch[first : first + 1000])
    small = await limited.add(limit("b", 1), shared("gpu"))
    worker = await limited.store.worker()
    started: list[str] = []
    for _ in range(3):
        claims = await limited.store.claim(worker)
        started += [claimed.run_id for claimed in claims]
        for claimed in claims:
            await limited.store.finish(claimed)
            await limited.admit()
    # Two runs of the long queue were admitted before; the small key has one of the next two slots.
    assert small in started[:4]


async def test_a_key_with_a_long_queue_of_its_own_does_not_keep_a_shared_limit(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    for _ in range(6):
        await limited.add(limit("a", 1), shared("gpu"))
    others = [await limited.add(limit(key, 1), shared("gpu")) for key in "bc"]
    order: list[str] = []
    for _ in range(5):
        claimed = await limited.store.claim_one()
        order.append(claimed.run_id)
        await limited.store.finish(claimed)
        await limited.admit()
        await limited.check()
    assert set(others) <= set(order[:4])
