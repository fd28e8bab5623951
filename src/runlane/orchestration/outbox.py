"""The outbox of an orchestration's attempt: what has happened and is not stored yet, in its order.

One commit is under way at a time, and the next takes everything that came meanwhile. So a chain of small steps shares
commits, while whoever needs certainty waits until the outbox is empty. What is not stored yet counts in the account of
the attempt, with the memory that its text takes.
"""

from __future__ import annotations

import asyncio
from sys import getsizeof
from typing import Any

from runlane.domain.text import dump_json
from runlane.failpoints import failpoint
from runlane.interpreter.values import PendingStep, StepEvent
from runlane.orchestration.memory import AttemptMemory
from runlane.store.orchestration.calls import CallRecord
from runlane.store.orchestration.steps import StepRecord
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import RecordEntry
from runlane.worker.run_host import RunHost


class Outbox:
    """Takes news at once and stores them soon. `rest` is what the end of the attempt stores with itself."""

    def __init__(self, claimed: Claimed, desk: RunHost, account: AttemptMemory) -> None:
        self._claimed = claimed
        self._desk = desk
        self._account = account
        # Of the entry that is being filled, of those that are being stored, and of those that were stored.
        self._entry_bytes = 0
        self._storing_bytes = 0
        self._stored_bytes = 0
        self._entry = self._empty()
        self._storing: asyncio.Task[None] | None = None
        # Whether a store was requested while a commit was in progress.
        self._more = False

    def add_event(self, kind: str, **data: Any) -> None:
        """Write an event."""
        text = dump_json(data)
        self._entry.events.append((kind, text))
        self._entry_bytes += getsizeof(text)

    def say_step(self, kind: str, pending: PendingStep, **more: Any) -> None:
        """Write an event of a step."""
        step = pending.step
        self.add_event(kind, orch_step_id=step.id, step_name=step.title, step_type=step.type, path=pending.path, **more)

    def add_step_events(self, facts: list[StepEvent]) -> None:
        """Add the events that the machine has derived from an outcome."""
        for fact in facts:
            self.add_event(fact.type, **fact.data)

    def keep(self, step: StepRecord) -> None:
        """Record a step."""
        self._entry.steps.append(step)
        self._entry_bytes += getsizeof(step.output) + getsizeof(step.input)

    async def keep_call(self, call: CallRecord) -> None:
        """Record a call within a step; it is stored, with everything before it, when this returns."""
        self._entry.calls.append(call)
        self._entry_bytes += getsizeof(call.payload)
        await self.store()

    def ask(self, wait: NewWait) -> None:
        """Open a question."""
        self._entry.waits.append(wait)

    def close_wait(self, path: str) -> None:
        """A question is over."""
        self._entry.settled.append(path)

    @property
    def pending_bytes(self) -> int:
        """The memory of everything that is not stored yet."""
        return self._entry_bytes + self._storing_bytes

    @property
    def written_bytes(self) -> int:
        """The memory of everything that this attempt has written."""
        return self._entry_bytes + self._storing_bytes + self._stored_bytes

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """The commit that is running, if one is."""
        return self._storing

    def store_soon(self) -> None:
        """Begin to store what there is, or do so right after the commit that is under way."""
        if self._storing is not None and self._storing.done():
            self._storing.result()
            self._storing = None
        self._more = self._storing is not None
        self._account.hold_unstored(self._entry_bytes + self._storing_bytes)
        if self._storing is None and self._has_news():
            entry, self._entry = self._entry, self._empty()
            size, self._entry_bytes = self._entry_bytes, 0
            self._storing_bytes += size
            self._storing = asyncio.create_task(self._store(entry, size))
            self._storing.add_done_callback(self._go_on)

    def hold_back(self) -> None:
        """Start no further commit: what is added from here on is stored with the end of the attempt."""
        self._more = False

    async def store(self) -> None:
        """Have everything stored that is known so far."""
        self.store_soon()
        while self._storing is not None:
            # A run that is stopped meanwhile must not take the commit with it.
            await asyncio.shield(self._storing)
            self.store_soon()

    async def rest(self) -> RecordEntry:
        """What is left to store, once the commit under way is through."""
        if self._storing is not None:
            await asyncio.shield(self._storing)
            self._storing = None
        return self._entry

    def _go_on(self, stored: asyncio.Task[None]) -> None:
        # A failed commit is raised by the next call that stores.
        if self._more and self._storing is stored and not stored.cancelled() and stored.exception() is None:
            self.store_soon()

    async def _store(self, entry: RecordEntry, size: int) -> None:
        if entry.steps:
            failpoint("step.before_commit")
        await self._desk.record(entry)
        self._storing_bytes -= size
        self._stored_bytes += size
        self._account.hold_unstored(self._entry_bytes + self._storing_bytes)
        if entry.steps:
            failpoint("step.committed")

    def _has_news(self) -> bool:
        entry = self._entry
        return bool(entry.events or entry.steps or entry.calls or entry.waits or entry.settled)

    def _empty(self) -> RecordEntry:
        claimed = self._claimed
        return RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, tenant=claimed.tenant)
