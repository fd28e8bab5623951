"""The version of the schema: checked at start, raised by `runlane db upgrade`.

A process whose code cannot run on the schema refuses to start, because it would fail later, while it executes runs.
Code runs on a newer schema if the migrations that it lacks allow that, since a rollback of the code keeps the schema.
The embedded SQLite file is upgraded automatically when it is opened.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Text, bindparam, column, select, table
from sqlalchemy.exc import DBAPIError

from runlane.domain.ids import lock_key
from runlane.errors import ConfigurationError, SchemaOutdated, SchemaTooNew
from runlane.private_files import make_file
from runlane.settings import Settings
from runlane.store.sql.database import Database, Session, open_database
from runlane.store.sql.migrations import HEAD, REVISIONS, UNRELEASED
from runlane.store.sql.schema import schema_compatibility
from runlane.store.sql.statement import Statement

SCRIPTS = Path(__file__).parent / "migrations"

_LOCK_RETRY_SECONDS = 0.2
_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_TRIES = 30

_VERSION = Statement(
    "schema_version",
    select(column("version_num", Text())).select_from(table("alembic_version")),
    purpose="Read the revision of the schema.",
)
_TABLES = {
    "postgresql": Statement(
        "has_version_table",
        select(column("tablename", Text()))
        .select_from(table("pg_tables"))
        .where(column("tablename", Text()) == "alembic_version"),
        purpose="Check whether the database has a schema.",
    ),
    "sqlite": Statement(
        "has_version_table",
        select(column("name", Text()))
        .select_from(table("sqlite_master"))
        .where(column("name", Text()) == "alembic_version"),
        purpose="Check whether the database has a schema.",
    ),
}


_COMPATIBLE_FROM = Statement(
    "schema_compatible_from",
    select(schema_compatibility.c.compatible_from).where(schema_compatibility.c.revision == bindparam("revision")),
    purpose="Read the oldest revision whose code runs on the schema.",
)


async def read_version(database: Database) -> str | None:
    """Return the revision of the schema, or None for an empty database."""

    async def work(session: Session) -> str | None:
        if not await session.fetch(_TABLES[session.dialect]):
            return None
        rows = await session.fetch(_VERSION)
        return rows[0]["version_num"] if rows else None

    return await database.transact(work)


async def check_schema(database: Database, shown: str) -> None:
    """Raise if the schema is older or newer than this code needs."""
    version = await read_version(database)
    if version == HEAD or await _is_compatible(database, version):
        return
    check_upgradable(version, shown)
    raise SchemaOutdated(
        f"The database {shown} has schema {version or 'none'}, this code needs {HEAD}. Run: runlane db upgrade"
    )


async def _is_compatible(database: Database, version: str | None) -> bool:
    """Return whether the schema is newer than this code, and this code runs on it."""
    if version is None or version in REVISIONS or version in UNRELEASED:
        return False
    found = await database.query(_COMPATIBLE_FROM, revision=version)
    return bool(found) and found[0]["compatible_from"] in REVISIONS


def check_upgradable(version: str | None, shown: str) -> None:
    """Raise if the revision of the schema cannot be upgraded."""
    if version in UNRELEASED:
        raise SchemaOutdated(
            f"The database {shown} has schema {version} of a development version, which cannot be upgraded. "
            "Set RUNLANE_DATABASE_URL to a new database (or move the SQLite file away) and run: runlane db upgrade"
        )
    if version is not None and version not in REVISIONS:
        raise SchemaTooNew(
            f"The database {shown} has schema {version}, which is newer than this code's schema {HEAD}. "
            "This code cannot run on it. Install the newer runlane that upgraded it; a schema cannot be downgraded."
        )


async def open_ready(settings: Settings, connections: int | None = None) -> Database:
    """Open the database and check its schema. An embedded SQLite file is created or upgraded first."""
    database = await open_database(settings, connections)
    try:
        if settings.sqlite_path is not None and await read_version(database) in (None, *REVISIONS[:-1]):
            await database.close()
            await upgrade(settings)
            database = await open_database(settings, connections)
        await check_schema(database, settings.shown_database)
    except BaseException:
        await database.close()
        raise
    return database


async def upgrade(settings: Settings) -> tuple[str | None, str]:
    """Upgrade the schema to this code's revision and return the revisions before and after.

    Processes that upgrade at the same time take turns.
    """
    before = await _current_version(settings)
    if before == HEAD:
        return before, HEAD
    check_upgradable(before, settings.shown_database)
    if settings.sqlite_path is None:
        await _upgrade_postgres(settings)
        return before, HEAD
    try:
        await asyncio.to_thread(_upgrade_sqlite, settings.sqlite_path)
    except (OSError, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error.strerror or error
        raise ConfigurationError(
            f"The database file {settings.sqlite_path} cannot be written: {cause}. "
            "Check free space and permissions there, or set RUNLANE_DATABASE_URL=sqlite:///path/to/file.db"
        ) from None
    return before, HEAD


async def _current_version(settings: Settings) -> str | None:
    database = await open_database(settings, 1)
    try:
        return await read_version(database)
    finally:
        await database.close()


def _upgrade_sqlite(path: Path) -> None:
    import sqlite3

    from sqlalchemy import create_engine, event

    def connect() -> sqlite3.Connection:
        # By default the driver commits before each statement that changes the schema.
        return sqlite3.connect(path, timeout=60, isolation_level=None)

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("begin immediate")

    with _exclusive(path.with_name(f"{path.name}.upgrade")):
        engine = create_engine("sqlite://", creator=connect)
        # One transaction for all migrations, so that a full disk leaves the schema unchanged.
        event.listen(engine, "begin", begin)
        try:
            with engine.connect() as connection:
                _run_migrations(connection)
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
                if await _acquire_lock(holder):
                    await _run_with_retries(engine)
                    return
            finally:
                holder.terminate()
            await asyncio.sleep(_LOCK_RETRY_SECONDS)
    finally:
        await engine.dispose()


async def _acquire_lock(holder: Any) -> bool:
    """Try to take the upgrade lock for as long as the transaction of this connection is open.

    The connection does not wait for the lock and holds no snapshot: building an index concurrently waits for every
    transaction with a snapshot, which would include one that waits for this lock.
    """
    # A transaction-scoped lock in a transaction of its own also works through PgBouncer.
    await holder.execute("begin")
    acquired = bool(await holder.fetchval("select pg_try_advisory_xact_lock($1)", lock_key("upgrade")))
    # A plain statement closes the query before it, which would keep its snapshot until the transaction ends.
    await holder.execute("set local application_name = 'runlane upgrade'")
    return acquired


async def _run_with_retries(engine: Any) -> None:
    """Run the migrations, and retry after a lock timeout.

    Migrations set a lock timeout, because other transactions queue behind a migration that waits for a table.
    """
    tries = 0
    while True:
        tries += 1
        try:
            async with engine.connect() as worker:
                await worker.run_sync(_run_migrations)
                return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE or tries == _LOCK_TRIES:
                raise
            await asyncio.sleep(_LOCK_RETRY_SECONDS)


def _run_migrations(connection: Any) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()


@contextmanager
def _exclusive(path: Path) -> Generator[None]:
    make_file(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
