"""Calls in flight outlive their callers; of two answers to one request one counts, and both are paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runlane.agents.inflight import InflightCall, InflightCalls
from runlane.definitions.schema.definition import Orchestration
from runlane.interpreter.values import PendingStep

FLOW = Orchestration.model_validate({"id": "flow", "steps": [{"id": "s", "type": "print", "print_content": "x"}]})
TODO = PendingStep("s", FLOW, FLOW.steps[0], {})
Call = Callable[[InflightCall], Coroutine[Any, Any, str]]


class Provider:
    """Answers when the test releases it."""

    def __init__(self) -> None:
        self.made: list[InflightCall] = []
        self.kept: list[str] = []
        self.answer = asyncio.Event()
        self.store = asyncio.Event()

    async def __call__(self, flight: InflightCall) -> str:
        self.made.append(flight)
        await self.answer.wait()
        flight.answered = True
        await self.store.wait()
        self.kept.append(flight.kept_as)
        return f"answer {len(self.made)}"


async def given_up(flights: InflightCalls, call: Call, name: str = "0/model/0") -> None:
    """Make a call and cancel its caller."""
    asking = asyncio.create_task(flights.make(TODO, name, call))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_call_without_its_caller_still_completes() -> None:
    flights, provider = InflightCalls(1), Provider()
    await given_up(flights, provider)
    assert (flights.of("s"), flights.of("t")) == (True, False)
    provider.answer.set()
    provider.store.set()
    assert await flights.drain(60) == []
    assert (provider.kept, flights.of("s")) == (["0/model/0"], False)


async def test_calls_that_do_not_end_in_time_are_cut_off_and_reported() -> None:
    flights, provider = InflightCalls(1), Provider()
    await given_up(flights, provider)
    assert await flights.drain(0) == [TODO]
    assert (provider.kept, flights.of("s")) == ([], False)


async def test_an_answer_that_is_requested_again_is_late() -> None:
    flights, first, second = InflightCalls(3), Provider(), Provider()
    await given_up(flights, first)
    asking = asyncio.create_task(flights.make(TODO, "0/model/0", second))
    await asyncio.sleep(0)
    for provider in (first, second):
        provider.answer.set()
        provider.store.set()
    assert await asking == "answer 1"
    await flights.drain(60)
    assert (first.kept, second.kept) == (["late/3.1/0/model/0"], ["0/model/0"])


async def test_an_answer_that_is_being_stored_is_not_requested_again() -> None:
    flights, first, second = InflightCalls(1), Provider(), Provider()
    await given_up(flights, first)
    first.answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking = asyncio.create_task(flights.make(TODO, "0/model/0", second))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert second.made == [], "nothing would answer it"
    first.store.set()
    assert await asking == "answer 1"
    assert (first.kept, second.made) == (["0/model/0"], [])


async def test_a_call_that_is_cut_off_as_it_is_made_has_begun() -> None:
    flights, provider = InflightCalls(1), Provider()
    asking = asyncio.create_task(flights.make(TODO, "0/model/0", provider))
    await asyncio.sleep(0)
    assert provider.made == []
    await flights.stop()
    assert len(provider.made) == 1, "or it could not give back what it holds"
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_failure_after_its_caller_left_is_harmless() -> None:
    flights = InflightCalls(1)
    go = asyncio.Event()

    async def fails(_flight: InflightCall) -> str:
        await go.wait()
        raise ValueError("no")

    await given_up(flights, fails)
    go.set()
    assert await flights.drain(60) == []
