"""Calls of models that are in flight: each is a task of its own, so that a step that is given up does not cut it off.

A provider bills what it was asked, whether or not somebody still wants the answer. So a call goes on when its step is
over, and its answer is kept: under its own name, where another try of the step finds it, or, if that one has asked
again already, only for the bill. Whoever ends the run decides how long calls may take to land.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from runlane.interpreter.values import PendingStep

T = TypeVar("T")


class InflightCall:
    """One call. `late` means that its answer was asked for anew; `answered`, that it is there and is being kept."""

    __slots__ = ("answered", "late", "name", "number", "pending")

    def __init__(self, pending: PendingStep, name: str, number: str) -> None:
        self.pending = pending
        self.name = name
        self.number = number
        self.late = False
        self.answered = False

    @property
    def kept_as(self) -> str:
        """The key under which its answer is kept."""
        return f"late/{self.number}/{self.name}" if self.late else self.name


class InflightCalls:
    """The calls of one attempt. `attempt` makes the names of late answers differ from those of other attempts."""

    def __init__(self, attempt: int = 0) -> None:
        self._attempt = attempt
        self._made = 0
        self._open: dict[asyncio.Task[Any], InflightCall] = {}

    def of(self, path: str) -> bool:
        """Whether a call of this step is in flight."""
        return any(flight.pending.path == path for flight in self._open.values())

    async def make(self, pending: PendingStep, name: str, call: Callable[[InflightCall], Coroutine[Any, Any, T]]) -> T:
        """The answer. If whoever asks is cancelled, the call goes on."""
        for task, other in self._open.items():
            if (other.pending.path, other.name) != (pending.path, name):
                continue
            if other.answered:
                return await _result(task)
            other.late = True
        self._made += 1
        flight = InflightCall(pending, name, f"{self._attempt}.{self._made}")
        task = asyncio.create_task(call(flight))
        self._open[task] = flight
        task.add_done_callback(self._landed)
        return await _result(task)

    async def drain(self, seconds: float) -> list[PendingStep]:
        """Wait for the calls in flight, so long at most; the steps of those that were cut off then."""
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)
        cut = [flight.pending for flight in self._open.values()]
        await self.stop()
        return cut

    async def stop(self) -> None:
        """Cut off every call that is in flight."""
        if not self._open:
            return
        try:
            # One that was made in this very moment has to begin, or it would not give back what it holds.
            await asyncio.sleep(0)
        finally:
            for task in self._open:
                task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        del self._open[task]
        if not task.cancelled():
            task.exception()  # there may be nobody left to hear it


async def _result(task: asyncio.Task[T]) -> T:
    await asyncio.wait([task])
    return task.result()
