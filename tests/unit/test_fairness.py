"""Sharing between tenants: one that requests everything cannot keep the others from their turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from runlane.fairness import FairGate, FairQueue


def waiting(queue: FairQueue[str], tenant: str, count: int, amount: int = 1) -> None:
    for number in range(count):
        queue.add(tenant, amount, f"{tenant}{number}")


def test_a_tenant_alone_holds_at_most_its_share() -> None:
    queue: FairQueue[str] = FairQueue(4, 3)
    waiting(queue, "a", 10)
    assert queue.grant() == ["a0", "a1", "a2"]
    assert queue.grant() == []
    waiting(queue, "b", 2)
    assert queue.grant() == ["b0"]


def test_the_tenant_that_holds_least_is_next() -> None:
    queue: FairQueue[str] = FairQueue(3, 3)
    waiting(queue, "a", 6)
    assert queue.grant() == ["a0", "a1", "a2"]
    waiting(queue, "b", 6)
    queue.release("a", 1)
    assert queue.grant() == ["b0"]
    queue.release("a", 1)
    # Both hold one: it is the turn of the one that was served longest ago.
    assert queue.grant() == ["a3"]


def test_tenants_that_hold_equally_much_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(1, 1)
    served: list[str] = []
    for tenant in ("a", "b", "c"):
        waiting(queue, tenant, 3)
    for _ in range(9):
        (ticket,) = queue.grant()
        served.append(ticket)
        queue.release(ticket[0], 1)
    assert served == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_large_request_is_not_passed_by_small_ones() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    waiting(queue, "a", 1, 8)
    assert queue.grant() == ["a0"]
    queue.add("b", 6, "large")
    queue.add("b", 1, "small")
    queue.add("a", 1, "other")
    assert queue.grant() == []
    queue.release("a", 8)
    assert queue.grant() == ["large", "other", "small"]


def test_a_request_above_every_bound_is_served_alone() -> None:
    queue: FairQueue[str] = FairQueue(10, 5)
    queue.add("a", 50, "huge")
    assert queue.grant() == ["huge"]
    assert not queue.try_take("b", 1)
    queue.release("a", 50)
    assert queue.try_take("b", 1)


def test_charged_amounts_count_without_a_request() -> None:
    queue: FairQueue[str] = FairQueue(10, 5)
    queue.charge("a", 7)
    assert queue.held_by("a") == queue.used == 7
    assert not queue.try_take("a", 1)
    assert queue.try_take("b", 3)
    assert not queue.try_take("c", 1)


@pytest.mark.parametrize("seed", range(20))
def test_every_ticket_is_served_and_no_bound_is_passed(seed: int) -> None:
    chance = random.Random(seed)
    capacity = chance.randrange(1, 12)
    share = chance.randrange(1, capacity + 1)
    queue: FairQueue[int] = FairQueue(capacity, share)
    amounts = {number: (chance.choice("abc"), chance.randrange(1, share + 1)) for number in range(200)}
    fresh, running, served = list(amounts), set[int](), set[int]()
    while len(served) < len(amounts):
        if fresh and chance.random() < 0.5:
            ticket = fresh.pop()
            queue.add(*amounts[ticket], ticket)
        elif running:
            ticket = chance.choice(sorted(running))
            running.remove(ticket)
            served.add(ticket)
            queue.release(*amounts[ticket])
        running.update(queue.grant())
        assert queue.used == sum(amounts[ticket][1] for ticket in running) <= capacity
        for tenant in "abc":
            held = sum(amount for ticket in running for owner, amount in [amounts[ticket]] if owner == tenant)
            assert queue.held_by(tenant) == held <= share
    assert queue.used == 0


async def test_a_waiter_that_is_cancelled_gives_its_turn_to_the_next() -> None:
    gate = FairGate(1, 1)
    await gate.take("a")
    second, third = (asyncio.create_task(gate.take(tenant)) for tenant in ("b", "c"))
    await asyncio.sleep(0)
    second.cancel()
    gate.release("a")
    await third
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (gate.held_by("a"), gate.held_by("b"), gate.held_by("c")) == (0, 0, 1)


async def test_a_turn_that_comes_with_the_cancellation_is_given_back() -> None:
    gate = FairGate(1, 1)
    await gate.take("a")
    second = asyncio.create_task(gate.take("b"))
    await asyncio.sleep(0)
    gate.release("a")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert gate.held_by("b") == 0
    async with gate.enter("c"):
        assert gate.held_by("c") == 1
