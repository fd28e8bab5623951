"""The schema's version: compared at start, raised by `runlane db upgrade`.

A process whose code does not fit the schema refuses to start: half-fitting code would fail later, with work in
hand. On the embedded file the upgrade happens by itself, since nobody else is there to do it.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Text, column, select, table
from sqlalchemy.exc import DBAPIError

from runlane.domain.ids import lock_key
from runlane.errors import ConfigurationError, SchemaOutdated, SchemaTooNew
from runlane.private_files import make_file
from runlane.settings import Settings
from runlane.store.sql.database import Database, Session, open_database
from runlane.store.sql.migrations import HEAD, REVISIONS
from runlane.store.sql.statement import Statement

_TURN_SECONDS = 0.2
_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_TRIES = 30

_VERSION = Statement("schema_version", select(column("version_num", Text())).select_from(table("alembic_version")))
_TABLES = {
    "postgresql": Statement(
        "has_version_table",
        select(column("tablename", Text()))
        .select_from(table("pg_tables"))
        .where(column("tablename", Text()) == "alembic_version"),
    ),
    "sqlite": Statement(
        "has_version_table",
        select(column("name", Text()))
        .select_from(table("sqlite_master"))
        .where(column("name", Text()) == "alembic_version"),
    ),
}


async def read_version(database: Database) -> str | None:
    """The schema's revision, or None for an empty database."""

    async def work(session: Session) -> str | None:
        if not await session.fetch(_TABLES[session.dialect]):
            return None
        rows = await session.fetch(_VERSION)
        return rows[0]["version_num"] if rows else None

    return await database.transact(work)


async def check_schema(database: Database, shown: str) -> None:
    """Refuse a schema that is older or newer than this code."""
    version = await read_version(database)
    if version == HEAD:
        return
    if version is None or version in REVISIONS:
        raise SchemaOutdated(
            f"The database {shown} has schema {version or 'none'}, this code needs {HEAD}. Run: runlane db upgrade"
        )
    raise SchemaTooNew(
        f"The database {shown} has schema {version}, which this code (schema {HEAD}) does not know. "
        "Install the newer runlane that made it; schemas do not go back."
    )


async def open_ready(settings: Settings, connections: int | None = None) -> Database:
    """The database, its schema fit for this code: refused if it is not, made or raised on the embedded file."""
    database = await open_database(settings, connections)
    try:
        if settings.sqlite_path is not None and await read_version(database) != HEAD:
            await database.close()
            await upgrade(settings)
            database = await open_database(settings, connections)
        await check_schema(database, settings.shown_database)
    except BaseException:
        await database.close()
        raise
    return database


async def upgrade(settings: Settings) -> tuple[str | None, str]:
    """Bring the schema to this code's revision; what it was and what it is. Several at once take turns."""
    if settings.sqlite_path is not None:
        before = await _version_now(settings)
        if before != HEAD:
            _refuse_newer(before, settings)
            try:
                await asyncio.to_thread(_upgrade_sqlite, settings.sqlite_path)
            except (OSError, DBAPIError) as error:
                cause = error.orig if isinstance(error, DBAPIError) else error.strerror or error
                raise ConfigurationError(
                    f"The database file {settings.sqlite_path} cannot be written: {cause}. "
                    "Check free space and permissions there, or set RUNLANE_DATABASE_URL=sqlite:///path/to/file.db"
                ) from None
        return before, HEAD
    before = await _version_now(settings)
    if before != HEAD:
        _refuse_newer(before, settings)
        await _upgrade_postgres(settings)
    return before, HEAD


async def _version_now(settings: Settings) -> str | None:
    database = await open_database(settings, 1)
    try:
        return await read_version(database)
    finally:
        await database.close()


def _refuse_newer(version: str | None, settings: Settings) -> None:
    if version is not None and version not in REVISIONS:
        raise SchemaTooNew(
            f"The database {settings.shown_database} has schema {version}, newer than this code's {HEAD}. "
            "Install the newer runlane; schemas do not go back."
        )


def _upgrade_sqlite(path: Path) -> None:
    from sqlalchemy import create_engine, event

    def connect() -> sqlite3.Connection:
        # The driver would commit before each statement that changes the schema.
        return sqlite3.connect(path, timeout=60, isolation_level=None)

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("begin immediate")

    with _alone(path.with_name(f"{path.name}.upgrade")):
        engine = create_engine("sqlite://", creator=connect)
        # One transaction for all migrations, so that a full disk leaves the schema as it was.
        event.listen(engine, "begin", begin)
        try:
            with engine.connect() as connection:
                _run(connection)
        finally:
            engine.dispose()


async def _upgrade_postgres(settings: Settings) -> None:
    import asyncpg
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    assert settings.database_url is not None  # noqa: S101 - sqlite was handled by the caller
    url, timeout = settings.database_url.get_secret_value(), settings.database_timeout_seconds

    async def connect() -> Any:
        return await cast("Any", asyncpg).connect(url, statement_cache_size=0, timeout=timeout)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        while True:
            holder = await connect()
            try:
                if await _is_our_turn(holder):
                    await _run_patiently(engine)
                    return
            finally:
                holder.terminate()
            await asyncio.sleep(_TURN_SECONDS)
    finally:
        await engine.dispose()


async def _is_our_turn(holder: Any) -> bool:
    """Take the upgrade's lock for as long as the connection's transaction is open, if nobody has it.

    Not waited for, and with no snapshot left: an index that is built concurrently waits for every transaction that
    has one, so for one that waits for this lock, too.
    """
    # A lock that lives as long as its transaction, in a transaction of its own: PgBouncer-safe.
    await holder.execute("begin")
    mine = bool(await holder.fetchval("select pg_try_advisory_xact_lock($1)", lock_key("upgrade")))
    # A plain statement closes the one before, which would keep its snapshot until the transaction ends.
    await holder.execute("set local application_name = 'runlane upgrade'")
    return mine


async def _run_patiently(engine: Any) -> None:
    """Run the migrations; again when one gave up waiting for a busy table, so that others need not wait behind it."""
    tries = 0
    while True:
        tries += 1
        try:
            async with engine.connect() as worker:
                await worker.run_sync(_run)
                return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE or tries == _LOCK_TRIES:
                raise
            await asyncio.sleep(_TURN_SECONDS)


def _run(connection: Any) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()


@contextmanager
def _alone(path: Path) -> Generator[None]:
    make_file(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
