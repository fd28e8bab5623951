"""SQLite behind the seam: the standard library's driver, one thread per open file, a whole transaction per hop.

Every transaction begins IMMEDIATE, so no other write comes between a read and the write that follows from it, and no
transaction fails at a late lock upgrade. synchronous=FULL makes every commit durable; the batches of the committer
share its cost.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import orjson

from runlane.errors import ConfigurationError, Unavailable
from runlane.event_loop.daemon_executor import DaemonExecutor
from runlane.observability import metrics
from runlane.private_files import make_file, make_folder
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Duplicate, Session, ignore_freed
from runlane.store.sql.json_containment import text_contains, text_contains_any
from runlane.store.sql.sqlite_clock import SqliteClock
from runlane.store.sql.statement import Dialect, Row, Statement, text_list

T = TypeVar("T")

_RETRYABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}
_BUSY_SECONDS = 0.02


class SqliteSession:
    """A transaction whose methods never suspend. Locks are no-ops: an immediate transaction is exclusive."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.freed: set[str] = set()

    async def fetch(
        self, statement: Statement, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        if members is not None and not members:
            return []
        began = time.perf_counter()
        if statement.by_rows and members is not None:
            rows: list[Any] = []
            for sql, arguments in statement.chunks(members):
                self._connection.execute(sql, arguments)
        else:
            rows = self._connection.execute(*statement.bound("sqlite", params, members)).fetchall()
        metrics.observe_statement(statement.name, time.perf_counter() - began)
        return cast("list[Row]", rows)

    async def write(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        if members is not None and not members:
            return []
        head, links, final = compound.parts()
        rows = await self.fetch(head, members, **params)
        if not rows:
            return []
        changed = orjson.dumps(compound.changed(rows, members)).decode()
        for link in links:
            self._connection.execute(link.sql, compound.bind_part(link, params, members, changed))
        if final is None:
            return rows
        cursor = self._connection.execute(final.sql, compound.bind_part(final, params, members, changed))
        return cast("list[Row]", cursor.fetchall())

    async def lock(self, exclusive: Iterable[int] = (), shared: Iterable[int] = ()) -> None:
        return None

    async def try_lock(self, key: int) -> bool:
        return True

    def texts(self, values: Sequence[str]) -> Any:
        return text_list("sqlite", values)


class SqliteDatabase:
    """One connection to one file, used from one thread."""

    dialect: Dialect = "sqlite"
    duplicates: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)
    steady_since = float("-inf")
    # Immediate: a transaction that reads before it writes is not overtaken by another.
    begin: ClassVar[str] = "begin immediate"

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self.path = path
        self._timeout_seconds = timeout_seconds
        self.on_freed = ignore_freed
        self._thread = DaemonExecutor(asyncio.get_running_loop(), "runlane-sqlite", limit=1)
        self._connection: sqlite3.Connection | None = None
        self._clock: SqliteClock | None = None

    @classmethod
    async def open(cls, path: Path, timeout_seconds: float) -> Self:
        """Open the file, creating it and its folder if need be."""
        database = cls(path, timeout_seconds)
        try:
            await database._thread.submit(database._connect)
        except BaseException:
            database._thread.stop()
            raise
        return database

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        self._open_connection()
        # The call in the thread must finish: a cancelled caller must not leave a transaction half done.
        metrics.DATABASE_IN_USE.add(1)
        try:
            result, freed = await asyncio.shield(self._thread.submit(lambda: self._transact(work)))
        finally:
            metrics.DATABASE_IN_USE.add(-1)
        if freed:
            self.on_freed(freed)
        return result

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        try:
            return await self.transact(lambda session: session.write(compound, members, **params))
        except sqlite3.IntegrityError as error:
            raise Duplicate from error

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        self._open_connection()
        return await self._thread.submit(lambda: self._query(statement, params))

    async def was_committed(self, mark: str) -> bool:
        raise AssertionError("a commit on SQLite is never in doubt")

    async def close(self) -> None:
        if self._connection is not None:
            await self._thread.submit(self._disconnect)
        self._thread.stop()

    def forget(self) -> None:
        self._thread.abandon(self._disconnect)

    def _connect(self) -> None:
        try:
            make_folder(self.path.parent)
            make_file(self.path)
            connection = sqlite3.connect(
                self.path, timeout=self._timeout_seconds, isolation_level=None, check_same_thread=False
            )
            connection.row_factory = sqlite3.Row
            self._clock = SqliteClock.open(self.path)
            connection.create_function("now_us", 0, self._clock.now_us)
            connection.create_function("json_contains", 2, text_contains, deterministic=True)
            connection.create_function("json_contains_any", 2, text_contains_any, deterministic=True)
            connection.create_function("from_base64", 1, _from_base64, deterministic=True)
            self._use_log(connection)
            for pragma in ("synchronous=full", "foreign_keys=on", "cache_size=-16000"):
                connection.execute(f"pragma {pragma}")
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"The database file {self.path} cannot be opened: {error}. "
                "Check the folder's permissions, or set RUNLANE_DATABASE_URL=sqlite:///path/to/file.db"
            ) from error
        self._connection = connection

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switch to the write-ahead log. SQLite's own timeout does not cover concurrent creation of the file."""
        give_up_at = time.monotonic() + self._timeout_seconds
        while True:
            try:
                connection.execute("pragma journal_mode=wal")
            except sqlite3.OperationalError as error:
                if (error.sqlite_errorcode or 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise
                time.sleep(_BUSY_SECONDS)
            else:
                return

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._clock is not None:
            self._clock.close()

    def _query(self, statement: Statement, params: dict[str, Any]) -> Sequence[Row]:
        connection = self._open_connection()
        try:
            return run_to_end(cast("Coroutine[Any, Any, Any]", SqliteSession(connection).fetch(statement, **params)))
        except sqlite3.OperationalError as error:
            raise self._translate_error(error) from error

    def _transact(self, work: Callable[[Session], Awaitable[T]]) -> tuple[T, set[str]]:
        connection = self._open_connection()
        session = SqliteSession(connection)
        try:
            connection.execute(self.begin)
            try:
                result = run_to_end(cast("Coroutine[Any, Any, T]", work(session)))
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        except sqlite3.OperationalError as error:
            raise self._translate_error(error) from error
        return result, session.freed

    def _open_connection(self) -> sqlite3.Connection:
        # Checked before the call in the thread as well, because after close() no thread would return.
        if self._connection is None:
            raise Unavailable(f"The database {self.path} is closed.")
        return self._connection

    def _translate_error(self, error: sqlite3.OperationalError) -> Exception:
        if not is_temporary(error):
            return error  # a defect of Runlane
        return Unavailable(f"The database {self.path} cannot be used right now: {error}.")


def is_temporary(error: sqlite3.Error) -> bool:
    """Return whether the file cannot be used at the moment, although it is sound, and so was the statement."""
    # The low byte of SQLite's code is its class.
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _RETRYABLE


def _from_base64(text: str | None) -> bytes | None:
    """Return the bytes of a batch, whose JSON carries them as text. SQLite before 3.41 has no such function."""
    return None if text is None else b64decode(text)


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that awaits nothing but a SqliteSession, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    coroutine.close()
    raise RuntimeError("A transaction awaited something other than its session; on SQLite that would never end.")
