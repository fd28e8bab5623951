"""Postgres behind the seam: asyncpg without its pool, whose reset query would cost every transaction a round trip.

Every connection carries settings that make plans independent of statistics (only index look-ups and nested loops:
a queue's tables change faster than ANALYZE runs) and that end a transaction whose client froze: its locks stop a lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from typing import Any, Self, TypeVar, cast

import asyncpg
from sqlalchemy import text

from runlane.errors import ConfigurationError, Unavailable
from runlane.observability import metrics
from runlane.settings import Settings
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import CommitInDoubt, Duplicate, Session, ignore_freed
from runlane.store.sql.postgres_session import PostgresSession
from runlane.store.sql.statement import Dialect, Row, Statement

T = TypeVar("T")

# A frozen client is disconnected by the server after this long inside a transaction.
IDLE_IN_TRANSACTION_MS = 5000
# The server ends a transaction after this time, even during a statement, when its client froze or disappeared. No
# transaction of Runlane takes nearly as long. Servers before 17 lack this setting; there only the keepalives below
# help.
TRANSACTION_MS = 30_000

_SESSION_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
}
# A client whose machine or network failed does not close its connection; by default the server would keep its locks for
# hours.
_KEEPALIVES = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutdown, crash of another backend, starting up
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,  # disk full, too many connections
    asyncpg.ReadOnlySQLTransactionError,  # a standby: after a failover the next connection finds the primary
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the last message of the server has arrived, but not yet the end of the connection
    OSError,
    TimeoutError,
)
_TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)

_TRIES = 5
_ITERATIONS_TO_CLOSE = 5

_STATUS = Statement(
    "status_of_mark",
    text("select pg_xact_status(cast(cast(:mark as text) as xid8)) as status"),
    purpose="Read the outcome of a transaction.",
)
_WITNESS = Statement(
    "witness_of_mark",
    text(
        "select exists (select 1 from "
        "unnest(cast(:runs as text[]), cast(:numbers as integer[])) as written(run_id, seq) "
        "join run_events on run_events.run_id = written.run_id and run_events.seq = written.seq "
        "where run_events.xmin = cast(cast(cast(:mark as text) as xid8) as xid)) as seen"
    ),
    purpose="Check that a transaction wrote these events, because a crashed server assigns its number again.",
)


class PostgresDatabase:
    """A few connections to one server, opened when needed and reused last in, first out."""

    dialect: Dialect = "postgresql"
    duplicates: tuple[type[Exception], ...] = (asyncpg.UniqueViolationError,)

    def __init__(
        self, settings: Settings, connections: int, on_connect: Callable[[Any], Awaitable[None]] | None = None
    ) -> None:
        self._settings = settings
        self._on_connect = on_connect
        self.on_freed = ignore_freed
        self.steady_since = float("-inf")
        self._idle: list[Any] = []
        self._open: set[Any] = set()
        self._using: set[asyncio.Future[Any]] = set()
        self._slots = asyncio.Semaphore(connections)
        self._closed = False
        # PgBouncer in transaction mode hands each transaction to some server connection, so the settings
        # travel with the transaction there.
        local = "".join(f"; set local {name} = {value}" for name, value in _SESSION_SETTINGS.items())
        self._begin = f"begin{local}" if settings.pgbouncer else "begin"

    @classmethod
    async def open(
        cls,
        settings: Settings,
        connections: int,
        on_connect: Callable[[Any], Awaitable[None]] | None = None,
    ) -> Self:
        """Connect once, so that a wrong URL is an error now and not at the first run.

        `on_connect` is called with every new connection before it is used.
        """
        database = cls(settings, connections, on_connect)
        try:
            database._idle.append(await database._connect())
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise ConfigurationError(
                f"The database {settings.shown_database} rejected the connection: {error}. Check RUNLANE_DATABASE_URL."
            ) from None
        except (asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
            raise Unavailable(
                f"The database {settings.shown_database} cannot be reached: {_describe_error(error)}. "
                "Check that it runs and that RUNLANE_DATABASE_URL is right."
            ) from None
        database._open.update(database._idle)
        return database

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        return await _try_again(lambda: self._transact_once(work))

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        try:
            return await _try_again(lambda: self._alone(lambda session: session.write(compound, members, **params)))
        except asyncpg.UniqueViolationError as error:
            raise Duplicate from error

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        return await self._alone(lambda session: session.fetch(statement, **params))

    async def _alone(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        """Run one statement as its own transaction, to its end even if the caller is cancelled.

        The driver would cancel it over another connection, and closing this one would cost a new one: many readers that
        disconnect would keep the server busy with connections.
        """
        using = asyncio.ensure_future(self._use(await self._take(), work))
        self._using.add(using)
        using.add_done_callback(self._used)
        return await asyncio.shield(using)

    async def _use(self, connection: Any, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        async with self._lent(connection):
            return await work(PostgresSession(connection))

    def _used(self, using: asyncio.Future[Any]) -> None:
        self._using.discard(using)
        if not using.cancelled():
            using.exception()  # marks it as retrieved; the caller may have been cancelled

    @contextlib.asynccontextmanager
    async def _lent(self, connection: Any) -> AsyncGenerator[None]:
        """Lend a connection to statements that are their own transactions; close it if its state is in doubt."""
        try:
            yield
        except CONNECTION_ERRORS as error:
            connection.terminate()
            raise Unavailable(f"The database does not answer: {_describe_error(error)}.") from error
        except asyncio.CancelledError:
            # The event loop is closing, and the cancel request of the driver would outlive it.
            self._end(connection)
            raise
        finally:
            self._give_back(connection)

    async def was_committed(self, mark: str) -> bool:
        number, *events = mark.split(" ")
        while True:
            connection = await self._take()
            async with self._lent(connection):
                try:
                    status = await connection.fetchval(_STATUS.compiled("postgresql").sql, number)
                except asyncpg.InvalidParameterValueError:
                    return False  # the server has crashed and has not assigned this number again yet
                if status == "committed" and events:
                    # A server that crashed assigns numbers again that never reached its disk, so the number may belong
                    # to another transaction. Read after the status: an earlier snapshot might not see the events yet.
                    pairs = [event.rsplit(":", 1) for event in events]
                    written = {"runs": [run_id for run_id, _ in pairs], "numbers": [int(seq) for _, seq in pairs]}
                    sql, arguments = _WITNESS.bound("postgresql", {**written, "mark": number}, None)
                    return bool(await connection.fetchval(sql, *arguments))
            if status != "in progress":
                return status == "committed"
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        self._closed = True
        for connection in self._open:
            # close() waits for the server and would hang behind a cut line; nothing is open in a transaction.
            connection.terminate()
        self._open.clear()
        self._idle.clear()
        # For a cancelled statement the driver opens another connection to cancel it on the server. It closes it within
        # these iterations of the event loop; a loop that is closed before would leave it open.
        for _ in range(_ITERATIONS_TO_CLOSE):
            await asyncio.sleep(0)

    def forget(self) -> None:
        self._closed = True
        for connection in self._open:
            with contextlib.suppress(Exception):  # the event loop is closed, so only the socket has to be closed
                connection.terminate()
        self._open.clear()
        self._idle.clear()

    async def _transact_once(self, work: Callable[[Session], Awaitable[T]]) -> T:
        connection = await self._take()
        session = PostgresSession(connection, self._begin)
        committing = False
        try:
            result = await work(session)
            if session.is_open:
                committing = True
                await connection.execute("commit")
        except CONNECTION_ERRORS as error:
            connection.terminate()
            if committing:
                raise CommitInDoubt(session.mark) from error
            raise Unavailable(f"The database does not answer: {_describe_error(error)}.") from error
        except Exception:
            if session.is_open:
                await self._roll_back(connection)
            raise
        except BaseException:
            # Cancelled between two statements or inside one: ending the connection ends the transaction.
            self._end(connection)
            raise
        finally:
            self._give_back(connection)
        if session.freed:
            self.on_freed(session.freed)
        return result

    async def _roll_back(self, connection: Any) -> None:
        try:
            await connection.execute("rollback")
        except (asyncpg.PostgresError, *CONNECTION_ERRORS):
            connection.terminate()

    async def _take(self) -> Any:
        if self._closed:
            raise Unavailable("The database is closed in this process.")
        await self._slots.acquire()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                metrics.DATABASE_IN_USE.add(1)
                return connection
            self._forget(connection)
        try:
            connection = await self._connect()
        except (asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
            self._slots.release()
            self.steady_since = time.monotonic()
            raise Unavailable(
                f"The database {self._settings.shown_database} cannot be reached: {_describe_error(error)}."
            ) from None
        except BaseException:
            self._slots.release()
            raise
        self._open.add(connection)
        metrics.DATABASE_IN_USE.add(1)
        return connection

    def _give_back(self, connection: Any) -> None:
        if connection.is_closed() or self._closed:
            connection.terminate()
            self._forget(connection)
        else:
            self._idle.append(connection)
        metrics.DATABASE_IN_USE.add(-1)
        self._slots.release()

    def _end(self, connection: Any) -> None:
        """Close a connection on purpose, which does not count as a broken one."""
        self._open.discard(connection)
        connection.terminate()

    def _forget(self, connection: Any) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self.steady_since = time.monotonic()

    async def _connect(self) -> Any:
        connection = await connect(self._settings)
        if self._on_connect is not None:
            with _ended_unless_ready(connection):
                await self._on_connect(connection)
        return connection


async def _try_again(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat a transaction that the server ended because of another one."""
    tries = 0
    while True:
        tries += 1
        try:
            return await work()
        except _TRY_AGAIN as error:
            if tries == _TRIES:
                # Contention, not an error in the request: the caller may retry.
                raise Unavailable(f"The database is too busy: {_describe_error(error)}.") from error


async def connect(settings: Settings, application: str = "runlane") -> Any:
    """Open a connection with the settings above, without them behind PgBouncer, which rejects them."""
    assert settings.database_url is not None  # noqa: S101 - the caller chose Postgres by the URL
    ours = {} if settings.pgbouncer else {**_SESSION_SETTINGS, **_KEEPALIVES, "application_name": application}
    connection = await cast("Any", asyncpg).connect(
        settings.database_url.get_secret_value(),
        timeout=settings.database_timeout_seconds,
        command_timeout=settings.database_timeout_seconds,
        statement_cache_size=0 if settings.pgbouncer else 256,
        server_settings=ours,
    )
    if not settings.pgbouncer:
        with _ended_unless_ready(connection):
            await limit_transactions(connection, TRANSACTION_MS)
    return connection


@contextlib.contextmanager
def _ended_unless_ready(connection: Any) -> Generator[None]:
    """Close a new connection if its preparation fails; no caller has it yet, so it would stay open forever."""
    try:
        yield
    except BaseException:
        connection.terminate()
        raise


async def limit_transactions(connection: Any, milliseconds: int) -> None:
    """Make the server end a longer transaction of this connection, if its version supports that."""
    limit = "select set_config(name, $1, false) from pg_settings where name = 'transaction_timeout'"
    await connection.fetch(limit, str(milliseconds))


def _describe_error(error: BaseException) -> str:
    return str(error) or type(error).__name__
