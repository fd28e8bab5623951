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

from runlane.errors import SchemaOutdated, SchemaTooNew
from runlane.model.ids import lock_key
from runlane.settings import Settings
from runlane.store.database import Database, Session, open_database
from runlane.store.migrations import HEAD, REVISIONS
from runlane.store.statement import Statement

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


async def upgrade(settings: Settings) -> tuple[str | None, str]:
    """Bring the schema to this code's revision; what it was and what it is. Several at once take turns."""
    if settings.sqlite_path is not None:
        before = await _version_now(settings)
        if before != HEAD:
            _refuse_newer(before, settings)
            await asyncio.to_thread(_upgrade_sqlite, settings.sqlite_path)
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
    from sqlalchemy import create_engine

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=60)

    with _alone(path.with_name(f"{path.name}.upgrade")):
        engine = create_engine("sqlite://", creator=connect)
        try:
            with engine.connect() as connection:
                _run(connection)
        finally:
            engine.dispose()


async def _upgrade_postgres(settings: Settings) -> None:
    import asyncpg
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    assert settings.database_url is not None  # noqa: S101 - sqlite was handled by the caller
    url, timeout = settings.database_url.get_secret_value(), settings.database_timeout_seconds

    async def connect() -> Any:
        return await cast("Any", asyncpg).connect(url, statement_cache_size=0, timeout=timeout)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            # A lock that lives as long as its transaction, in a transaction of its own: PgBouncer-safe.
            await connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": lock_key("upgrade")})
            async with engine.connect() as worker:
                await worker.run_sync(_run)
    finally:
        await engine.dispose()


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
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
