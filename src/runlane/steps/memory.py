"""Room in memory for what steps render.

A step asks for room when the size of a text is counted and the text itself is not built yet. The worker grants room
from one budget for all of its runs, of which each tenant has a share. Room is held until the step is performed.
"""

from __future__ import annotations

from typing import Protocol


class MemoryTimeout(Exception):
    """There was no room in time. Release the worker slot and perform the step again after `retry_in_seconds`."""

    def __init__(self, reason: str, retry_in_seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_seconds = retry_in_seconds


class StepMemory(Protocol):
    """The room of one step."""

    async def take(self, size: int, /) -> None:
        """Wait for room for this many bytes. Raises NoRoom, and StepFailed if the run itself holds too much."""
        ...


class UnlimitedMemory:
    """Room without a budget, for steps that are performed outside of a worker."""

    async def take(self, _size: int, /) -> None:
        """Return at once."""
