"""Memory that the runs of one worker may hold: states, rendered text and records that are not stored yet.

All orchestration runs of a worker share one budget, and a tenant holds at most half of it: a tenant that exhausts its
share makes only its own runs wait. A step that needs more memory waits for it, and releases the worker slot if that
takes long. States and records are counted without waiting, because they exist already; a run that by itself holds more
than the share of a tenant fails.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from runlane.fairness import FairGate
from runlane.interpreter.failure import StepFailed
from runlane.steps.memory_budget import MemoryTimeout

TOO_LARGE: Final = "run_too_large"
HOLD_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = (2.0, 10.0)
# An attempt reserves a little more than it holds, so that a small step does not access the budget.
_MAX_SPARE_BYTES: Final = 16 * 1024
_SPARE_PART: Final = 1024


class WorkerMemory:
    """The budget of one worker, in bytes."""

    def __init__(self, capacity: int, hold_seconds: float | None = None) -> None:
        self._gate = FairGate(capacity, max(1, capacity // 2))
        self._hold_seconds = HOLD_SECONDS if hold_seconds is None else hold_seconds

    def account(self, tenant: str) -> AttemptMemory:
        """Open the account of one attempt at a run."""
        return AttemptMemory(self._gate, tenant, self._hold_seconds)


class AttemptMemory:
    """The memory that one attempt holds. `close` releases all of it."""

    def __init__(self, gate: FairGate, tenant: str, hold_seconds: float) -> None:
        self._gate = gate
        self._tenant = tenant
        self._hold_seconds = hold_seconds
        self._spare = min(_MAX_SPARE_BYTES, gate.share // _SPARE_PART)
        self._held = 0
        self._reserved = 0
        self._state = 0
        self._unstored = 0

    def charge(self, size: int) -> None:
        """Count bytes that exist already."""
        self._held += size
        missing = self._held - self._reserved
        if missing > 0:
            self._reserved += missing + self._spare
            self._gate.charge(self._tenant, missing + self._spare)

    def release(self, size: int) -> None:
        """Count bytes that are no longer held."""
        self._held = max(0, self._held - size)
        excess = self._reserved - self._held - self._spare
        if excess > self._spare:
            self._reserved -= excess
            self._gate.release(self._tenant, excess)

    def hold_state(self, size: int) -> None:
        """Count the state of the run with its size after a step."""
        grown, self._state = size - self._state, size
        self._grow(grown)

    def hold_unstored(self, size: int) -> None:
        """Count the records and events of the run that are not stored yet."""
        grown, self._unstored = size - self._unstored, size
        self._grow(grown)

    async def admit(self, state_size: int) -> None:
        """Wait for memory for the state that a run continues with. Raises MemoryTimeout.

        A later run waits for the earlier ones, so that they do not evict each other in turn.
        """
        if state_size <= self._gate.share:
            await self.take(state_size)
            self._state = state_size
        else:
            self.hold_state(state_size)

    def excess(self) -> str | None:
        """Return why the run must not continue, if it holds more than the share of a tenant."""
        return None if self._held <= self._gate.share else self._too_large(self._held)

    async def take(self, size: int) -> None:
        """Wait for memory. Raises MemoryTimeout if none is free in time, StepFailed if it can never be granted."""
        if self._held + size > self._gate.share:
            raise StepFailed(TOO_LARGE, self._too_large(self._held + size))
        missing = self._held + size - self._reserved
        if missing > 0:
            await self._reserve(missing)
        self._held += size

    def close(self) -> None:
        """Release everything."""
        self._gate.release(self._tenant, self._reserved)
        self._held = self._reserved = self._state = self._unstored = 0

    def _grow(self, size: int) -> None:
        if size > 0:
            self.charge(size)
        elif size < 0:
            self.release(-size)

    async def _reserve(self, size: int) -> None:
        try:
            if not self._gate.try_take(self._tenant, size):
                async with asyncio.timeout(self._hold_seconds):
                    await self._gate.take(self._tenant, size)
        except TimeoutError:
            reason = (
                f"The runs of this tenant hold their share of the worker's memory, {self._gate.share} bytes "
                "(half of RUNLANE_WORKER_TEXT_BYTES), or those of all tenants hold all of it."
            )
            # Random, so that runs that gave up together do not return together.
            raise MemoryTimeout(reason, random.uniform(*_RETRY_SECONDS)) from None  # noqa: S311
        self._reserved += size

    def _too_large(self, size: int) -> str:
        return (
            f"The run needs {size} bytes for its state, rendered text and unstored events; at most {self._gate.share} "
            "are allowed (half of RUNLANE_WORKER_TEXT_BYTES). Keep less in the state, or render less at a time."
        )


class AttemptStepMemory:
    """The memory that one step has taken from the account of its run."""

    def __init__(self, account: AttemptMemory) -> None:
        self._account = account
        self._taken = 0

    async def take(self, size: int, /) -> None:
        """Wait for this many bytes."""
        await self._account.take(size)
        self._taken += size

    def close(self) -> None:
        """Release the memory."""
        self._account.release(self._taken)
        self._taken = 0
