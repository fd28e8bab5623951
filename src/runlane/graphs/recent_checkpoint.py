"""The newest checkpoint that an attempt has stored in its thread, kept in memory in its stored form.

While an attempt owns its run, no other process stores checkpoints of the thread, so the newest one need not be read
from the database. It is kept in its encoded form: a reader gets copies, as it would from the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runlane.domain.text import load_json
from runlane.store.threads.checkpoints import ROOT, CheckpointRecord, Encoded, TaskWrite
from runlane.store.threads.deletion import EMPTY
from runlane.store.threads.graph_writes import GraphWrites, StoredCheckpoint, StoredValue, StoredWrite


class RecentCheckpoint:
    """The newest checkpoint of the root namespace. Those of subgraphs, of which there may be many, are not kept."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._head: StoredCheckpoint | None = None
        # By channel: the newest version, and its value.
        self._values: dict[str, tuple[str, Encoded]] = {}
        self._writes: dict[str, dict[tuple[str, int], StoredWrite]] = {}

    def is_of(self, thread: str) -> bool:
        """Return whether it is a checkpoint of this thread."""
        return thread == self._thread

    def learn(self, versions: Mapping[str, str], values: Mapping[str, Encoded]) -> None:
        """Keep the values of a checkpoint that was read, which later ones share."""
        if self._head is None:
            for channel, version in versions.items():
                self._values[channel] = (version, values.get(channel, (EMPTY, b"")))

    def add(self, written: GraphWrites) -> None:
        """Keep the writes that the attempt stores. The values of a checkpoint are stored with it."""
        for write in written.writes:
            if self._is_root(write.thread, write.ns):
                places = self._writes.setdefault(write.checkpoint_id, {})
                if write.number < 0 or (write.task_id, write.number) not in places:
                    places[write.task_id, write.number] = write
        for checkpoint in written.checkpoints:
            if self._is_root(checkpoint.thread, checkpoint.ns):
                self._advance(checkpoint, written.values)

    def settled(self) -> Mapping[str, Encoded] | None:
        """Return the values of the newest checkpoint if no task follows it; None if one may."""
        head = self._head
        if head is None or head.snapshot is None or self._writes.get(head.id) or load_json(head.snapshot)["next"]:
            return None
        return self._values_of(head)

    def find(self, thread: str, ns: str, checkpoint_id: str | None) -> CheckpointRecord | None:
        """Return the newest checkpoint if it is the requested one; None means unknown."""
        head = self._head
        if head is None or not self._is_root(thread, ns) or checkpoint_id not in (None, head.id):
            return None
        values = self._values_of(head)
        if values is None:
            return None
        writes = [
            TaskWrite(row.task_id, row.channel, (row.encoding, row.value), row.task_path, row.number)
            for row in self._writes.get(head.id, {}).values()
        ]
        return CheckpointRecord(
            thread=thread,
            ns=ns,
            id=head.id,
            parent_id=head.parent_id,
            run_id=None,
            checkpoint=(head.encoding, head.checkpoint),
            metadata=load_json(head.metadata),
            snapshot=head.snapshot,
            created_at_us=0,
            values={channel: value for channel, value in values.items() if value[0] != EMPTY},
            writes=sorted(writes, key=lambda write: (write.task_path, write.task_id, write.number)),
        )

    def _values_of(self, checkpoint: StoredCheckpoint) -> Mapping[str, Encoded] | None:
        """Return the values of the channels of a checkpoint; None if one of them is unknown."""
        versions: dict[str, str] = load_json(checkpoint.versions)
        found: dict[str, Encoded] = {}
        for channel, version in versions.items():
            known, value = self._values.get(channel, (None, (EMPTY, b"")))
            if known != version:
                return None
            found[channel] = value
        return found

    def _advance(self, checkpoint: StoredCheckpoint, values: Sequence[StoredValue]) -> None:
        if self._head is not None and checkpoint.id < self._head.id:
            return
        self._head = checkpoint
        for value in values:
            self._values[value.channel] = (value.version, (value.encoding, value.value))
        if self._writes:
            # The writes of a checkpoint may be stored before it is.
            self._writes = {name: rows for name, rows in self._writes.items() if name >= checkpoint.id}

    def _is_root(self, thread: str, ns: str) -> bool:
        return thread == self._thread and ns == ROOT
