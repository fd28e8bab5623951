"""Open the memory of a process, as its settings say, and close it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runlane.errors import MemoryFileBroken
from runlane.memory.places import MemoryPlaces
from runlane.memory.service import MemoryService
from runlane.memory.shards import Shards
from runlane.memory.writer import MemoryWriter
from runlane.settings import Settings
from runlane.store.memory.local_file import LocalFile, check_file
from runlane.store.memory.writing import WriteRules
from runlane.store.sql.database import Database


@dataclass(slots=True)
class OpenMemory:
    """The memory of a process, and what has to be closed with it."""

    service: MemoryService
    places: MemoryPlaces
    files: tuple[LocalFile, ...]

    async def close(self) -> None:
        """Write what waits, then close the file. Operations that are not replicated stay in it."""
        await self.places.writer.stop()
        for file in self.files:
            await file.close()

    def forget(self) -> None:
        """Release the file after the event loop was closed."""
        for file in self.files:
            file.forget()


async def open_memory(settings: Settings, database: Database) -> OpenMemory:
    """Open the memory of a process whose runs are in this database."""
    if settings.memory_mode_in_force == "direct":
        return _open_direct(settings, database)
    return await _open_local(settings, settings.memory_file)


def _open_direct(settings: Settings, database: Database) -> OpenMemory:
    shards = Shards(settings.memory_submit_seconds)
    writer = MemoryWriter(database, shards, WriteRules(replicated=False, check_owner=True))
    places = MemoryPlaces("direct", database, database, shards, writer)
    writer.start()
    return OpenMemory(MemoryService(places), places, ())


async def _open_local(settings: Settings, path: Path) -> OpenMemory:
    problems = check_file(path)
    if problems:
        raise MemoryFileBroken(
            f"The memory file {path} is damaged ({problems[0]}), and it is the only copy. Restore it from a backup, or "
            f"recover what is readable: sqlite3 {path} .recover. To start without it, move it away."
        )
    timeout = settings.database_timeout_seconds
    file = await LocalFile.open_writer(path, timeout, settings.memory_synchronous)
    try:
        reader = await LocalFile.open(path, timeout)
    except BaseException:
        await file.close()
        raise
    shards = Shards(settings.memory_submit_seconds)
    writer = MemoryWriter(file, shards, WriteRules(replicated=False))
    places = MemoryPlaces("local", file, reader, shards, writer)
    writer.start()
    return OpenMemory(MemoryService(places), places, (file, reader))
