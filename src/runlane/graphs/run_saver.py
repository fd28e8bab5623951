"""The checkpointer of one attempt: it stores through the outbox, and a graph reads what it has stored.

With the durability `sync` a write returns when it is committed. With `async` and `exit` it returns when it is in the
outbox, which commits in order: writes of about 20 ms share a commit, and those that are left when the graph ends are
committed with the end of the run. A crash loses the newest writes and nothing before them, so a later attempt
continues from a checkpoint that was whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import ERROR_SOURCE_NODE
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id

from runlane.graphs.recent_checkpoint import RecentCheckpoint
from runlane.graphs.saver import RunlaneSaver, SnapshotFunction, namespace_of
from runlane.store.sql.database import Database
from runlane.store.threads.checkpoints import load_checkpoint
from runlane.store.threads.graph_writes import GraphWrites

_SYNC: Final = "sync"


class WriteQueue(Protocol):
    """Stores what an attempt writes, in order."""

    def write(self, written: GraphWrites, *, waits: bool) -> Coroutine[Any, Any, None]:
        """Add writes; with `waits`, return when they are committed."""
        ...

    def settle(self) -> Coroutine[Any, Any, None]:
        """Wait until everything that was written is committed."""
        ...


class RunSaver(RunlaneSaver):
    """Stores the checkpoints of one attempt."""

    def __init__(
        self,
        database: Database,
        tenant: str,
        queue: WriteQueue,
        recent: RecentCheckpoint,
        snapshot: SnapshotFunction,
        durability: str,
    ) -> None:
        super().__init__(database, tenant, snapshot=snapshot)
        self._queue = queue
        self._recent = recent
        self._durability = durability
        # The threads and namespaces that the attempt has written to.
        self._written: set[tuple[str, str]] = set()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest, with what this attempt has written."""
        key, ns, checkpoint_id = self._key(config), namespace_of(config), get_checkpoint_id(config)
        found = self._recent.find(key, ns, checkpoint_id)
        if found is not None:
            return self._tuple(found)
        if (key, ns) in self._written:
            await self._queue.settle()
        found = await load_checkpoint(self._database, key, ns, checkpoint_id)
        if found is None:
            return None
        read = self._tuple(found)
        versions = read.checkpoint["channel_versions"]
        self._recent.learn({name: str(version) for name, version in versions.items()}, found.values)
        return read

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first, with what this attempt has written."""
        await self._queue.settle()
        async for found in super().alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def _store(self, writes: GraphWrites, run_id: str | None) -> None:
        self._recent.add(writes)
        self._written |= {(row.thread, row.ns) for row in (*writes.checkpoints, *writes.writes)}
        # LangGraph executes the handler of an error when the error is durable.
        waits = self._durability == _SYNC or any(row.channel == ERROR_SOURCE_NODE for row in writes.writes)
        await self._queue.write(writes, waits=waits)
