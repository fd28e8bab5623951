"""The database seam: the interface of the store to a database, the same for Postgres and SQLite.

A transaction is one async function over a Session. On Postgres its awaits are round trips; on SQLite they complete at
once and the whole function runs in the database's thread in a single hop. Each transaction is therefore written once.
It must await nothing but its session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import select

from runlane.errors import Unavailable
from runlane.extras import requires_extra
from runlane.settings import Settings
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.expressions import now_us
from runlane.store.sql.statement import Dialect, Row, Statement

T = TypeVar("T")

_CLOCK = Statement("database_clock", select(now_us().label("now")), purpose="Read the clock of the database.")


class CommitInDoubt(Unavailable):
    """The connection broke during a commit. was_committed() determines the outcome from `mark`."""

    def __init__(self, mark: str | None) -> None:
        self.mark = mark
        super().__init__("The connection to the database broke during a commit.")


class Duplicate(Exception):
    """A row with this key exists already."""


def ignore_freed(keys: set[str]) -> None:
    """Leave waiting runs to the processes that have a maintenance service for them."""


class Session(Protocol):
    """One open transaction."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def freed(self) -> set[str]:
        """Add the keys of concurrency limits whose waiting runs may be admitted once this transaction has committed."""
        ...

    async def fetch(
        self, statement: Statement, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        """Run a statement and return its rows."""
        ...

    async def write(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        """Run a compound write and return its final rows."""
        ...

    async def lock(self, exclusive: Iterable[int] = (), shared: Iterable[int] = ()) -> None:
        """Wait for locks that live as long as this transaction, in one agreed order, so that none deadlock."""
        ...

    async def try_lock(self, key: int) -> bool:
        """Take a lock of this kind if it is free."""
        ...

    def texts(self, values: Sequence[str]) -> Any:
        """Return a list of strings as one bound value, for statements that use `member`."""
        ...


class Database(Protocol):
    """An open database."""

    @property
    def dialect(self) -> Dialect: ...

    # Called after each commit that freed slots of concurrency limits, with their keys.
    on_freed: Callable[[set[str]], None]

    @property
    def steady_since(self) -> float:
        """The monotonic time since which no connection broke. Other processes may lose theirs at the same time."""
        ...

    @property
    def duplicates(self) -> tuple[type[Exception], ...]:
        """The errors of the driver for a row whose key is taken, as a transaction raises them."""
        ...

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run `work` in one transaction and return its value after the commit."""
        ...

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        """Run a compound write as its own transaction, in one round trip. After Unavailable it may be stored.

        Raise Duplicate when one of the keys is taken; nothing is stored then.
        """
        ...

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        """Read with one statement, in one round trip and without waiting for other transactions."""
        ...

    async def was_committed(self, mark: str) -> bool:
        """Return whether the transaction with this mark committed; wait until that is decided."""
        ...

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        ...

    def forget(self) -> None:
        """Release every connection after the event loop that used them was closed."""
        ...


async def open_database(settings: Settings, connections: int | None = None) -> Database:
    """Connect to the database of the settings, with at most this many connections."""
    if settings.sqlite_path is not None:
        from runlane.store.sql.sqlite import SqliteDatabase

        return await SqliteDatabase.open(settings.sqlite_path, settings.database_timeout_seconds)
    with requires_extra("postgres", "A Postgres database"):
        from runlane.store.sql.postgres import PostgresDatabase

    return await PostgresDatabase.open(settings, connections or settings.database_connections)


async def read(
    database: Database, statement: Statement, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
) -> Sequence[Row]:
    """Run one statement in its own transaction."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(statement, members, **params)

    return await database.transact(work)


async def read_clock(database: Database) -> int:
    """Return the time of the database, which alone decides leases, due times and order, in microseconds."""
    return (await read(database, _CLOCK))[0]["now"]


async def clock_in(session: Session) -> int:
    """Return the time of the database, within a transaction."""
    return (await session.fetch(_CLOCK))[0]["now"]
