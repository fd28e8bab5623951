"""The commands for schedules, as processes, on a database."""

from __future__ import annotations

from tests.acceptance.test_access_cli import environment, json_of, run

__all__ = ["environment"]


def test_schedules_are_managed_from_the_command_line(environment: dict[str, str]) -> None:
    made = json_of(
        environment, "schedules", "create", "nightly", "--task", "report", "--cron", "0 2 * * *",
        "--zone", "Europe/Berlin", "--input", '{"full": true}', "--overlap", "queue_one",
    )  # fmt: skip
    assert (made["id"], made["status"], made["overlap"]) == ("nightly", "active", "queue_one")
    assert made["settings"]["input"] == {"full": True}
    assert [row["id"] for row in json_of(environment, "schedules", "list")] == ["nightly"]
    changed = json_of(environment, "schedules", "set", "nightly", "--every", "3600", "--version", "1")
    assert (changed["description"], changed["version"]) == ("Every hour", 2)
    stale = run(environment, "schedules", "set", "nightly", "--every", "60", "--version", "1")
    assert (stale.returncode, "Error (version_mismatch)" in stale.stderr) == (1, True)
    assert "paused by" in (
        run(environment, "schedules", "pause", "nightly", "--reason", "audit").stdout
        + run(environment, "schedules", "show", "nightly").stdout
    )
    fired = json_of(environment, "schedules", "trigger", "nightly")
    assert (fired["outcome"], fired["kind"]) == ("started", "manual")
    resumed = run(environment, "schedules", "resume", "nightly", "--catch-up", "latest")
    assert resumed.stdout.startswith("nightly: resumed; next slot ")
    assert len(json_of(environment, "schedules", "next", "nightly", "--count", "3")) == 3
    filled = json_of(
        environment, "schedules", "backfill", "nightly", "--from", "2026-01-01T00:00:00Z",
        "--to", "2026-01-01T03:00:00Z", "--dry-run",
    )  # fmt: skip
    assert [firing["outcome"] for firing in filled] == ["buffered"] * 3
    assert [firing["run_id"] for firing in json_of(environment, "schedules", "firings", "nightly")] == [fired["run_id"]]
    assert run(environment, "schedules", "delete", "nightly").stdout == "nightly: deleted.\n"
    assert json_of(environment, "schedules", "list") == []


def test_bad_options_are_refused(environment: dict[str, str]) -> None:
    shown = run(environment, "schedules", "preview", "--cron", "*/30 2 * * *", "--zone", "Europe/Berlin")
    assert "02:00" in shown.stdout
    assert "Warning: On " in shown.stderr
    for wrong in (
        ["create", "s", "--task", "t", "--cron", "0 0 2 * * *"],
        ["create", "s", "--task", "t"],
        ["create", "s", "--task", "t", "--agent", "a", "--every", "60"],
        ["create", "s", "--task", "t", "--every", "60", "--zone", "Mars"],
        ["set", "s"],
        ["resume", "s", "--catch-up", "some"],
        ["show", "unknown"],
    ):
        refused = run(environment, "schedules", *wrong)
        assert (refused.returncode, "Error (" in refused.stderr) == (1, True), wrong
    assert json_of(environment, "schedules", "list") == []
