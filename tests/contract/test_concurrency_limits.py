"""Concurrency limits: at most N runs of a key are admitted, the others wait, and no slot is lost or used twice."""

from __future__ import annotations

import asyncio

import pytest

from runlane.domain.concurrency import ConcurrencyStrategy
from runlane.domain.run import Accepted, Status
from runlane.errors import ConcurrencyLimited, NotFound
from runlane.store.chat.posting import post_turn
from runlane.store.orchestration.fork import fork_run
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.retention import delete_leftovers
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import approve_run, cancel_run, move_in, set_priority
from runlane.store.queue.timers import queue_due
from runlane.store.schedules.starting import PreparedRun, start_runs
from tests.harness import Store, completed, dead, entry_of, failed_once, new_run
from tests.limits import LimitedStore, limit, shared
from tests.scale import scaled


@pytest.fixture
def limited(store: Store) -> LimitedStore:
    return LimitedStore(store)


PAUSED = Finish(AttemptOutcome.PAUSED, Status.PAUSED)


async def statuses(limited: LimitedStore, ids: list[str]) -> list[Status]:
    return [await limited.store.status(run_id) for run_id in ids]


async def test_a_key_admits_its_number_and_the_rest_waits(limited: LimitedStore) -> None:
    ids = [await limited.add(limit("a", 2)) for _ in range(4)]
    other = await limited.add(limit("b", 2))
    assert await statuses(limited, ids) == [Status.QUEUED, Status.QUEUED, Status.BLOCKED, Status.BLOCKED]
    assert await limited.store.status(other) is Status.QUEUED
    assert await limited.slots() == {"a": 2, "b": 1}
    await limited.check()


async def test_a_batch_is_counted_in_its_order(limited: LimitedStore) -> None:
    requests = [new_run(limits=(limit("a", 2),)) for _ in range(5)]
    accepted = await limited.store.add_all(*requests)
    assert [item.status for item in accepted] == [Status.QUEUED] * 2 + [Status.BLOCKED] * 3


@pytest.mark.parametrize(
    "end",
    [completed(), dead(), Finish(AttemptOutcome.CANCELLED, Status.CANCELLED), PAUSED, failed_once()],
    ids=["completed", "failed", "cancelled", "paused", "retry"],
)
async def test_a_run_that_is_not_admitted_any_more_frees_its_slot(limited: LimitedStore, end: Finish) -> None:
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    await limited.store.finish(await limited.store.claim_one(), end)
    await limited.admit()
    assert await limited.store.status(second) is Status.QUEUED
    assert "default" in limited.rung
    assert (await limited.store.event_types(second))[:2] == ["queued", "admitted"]
    await limited.store.check_stream(first)
    await limited.check()


@pytest.mark.parametrize("outcome", [AttemptOutcome.HANDED_BACK, AttemptOutcome.RETRY_LATER])
async def test_a_run_that_is_queued_again_at_once_keeps_its_slot(
    limited: LimitedStore, outcome: AttemptOutcome
) -> None:
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    await limited.store.finish(await limited.store.claim_one(), Finish(outcome, Status.QUEUED))
    await limited.admit()
    assert await statuses(limited, [first, second]) == [Status.QUEUED, Status.BLOCKED]
    await limited.check()


async def test_a_run_that_was_started_gets_its_slot_back_before_new_ones(limited: LimitedStore) -> None:
    first, second, third = [await limited.add(limit("a", 1), priority=n) for n in (0, 0, 100)]
    claimed = await limited.store.claim_one()
    await limited.store.finish(claimed, failed_once())
    await limited.admit()
    # The third has the highest priority of those that wait.
    assert await statuses(limited, [second, third]) == [Status.BLOCKED, Status.QUEUED]
    await limited.store.make_due()
    assert await limited.store.status(first) is Status.BLOCKED
    running = await limited.store.claim_one()
    await limited.store.finish(running)
    await limited.admit()
    assert await statuses(limited, [first, second, third]) == [Status.QUEUED, Status.BLOCKED, Status.COMPLETED]


async def test_a_run_takes_a_slot_of_every_limit_or_none(limited: LimitedStore) -> None:
    one = await limited.add(limit("a", 1), limit("total", 2))
    two = await limited.add(limit("b", 1), limit("total", 2))
    three = await limited.add(limit("c", 1), limit("total", 2))
    four = await limited.add(limit("a", 1), limit("total", 2))
    assert await statuses(limited, [one, two, three, four]) == [
        Status.QUEUED,
        Status.QUEUED,
        Status.BLOCKED,
        Status.BLOCKED,
    ]
    assert await limited.slots() == {"a": 1, "b": 1, "total": 2}
    claims = {claimed.run_id: claimed for claimed in await limited.store.claim(await limited.store.worker())}
    await limited.store.finish(claims[one])
    await limited.admit()
    # The slot of `total` goes to the third, which waited before the fourth.
    assert await statuses(limited, [three, four]) == [Status.QUEUED, Status.BLOCKED]
    await limited.store.finish(claims[two])
    await limited.admit()
    assert await statuses(limited, [three, four]) == [Status.QUEUED, Status.QUEUED]
    assert await limited.slots() == {"a": 1, "c": 1, "total": 2}
    await limited.check()


async def test_a_run_waits_for_its_second_limit_when_the_first_has_room(limited: LimitedStore) -> None:
    await limited.add(limit("a", 1), limit("total", 1))
    holder = await limited.add(limit("b", 1))
    second = await limited.add(limit("b", 1), limit("total", 1))
    await cancel_run(limited.store.database, holder)
    await limited.admit()
    assert await limited.store.status(second) is Status.BLOCKED
    assert await limited.slots() == {"a": 1, "total": 1}
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    assert await limited.store.status(second) is Status.QUEUED
    await limited.check()


async def test_keys_take_turns_under_a_shared_limit(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    many = [await limited.add(limit("a", 100_000), shared("gpu")) for _ in range(scaled(20, 10_000))]
    few = await limited.add(limit("b", 100), shared("gpu"))
    order: list[str] = []
    for _ in range(3):
        claimed = await limited.store.claim_one()
        order.append(claimed.run_id)
        await limited.store.finish(claimed)
        await limited.admit()
    assert order[0] == many[0]
    assert few in order


async def test_an_admitted_run_does_not_overtake_runs_that_were_ready_before(limited: LimitedStore) -> None:
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    claimed = await limited.store.claim_one()
    ready = await limited.add(limit("b", 1))
    await limited.store.finish(claimed)
    await limited.admit()
    worker = await limited.store.worker()
    order = [(await limited.store.claim(worker, 1))[0].run_id for _ in range(2)]
    assert order == [ready, second]
    assert claimed.run_id == first


async def test_priority_decides_inside_a_key(limited: LimitedStore) -> None:
    await limited.add(limit("a", 1))
    low, high, changed = [await limited.add(limit("a", 1), priority=n) for n in (-5, 5, 0)]
    await set_priority(limited.store.database, changed, 50)
    order: list[str] = []
    for _ in range(4):
        claimed = await limited.store.claim_one()
        order.append(claimed.run_id)
        await limited.store.finish(claimed)
        await limited.admit()
    assert order[1:] == [changed, high, low]


async def test_a_limit_may_reject_new_runs(limited: LimitedStore) -> None:
    rejecting = limit("a", 1, ConcurrencyStrategy.REJECT_NEW)
    await limited.add(rejecting)
    keyed = new_run(limits=(rejecting,), idempotency_key="once")
    (verdict,) = await limited.store.accept(keyed)
    assert isinstance(verdict, ConcurrencyLimited)
    assert "1 of 1 runs for a" in str(verdict)
    assert await limited.store.count("runs") == 1
    await limited.store.finish(await limited.store.claim_one())
    # Its idempotency key is free again.
    (accepted,) = await limited.store.add_all(keyed._replace(id=new_run().id))
    assert accepted.status is Status.QUEUED
    assert not accepted.replayed


async def test_a_rejected_run_rejects_its_request_as_a_whole(limited: LimitedStore) -> None:
    rejecting = limit("a", 2, ConcurrencyStrategy.REJECT_NEW)
    verdicts = await limited.store.accept(*[new_run(limits=(rejecting,)) for _ in range(3)])
    assert all(isinstance(verdict, ConcurrencyLimited) for verdict in verdicts)
    assert await limited.store.count("runs") == 0
    assert await limited.slots() == {}


async def test_a_limit_may_cancel_the_oldest_running_run(limited: LimitedStore) -> None:
    cancelling = limit("a", 2, ConcurrencyStrategy.CANCEL_RUNNING)
    first, second = [await limited.add(cancelling) for _ in range(2)]
    claims = {claimed.run_id: claimed for claimed in await limited.store.claim(await limited.store.worker())}
    third = await limited.add(cancelling)
    assert await limited.store.status(third) is Status.BLOCKED
    await limited.admit()
    assert limited.cancelled == [first]
    assert (await limited.store.get(first)).cancel_requested_at_us is not None
    # It is requested once.
    await limited.admitter.admit({"default/job/a"})
    assert limited.cancelled == [first]
    await limited.store.finish(claims[first], Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    await limited.admit()
    assert await statuses(limited, [first, second, third]) == [Status.CANCELLED, Status.RUNNING, Status.QUEUED]


async def test_a_queued_run_is_cancelled_at_once_for_a_new_one(limited: LimitedStore) -> None:
    cancelling = limit("a", 1, ConcurrencyStrategy.CANCEL_RUNNING)
    ids = [await limited.add(cancelling) for _ in range(3)]
    await limited.admit()
    assert await statuses(limited, ids) == [Status.CANCELLED, Status.CANCELLED, Status.QUEUED]
    await limited.check()


async def test_an_unknown_shared_limit_is_refused_with_the_nearest_name(limited: LimitedStore) -> None:
    await limited.set_shared("database", 1)
    (verdict,) = await limited.store.accept(new_run(limits=(shared("databse"),)))
    assert isinstance(verdict, NotFound)
    assert 'did you mean "database"?' in str(verdict)
    assert await limited.store.count("runs") == 0


async def test_a_held_or_delayed_run_gets_its_slot_when_it_is_ready(limited: LimitedStore) -> None:
    held = await limited.add(limit("a", 1), hold=True)
    delayed = await limited.add(limit("a", 1), delay_us=60_000_000)
    first = await limited.add(limit("a", 1))
    assert await statuses(limited, [held, delayed, first]) == [
        Status.AWAITING_APPROVAL,
        Status.SCHEDULED,
        Status.QUEUED,
    ]
    assert (await approve_run(limited.store.database, held)).status is Status.BLOCKED
    await limited.store.make_due()
    await limited.admit()
    assert await statuses(limited, [held, delayed, first]) == [Status.BLOCKED, Status.BLOCKED, Status.QUEUED]
    for expected in (first, held, delayed):
        claimed = await limited.store.claim_one()
        assert claimed.run_id == expected
        await limited.store.finish(claimed)
        await limited.admit()
    await limited.check()


async def test_a_cancelled_waiting_run_lets_the_next_one_pass(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    first, second, third = [await limited.add(shared("gpu")) for _ in range(3)]
    await cancel_run(limited.store.database, second)
    await cancel_run(limited.store.database, first)
    await limited.admit()
    assert await limited.store.status(third) is Status.QUEUED
    assert await limited.waiting() == []
    await limited.check()


async def test_a_retried_run_waits_for_its_limit(limited: LimitedStore) -> None:
    failed = await limited.add(limit("a", 1))
    await limited.store.finish(await limited.store.claim_one(), dead())
    first = await limited.add(limit("a", 1))
    assert (await retry_run(limited.store.database, failed)).status is Status.BLOCKED
    await limited.admit()
    assert await statuses(limited, [failed, first]) == [Status.BLOCKED, Status.QUEUED]
    await cancel_run(limited.store.database, first)
    await limited.admit()
    assert await limited.store.status(failed) is Status.QUEUED


async def test_an_ordering_key_and_a_limit_both_hold(limited: LimitedStore) -> None:
    first = await limited.add(limit("a", 1), ordering_key="k")
    second = await limited.add(limit("a", 1), ordering_key="k")
    third = await limited.add(limit("a", 1), ordering_key="other")
    assert await statuses(limited, [first, second, third]) == [Status.QUEUED, Status.BLOCKED, Status.BLOCKED]
    await limited.store.finish(await limited.store.claim_one())
    # The second has its ordering key now, and waits for the limit as the third does.
    await limited.admit()
    found = await statuses(limited, [second, third])
    assert sorted(found) == [Status.BLOCKED, Status.QUEUED]
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    await limited.store.finish(await limited.store.claim_one())
    assert await statuses(limited, [first, second, third]) == [Status.COMPLETED] * 3
    await limited.check()


async def test_a_dependent_run_waits_for_its_limit_after_its_parents(limited: LimitedStore) -> None:
    parent = await limited.add(limit("a", 1))
    child = await limited.add(limit("a", 1), after=(parent,))
    other = await limited.add(limit("a", 1))
    assert await limited.waiting() == [other]
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    assert sorted(await statuses(limited, [child, other])) == [Status.BLOCKED, Status.QUEUED]
    await limited.check()


async def test_a_paused_run_that_is_due_waits_for_its_limit(limited: LimitedStore) -> None:
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    claimed = await limited.store.claim_one()
    await limited.store.record(entry_of(claimed, Finish(AttemptOutcome.PAUSED, Status.PAUSED, delay_us=1)))
    await limited.admit()
    await limited.store.database.transact(queue_due)
    await limited.admit()
    assert await statuses(limited, [first, second]) == [Status.BLOCKED, Status.QUEUED]
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    assert await limited.store.status(first) is Status.QUEUED


async def test_the_reason_names_the_limit_and_its_holders(limited: LimitedStore) -> None:
    first, second, third = [await limited.add(limit("customer-7", 2)) for _ in range(3)]
    reason = (await limited.store.get(third)).waiting_reason
    assert reason is not None
    assert reason["code"] == "concurrency_limit"
    assert reason["message"] == "2 of 2 runs for customer-7 are queued or running"
    assert sorted(reason["runs"]) == sorted([first, second])
    await limited.store.claim(await limited.store.worker())
    reason = (await limited.store.get(third)).waiting_reason
    assert reason is not None
    assert reason["message"] == "2 of 2 runs for customer-7 are running"
    assert (await limited.store.get(first)).waiting_reason is None


async def test_concurrent_accepts_of_one_key_never_pass_the_limit(limited: LimitedStore) -> None:
    await asyncio.gather(*(limited.add(limit("a", 3)) for _ in range(20)))
    assert await limited.slots() == {"a": 3}
    await limited.check()


async def test_a_quarantined_run_keeps_its_limit(limited: LimitedStore) -> None:
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    for _ in range(2):
        worker = await limited.store.worker()
        (claimed,) = await limited.store.claim(worker)
        assert claimed.run_id == first
        await limited.store.database.transact(lambda session, worker=worker: take_over(session, [worker]))
        await limited.check()
        await limited.admit()
        if (await limited.store.get(first)).status is Status.QUEUED:
            # Requeued at once, it keeps its slot.
            assert await limited.store.status(second) is Status.BLOCKED
    # Its second loss is followed by a delay, in which another run has the slot.
    assert await statuses(limited, [first, second]) == [Status.SCHEDULED, Status.QUEUED]
    await limited.store.make_due()
    await limited.admit()
    assert await limited.store.status(first) is Status.BLOCKED
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    assert await limited.store.status(first) is Status.QUEUED
    await limited.check()


async def test_a_fork_and_a_chat_turn_of_a_limited_run_take_their_own_slots(limited: LimitedStore) -> None:
    source = await limited.add(limit("a", 1))
    fork = new_run(limits=(limit("a", 1),))
    accepted = await fork_run(limited.store.database, source, 0, fork, actor="test")
    assert accepted.status is Status.BLOCKED
    await cancel_run(limited.store.database, source)
    await limited.admit()
    assert await limited.store.status(fork.id) is Status.QUEUED
    session = new_run(limits=(limit("a", 1),), target="agent:a", ordering_key="chat")
    posted = await post_turn(limited.store.database, session, session_id="s1", agent="a", message="hello", is_new=True)
    assert posted.accepted.status is Status.BLOCKED
    await limited.check()


async def test_a_run_that_is_accepted_without_the_locks_is_admitted_after_the_commit(limited: LimitedStore) -> None:
    run = new_run(limits=(limit("a", 1),))
    prepared = PreparedRun.of_text(PreparedRun(run).to_text())
    (started,) = await limited.store.database.transact(lambda session: start_runs(session, [prepared]))
    assert isinstance(started, Accepted)
    assert started.status is Status.BLOCKED
    await limited.admit()
    assert await limited.store.status(run.id) is Status.QUEUED
    await limited.check()


async def test_a_waiting_run_is_moved_to_another_lane_and_listed_as_blocked(limited: LimitedStore) -> None:
    await declare_lanes(limited.store.database, {"other"})
    first, second = [await limited.add(limit("a", 1)) for _ in range(2)]
    change = await limited.store.database.transact(lambda session: move_in(session, second, "other", actor="test"))
    assert change.status is Status.BLOCKED
    await cancel_run(limited.store.database, first)
    await limited.admit()
    moved = await limited.store.get(second)
    assert (moved.lane, moved.status) == ("other", Status.QUEUED)
    assert "other" in limited.rung


async def test_retention_deletes_a_limited_run_and_unused_turns(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    for key in "ab":
        await limited.add(limit(key, 1), shared("gpu"))
    for _ in range(2):
        await limited.store.finish(await limited.store.claim_one())
        await limited.admit()
    assert await limited.store.count("limit_turns") == 1
    await limited.store.database.transact(lambda session: delete_leftovers(session, 3600))
    assert await limited.store.count("limit_turns") == 0
    assert await limited.store.count("limit_slots") == 0
