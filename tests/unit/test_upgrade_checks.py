"""How `runlane doctor --before-upgrade` rates what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlane.diagnosis.upgrade_checks import (
    file_finding,
    neighbours,
    schema_finding,
    server_findings,
    transaction_finding,
    version_finding,
)
from runlane.domain.finding import Level
from runlane.store.sql import migrate
from runlane.store.sql.migrations import HEAD, REVISIONS
from runlane.store.sql.server_state import ServerState
from runlane.store.sql.upgrade_plan import UpgradePlan, plan_upgrade
from runlane.version import VERSION


@pytest.mark.parametrize(
    ("plan", "workers", "level", "expected"),
    [
        (UpgradePlan(None, "v2", ("v1", "v2"), beside=True), 0, Level.OK, "v2 will be created"),
        (UpgradePlan("v2", "v2", (), beside=True), 3, Level.OK, "nothing to upgrade"),
        (UpgradePlan("v1", "v3", ("v2", "v3"), beside=True), 3, Level.OK, "v1 -> v3, 2 to apply: v2, v3"),
        (UpgradePlan("v1", "v2", ("v2",), beside=False), 3, Level.BROKEN, "cannot run on it"),
        (UpgradePlan("v1", "v2", ("v2",), beside=False), 0, Level.WARNING, "cannot run on it"),
    ],
)
def test_a_schema_that_running_processes_cannot_use_is_broken(
    plan: UpgradePlan, workers: int, level: Level, expected: str
) -> None:
    finding = schema_finding(plan, workers)
    assert finding.level is level
    assert expected in finding.message


def test_a_plan_names_the_migrations_and_whether_old_code_runs_on_them() -> None:
    assert plan_upgrade(HEAD).pending == ()
    assert plan_upgrade(None).pending == REVISIONS
    early = plan_upgrade("v0009")
    assert early.pending[0] == "v0010"
    assert early.target == migrate.HEAD
    # Migrations of that time do not declare which code runs on their schema.
    assert not early.beside


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0rc1", True),
        ("0.3.0", "0.2.0", True),
        ("0.1.0", "0.3.0", False),
        ("1.0.0", "2.0.0", False),
        ("unknown", "0.1.0", False),
    ],
)
def test_only_neighbouring_minor_releases_run_side_by_side(one: str, other: str, expected: bool) -> None:
    assert neighbours(one, other) is expected


def test_versions_of_workers() -> None:
    assert version_finding({}).level is Level.NOTE
    assert version_finding({VERSION: 3}).level is Level.OK
    assert version_finding({VERSION: 3, f"{VERSION}.post1": 1}).level is Level.WARNING
    far = version_finding({VERSION: 3, "999.1.0": 1})
    assert (far.level, "999.1.0" in far.message) == (Level.BROKEN, True)


@pytest.mark.parametrize(("seconds", "level"), [(0, Level.OK), (20, Level.WARNING), (600, Level.BROKEN)])
def test_long_transactions_delay_an_upgrade(seconds: float, level: Level) -> None:
    assert transaction_finding(seconds).level is level


def test_a_disk_without_room_for_a_copy_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runlane.db"
    path.write_bytes(b"0" * 1000)
    assert file_finding(path).level is Level.OK

    class Usage:
        free = 1500

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage())  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    assert file_finding(path).level is Level.BROKEN


def test_rights_space_and_leftovers_of_a_server() -> None:
    well = {finding.check: finding.level for finding in server_findings(ServerState(5_000_000, "app", "app", True, ()))}
    assert well == {"rights": Level.OK, "disk": Level.NOTE}
    ill = list(server_findings(ServerState(5_000_000, "app", "owner", False, ("runs_color",))))
    assert [finding.level for finding in ill] == [Level.BROKEN, Level.NOTE, Level.WARNING]
    assert '"app" may not change the tables of "owner"' in ill[0].message
    assert "runs_color" in ill[2].message
