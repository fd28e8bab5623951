"""Model calls in flight: each is a separate task, so that an abandoned step does not cancel it.

A provider bills a call whether or not its answer is still needed. A call therefore continues when its step is over, and
its answer is stored: under its own key, where another try of the step finds it, or, if that try has already repeated
the call, only for its cost. An attempt that ends waits for these calls for a limited time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from runlane.interpreter.values import PendingStep

T = TypeVar("T")


class InflightCall:
    """One call. `late`: the call was repeated. `answered`: the answer has arrived and is being stored."""

    __slots__ = ("answered", "late", "name", "number", "pending")

    def __init__(self, pending: PendingStep, name: str, number: str) -> None:
        self.pending = pending
        self.name = name
        self.number = number
        self.late = False
        self.answered = False

    @property
    def kept_as(self) -> str:
        """Return the key under which its answer is stored."""
        return f"late/{self.number}/{self.name}" if self.late else self.name


class InflightCalls:
    """The calls of one attempt. `attempt` makes the names of late answers differ from those of other attempts."""

    def __init__(self, attempt: int = 0) -> None:
        self._attempt = attempt
        self._made = 0
        self._open: dict[asyncio.Task[Any], InflightCall] = {}

    def of(self, path: str) -> bool:
        """Return whether a call of this step is in flight."""
        return any(flight.pending.path == path for flight in self._open.values())

    async def make(self, pending: PendingStep, name: str, call: Callable[[InflightCall], Coroutine[Any, Any, T]]) -> T:
        """Make a call and return its answer. If the caller is cancelled, the call continues."""
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
        """Wait for the calls in flight, at most `seconds`; cancel the rest and return their steps."""
        if self._open:
            await asyncio.wait(self._open, timeout=seconds)
        cut = [flight.pending for flight in self._open.values()]
        await self.stop()
        return cut

    async def stop(self) -> None:
        """Cancel every call that is in flight."""
        if not self._open:
            return
        try:
            # A call that was just created must begin; otherwise it would not release what it holds.
            await asyncio.sleep(0)
        finally:
            for task in self._open:
                task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        del self._open[task]
        if not task.cancelled():
            task.exception()  # retrieved, because no caller may be left


async def _result(task: asyncio.Task[T]) -> T:
    await asyncio.wait([task])
    return task.result()
