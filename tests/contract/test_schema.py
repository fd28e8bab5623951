"""The schema: migrations create what the models declare, and a process refuses a schema that does not fit."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from runlane import App, SchemaOutdated, SchemaTooNew
from runlane.errors import ConfigurationError, Unavailable
from runlane.settings import Settings
from runlane.store.access.tenants import find_tenant
from runlane.store.sql import migrations
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import check_schema, read_version, upgrade
from runlane.store.sql.migrations import HEAD, REVISIONS, UNRELEASED
from runlane.store.sql.schema import metadata
from tests.harness import settings_for


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """An empty database."""
    if request.param == "sqlite":
        return settings_for(f"sqlite:///{tmp_path}/deep/er/new.db")
    return settings_for(request.getfixturevalue("empty_postgres"))


def differences(connection: Any) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return cast("list[Any]", compare_metadata(context, metadata))


def test_the_head_in_the_code_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    assert script.get_current_head() == HEAD
    assert tuple(revision.revision for revision in reversed(list(script.walk_revisions()))) == REVISIONS


def test_every_migration_declares_the_oldest_code_that_runs_on_its_schema() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    declared = {
        script.revision: getattr(script.module, "compatible_from", None)
        for script in ScriptDirectory.from_config(config).walk_revisions()
        if script.revision >= "v0021"
    }
    oldest = "v0021"
    for revision, compatible_from in sorted(declared.items()):
        assert compatible_from in REVISIONS, f"{revision} declares no compatible_from, or an unknown one"
        assert oldest <= compatible_from <= revision, f"{revision} would let code start that an earlier one excludes"
        oldest = compatible_from


def details(connection: Any) -> Any:
    """Return what the comparison above does not see: the definitions of indexes, and tables without row ids."""
    if connection.dialect.name == "sqlite":
        indexes = "select name, sql from sqlite_master where type = 'index' and sql is not null"
        without_rowid = "select name from pragma_table_list where wr = 1"
        return (
            {name: " ".join(sql.split()) for name, sql in connection.exec_driver_sql(indexes)},
            {name for (name,) in connection.exec_driver_sql(without_rowid)},
        )
    query = (
        "select indexname, indexdef from pg_indexes "
        "where schemaname = current_schema() and tablename <> 'alembic_version'"
    )
    schema = connection.exec_driver_sql("select current_schema()").scalar()
    return {name: sql.replace(f"{schema}.", "") for name, sql in connection.exec_driver_sql(query)}


def declared_details(connection: Any) -> Any:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("create schema declared")
        connection.exec_driver_sql("set local search_path = declared")
    metadata.create_all(connection, checkfirst=False)
    return details(connection)


def compare_with_models(connection: Any) -> None:
    assert differences(connection) == []
    made = details(connection)
    if connection.dialect.name == "postgresql":
        assert made == declared_details(connection)
        return
    empty = create_engine("sqlite://", poolclass=NullPool)
    with empty.connect() as other:
        assert made == declared_details(other)


# An index on an expression is compared by its definition.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
async def test_migrations_make_the_declared_tables(settings: Settings) -> None:
    assert await upgrade(settings) == (None, HEAD)
    if settings.sqlite_path is not None:
        engine = create_engine(f"sqlite:///{settings.sqlite_path}", poolclass=NullPool)
        with engine.connect() as connection:
            compare_with_models(connection)
        return
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(compare_with_models)
    await engine.dispose()


async def test_a_new_database_has_the_default_tenant_and_room_on_the_pages_of_hot_tables(settings: Settings) -> None:
    await upgrade(settings)
    database = await open_database(settings)
    try:
        tenant = await find_tenant(database, "default")
        assert (tenant.name, tenant.enabled) == ("default", True)
    finally:
        await database.close()
    if settings.sqlite_path is not None:
        return
    assert settings.database_url is not None
    link = await cast("Any", asyncpg).connect(settings.database_url.get_secret_value())
    rows = await link.fetch("select relname, reloptions from pg_class where reloptions is not null and relkind = 'r'")
    await link.close()
    hot = ["autovacuum_vacuum_scale_factor=0.02", "autovacuum_vacuum_cost_delay=0", "fillfactor=80"]
    assert {row["relname"]: row["reloptions"] for row in rows if not row["relname"].startswith("pg_")} == {
        "runs": hot,
        "workers": hot,
        "tenants": ["fillfactor=50", "autovacuum_vacuum_cost_delay=0"],
        "flow_keys": ["fillfactor=50", "autovacuum_vacuum_cost_delay=0"],
    }


async def test_an_upgrade_may_be_repeated(settings: Settings) -> None:
    await upgrade(settings)
    assert await upgrade(settings) == (HEAD, HEAD)


async def test_several_upgrades_at_once_take_turns(settings: Settings) -> None:
    async with asyncio.timeout(120):
        answers = await asyncio.gather(*(upgrade(settings) for _ in range(4)))
    assert {now for _, now in answers} == {HEAD}
    database = await open_database(settings)
    try:
        await check_schema(database, "it")
    finally:
        await database.close()


async def set_version(settings: Settings, version: str) -> None:
    await execute(settings, f"update alembic_version set version_num = '{version}'")


async def execute(settings: Settings, statement: str) -> None:
    if settings.sqlite_path is not None:
        with sqlite3.connect(settings.sqlite_path) as connection:
            connection.execute(statement)
        connection.close()
        return
    assert settings.database_url is not None
    link = await cast("Any", asyncpg).connect(settings.database_url.get_secret_value())
    await link.execute(statement)
    await link.close()


async def set_compatible_from(settings: Settings, version: str, compatible_from: str) -> None:
    await execute(settings, f"insert into schema_compatibility values ('{version}', '{compatible_from}')")


async def test_code_starts_on_a_newer_schema_that_is_compatible_with_it(settings: Settings) -> None:
    await upgrade(settings)
    await set_version(settings, "v9998")
    await set_compatible_from(settings, "v9998", HEAD)
    async with App(settings) as app:
        assert [run async for run in app.list()] == []
    database = await open_database(settings)
    try:
        assert await read_version(database) == "v9998"
    finally:
        await database.close()


@pytest.mark.parametrize("compatible_from", [None, "v9997"])
async def test_a_newer_schema_is_refused(settings: Settings, compatible_from: str | None) -> None:
    await upgrade(settings)
    await set_version(settings, "9999")
    if compatible_from is not None:
        await set_compatible_from(settings, "9999", compatible_from)
    attempts: list[Callable[[], Any]] = [lambda: upgrade(settings), App(settings).connect]
    for attempt in attempts:
        with pytest.raises(SchemaTooNew) as caught:
            await attempt()
        assert "has schema 9999" in str(caught.value)
        assert "Install the newer runlane" in str(caught.value)


@pytest.mark.parametrize("version", [UNRELEASED[0], UNRELEASED[-1]])
async def test_the_schema_of_a_development_version_is_refused(settings: Settings, version: str) -> None:
    await upgrade(settings)
    await set_version(settings, version)
    attempts: list[Callable[[], Any]] = [lambda: upgrade(settings), App(settings).connect]
    for attempt in attempts:
        with pytest.raises(SchemaOutdated) as caught:
            await attempt()
        assert f"has schema {version} of a development version, which cannot be upgraded" in str(caught.value)
        assert "Set RUNLANE_DATABASE_URL to a new database" in str(caught.value)


async def test_an_older_schema_is_refused_until_it_is_upgraded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgrade(settings)
    monkeypatch.setattr("runlane.store.sql.migrate.HEAD", "9999")
    database = await open_database(settings)
    try:
        with pytest.raises(SchemaOutdated, match=rf"has schema {HEAD}, this code needs 9999\. Run: runlane db upgrade"):
            await check_schema(database, "it")
    finally:
        await database.close()


async def test_a_database_without_a_schema_is_refused_on_postgres_and_made_on_sqlite(settings: Settings) -> None:
    app = App(settings)
    if settings.sqlite_path is not None:
        async with app:
            assert await read_version(await app.database()) == HEAD
        return
    with pytest.raises(SchemaOutdated, match=r"has schema none, .* Run: runlane db upgrade"):
        await app.connect()


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 500)
    with pytest.raises((ConfigurationError, Unavailable), match=r"notes\.txt"):
        await App(settings_for(f"sqlite:///{path}")).connect()
    assert path.read_text().startswith("not a database")


async def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be opened.*Check the folder's permissions"):
        await App(settings_for(f"sqlite:///{tmp_path}/file/x.db")).connect()


async def test_a_copied_file_works_like_the_first(tmp_path: Path) -> None:
    first = settings_for(f"sqlite:///{tmp_path}/a.db")
    await upgrade(first)
    shutil.copyfile(tmp_path / "a.db", tmp_path / "b.db")
    async with App(settings_for(f"sqlite:///{tmp_path}/b.db")) as app:
        assert await read_version(await app.database()) == HEAD


async def test_a_file_that_another_process_is_creating_is_waited_for(tmp_path: Path) -> None:
    """SQLite does not wait by itself when the file changes to its log while another has begun to write."""
    path = tmp_path / "new.db"
    maker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        maker.execute("create table something (x)")
        maker.execute("begin immediate")
        maker.execute("insert into something values (1)")
        opening = asyncio.create_task(open_database(settings_for(f"sqlite:///{path}")))
        _, waiting = await asyncio.wait([opening], timeout=0.2)
        maker.execute("commit")
        database = await asyncio.wait_for(opening, 30)
        assert waiting
        await database.close()
    finally:
        maker.close()
