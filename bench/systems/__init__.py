"""The compared systems: how each accepts work, and its worker command.

The workers of a system import its module, so the module imports only what users of the system import.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Client(Protocol):
    """An open client of a system."""

    async def accept(self, task: str, key: int) -> None:
        """Submit one run of "noop", "stamp" or "hold", and return when the system has accepted it."""
        ...

    async def accept_many(self, count: int) -> None:
        """Submit many no-op runs in the fastest documented way."""
        ...


class System(Protocol):
    """One system, on a fresh database and queue."""

    @property
    def name(self) -> str: ...

    @property
    def drained_sql(self) -> str | None:
        """SQL for the number of ended runs, first start and last end in seconds; None without a database."""
        ...

    @property
    def bulk(self) -> bool:
        """Whether the system has a call for many runs."""
        ...

    def worker(self, concurrency: int | None) -> Sequence[str]:
        """Return the worker command for one process; None means the default concurrency."""
        ...

    async def prepare(self) -> None:
        """Create its tables or queue."""
        ...

    def client(self, *, with_worker: bool = False) -> AbstractAsyncContextManager[Client]:
        """Connect, optionally with a worker in this process."""
        ...
