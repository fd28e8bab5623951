"""Decide when a run stores a snapshot of its position.

A takeover reads and replays the records since the last snapshot, so both their number and their size are bounded. The
cost of a snapshot grows with the state.
"""

from __future__ import annotations

from runlane.interpreter.machine import Machine
from runlane.store.orchestration.steps import StepRecord

SNAPSHOT_EVERY = 500
SNAPSHOT_BYTES = 16 * 1024 * 1024


class Snapshots:
    """Counts the records since the last snapshot."""

    def __init__(self) -> None:
        self._records = 0
        self._bytes = 0

    def is_due(self, record: StepRecord, machine: Machine) -> bool:
        """Count a record, and return whether a snapshot follows it."""
        self._records += 1
        self._bytes += len(record.output or "")
        if self._records < SNAPSHOT_EVERY and self._bytes < max(SNAPSHOT_BYTES, 2 * machine.state_bytes):
            return False
        if any(other.tries for other in machine.pending_steps()):
            # A snapshot now would count the cost of the earlier tries, which the record of the last try contains, too.
            return False
        self._records = self._bytes = 0
        return True
