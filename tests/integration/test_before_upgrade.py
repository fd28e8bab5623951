"""`runlane doctor --before-upgrade` on databases of an earlier release, and of roles without the right to upgrade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from runlane.store.sql.migrate import upgrade
from runlane.store.sql.migrations import HEAD
from tests.harness import settings_for
from tests.integration.test_upgrade import LATER, next_release
from tests.server_process import command

__all__ = ["next_release"]


async def report_of(url: str) -> dict[str, tuple[str, str]]:
    from runlane.diagnosis.upgrade_checks import check_upgrade
    from runlane.store.sql.database import open_database

    settings = settings_for(url)
    database = await open_database(settings, 2)
    try:
        return {f.check: (f.level.value, f.message) for f in await check_upgrade(database, settings)}
    finally:
        await database.close()


async def _connect(url: str) -> Any:
    return await cast("Any", asyncpg).connect(url)


async def test_the_next_release_reports_its_migrations_on_the_schema_of_this_one(
    empty_postgres: str, request: pytest.FixtureRequest
) -> None:
    await upgrade(settings_for(empty_postgres))
    request.getfixturevalue("next_release")
    found = await report_of(empty_postgres)
    assert found["schema"] == (
        "ok",
        f"{HEAD} -> {LATER}, 1 to apply: {LATER}; processes of the present release continue",
    )
    assert found["rights"][0] == "ok"
    assert found["transactions"][0] == "ok"
    assert found["versions"][0] == "note"
    # Nothing was changed.
    connection = await _connect(empty_postgres)
    try:
        assert await connection.fetchval("select version_num from alembic_version") == HEAD
    finally:
        await connection.close()


async def test_a_role_without_rights_and_workers_of_other_versions_are_found(
    empty_postgres: str, tmp_path: Path
) -> None:
    await upgrade(settings_for(empty_postgres))
    connection = await _connect(empty_postgres)
    role = "before_upgrade_app"
    try:
        await connection.execute(f"create role {role} login; grant select on all tables in schema public to {role}")
        worker = (
            "insert into workers (id, status, host, pid, version, lanes, capacity, has_lock, started_at, heartbeat_at, "
            "lease_until) values ('w', 'online', 'h', 1, '99.0.0', '[]', 1, true, 0, 0, 99999999999999999)"
        )
        await connection.execute(worker)
        await connection.execute("create index runs_half on runs (id)")
        await connection.execute("update pg_index set indisvalid = false where indexrelid = 'runs_half'::regclass")
        done = command(
            tmp_path, "doctor", "--before-upgrade", "--json",
            RUNLANE_DATABASE_URL=empty_postgres.replace("://app@", f"://{role}@"),
        )  # fmt: skip
        report = json.loads(done.stdout)
        levels = {finding["check"]: finding["level"] for finding in report["findings"]}
        assert (done.returncode, report["healthy"]) == (1, False)
        assert levels["rights"] == "broken"
        assert levels["versions"] == "broken"
        assert levels["indexes"] == "warning"
    finally:
        await connection.execute("delete from workers")
        await connection.execute(f"drop owned by {role}")
        await connection.execute(f"drop role {role}")
        await connection.close()


def test_a_file_is_checked_and_left_as_it_is(tmp_path: Path) -> None:
    database = {"RUNLANE_DATABASE_URL": f"sqlite:///{tmp_path / 'runlane.db'}"}
    missing = command(tmp_path, "doctor", "--before-upgrade", **database)
    assert (missing.returncode, "does not exist yet" in missing.stdout) == (0, True), missing.stdout
    assert not (tmp_path / "runlane.db").exists()
    assert command(tmp_path, "db", "upgrade", **database).returncode == 0
    done = command(tmp_path, "doctor", "--before-upgrade", **database)
    assert (done.returncode, "nothing to upgrade" in done.stdout, "MB free" in done.stdout) == (0, True, True)
    refused = command(tmp_path, "doctor", "--before-upgrade", "--url", "http://127.0.0.1:1")
    assert (refused.returncode, "an upgrade acts on a database" in refused.stderr) == (1, True)
