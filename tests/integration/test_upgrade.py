"""An upgrade of a database that is in use: data survives, processes of the release before keep writing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from runlane import App
from runlane.store.sql import migrate
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import check_schema, upgrade
from runlane.store.sql.migrations import HEAD, REVISIONS
from tests.harness import eventually, settings_for

LATER = "v9998"
LATER_REVISION = f'''
"""A column and an index that only this test has."""

import sqlalchemy as sa
from alembic import context, op

revision = "{LATER}"
down_revision = "{HEAD}"
compatible_from = "{HEAD}"


def upgrade() -> None:
    bind = op.get_bind()
    postgres = bind.dialect.name == "postgresql"
    if postgres:
        op.execute("set local lock_timeout = '500ms'")
    if "color" not in {{column["name"] for column in sa.inspect(bind).get_columns("runs")}}:
        op.add_column("runs", sa.Column("color", sa.Text(), server_default="blue", nullable=False))
    if postgres:
        with context.get_context().autocommit_block():
            op.execute("drop index concurrently if exists runs_color")
            op.execute("create index concurrently runs_color on runs (color)")
    else:
        op.execute("create index if not exists runs_color on runs (color)")
'''
_INSERT = (
    "insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, accepted_at) "
    "values ({}, 'job', 'default', 'queued', 0, 0, 3, 10, 0)"
)
_PG_INSERT = _INSERT.format("$1")


async def _connect(url: str) -> Any:
    return await cast("Any", asyncpg).connect(url)


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the migrations of a later release."""
    scripts = tmp_path / "migrations"
    shutil.copytree(migrate.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / f"{LATER}_color.py").write_text(LATER_REVISION)
    monkeypatch.setattr(migrate, "SCRIPTS", scripts)
    monkeypatch.setattr(migrate, "HEAD", LATER)
    monkeypatch.setattr(migrate, "REVISIONS", (*REVISIONS, LATER))


@pytest.fixture
async def current_database(empty_postgres: str) -> str:
    """Return the URL of a database with this release's schema and one run."""
    await upgrade(settings_for(empty_postgres))
    connection = await _connect(empty_postgres)
    try:
        await connection.execute(_PG_INSERT, "run_before")
    finally:
        await connection.close()
    return empty_postgres


@pytest.fixture
def postgres_url(current_database: str, next_release: None) -> str:
    """A database of this release, to be upgraded by the next one."""
    del next_release
    return current_database


async def test_processes_of_this_release_write_during_and_after_the_upgrade(postgres_url: str) -> None:
    stop = asyncio.Event()
    written: list[str] = []

    async def write() -> None:
        connection = await _connect(postgres_url)
        try:
            while not stop.is_set():
                run_id = f"run_{len(written)}"
                await connection.execute(_PG_INSERT, run_id)
                written.append(run_id)
        finally:
            await connection.close()

    writer = asyncio.create_task(write())
    await eventually(lambda: bool(written), "the writer runs")
    assert await upgrade(settings_for(postgres_url)) == (HEAD, LATER)
    during = len(written)
    await eventually(lambda: len(written) >= during + 5, "the writer continues")
    stop.set()
    await writer
    connection = await _connect(postgres_url)
    try:
        assert [row[0] for row in await connection.fetch("select distinct color from runs")] == ["blue"]
        assert await connection.fetchval("select count(*) from runs") == len(written) + 1
        assert await connection.fetchval("select indisvalid from pg_index where indexrelid = 'runs_color'::regclass")
    finally:
        await connection.close()


async def test_code_that_is_rolled_back_starts_on_the_upgraded_schema(
    current_database: str, next_release: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del next_release
    assert await upgrade(settings_for(current_database)) == (HEAD, LATER)
    monkeypatch.undo()
    async with App(settings_for(current_database)) as app:
        assert [run.id async for run in app.list()] == ["run_before"]


async def test_upgrades_at_the_same_time_take_turns(postgres_url: str) -> None:
    await asyncio.gather(*(upgrade(settings_for(postgres_url)) for _ in range(4)))
    database = await open_database(settings_for(postgres_url), 2)
    try:
        await check_schema(database, "it")
    finally:
        await database.close()


async def test_an_upgrade_does_not_block_writers_while_it_waits_for_a_long_transaction(postgres_url: str) -> None:
    connection, other = await _connect(postgres_url), await _connect(postgres_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(_PG_INSERT, "run_open")
        running = asyncio.create_task(upgrade(settings_for(postgres_url)))
        waiting = "select exists (select from pg_locks where not granted)"
        await eventually(lambda: other.fetchval(waiting), "the migration waits for the table")
        # The migration gives up its lock request after its timeout, so a later writer is not blocked for long.
        await asyncio.wait_for(other.execute(_PG_INSERT, "run_other"), 60)
        assert not running.done()
        await transaction.commit()
        assert await running == (HEAD, LATER)
    finally:
        await connection.close()
        await other.close()


async def test_an_upgrade_that_broke_off_before_its_index_is_finished_by_the_next(postgres_url: str) -> None:
    await upgrade(settings_for(postgres_url))
    connection = await _connect(postgres_url)
    try:
        await connection.execute(f"drop index runs_color; update alembic_version set version_num = '{HEAD}'")
    finally:
        await connection.close()
    assert await upgrade(settings_for(postgres_url)) == (HEAD, LATER)


@pytest.mark.usefixtures("next_release")
async def test_the_embedded_file_is_upgraded_and_keeps_its_rows(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute(_INSERT.format("'run_before'"))
    connection.close()
    assert await upgrade(settings_for(sqlite_url)) == (HEAD, LATER)
    with sqlite3.connect(path) as connection:
        assert connection.execute("select id, color from runs").fetchall() == [("run_before", "blue")]
    connection.close()


_SCHEDULES = """
insert into schedules (uid, tenant, id, settings, paused_counts, zone_version, source, version, generation, anchor_at,
    cursor_at, created_at, created_by, updated_at, updated_by)
values ('sched_1', 'acme', 'nightly', '{{}}', true, '', 'api', 1, 1, 0, 0, 0, 't', 0, 't'),
    ('sched_2', 'acme', 'weekly', '{{}}', true, '', 'api', 1, 1, 0, 0, 0, 't', 0, 't');
insert into schedule_firings (schedule_uid, slot, due_at, decided_at, outcome, kind, count, run_id)
values ('sched_1', 1, 1, 1, 'started', 'tick', 1, 'run_1'), ('sched_1', 2, 2, 2, 'started', 'tick', 1, 'run_2'),
    ('sched_1', 3, 3, 3, 'started', 'tick', 1, 'run_deleted'), ('sched_1', 4, 4, 4, 'missed', 'tick', 2, null),
    ('sched_2', 1, 1, 1, 'started', 'tick', 1, 'run_3');
insert into run_tags (tenant, tag, run_id) values ('acme', '#schedule:nightly', 'run_2'), ('acme', 'eu', 'run_1');
"""
_TAGS = "select tag, run_id from run_tags order by tag, run_id"
_MARKED = [
    ("#schedule:nightly", "run_1"),
    ("#schedule:nightly", "run_2"),
    ("#schedule:weekly", "run_3"),
    ("eu", "run_1"),
]


def _script() -> str:
    added = [_INSERT.format(f"'{run_id}'") for run_id in ("run_1", "run_2", "run_3", "run_4")]
    return ";".join([*added, _SCHEDULES.format()])


async def _upgrade_to(revision: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upgrade a database with the migrations of an earlier release."""
    scripts = folder / "earlier"
    shutil.copytree(migrate.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    for script in (scripts / "versions").glob("v*.py"):
        if script.name[:5] > revision:
            script.unlink()
    with monkeypatch.context() as earlier:
        earlier.setattr(migrate, "SCRIPTS", scripts)
        earlier.setattr(migrate, "HEAD", revision)
        assert await upgrade(settings_for(url)) == (None, revision)


async def test_runs_of_schedules_are_found_after_the_upgrade_that_lists_them(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _upgrade_to("v0009", empty_postgres, tmp_path, monkeypatch)
    connection = await _connect(empty_postgres)
    try:
        await connection.execute(_script())
        assert await upgrade(settings_for(empty_postgres)) == ("v0009", HEAD)
        assert [tuple(row) for row in await connection.fetch(_TAGS)] == _MARKED
    finally:
        await connection.close()


async def test_runs_of_schedules_are_found_after_the_upgrade_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runlane.db"
    await _upgrade_to("v0009", f"sqlite:///{path}", tmp_path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(_script())
        assert await upgrade(settings_for(f"sqlite:///{path}")) == ("v0009", HEAD)
        assert connection.execute(_TAGS).fetchall() == _MARKED


_THREADS = """
insert into threads (key, tenant, id, status, open_runs, metadata, config, created_at, updated_at, state_updated_at)
values ('t1', 'default', 't1', 'idle', 0, '{}', '{}', 1, 1, 1), ('t2', 'default', 't2', 'idle', 0, '{}', '{}', 1, 1, 1);
insert into thread_runs (run_id, thread, tenant, assistant_id, metadata, multitask_strategy, created_at, updated_at)
values ('b', 't1', 'default', 'a', '{}', 'enqueue', 10, 10), ('a', 't1', 'default', 'a', '{}', 'enqueue', 20, 20),
    ('c', 't2', 'default', 'a', '{}', 'enqueue', 5, 5);
"""
_ORDINALS = "select run_id, ordinal from thread_runs order by thread, ordinal"
_COUNTS = "select key, run_count from threads order by key"
_NUMBERED = [("b", 1), ("a", 2), ("c", 1)]


async def test_the_runs_of_threads_are_numbered_by_the_upgrade(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _upgrade_to("v0014", empty_postgres, tmp_path, monkeypatch)
    connection = await _connect(empty_postgres)
    try:
        await connection.execute(_THREADS)
        assert await upgrade(settings_for(empty_postgres)) == ("v0014", HEAD)
        assert [tuple(row) for row in await connection.fetch(_ORDINALS)] == _NUMBERED
        assert [tuple(row) for row in await connection.fetch(_COUNTS)] == [("t1", 2), ("t2", 1)]
    finally:
        await connection.close()


async def test_the_runs_of_threads_are_numbered_by_the_upgrade_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runlane.db"
    await _upgrade_to("v0014", f"sqlite:///{path}", tmp_path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(_THREADS)
        assert await upgrade(settings_for(f"sqlite:///{path}")) == ("v0014", HEAD)
        assert connection.execute(_ORDINALS).fetchall() == _NUMBERED
        assert connection.execute(_COUNTS).fetchall() == [("t1", 2), ("t2", 1)]


_MEMORIES = """
insert into memories (id, tenant, vault_id, memory_type, title, description, created_at, used_at, last_seq, applied_seq,
    owner, epoch, parked, stale)
values ('mem_1', 'default', 'vault_1', 'notes', 'one', '', 1, 1, 7, 7, 'node_1', 3, false, false);
"""
_REQUESTS = "select id, owner, epoch, last_seq, requested_by, requested_at from memories"
_UNREQUESTED = [("mem_1", "node_1", 3, 7, None, None)]


async def test_memories_keep_their_owners_in_the_upgrade_after_which_they_can_be_requested(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _upgrade_to("v0029", empty_postgres, tmp_path, monkeypatch)
    connection = await _connect(empty_postgres)
    try:
        await connection.execute(_MEMORIES)
        assert await upgrade(settings_for(empty_postgres)) == ("v0029", HEAD)
        # A migration that broke off before its index is repeated.
        # Later migrations add these.
        await connection.execute("alter table workers drop column drain_until; alter table run_series drop started")
        await connection.execute("drop index memories_requested; update alembic_version set version_num = 'v0029'")
        assert await upgrade(settings_for(empty_postgres)) == ("v0029", HEAD)
        assert [tuple(row) for row in await connection.fetch(_REQUESTS)] == _UNREQUESTED
    finally:
        await connection.close()


async def test_memories_keep_their_owners_in_the_upgrade_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runlane.db"
    await _upgrade_to("v0029", f"sqlite:///{path}", tmp_path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(_MEMORIES)
        assert await upgrade(settings_for(f"sqlite:///{path}")) == ("v0029", HEAD)
        assert connection.execute(_REQUESTS).fetchall() == _UNREQUESTED
