"""The journal of the model calls of a run of a graph: one row for each answer, stored before the node continues.

A call is identified by its task, its model, messages and options, and its number among equal calls. The id of a task is
the same in every attempt that starts from the same checkpoint, so a repeated node finds the answers of the previous
attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextvars import ContextVar

from runlane.graphs.outbox import GraphOutbox
from runlane.store.orchestration.calls import CallKind, CallRecord, read_calls_of
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Database


class CallJournal:
    """The recorded model calls of one attempt."""

    def __init__(self, claimed: Claimed, database: Database, outbox: GraphOutbox) -> None:
        self._claimed = claimed
        self._database = database
        self._outbox = outbox
        self._answers: dict[str, dict[str, str]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self.loop = asyncio.get_running_loop()

    def key(self, path: str, request: str) -> str:
        """Return the key of the next call with this request in a task."""
        digest = hashlib.sha256(request.encode()).hexdigest()
        number = self._calls[path, digest]
        self._calls[path, digest] += 1
        return f"{digest}/{number}"

    async def find(self, path: str, key: str) -> str | None:
        """Return the answer that an earlier attempt has stored, or None."""
        if self._claimed.attempt == 1:
            return None
        if path not in self._answers:
            records = await read_calls_of(self._database, self._claimed.run_id, [path])
            self._answers[path] = {record.key: record.payload for record in records}
        return self._answers[path].get(key)

    async def keep(self, path: str, key: str, payload: str, model: str, tokens: tuple[int, int]) -> None:
        """Store an answer; it is durable when this returns."""
        graph = self._claimed.target
        call = CallRecord(path, key, CallKind.MODEL, payload, model, graph, tokens_in=tokens[0], tokens_out=tokens[1])
        await self._outbox.keep_call(call)


# The journal of the run whose node is executed. Threads and tasks of nodes inherit it.
current_journal: ContextVar[CallJournal | None] = ContextVar("runlane_call_journal", default=None)
