"""The index of words of a memory file: an FTS5 table in a file beside it, filled after the entries were committed.

SQLite merges the parts of such an index inside some commits, and would hold the memory file for that time. The index
therefore has its own file, with its own lock. Its position (the last row and the last dropped text of the memory file
that it follows) is stored in the same transaction as the words, so a crash at any time loses no word and adds none
twice. The index is derived: a file that is missing or damaged, or does not match the memory file, is created again, and
all entries are indexed once more.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from sqlalchemy import BigInteger, bindparam, text

from runlane.domain.ids import new_id
from runlane.failpoints import failpoint
from runlane.store.memory.entry_words import MEMORY_WORD
from runlane.store.memory.local_file import LocalFile, check_file
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Row, Statement

_VERSION: Final = 1
# A transaction reads a snapshot of the memory file, which delays its checkpoints, so it is short.
_ENTRIES_AT_ONCE: Final = 2_000
_MERGED_PAGES: Final = 64
_CHECKPOINT_PAGES: Final = 4_000
WORDS_SCHEMA: Final = "words"
_TABLES: Final = (
    (
        "create virtual table words.memory_words using fts5("
        "entry, summary, memory, content='', tokenize='unicode61 remove_diacritics 2')"
    ),
    (
        "create table words.memory_words_position (id text not null, last_row integer not null, "
        "last_dropped integer not null, remains integer not null)"
    ),
)
_number = BigInteger()
_POSITION = Statement(
    "memory_words_position",
    text(
        "select p.last_row, p.last_dropped, p.remains, "
        "coalesce((select max(rowid) from memory_entries), 0) as newest, "
        "coalesce((select max(number) from memory_words_dropped), 0) as dropped from memory_words_position p"
    ),
    purpose="Read up to where the index of words follows a file, and to where it can.",
)
_LOCK = Statement(
    "memory_words_lock",
    text("update memory_words_position set last_row = last_row"),
    purpose="Lock the index of words of a file before it is read.",
)
_RANGE = Statement(
    "memory_words_range",
    text(
        "select (select max(number) from (select number from memory_words_dropped where number > :dropped "
        "order by number limit :limit)) as dropped, (select max(row) from (select rowid as row from memory_entries "
        "where rowid > :row order by rowid limit :limit)) as row"
    ).bindparams(
        bindparam("dropped", type_=_number), bindparam("row", type_=_number), bindparam("limit", type_=_number)
    ),
    purpose="Read which part of a file is indexed next.",
)
# A dropped entry that is after the position has no words in the index.
_DROP_WORDS = Statement(
    "memory_drop_words",
    text(
        "insert into memory_words (memory_words, rowid, entry, summary, memory) "
        "select 'delete', entry, text, summary, memory from memory_words_dropped "
        "where number > :after and number <= :through and entry <= :row order by number"
    ).bindparams(
        bindparam("after", type_=_number), bindparam("through", type_=_number), bindparam("row", type_=_number)
    ),
    purpose="Remove the words of deleted entries from the index of a file.",
)
_ADD_WORDS = Statement(
    "memory_add_words",
    text(
        "insert into memory_words (rowid, entry, summary, memory) "  # noqa: S608 - constants
        f"select e.rowid, e.text, e.summary, {MEMORY_WORD.format(row='e')} from memory_entries e "
        "where e.rowid > :after and e.rowid <= :through and e.deleted_at is null"
    ).bindparams(bindparam("after", type_=_number), bindparam("through", type_=_number)),
    purpose="Add the words of entries to the index of a file.",
)
_MOVE = Statement(
    "memory_move_words",
    text("update memory_words_position set last_row = :row, last_dropped = :dropped, remains = :remains").bindparams(
        bindparam("row", type_=_number), bindparam("dropped", type_=_number), bindparam("remains", type_=_number)
    ),
    purpose="Store up to where the index of words follows a file.",
)
_CLEAR = Statement(
    "memory_clear_dropped",
    text("delete from memory_words_dropped where number <= :through").bindparams(bindparam("through", type_=_number)),
    purpose="Delete the content of deleted entries whose words have left the index.",
)
_HAS_POSITION: Final = "select 1 from words.sqlite_master where name = 'memory_words_position'"
_FITS: Final = (
    "select p.id = s.id and p.last_row <= max(s.last_row, coalesce((select max(rowid) from memory_entries), 0)) "
    "and (select count(*) from memory_words_dropped where number > p.last_dropped) = "
    "coalesce((select seq from main.sqlite_sequence where name = 'memory_words_dropped'), 0) - p.last_dropped "
    "from words.memory_words_position p, memory_words_state s"
)


@dataclass(frozen=True, slots=True)
class WordsPosition:
    """Up to where the index follows the memory file, and up to where it could when that was read.

    With `remains`, the words of deleted entries are marked as deleted and are still in the index.
    """

    row: int
    dropped: int
    remains: bool
    newest: int
    newest_dropped: int

    @property
    def complete(self) -> bool:
        """Return whether nothing was left to index."""
        return self.row >= self.newest and self.dropped >= self.newest_dropped


class WordsFile(LocalFile):
    """The connection that writes the index of words. It reads the memory file and never locks it for writing."""

    begin = "begin"

    @classmethod
    async def open_index(cls, path: Path, timeout_seconds: float) -> Self:
        """Open the index of words beside a memory file that has its tables."""
        opened = await cls.open(path, timeout_seconds)
        try:
            await opened.prepare_index()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def prepare_index(self) -> None:
        """Open the index, and create it unless a matching one exists."""
        await self._thread.submit(self._prepare_index)

    def _prepare_index(self) -> None:
        path = words_path(self.path)
        if check_file(path):
            delete_words(self.path)
        self._attach(path, WORDS_SCHEMA)
        connection = self._open_connection()
        connection.execute("pragma words.journal_mode=wal")
        # The position is stored with the words, so words that a power failure undoes are indexed again.
        connection.execute("pragma words.synchronous=normal")
        # Of both files: an index that is created again deletes content that waits in the memory file.
        for schema in ("main", WORDS_SCHEMA):
            connection.execute(f"pragma {schema}.secure_delete=on")
        connection.execute(f"pragma wal_autocheckpoint={_CHECKPOINT_PAGES}")
        try:
            with _transaction(connection, "begin immediate"):
                if not _fits(connection):
                    _create(connection)
        except sqlite3.OperationalError as error:
            raise self._translate_error(error) from error

    async def follow(self) -> WordsPosition:
        """Index the next part of the memory file, and return the position after it."""
        position = await self.position()
        if position.complete:
            return position
        position = await self.transact(_follow)
        failpoint("words.committed")
        return position

    async def position(self) -> WordsPosition:
        """Return up to where the index follows the memory file, and up to where it could."""
        return _position((await self.query(_POSITION))[0])

    async def merge(self, dropped: int, *, first: bool) -> bool:
        """Merge a few pages of the index, so that words of deleted entries leave it; return whether more are left.

        `dropped` is the position at which the merges began.
        """
        return await self._thread.submit(lambda: self._merge(dropped, first=first))

    def _merge(self, dropped: int, *, first: bool) -> bool:
        connection = self._open_connection()
        # A negative number has all parts of the index merged into one.
        pages = -_MERGED_PAGES if first else _MERGED_PAGES
        try:
            before = connection.total_changes
            connection.execute("insert into words.memory_words (memory_words, rank) values ('merge', ?)", (pages,))
            # The command itself counts as one change.
            if connection.total_changes - before > 1:
                return True
            connection.execute("update words.memory_words_position set remains = 0 where last_dropped = ?", (dropped,))
            # The log contains these words as well. Readers may use it now; then the checkpointer truncates it.
            connection.execute("pragma busy_timeout=200")
            connection.execute("pragma words.wal_checkpoint(truncate)").fetchall()
        except sqlite3.OperationalError as error:
            raise self._translate_error(error) from error
        finally:
            connection.execute(f"pragma busy_timeout={round(self._timeout_seconds * 1000)}")
        return False

    async def recreate(self) -> None:
        """Create the index again, empty."""
        await self._thread.submit(self._recreate)

    def _recreate(self) -> None:
        connection = self._open_connection()
        try:
            with _transaction(connection, "begin immediate"):
                _create(connection)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            _empty(connection)
            with _transaction(connection, "begin immediate"):
                _create(connection)

    async def index_bytes(self) -> int:
        """Return the size of the index without the pages that are free."""
        return await self._thread.submit(lambda: self._used_bytes(WORDS_SCHEMA))


async def open_searcher(path: Path, timeout_seconds: float) -> LocalFile:
    """Open a memory file for reading, with its index of words."""
    opened = await LocalFile.open(path, timeout_seconds)
    try:
        await opened.attach(words_path(path), WORDS_SCHEMA)
    except BaseException:
        await opened.close()
        raise
    return opened


def words_path(path: Path) -> Path:
    """Return the file with the index of words of a memory file."""
    return path.with_name(f"{path.name}-words")


def delete_words(path: Path) -> None:
    """Delete the index of words of a memory file, from which it can be created again."""
    for suffix in ("", "-wal", "-shm"):
        words_path(path).with_name(f"{words_path(path).name}{suffix}").unlink(missing_ok=True)


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite reports that a file is damaged."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


async def clear_dropped(file: LocalFile, through: int) -> None:
    """Delete the content of deleted entries whose words have left the index."""

    async def work(session: Session) -> None:
        await session.fetch(_CLEAR, through=through)

    await file.transact_lazily(work)


async def _follow(session: Session) -> WordsPosition:
    await session.fetch(_LOCK)
    position = _position((await session.fetch(_POSITION))[0])
    row, dropped = position.row, position.dropped
    part = (await session.fetch(_RANGE, dropped=dropped, row=row, limit=_ENTRIES_AT_ONCE))[0]
    if part["dropped"] is not None:
        await session.fetch(_DROP_WORDS, after=dropped, through=part["dropped"], row=row)
        dropped = part["dropped"]
    # Deleted entries are not indexed, so rows are added only after all content dropped up to now was handled.
    if dropped >= position.newest_dropped and part["row"] is not None:
        await session.fetch(_ADD_WORDS, after=row, through=part["row"])
        row = part["row"]
    remains = position.remains or dropped > position.dropped
    await session.fetch(_MOVE, row=row, dropped=dropped, remains=int(remains))
    failpoint("words.before_commit")
    return replace(position, row=row, dropped=dropped, remains=remains)


def _position(row: Row) -> WordsPosition:
    return WordsPosition(row["last_row"], row["last_dropped"], bool(row["remains"]), row["newest"], row["dropped"])


def _fits(connection: sqlite3.Connection) -> bool:
    """Return whether the index belongs to the memory file and is not ahead of it."""
    if connection.execute(f"pragma {WORDS_SCHEMA}.user_version").fetchone()[0] != _VERSION:
        return False
    if connection.execute(_HAS_POSITION).fetchone() is None:
        return False
    row = connection.execute(_FITS).fetchone()
    return row is not None and bool(row[0])


def _create(connection: sqlite3.Connection) -> None:
    """Create the index, empty and for this memory file, instead of one that may exist."""
    for name in ("memory_words", "memory_words_position"):
        connection.execute(f"drop table if exists {WORDS_SCHEMA}.{name}")
    for statement in _TABLES:
        connection.execute(statement)
    index_id = new_id("words")
    connection.execute("update main.memory_words_state set id = ?", (index_id,))
    # The words of what was dropped before are not in the new index.
    connection.execute(
        "insert into words.memory_words_position select ?, 0, "
        "coalesce((select seq from main.sqlite_sequence where name = 'memory_words_dropped'), 0), 0",
        (index_id,),
    )
    connection.execute("delete from main.memory_words_dropped")
    connection.execute(f"pragma {WORDS_SCHEMA}.user_version={_VERSION}")


def _empty(connection: sqlite3.Connection) -> None:
    """Remove everything from the file. Tables whose pages are damaged cannot be dropped."""
    connection.execute(f"pragma {WORDS_SCHEMA}.writable_schema=on")
    try:
        connection.execute(f"delete from {WORDS_SCHEMA}.sqlite_master")  # noqa: S608 - a constant
    finally:
        # The other readers of the file learn of it when they read the next time.
        connection.execute(f"pragma {WORDS_SCHEMA}.writable_schema=reset")
    connection.execute(f"vacuum {WORDS_SCHEMA}")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Generator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
