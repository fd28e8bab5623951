"""The systems that are compared: how each one accepts work and how its own worker command is started.

Each module here is also what that system's worker imports, so it loads nothing that its users would not load.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Client(Protocol):
    """An open connection of a system's client."""

    async def accept(self, task: str, key: int) -> None:
        """Hand in one run of "noop", "stamp" or "hold"; return when the system says that it has it."""
        ...

    async def accept_many(self, count: int) -> None:
        """Hand in many no-op runs the fastest way the system documents."""
        ...


class System(Protocol):
    """One system, on a fresh database and queue."""

    @property
    def name(self) -> str: ...

    @property
    def drained_sql(self) -> str | None:
        """Reads `n` ended runs and their first start and last end in seconds; None: only the tasks' notes tell."""
        ...

    @property
    def bulk(self) -> bool:
        """Whether there is a call for many runs at once."""
        ...

    def worker(self, concurrency: int | None) -> Sequence[str]:
        """The arguments of its worker command for one process; None for the default concurrency."""
        ...

    async def prepare(self) -> None:
        """Make its tables or queue."""
        ...

    def client(self, *, with_worker: bool = False) -> AbstractAsyncContextManager[Client]:
        """Connect; with a worker in this process too if wanted."""
        ...
