"""Memory of a worker: what runs hold, what a tenant may hold, and which runs wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.interpreter.failure import StepFailed
from runlane.orchestration.history import MAX_HISTORY, History
from runlane.orchestration.memory_budget import AttemptStepMemory, WorkerMemory
from runlane.steps.memory_budget import MemoryTimeout

UNHURRIED = 600.0


async def test_a_tenant_that_renders_much_waits_for_itself_and_for_no_other() -> None:
    memory = WorkerMemory(1000, UNHURRIED)
    first, second, other = memory.account("a"), memory.account("a"), memory.account("b")
    await first.take(400)
    waiting = asyncio.create_task(second.take(300))
    await asyncio.sleep(0)
    await other.take(500)
    assert not waiting.done()
    first.release(400)
    await waiting
    other.close()
    second.close()


async def test_a_step_releases_its_slot_when_there_is_no_room_in_time() -> None:
    memory = WorkerMemory(1000, 0.0)
    first, second = memory.account("a"), memory.account("a")
    await first.take(500)
    with pytest.raises(MemoryTimeout) as caught:
        await second.take(1)
    assert "500 bytes (half of RUNLANE_WORKER_TEXT_BYTES)" in caught.value.reason
    assert 2 <= caught.value.retry_in_seconds <= 10
    first.close()
    await second.take(1)


async def test_a_run_that_holds_more_than_a_tenant_may_is_refused_at_once() -> None:
    memory = WorkerMemory(1000, UNHURRIED)
    account = memory.account("a")
    await account.take(300)
    with pytest.raises(StepFailed) as caught:
        await account.take(201)
    assert caught.value.code == "run_too_large"
    assert "501 bytes" in caught.value.message
    assert account.excess() is None
    account.hold_state(201)
    assert "RUNLANE_WORKER_TEXT_BYTES" in (account.excess() or "")
    account.hold_state(200)
    assert account.excess() is None


async def test_the_room_of_a_step_is_given_back_and_what_the_run_holds_stays() -> None:
    memory = WorkerMemory(1000, 0.0)
    account, other = memory.account("a"), memory.account("a")
    account.hold_state(100)
    room = AttemptStepMemory(account)
    await room.take(100)
    await room.take(100)
    with pytest.raises(MemoryTimeout):
        await other.take(201)
    room.close()
    await other.take(400)
    account.close()
    other.close()
    await other.take(500)


async def test_a_run_is_admitted_with_its_state_when_there_is_room_for_it() -> None:
    memory = WorkerMemory(1000, 0.0)
    first, second, large = memory.account("a"), memory.account("a"), memory.account("b")
    await first.admit(400)
    first.hold_state(300)
    with pytest.raises(MemoryTimeout):
        await second.admit(300)
    first.close()
    await second.admit(300)
    # One that could never be admitted is failed instead of waiting forever.
    await large.admit(600)
    assert large.excess() is not None


def outputs(history: History, path: str = "x") -> list[Any]:
    return [earlier.output for earlier in history.before(path)]


def test_the_history_of_a_run_is_bounded_in_number_and_in_bytes() -> None:
    history = History(max_bytes=1000)
    for number in range(MAX_HISTORY + 20):
        history.add(f"s{number}", "s", "S", number)
    assert outputs(history) == list(range(20, MAX_HISTORY + 20))
    history.add("big", "s", "S", "x" * 900)
    assert outputs(history)[-1] == "x" * 900
    assert len(outputs(history)) < MAX_HISTORY
    history.add("huge", "s", "S", "x" * 5000)
    assert outputs(history) == ["x" * 5000]
    history.add("a/>inner", "s", "S", 1)
    assert outputs(history, "a/>other") == [1]
    assert outputs(history) == []
