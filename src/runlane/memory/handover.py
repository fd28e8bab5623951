"""The owner's side of a handover: detect which memories other processes request, and release them.

A request is announced over the bus. A poll finds requests whose announcement was lost: every few seconds while the bus
connects processes, every second otherwise, each with one query for all memories of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from runlane.bus import Bus
from runlane.errors import RunlaneError, Unavailable
from runlane.memory.node import MemoryNode
from runlane.memory.requesting import handover_key, handover_notice
from runlane.observability.outage import outage
from runlane.store.memory.handover import requested_memories

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 1.0
SAFETY_POLL_SECONDS: Final = 5.0
# How long callers of a memory may wait for its replication; the node keeps the memory if it takes longer.
PAUSE_SECONDS: Final = 3.0


class MemoryHandover:
    """Releases the requested memories of one node, with start() and stop()."""

    def __init__(self, node: MemoryNode, bus: Bus) -> None:
        self._node = node
        self._bus = bus
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._unfollow = bus.follow(handover_key(node.id), lambda _notice: self._wake.set())

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._run(), name="memory-handover")

    async def stop(self) -> None:
        """Stop. The node keeps memories that it was about to release. Safe to call twice."""
        self._unfollow()
        tasks = [*self._running.values()]
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                requested = await requested_memories(self._node.remote, self._node.id)
            except Unavailable as error:
                outage.failed("memory_handover", str(error))
                requested = ()
            for memory_id in requested:
                if memory_id not in self._running:
                    task = asyncio.create_task(self._hand_over(memory_id), name="memory-handover")
                    self._running[memory_id] = task
            poll = SAFETY_POLL_SECONDS if self._bus.reaches_others else POLL_SECONDS
            # wait_for() is not used, because it may lose the cancellation of a stop that coincides with a request.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll):
                    await self._wake.wait()

    async def _hand_over(self, memory_id: str) -> None:
        try:
            requested_by = await self._node.hand_over(memory_id, PAUSE_SECONDS)
        except RunlaneError as error:
            log.warning("memory_not_handed_over", memory=memory_id, problem=str(error))
        except Exception:  # a defect must not end the process's handovers; the request is renewed
            log.exception("memory_not_handed_over", memory=memory_id)
        else:
            if requested_by is not None:
                self._bus.publish([handover_notice(requested_by)])
                log.info("memory_handed_over", memory=memory_id, requested_by=requested_by)
        finally:
            self._running.pop(memory_id, None)
