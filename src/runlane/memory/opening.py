"""Open the memory of a process according to its settings, and close it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from runlane.bus import Bus
from runlane.bus.memory import MemoryBus
from runlane.domain.ids import new_id
from runlane.errors import ConfigurationError, MemoryFileBroken, Unavailable
from runlane.llm.embeddings import EmbeddingModels
from runlane.llm.providers import Values
from runlane.memory.checkpoints import Checkpointer
from runlane.memory.file_cleanup import MemoryFileCleanup
from runlane.memory.handover import MemoryHandover
from runlane.memory.indexing import MemoryIndex
from runlane.memory.modes import MemoryStorage
from runlane.memory.node import MemoryNode
from runlane.memory.replicator import Replicator
from runlane.memory.requesting import MemoryRequests
from runlane.memory.service import MemoryService
from runlane.memory.shards import Shards
from runlane.memory.word_indexing import WordIndexing
from runlane.memory.writer import MemoryWriter
from runlane.private_files import make_folder
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.settings import Settings
from runlane.store.memory.copying import drop_unfinished
from runlane.store.memory.local_file import LocalFile, check_file
from runlane.store.memory.salvage import earlier_reports, set_aside
from runlane.store.memory.words_file import WordsFile, open_searcher
from runlane.store.memory.writing import WriteRules
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

_DRAIN_SECONDS: Final = 10.0


class OpenFiles(NamedTuple):
    """The connections to a memory file: for writing, for reading, for checkpoints and for the index of words."""

    writer: LocalFile
    reader: LocalFile
    checkpoints: LocalFile
    words: WordsFile


@dataclass(slots=True)
class OpenMemory:
    """The memory of a process, and the resources to close with it."""

    service: MemoryService
    storage: MemoryStorage
    files: OpenFiles | None = None
    checkpointer: Checkpointer | None = None
    words: WordIndexing | None = None
    cleanup: MemoryFileCleanup | None = None
    node: MemoryNode | None = None
    replicator: Replicator | None = None
    handover: MemoryHandover | None = None
    lock: int | None = None

    async def close(self) -> None:
        """Write all queued changes, replicate as much as possible in a short time, then close.

        The rest stays in the file.
        """
        if self.storage.requests is not None:
            self.storage.requests.close()
        if self.handover is not None:
            await self.handover.stop()
        await self.storage.writer.stop()
        if self.checkpointer is not None:
            await self.checkpointer.stop()
        if self.cleanup is not None:
            await self.cleanup.stop()
        if self.words is not None:
            await self.words.stop()
        if self.node is not None and self.replicator is not None:
            await self.replicator.stop(_DRAIN_SECONDS)
            await self.node.lease.stop()
            try:
                await self.node.sign_off()
            except Unavailable as error:
                log.warning("memory_sign_off_failed", problem=str(error))
        if self.storage.index is not None:
            await self.storage.index.close()
        for file in self.files or ():
            await file.close()
        self._unlock()

    def forget(self) -> None:
        """Release the file after the event loop was closed."""
        for file in self.files or ():
            file.forget()
        self._unlock()

    def _unlock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


async def open_memory(
    settings: Settings, database: Database, secrets: Values | None = None, bus: Bus | None = None
) -> OpenMemory:
    """Open the memory of a process whose runs are in this database.

    `secrets` has the keys of providers. `bus` connects processes; without one, they find requests by polls.
    """
    bus = bus or MemoryBus()
    match settings.memory_mode_in_force:
        case "direct":
            opened = _open_direct(settings, database, bus)
        case "local":
            opened = await _open_local(settings, settings.memory_file)
        case "replicated":
            opened = await _open_replicated(settings, settings.memory_file, database, bus)
    opened.storage.runs = database
    if settings.memory_embedding_model is not None:
        models = EmbeddingModels(settings, secrets or _no_secrets)
        # The limits are in the database of runs, which a memory file is not.
        limiter = ClusterLimiter(database)
        index = MemoryIndex(settings.memory_embedding_model, models, opened.storage.shared, limiter, database)
        opened.storage.index = index
        if opened.node is not None:
            opened.node.on_applied = index.note
        else:
            opened.storage.writer.on_committed(index.note)
    return opened


async def _no_secrets(_tenant: str, _names: Collection[str]) -> Mapping[str, str]:
    return {}


def _open_direct(settings: Settings, database: Database, bus: Bus) -> OpenMemory:
    shards = Shards(settings.memory_submit_seconds)
    requests = MemoryRequests(database, bus, new_id("process"))
    writer = MemoryWriter(database, shards, WriteRules(replicated=False, process=requests.process))
    storage = MemoryStorage("direct", database, database, shards, writer, requests=requests)
    writer.start()
    return OpenMemory(MemoryService(storage), storage)


async def _open_local(settings: Settings, path: Path) -> OpenMemory:
    problems = await asyncio.to_thread(check_file, path)
    if problems:
        raise MemoryFileBroken(
            f"The memory file {path} is damaged ({problems[0]}), and it is the only copy. Restore it from a backup, or "
            f"recover what is readable: sqlite3 {path} .recover. To start without it, move it away."
        )
    opened = await _open_files(settings, path, copies=False)
    shards = Shards(settings.memory_submit_seconds)
    checkpointer = Checkpointer(opened.checkpoints, opened.words)
    words = WordIndexing(opened.words, opened.writer)

    def committed(_memories: set[str]) -> None:
        checkpointer.wake()
        words.wake()

    writer = MemoryWriter(opened.writer, shards, WriteRules(replicated=False, log_all=False), committed=[committed])
    storage = MemoryStorage("local", opened.writer, opened.reader, shards, writer, path=str(path), words=words)
    cleanup = MemoryFileCleanup(settings, opened.writer, words)
    writer.start()
    checkpointer.start()
    words.start()
    cleanup.start()
    return OpenMemory(MemoryService(storage), storage, opened, checkpointer, words, cleanup)


async def _open_replicated(settings: Settings, path: Path, database: Database, bus: Bus) -> OpenMemory:
    lock = _lock(path)
    try:
        problems = await asyncio.to_thread(check_file, path)
        if problems:
            moved, report = await asyncio.to_thread(set_aside, path, problems)
            log.error("memory_file_set_aside", file=str(moved), report=str(report), problem=problems[0])
        opened = await _open_files(settings, path, copies=True)
        await drop_unfinished(opened.writer)
    except BaseException:
        os.close(lock)
        raise
    file, shards = opened.writer, Shards(settings.memory_submit_seconds)
    node = MemoryNode(file, opened.reader, database, shards, settings.memory_node_url, settings.memory_lease_seconds)
    node.set_aside = earlier_reports(path)
    replicator, checkpointer = Replicator(node, shards.__len__), Checkpointer(opened.checkpoints, opened.words)
    words = WordIndexing(opened.words, file)
    node.on_work = replicator.wake

    def committed(_memories: set[str]) -> None:
        replicator.wake()
        checkpointer.wake()
        words.wake()

    writer = MemoryWriter(file, shards, WriteRules(replicated=True), node.admit, [committed])
    requests, handover = MemoryRequests(database, bus, node.id), MemoryHandover(node, bus)
    storage = MemoryStorage("replicated", database, opened.reader, shards, writer, node, requests=requests, words=words)
    cleanup = MemoryFileCleanup(settings, file, words, node)
    writer.start()
    checkpointer.start()
    words.start()
    if not settings.paused:
        replicator.start()
        node.lease.start()
        cleanup.start()
        handover.start()
    return OpenMemory(
        MemoryService(storage), storage, opened, checkpointer, words, cleanup, node, replicator, handover, lock
    )


async def _open_files(settings: Settings, path: Path, *, copies: bool) -> OpenFiles:
    timeout = settings.database_timeout_seconds
    opened: list[LocalFile] = []
    try:
        writer = await LocalFile.open_writer(path, timeout, settings.memory_synchronous, copies=copies)
        opened.append(writer)
        words = await WordsFile.open_index(path, timeout)
        opened.append(words)
        reader = await open_searcher(path, timeout)
        opened.append(reader)
        checkpoints = await LocalFile.open(path, timeout)
    except BaseException:
        for file in opened:
            await file.close()
        raise
    return OpenFiles(writer, reader, checkpoints, words)


def _lock(path: Path) -> int:
    """Make sure that one process uses the file: its operations have one order."""
    make_folder(path.parent)
    descriptor = os.open(path.with_name(path.name + "-node"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(
            f"The memory file {path} is used by another process. Give each process its own RUNLANE_MEMORY_PATH."
        ) from None
    return descriptor
