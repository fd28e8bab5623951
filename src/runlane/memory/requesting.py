"""Requests for memories that another node owns, made by this process and renewed while callers wait.

One task per memory makes the request, however many callers need it. The owner releases the memory once all of its
operations are in the database; then all callers continue. The bus makes this fast; without it, both sides poll at short
intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Final

from runlane.bus import Bus
from runlane.domain.events import Notice
from runlane.errors import Unavailable
from runlane.failpoints import failpoint
from runlane.store.memory.handover import request_memory, withdraw_request
from runlane.store.sql.database import Database

# How long a change waits for a memory that another node owns.
WAIT_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS: Final = 0.02
# Shorter than the lifetime of a request, so that it is renewed in time.
_LONGEST_PAUSE_SECONDS: Final = 0.5
_ANNOUNCE_SECONDS: Final = 1.0


def handover_notice(process: str) -> Notice:
    """Return the notice that a memory was requested from a node, or released to a process."""
    return Notice(handover_key(process), 1)


def handover_key(process: str) -> str:
    """Return the key of the notices for a node or a process."""
    return f"memory:{process}"


@dataclass(slots=True, eq=False)
class _Request:
    """The task that requests one memory, and how many callers wait for it."""

    task: asyncio.Future[None]
    callers: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryRequests:
    """The requests of one process, under the id of its node, or of the process if it has no memory file."""

    def __init__(self, database: Database, bus: Bus, process: str) -> None:
        self.process = process
        self._database = database
        self._bus = bus
        self._closed = False
        self._requests: dict[str, _Request] = {}
        self._unfollow = bus.follow(handover_key(process), lambda _notice: self._wake())

    def close(self) -> None:
        """Stop, and reject waiting callers. Safe to call twice."""
        self._closed = True
        self._unfollow()
        self._wake()

    def _wake(self) -> None:
        for request in self._requests.values():
            request.released.set()

    async def wait(self, memory_id: str, seconds: float) -> None:
        """Request a memory and return once this process may take it. TimeoutError after this time."""
        request = self._requests.get(memory_id)
        if request is None or request.task.done():
            released = asyncio.Event()
            task = asyncio.create_task(self._request(memory_id, released), name="memory-request")
            request = self._requests[memory_id] = _Request(task, released=released)
        request.callers += 1
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(request.task)
        finally:
            request.callers -= 1
            if not request.callers:
                request.task.cancel()
                if self._requests.get(memory_id) is request:
                    del self._requests[memory_id]

    async def withdraw(self, memory_id: str) -> None:
        """End the request for a memory, unless other callers wait for it. Its former owner may take it again."""
        if memory_id not in self._requests:
            await withdraw_request(self._database, self.process, memory_id)

    async def _request(self, memory_id: str, released: asyncio.Event) -> None:
        pause = _FIRST_PAUSE_SECONDS
        announced_to, announced_at = "", 0.0
        while not self._closed:
            released.clear()
            found = await request_memory(self._database, self.process, memory_id)
            failpoint("handover.requested")
            if not found.blocked:
                return
            now = time.monotonic()
            if found.owner and (found.owner != announced_to or now - announced_at >= _ANNOUNCE_SECONDS):
                self._bus.publish([handover_notice(found.owner)])
                announced_to, announced_at = found.owner, now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await released.wait()
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)
        raise Unavailable("The memory of this process is closed.")
