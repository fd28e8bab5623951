"""Memory for rendered values of steps.

A step reserves memory once the size of a value is counted, before the value is built. The worker grants memory from one
budget for all of its runs, of which each tenant has a share. Memory is held until the step is performed.
"""

from __future__ import annotations

from typing import Protocol


class MemoryTimeout(Exception):
    """Memory was not available in time. Release the worker slot and retry the step after `retry_in_seconds`."""

    def __init__(self, reason: str, retry_in_seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_seconds = retry_in_seconds


class StepMemory(Protocol):
    """The memory of one step."""

    async def take(self, size: int, /) -> None:
        """Wait for this many bytes. Raises MemoryTimeout, and StepFailed if the run itself holds too much."""
        ...


class UnlimitedMemory:
    """Memory without a budget, for steps that are performed outside of a worker."""

    async def take(self, _size: int, /) -> None:
        """Return at once."""
