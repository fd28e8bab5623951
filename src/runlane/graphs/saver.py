"""A LangGraph checkpointer on the database of Runlane.

Inside a run, `write` stores what the graph writes through the fence of the attempt, so that an attempt that has lost
its run cannot change the thread. Without `write` each call is a transaction of its own. Graphs that run in a thread
(sync nodes that invoke a subgraph, for example) use the plain methods, which wait for the event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Final, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from runlane.domain.graph import PruneStrategy, thread_key
from runlane.domain.tenant import DEFAULT_TENANT, bare_key, scoped_key
from runlane.domain.text import clean_text, dump_json
from runlane.errors import InvalidRequest
from runlane.graphs.checkpoint_ids import advance_past
from runlane.store.sql.database import Database, Session
from runlane.store.threads.checkpoints import (
    CheckpointQuery,
    CheckpointRecord,
    Encoded,
    find_checkpoint,
    read_checkpoints,
)
from runlane.store.threads.deletion import (
    EMPTY,
    copy_checkpoints,
    delete_checkpoints,
    keep_latest,
    remove_runs,
    threads_of_runs,
)
from runlane.store.threads.graph_writes import (
    GraphWrites,
    StoredCheckpoint,
    StoredValue,
    StoredWrite,
    store_alone,
)

T = TypeVar("T")

# Stores what a graph has written, or raises LeaseLost.
WriteFunction = Callable[[GraphWrites], Awaitable[None]]
# Returns the JSON that servers read as the next nodes and tasks of a checkpoint; they do not load graphs.
SnapshotFunction = Callable[[RunnableConfig, Checkpoint, CheckpointMetadata], str | None]

_ROOT: Final = ""


class RunlaneSaver(BaseCheckpointSaver[str]):
    """Stores the checkpoints of the threads of one tenant. Create it in the event loop that the database uses."""

    def __init__(
        self,
        database: Database,
        tenant: str = DEFAULT_TENANT,
        *,
        write: WriteFunction | None = None,
        snapshot: SnapshotFunction | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        if serde is not None:
            # Otherwise the serializer of the class is used, which need not be checked for each run.
            super().__init__(serde=serde)
        self._database = database
        self._tenant = tenant
        self._write = write
        self._snapshot = snapshot
        self._loop = asyncio.get_running_loop()

    # --- reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest of its thread and namespace."""
        key, ns = self._key(config), namespace_of(config)
        found = await find_checkpoint(self._database, key, ns, get_checkpoint_id(config))
        return None if found is None else self._tuple(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first, whose metadata has these values."""
        wanted = filter or {}

        def matches(metadata: Mapping[str, Any]) -> bool:
            return all(metadata.get(name) == value for name, value in wanted.items())

        query: CheckpointQuery | None = self._query(config, before)
        left = limit
        while query is not None and (left is None or left > 0):
            # A page of all threads leaves out the threads of other tenants.
            most = left if config is not None else None
            found, query = await read_checkpoints(self._database, query, most, matches)
            for record in [record for record in found if self._owns(record.thread)][:left]:
                yield self._tuple(record)
                left = None if left is None else left - 1

    # --- writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values of the channels that have a new version."""
        key, ns = self._key(config), namespace_of(config)
        described = cast("dict[str, Any]", get_serializable_checkpoint_metadata(config, metadata))
        bare = cast("dict[str, Any]", checkpoint.copy())
        values: dict[str, Any] = bare.pop("channel_values")
        encoding, data = self.serde.dumps_typed(bare)
        stored = StoredCheckpoint(
            thread=key,
            ns=ns,
            id=checkpoint["id"],
            parent_id=get_checkpoint_id(config),
            encoding=encoding,
            checkpoint=bytes(data),
            versions=dump_json({name: str(version) for name, version in checkpoint["channel_versions"].items()}),
            metadata=dump_json(described),
            snapshot=None if self._snapshot is None else self._snapshot(config, checkpoint, metadata),
        )
        channels = tuple(
            StoredValue(key, ns, name, str(version), *self._encode(values, name))
            for name, version in new_versions.items()
        )
        await self._store(GraphWrites(checkpoints=(stored,), values=channels), described.get("run_id"))
        return _config(bare_key(key), ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task to a checkpoint. A repeated task keeps its first writes."""
        configurable = config.get("configurable", {})
        checkpoint_id: str = configurable["checkpoint_id"]
        key, ns = self._key(config), namespace_of(config)
        rows: list[StoredWrite] = []
        for number, (channel, value) in enumerate(writes):
            encoding, data = self.serde.dumps_typed(value)
            place = WRITES_IDX_MAP.get(channel, number)
            rows.append(StoredWrite(key, ns, checkpoint_id, task_id, place, task_path, channel, encoding, bytes(data)))
        run_id = configurable.get("run_id") or config.get("metadata", {}).get("run_id")
        await self._store(GraphWrites(writes=tuple(rows)), None if run_id is None else str(run_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        key = thread_key(self._tenant, thread_id)
        await self._database.transact(lambda session: delete_checkpoints(session, [key]))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of these runs."""

        async def work(session: Session) -> None:
            for thread in await threads_of_runs(session, run_ids):
                if self._owns(thread):
                    await remove_runs(session, thread, run_ids)

        await self._database.transact(work)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one."""
        source, target = (thread_key(self._tenant, name) for name in (source_thread_id, target_thread_id))
        await self._database.transact(lambda session: copy_checkpoints(session, source, target))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        keys = [thread_key(self._tenant, name) for name in thread_ids]
        try:
            how = PruneStrategy(strategy)
        except ValueError:
            raise InvalidRequest(f'"{strategy}" is not a valid strategy. Use keep_latest or delete.') from None

        async def work(session: Session) -> None:
            if how is PruneStrategy.DELETE:
                await delete_checkpoints(session, keys)
                return
            for key in keys:
                await keep_latest(session, key)

        await self._database.transact(work)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel. The random part keeps versions of two branches apart."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        # A whole number, because formatting a fraction takes three times as long.
        return f"{number + 1:032}.{random.getrandbits(53):016}"

    # --- the same for threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do as `aget_tuple`."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Do as `alist`."""

        async def collect() -> Sequence[CheckpointTuple]:
            return [item async for item in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._wait(collect())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Do as `aput`."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Do as `aput_writes`."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Do as `adelete_thread`."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do as `adelete_for_runs`."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do as `acopy_thread`."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do as `aprune`."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return wait_in_thread(self._loop, coroutine)

    # --- values

    async def _store(self, writes: GraphWrites, run_id: str | None) -> None:
        if self._write is not None:
            await self._write(writes)
            return
        await self._database.transact(lambda session: store_alone(session, writes, run_id))

    def _encode(self, values: Mapping[str, Any], name: str) -> Encoded:
        if name not in values:
            return (EMPTY, b"")
        encoding, data = self.serde.dumps_typed(values[name])
        return (encoding, bytes(data))

    def _tuple(self, record: CheckpointRecord) -> CheckpointTuple:
        load = self.serde.loads_typed
        advance_past(record.id)
        checkpoint: dict[str, Any] = load(record.checkpoint)
        thread_id = bare_key(record.thread)
        return CheckpointTuple(
            config=_config(thread_id, record.ns, record.id),
            checkpoint=cast(
                "Checkpoint",
                {**checkpoint, "channel_values": {name: load(value) for name, value in record.values.items()}},
            ),
            metadata=cast("CheckpointMetadata", record.metadata),
            parent_config=None if record.parent_id is None else _config(thread_id, record.ns, record.parent_id),
            pending_writes=[(write.task_id, write.channel, load(write.value)) for write in record.writes],
        )

    def _query(self, config: RunnableConfig | None, before: RunnableConfig | None) -> CheckpointQuery:
        until = None if before is None else get_checkpoint_id(before)
        if config is None:
            return CheckpointQuery(before=until)
        ns: str | None = config.get("configurable", {}).get("checkpoint_ns")
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is not None and ns is None:
            ns = _ROOT
        return CheckpointQuery(self._key(config), ns, checkpoint_id, until)

    def _key(self, config: RunnableConfig) -> str:
        return thread_key(self._tenant, clean_text(str(config.get("configurable", {})["thread_id"])))

    def _owns(self, key: str) -> bool:
        return scoped_key(self._tenant, bare_key(key)) == key


# LangGraph reads the signature for each run; computing it takes longer than storing a write.
RunlaneSaver.aput_writes.__dict__["__signature__"] = signature(RunlaneSaver.aput_writes)


def wait_in_thread(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop and wait for it in this thread, which must be another one."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        coroutine.close()
        raise RuntimeError(
            "A synchronous method of the checkpointer or the store was called in the event loop, which it would block. "
            "Use the method with the prefix a, for example aget_state() or aput()."
        )
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def namespace_of(config: RunnableConfig) -> str:
    """Return the namespace of the checkpoints that a configuration addresses."""
    return config.get("configurable", {}).get("checkpoint_ns") or _ROOT


def _config(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
