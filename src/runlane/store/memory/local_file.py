"""The memory file of a node: a SQLite database of its own, with its own version.

It has the tables of `store.sql.schema.memory`, what the index of words in `words_file` follows, and the identity of the
node. `pragma user_version` is the version of this layout.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, Literal, Self, TypeVar

from sqlalchemy import Table
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from runlane.domain.ids import new_id
from runlane.errors import ConfigurationError, StorageFull, Unavailable
from runlane.private_files import make_file
from runlane.store.memory.entry_words import create_word_tables
from runlane.store.sql.database import Session
from runlane.store.sql.schema.memory import MEMORY_TABLES, REQUEST_COLUMNS, memory_indexes, memory_ops, memory_vectors
from runlane.store.sql.sqlite import SqliteDatabase, is_temporary

VERSION: Final = 5
Synchronous = Literal["full", "normal"]
T = TypeVar("T")

# The bytes that an operation writes bound the rate of acknowledgements. The log is therefore one tree with the key
# (memory_id, seq), and its indexes have only the operations with an idempotency key. An entry that was added without
# such a key is not in the log: its row is the operation, see `local_log`. Memories with operations that wait have an
# index.
_KEYED_OPS: Final = "create unique index memory_ops_id on memory_ops (memory_id, op_id) where fingerprint <> ''"
_OLD_OPS: Final = "create index memory_ops_created on memory_ops (created_at) where fingerprint <> ''"
_UNREPLICATED: Final = "create index memories_unreplicated on memories (id) where last_seq > applied_seq"
_OPS_INDEXES: Final = frozenset({"memory_ops_id", "memory_ops_created", "memory_ops_waiting"})
_WITHOUT_INDEXES: Final = frozenset({"memories_requested"})
# Another connection makes the checkpoints; this bounds the log if that connection does not keep up.
_CHECKPOINT_PAGES: Final = 16_384
# How long the truncation of the log waits for readers, and the writer for it.
_TRUNCATE_MILLISECONDS: Final = 50


class LocalFile(SqliteDatabase):
    """A connection to a memory file. One of them writes, others read."""

    node_id: str = ""
    _synchronous: Synchronous = "full"

    @classmethod
    async def open_writer(
        cls, path: Path, timeout_seconds: float, synchronous: Synchronous, *, copies: bool = False
    ) -> Self:
        """Open the file for writing, and create or upgrade its tables. With `copies`, the database is authoritative."""
        opened = await cls.open(path, timeout_seconds)
        try:
            await opened.prepare(synchronous, copies=copies)
        except BaseException:
            await opened.close()
            raise
        return opened

    async def prepare(self, synchronous: Synchronous, *, copies: bool) -> None:
        """Create or upgrade the tables, and read the identity of the node."""
        self.node_id = await self._thread.submit(lambda: self._prepare(synchronous, copies))

    def _prepare(self, synchronous: Synchronous, copies: bool) -> str:
        connection = self._open_connection()
        self._synchronous = synchronous
        connection.execute(f"pragma synchronous={synchronous}")
        # Pages of deleted content are overwritten, so that deleting an entry removes its text from the disk.
        connection.execute("pragma secure_delete=on")
        connection.execute(f"pragma wal_autocheckpoint={_CHECKPOINT_PAGES}")
        try:
            connection.execute("begin immediate")
            version: int = connection.execute("pragma user_version").fetchone()[0]
            if version > VERSION:
                raise ConfigurationError(
                    f"The memory file {self.path} has version {version}, and this code supports {VERSION}. "
                    "Install the newer runlane that wrote it."
                )
            if version == 0:
                _create(connection, copies=copies)
            else:
                self._check_mode(connection, copies=copies)
            if 0 < version < VERSION:
                _upgrade(connection, version)
            row = connection.execute("select id from memory_identity").fetchone()
            connection.execute("commit")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("rollback")
            if isinstance(error, sqlite3.OperationalError):
                raise self._translate_error(error) from error
            raise
        return str(row["id"])

    def _check_mode(self, connection: sqlite3.Connection, *, copies: bool) -> None:
        """Refuse the file of another mode: copies are deleted, and an only copy has nothing to replicate."""
        titles = connection.execute("select 1 from sqlite_master where name = 'memories_title'").fetchone()
        if copies and titles:
            raise ConfigurationError(
                f"The memory file {self.path} is the only copy of its memories, and this process would replicate it. "
                "Set another RUNLANE_MEMORY_PATH, and move each memory: runlane memory export, then import."
            )
        if not copies and not titles:
            raise ConfigurationError(
                f"The memory file {self.path} belongs to a node that replicates it to Postgres. Open it in the mode "
                "replicated, or set another RUNLANE_MEMORY_PATH."
            )

    async def transact_lazily(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run a transaction that a crash of the process does not undo, but a power failure may.

        It does not wait for the disk. A later transaction that waits for the disk makes this one durable as well.
        """
        return await asyncio.shield(self._thread.submit(lambda: self._transact_lazily(work)))

    def _transact_lazily(self, work: Callable[[Session], Awaitable[T]]) -> T:
        connection = self._open_connection()
        connection.execute("pragma synchronous=normal")
        try:
            return self._transact(work)[0]
        finally:
            connection.execute(f"pragma synchronous={self._synchronous}")

    async def checkpoint(self) -> None:
        """Copy the write-ahead log to the file as far as no reader needs it. Does not wait for the writer."""
        await self._thread.submit(lambda: self._open_connection().execute("pragma wal_checkpoint(passive)").fetchall())

    async def truncate_log(self, schema: str = "main") -> bool:
        """Copy the write-ahead log to the file and empty it; return False if a reader or the writer needs it now.

        The log contains the pages of earlier commits, and with them the content that later ones deleted or replaced.
        """
        return await self._thread.submit(lambda: self._truncate_log(schema))

    def _truncate_log(self, schema: str) -> bool:
        connection = self._open_connection()
        try:
            # Most pages are copied here, while the writer continues. It waits for the rest, which is short.
            connection.execute(f"pragma {schema}.wal_checkpoint(passive)").fetchall()
            connection.execute(f"pragma busy_timeout={_TRUNCATE_MILLISECONDS}")
            return not connection.execute(f"pragma {schema}.wal_checkpoint(truncate)").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise self._translate_error(error) from error
        finally:
            connection.execute(f"pragma busy_timeout={round(self._timeout_seconds * 1000)}")

    async def attach(self, path: Path, schema: str) -> None:
        """Let this connection read another file under a name."""
        await self._thread.submit(lambda: self._attach(path, schema))

    def _attach(self, path: Path, schema: str) -> None:
        make_file(path)
        self._open_connection().execute(f"attach database ? as {schema}", (str(path),))

    async def used_bytes(self) -> int:
        """Return the size of the file without the pages that are free."""
        return await self._thread.submit(lambda: self._used_bytes("main"))

    def _used_bytes(self, schema: str) -> int:
        execute = self._open_connection().execute
        pages, free, size = (
            execute(f"pragma {schema}.{name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _translate_error(self, error: sqlite3.OperationalError) -> Exception:
        if (error.sqlite_errorcode or 0) & 0xFF == sqlite3.SQLITE_FULL:
            return StorageFull(
                f"The disk with the memory file {self.path} is full. Nothing was stored. Free some space."
            )
        return super()._translate_error(error)


def _create(connection: sqlite3.Connection, *, copies: bool) -> None:
    for table in MEMORY_TABLES:
        if table is memory_ops:
            _create_log(connection)
            continue
        # A copy of a memory that was deleted or moved must not keep another one from having its title.
        _create_table(connection, table, without={"memories_title"} if copies else set())
    connection.execute(_UNREPLICATED)
    create_word_tables(connection)
    connection.execute("create table memory_identity (id text not null)")
    connection.execute("insert into memory_identity values (?)", (new_id("node"),))
    connection.execute(f"pragma user_version={VERSION}")


def _create_table(connection: sqlite3.Connection, table: Table, without: AbstractSet[str]) -> None:
    dialect = sqlite_dialect.dialect()
    definition = CreateTable(table)
    # Requests exist only in the database, so the format of files does not depend on them.
    definition.columns = [column for column in definition.columns if column.element.name not in REQUEST_COLUMNS]
    connection.execute(str(definition.compile(dialect=dialect)))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in {*without, *_WITHOUT_INDEXES} and not index.dialect_options["postgresql"]["using"]:
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))


def _create_log(connection: sqlite3.Connection) -> None:
    definition = str(CreateTable(memory_ops).compile(dialect=sqlite_dialect.dialect()))
    connection.execute(f"{definition} without rowid")
    connection.execute(_KEYED_OPS)
    connection.execute(_OLD_OPS)


def _upgrade(connection: sqlite3.Connection, version: int) -> None:
    if version < 2:
        for table in (memory_vectors, memory_indexes):
            _create_table(connection, table, without=frozenset())
    if version < 3:
        names = ", ".join(column.name for column in memory_ops.c)
        for index in _OPS_INDEXES:
            connection.execute(f"drop index if exists {index}")
        connection.execute("alter table memory_ops rename to memory_ops_before")
        _create_log(connection)
        connection.execute(
            f"insert into memory_ops ({names}) select {names} from memory_ops_before "  # noqa: S608 - constants
            "where state <> 'applied' or fingerprint <> ''"
        )
        connection.execute("drop table memory_ops_before")
        connection.execute(_UNREPLICATED)
    # The log keeps its rows of added entries until they are replicated.
    if version < 5:
        # The index of words has a file of its own.
        for trigger in ("memory_words_added", "memory_words_deleted", "memory_words_removed"):
            connection.execute(f"drop trigger if exists {trigger}")
        connection.execute("drop table memory_words")
        create_word_tables(connection)
    connection.execute(f"pragma user_version={VERSION}")


def check_file(path: Path, timeout_seconds: float = 10) -> list[str]:
    """Return the messages of SQLite's quick check of a file; none if the file is sound or missing.

    Raise Unavailable if the file cannot be checked now: it is locked, or the disk is full. That is not damage.
    """
    if not path.exists() or path.stat().st_size == 0:
        return []
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=timeout_seconds)) as connection:
            found = [str(row[0]) for row in connection.execute("pragma quick_check(20)")]
    except sqlite3.DatabaseError as error:
        if is_temporary(error):
            raise Unavailable(f"The file {path} cannot be checked: {error}. Check its disk and permissions.") from error
        return [str(error)]
    return [] if found == ["ok"] else found
