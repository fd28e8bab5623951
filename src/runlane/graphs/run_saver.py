"""The checkpointer of one attempt: store through the outbox, and read back what the attempt has stored.

With the durability `sync` a write returns when it is committed. With `async` and `exit` it returns when it is in the
outbox, which commits in order: writes of about 20 ms share a commit, and those that are left when the graph ends are
committed with the end of the run. A crash loses only the newest writes, so a later attempt continues from a complete
checkpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id
from langgraph.types import StateSnapshot

from runlane.graphs.exports import Graph
from runlane.graphs.langgraph_internals import ERROR_SOURCE_NODE, MISSING, read_channels
from runlane.graphs.recent_checkpoint import RecentCheckpoint
from runlane.graphs.saver import RunlaneSaver, SnapshotFunction, namespace_of
from runlane.store.sql.database import Database
from runlane.store.threads.checkpoints import load_checkpoint
from runlane.store.threads.deletion import EMPTY
from runlane.store.threads.graph_writes import GraphWrites

_SYNC: Final = "sync"


class WriteQueue(Protocol):
    """Stores what an attempt writes, in order."""

    def add(self, written: GraphWrites) -> bool:
        """Add writes, which are committed soon. Return False if too much is pending: the caller then calls settle()."""
        ...

    def write(self, written: GraphWrites) -> Coroutine[Any, Any, None]:
        """Add writes and return when they are committed."""
        ...

    def settle(self) -> Coroutine[Any, Any, None]:
        """Wait until everything that was written is committed."""
        ...


def ended_state(graph: Graph, config: RunnableConfig) -> StateSnapshot | None:
    """Return the state of a graph that has ended; None if a task may follow."""
    saver = cast("object", graph.checkpointer)
    values = saver.settled_values(graph) if isinstance(saver, RunSaver) else MISSING
    return None if values is MISSING else StateSnapshot(values, (), config, None, None, None, (), ())


class RunSaver(RunlaneSaver):
    """Stores the checkpoints of one attempt. With `has_history`, its thread may have earlier ones."""

    def __init__(
        self,
        database: Database,
        tenant: str,
        queue: WriteQueue,
        recent: RecentCheckpoint,
        snapshot: SnapshotFunction,
        durability: str,
        *,
        has_history: bool = True,
    ) -> None:
        super().__init__(database, tenant, snapshot=snapshot)
        self._queue = queue
        self._recent = recent
        self._durability = durability
        self._has_history = has_history
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
        elif not self._has_history and self._recent.is_of(key):
            return None
        found = await load_checkpoint(self._database, key, ns, checkpoint_id)
        if found is None:
            return None
        read = self._tuple(found)
        versions = read.checkpoint["channel_versions"]
        self._recent.learn({name: str(version) for name, version in versions.items()}, found.values)
        return read

    def settled_values(self, graph: Graph) -> Any:
        """Return the state of a graph that has ended, as `aget_state` would; MISSING if a task may follow.

        It costs a fraction of `aget_state`, which prepares the next tasks to find that there are none.
        """
        stored = self._recent.settled()
        if stored is None:
            return MISSING
        names = graph.stream_channels_asis
        channels: dict[str, BaseChannel[Any, Any, Any]] = {}
        for name in [names] if isinstance(names, str) else names:
            spec = cast("Any", graph.channels[name])
            encoded = stored.get(name)
            if encoded is not None and encoded[0] == EMPTY:
                # LangGraph may rebuild it from earlier writes.
                return MISSING
            channels[name] = spec.from_checkpoint(MISSING if encoded is None else self.serde.loads_typed(encoded))
        return read_channels(channels, names)

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
        # The rows of one call have one thread and namespace.
        for row in (*writes.checkpoints[:1], *writes.writes[:1]):
            self._written.add((row.thread, row.ns))
        # LangGraph executes the handler of an error when the error is durable.
        if self._durability == _SYNC or ERROR_SOURCE_NODE in [row.channel for row in writes.writes]:
            await self._queue.write(writes)
        elif not self._queue.add(writes):
            await self._queue.settle()
