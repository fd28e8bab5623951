"""The outbox of an attempt at an orchestration: the entries that are not stored yet, in order.

One commit is in progress at a time, and the next one stores everything that was added meanwhile. A chain of small steps
therefore shares commits, and code that needs durability waits until the outbox is empty. Entries that are not stored
count in the memory account of the attempt.
"""

from __future__ import annotations

import asyncio
from sys import getsizeof
from typing import Any

from runlane.domain.budget import BudgetNotice
from runlane.domain.text import dump_json
from runlane.failpoints import failpoint
from runlane.interpreter.values import PendingStep, StepEvent
from runlane.observability import metrics
from runlane.orchestration.memory_budget import AttemptMemory
from runlane.store.orchestration.calls import CallRecord
from runlane.store.orchestration.steps import StepRecord
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import RecordEntry
from runlane.worker.run_host import RunHost


class Outbox:
    """Collects entries and stores them soon. The end of the attempt stores `rest` in its own transaction."""

    def __init__(self, claimed: Claimed, host: RunHost, account: AttemptMemory) -> None:
        self._claimed = claimed
        self._host = host
        self._account = account
        # The size of the entry that is being filled, of those that are being stored, and of those that were stored.
        self._entry_bytes = 0
        self._storing_bytes = 0
        self._stored_bytes = 0
        self._entry = self._empty()
        self._storing: asyncio.Task[None] | None = None
        # Whether a store was requested while a commit was in progress.
        self._more = False

    def add_event(self, kind: str, **data: Any) -> None:
        """Add an event."""
        text = dump_json(data)
        self._entry.events.append((kind, text))
        self._entry_bytes += getsizeof(text)

    def emit_step(self, kind: str, pending: PendingStep, **more: Any) -> None:
        """Add an event of a step."""
        step = pending.step
        self.add_event(kind, orch_step_id=step.id, step_name=step.title, step_type=step.type, path=pending.path, **more)

    def add_step_events(self, events: list[StepEvent]) -> None:
        """Add the events that the machine has derived from an outcome."""
        for event in events:
            self.add_event(event.type, **event.data)

    def keep(self, step: StepRecord) -> None:
        """Add the record of a step."""
        self._entry.steps.append(step)
        self._entry_bytes += getsizeof(step.output) + getsizeof(step.input)

    async def keep_call(self, call: CallRecord) -> None:
        """Add a call within a step; it is stored, with everything before it, when this returns."""
        self._entry.calls.append(call)
        self._entry_bytes += getsizeof(call.payload)
        await self.store()

    def open_wait(self, wait: NewWait) -> None:
        """Open a wait."""
        self._entry.waits.append(wait)

    def close_wait(self, path: str) -> None:
        """Close a wait."""
        self._entry.settled.append(path)

    def report_budget(self, notice: BudgetNotice) -> None:
        """Add a report that a budget is nearly or fully spent."""
        self._entry.budgets.append(notice)
        metrics.BUDGET_NOTICES.add(notice.cap.scope, "100" if notice.reached else "80")

    @property
    def pending_bytes(self) -> int:
        """The memory of everything that is not stored yet."""
        return self._entry_bytes + self._storing_bytes

    @property
    def written_bytes(self) -> int:
        """The memory of everything that this attempt has written."""
        return self._entry_bytes + self._storing_bytes + self._stored_bytes

    @property
    def in_progress(self) -> asyncio.Task[None] | None:
        """The running commit, if any."""
        return self._storing

    def store_soon(self) -> None:
        """Start to store all entries, now or right after the running commit."""
        if self._storing is not None and self._storing.done():
            self._storing.result()
            self._storing = None
        self._more = self._storing is not None
        self._account.hold_unstored(self._entry_bytes + self._storing_bytes)
        if self._storing is None and self._has_entries():
            entry, self._entry = self._entry, self._empty()
            size, self._entry_bytes = self._entry_bytes, 0
            self._storing_bytes += size
            self._storing = asyncio.create_task(self._store(entry, size))
            self._storing.add_done_callback(self._continue)

    def hold_back(self) -> None:
        """Start no further commit: later entries are stored with the end of the attempt."""
        self._more = False

    async def store(self) -> None:
        """Store all entries; return when they are durable."""
        self.store_soon()
        while self._storing is not None:
            # Cancelling the caller must not cancel the commit.
            await asyncio.shield(self._storing)
            self.store_soon()

    async def rest(self) -> RecordEntry:
        """Return what is left to store, after the running commit."""
        if self._storing is not None:
            await asyncio.shield(self._storing)
            self._storing = None
        return self._entry

    def _continue(self, stored: asyncio.Task[None]) -> None:
        # The error of a failed commit is raised by the next call that stores.
        if self._more and self._storing is stored and not stored.cancelled() and stored.exception() is None:
            self.store_soon()

    async def _store(self, entry: RecordEntry, size: int) -> None:
        if entry.steps:
            failpoint("step.before_commit")
        await self._host.record(entry)
        self._storing_bytes -= size
        self._stored_bytes += size
        self._account.hold_unstored(self._entry_bytes + self._storing_bytes)
        if entry.steps:
            failpoint("step.committed")

    def _has_entries(self) -> bool:
        entry = self._entry
        return bool(entry.events or entry.steps or entry.calls or entry.waits or entry.settled or entry.budgets)

    def _empty(self) -> RecordEntry:
        claimed = self._claimed
        return RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, tenant=claimed.tenant)
