"""The outbox of an attempt at a run of a graph: stream events and checkpoints, stored in order.

One commit is in progress at a time, and the next one stores everything that was added meanwhile. Entries that are added
within about 20 ms share a commit, so a stream of tokens and a graph of quick nodes need few transactions. Entries are
stored in the order in which they were added: a later attempt does not repeat events of a finished superstep that a
client has read. The remaining entries are stored with the end of the run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from runlane.domain.events import EventType
from runlane.domain.text import dump_json
from runlane.errors import Fail
from runlane.failpoints import failpoint
from runlane.store.orchestration.calls import CallRecord
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import RecordEntry
from runlane.store.threads.graph_writes import GraphWrites
from runlane.worker.run_host import RunHost

# The bounds of the time between two commits. Within them it is twice the duration of a commit, so a busy database gets
# fewer and larger commits.
GROUP_SECONDS: Final = 0.02
MAX_GROUP_SECONDS: Final = 0.1
# A graph that produces events faster than they are stored waits when this much is not stored.
MAX_PENDING_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class _Batch:
    """The entries of the next commit; `stored` is done after it. `awaited` is set if a caller waits for it.

    The writes of the graph are joined when the commit begins.
    """

    entry: RecordEntry
    graphs: list[GraphWrites] = field(default_factory=list[GraphWrites])
    stored: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    size: int = 0
    awaited: bool = False

    def sealed(self) -> RecordEntry:
        """Return the entry to store; nothing is added to the batch from here on."""
        if self.graphs:
            self.entry.graph = GraphWrites.joined(self.graphs)
        return self.entry


class GraphOutbox:
    """Collects the entries of an attempt and stores them soon.

    `rest` returns the entries that the end of the attempt stores.
    """

    def __init__(self, claimed: Claimed, host: RunHost, max_bytes: int) -> None:
        self._claimed = claimed
        self._host = host
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._batch = self._empty()
        self._storing: asyncio.Task[None] | None = None
        self._storing_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        # The earliest time of the next commit if no caller waits for it.
        self._next_commit_at = float("-inf")
        self._closed = False
        self._failure: BaseException | None = None
        self._written_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """The size of everything that is not stored yet."""
        return self._batch.size + self._storing_bytes

    def add_event(self, name: str, data: str) -> None:
        """Add an event of the stream; `data` is JSON. It is stored soon."""
        # A namespace has names of nodes, which may contain quotes.
        self._batch.entry.events.append((EventType.GRAPH_STREAM.value, f'{{"event":{dump_json(name)},"data":{data}}}'))
        self._count(len(data) + len(name))
        self._store_later()

    async def write(self, written: GraphWrites, *, saved: str | None = None) -> None:
        """Store writes of the graph, with every event before them; `saved` is for the next attempt.

        They are durable when this returns.
        """
        batch = self._batch
        self.add_writes(written, saved)
        await self._stored_now(batch)

    def add_writes(self, written: GraphWrites, saved: str | None = None) -> bool:
        """Add writes of the graph, which are stored soon. Return False if too much is pending: the caller waits."""
        self._check()
        batch = self._batch
        batch.graphs.append(written)
        if saved is not None:
            batch.entry.checkpoint = saved
        self._count(written.size)
        self._store_later()
        return self.pending_bytes <= MAX_PENDING_BYTES

    async def keep_call(self, call: CallRecord) -> None:
        """Store the answer of a model, with every event before it; it is durable when this returns."""
        self._check()
        batch = self._batch
        batch.entry.calls.append(call)
        self._count(len(call.payload))
        await self._stored_now(batch)

    async def drain(self) -> None:
        """Wait until everything that was added is stored."""
        if self._storing is not None:
            await asyncio.shield(self._storing)
        batch = self._batch
        if batch.size:
            await self._stored_now(batch)

    async def settle(self) -> None:
        """Wait until the writes of the graph that were added are stored."""
        if self._batch.graphs:
            await self.drain()
        elif self._storing is not None:
            await asyncio.shield(self._storing)

    async def rest(self) -> RecordEntry:
        """Return what is left to store, after the running commit. The outbox stores nothing more after this call."""
        self._closed = True
        self._stop_timer()
        if self._storing is not None:
            await asyncio.shield(self._storing)
        # Nothing is stored after a commit that failed, so the order has no gap.
        return self._batch.sealed() if self._failure is None else self._empty().entry

    def close(self) -> None:
        """Start no further commit: the attempt has ended without its outbox."""
        self._closed = True
        self._stop_timer()
        if not self._batch.stored.done():
            self._batch.stored.cancel()

    def _count(self, size: int) -> None:
        self._batch.size += size
        self._written_bytes += size
        if self._written_bytes > self._max_bytes:
            raise Fail(
                f"One attempt at the run wrote more than {self._max_bytes} bytes of events and checkpoints "
                "(RUNLANE_MAX_RUN_BYTES). Stream fewer modes, keep the state small, or split it into several runs."
            )

    def _check(self) -> None:
        """Raise the error of an earlier commit, for which no caller may have waited."""
        if self._failure is not None:
            raise self._failure

    async def _stored_now(self, batch: _Batch) -> None:
        batch.awaited = True
        self._store_soon()
        # Cancelling the caller must not cancel the commit, which others share.
        await asyncio.shield(batch.stored)

    def _store_later(self) -> None:
        if self._timer is None and self._storing is None and not self._closed:
            wait = max(0.0, self._next_commit_at - self._loop.time())
            self._timer = self._loop.call_later(wait, self._store_soon)

    def _store_soon(self) -> None:
        self._stop_timer()
        if self._storing is not None or self._closed or not self._batch.size:
            return
        batch, self._batch = self._batch, self._empty()
        self._storing_bytes = batch.size
        self._storing = asyncio.create_task(self._store(batch))
        self._storing.add_done_callback(self._stored)

    async def _store(self, batch: _Batch) -> None:
        began = self._loop.time()
        entry = batch.sealed()
        has_checkpoint = entry.graph is not None and bool(entry.graph.checkpoints)
        if has_checkpoint:
            failpoint("graph.before_commit")
        try:
            await self._host.record(entry)
        except BaseException as error:
            if not batch.stored.done():
                batch.stored.set_exception(error)
                # The exception is retrieved here in case no caller waits for this batch.
                batch.stored.exception()
            raise
        now = self._loop.time()
        self._next_commit_at = now + min(MAX_GROUP_SECONDS, max(GROUP_SECONDS, 2 * (now - began)))
        if not batch.stored.done():
            batch.stored.set_result(None)
        if has_checkpoint:
            failpoint("graph.committed")

    def _stored(self, task: asyncio.Task[None]) -> None:
        self._storing = None
        self._storing_bytes = 0
        if task.cancelled() or task.exception() is not None:
            self._closed = True
            self._failure = asyncio.CancelledError() if task.cancelled() else task.exception()
            if not self._batch.stored.done() and self._failure is not None:
                self._batch.stored.set_exception(self._failure)
                self._batch.stored.exception()
        elif self._batch.awaited:
            self._store_soon()
        elif self._batch.size:
            self._store_later()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _empty(self) -> _Batch:
        claimed = self._claimed
        return _Batch(RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, tenant=claimed.tenant))
