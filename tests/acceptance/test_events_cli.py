"""The commands for events and triggers, on a database and on a server, and `run --after`."""

from __future__ import annotations

import json

from tests.acceptance.conftest import Shell
from tests.server_process import serving

TRIGGER = {"id": "on-paid", "event": "order.paid", "task": "greet", "input": {"name": "{{event.data.who}}"}}


def write_trigger(shell: Shell) -> None:
    folder = shell.folder / "definitions" / "triggers"
    folder.mkdir(parents=True)
    (folder / "on-paid.json").write_text(json.dumps(TRIGGER))


def test_events_on_a_database(shell: Shell) -> None:
    write_trigger(shell)
    assert shell.run("validate").code == 0
    assert "trigger" in shell.run("sync").out
    sent = shell.run("events", "send", "order.paid", "--data", '{"who": "Ada"}', "--id", "e-1", "--json").json
    assert sent["duplicate"] is False
    again = shell.run("events", "send", "order.paid", "--id", "e-1")
    assert "was stored before" in again.out
    listed = shell.run("events", "list", "--name", "order.paid", "--json").json
    assert [event["id"] for event in listed] == [sent["event_id"]]
    assert shell.run("events", "show", sent["event_id"], "--json").json["data"] == {"who": "Ada"}
    assert "order.paid" in shell.run("events", "show", sent["event_id"]).out
    shell.refused("events", "show", "evt_unknown", code="not_found")
    assert shell.run("events", "outcomes", sent["event_id"], "--json").json == []
    dry = shell.run("triggers", "replay", "on-paid", "--from", "2020-01-01T00:00:00Z", "--dry-run", "--json").json
    assert dry["events"] == [sent["event_id"]]
    assert "1 event is evaluated" in shell.run("triggers", "replay", "on-paid", "--from", "2020-01-01T00:00:00Z").out
    pending = shell.run("triggers", "outcomes", "on-paid", "--outcome", "pending", "--json").json
    assert [item["event_id"] for item in pending] == [sent["event_id"]]
    for arguments in (
        ("triggers", "outcomes", "on-paid", "--outcome", "gone"),
        ("triggers", "replay", "on-paid", "--from", "now"),
        ("events", "send", "a b"),
        ("events", "send", "run.completed"),
    ):
        assert shell.refused(*arguments, code="invalid_request")


def test_events_and_dependencies_on_a_server(shell: Shell) -> None:
    write_trigger(shell)
    shared = ["--shared-database"] if "RUNLANE_DATABASE_URL" in shell.environment else []
    with serving(shell.folder, shell.environment, "dev", "tasks:app", *shared) as server:
        url = server.url
        shell.run("sync", RUNLANE_URL=url)
        first = shell.run("run", "greet", "--input", '{"name": "x"}', "--hold", "--json", RUNLANE_URL=url).json
        after = ("--after", first["run_id"])
        second = shell.run("run", "greet", "--input", '{"name": "y"}', *after, "--json", RUNLANE_URL=url).json
        assert second["status"] == "blocked"
        assert "waits for 1 of 1 run" in shell.run("runs", "show", second["run_id"], RUNLANE_URL=url).out
        shell.run("runs", "cancel", first["run_id"], RUNLANE_URL=url)
        shown = shell.run("runs", "show", second["run_id"], RUNLANE_URL=url).out
        assert "dependency_failed" in shown
        sent = shell.run("events", "send", "order.paid", "--data", '{"who": "Ada"}', "--json", RUNLANE_URL=url).json
        listed = shell.run("events", "list", "--json", RUNLANE_URL=url).json
        assert [event["id"] for event in listed] == [sent["event_id"]]
        shown = shell.run("events", "show", sent["event_id"], "--json", RUNLANE_URL=url).json
        assert shown["data"] == {"who": "Ada"}
        since = ("--from", "2030-01-01T00:00:00Z")
        assert shell.run("triggers", "replay", "on-paid", *since, "--json", RUNLANE_URL=url).json["events"] == []


def test_webhook_sources(shell: Shell) -> None:
    key = shell.run("secrets", "new-key").out.strip()
    (shell.folder / "secret").write_text("a-secret-of-the-sender\n")
    created = shell.run(
        "webhook-sources", "set", "ci", "--verifier", "github", "--secret-file", "secret", RUNLANE_SECRET_KEY=key
    )
    assert "/hooks/whk_" in created.out
    assert "a-secret-of-the-sender" not in created.out
    generated = shell.run(
        "webhook-sources", "set", "shop", "--verifier", "standard", "--json", RUNLANE_SECRET_KEY=key
    ).json
    assert generated["secret"].startswith("whsec_")
    listed = shell.run("webhook-sources", "list", "--json").json
    assert [source["name"] for source in listed] == ["ci", "shop"]
    assert "ci: github, events ci.*, enabled" in shell.run("webhook-sources", "show", "ci").out
    shell.refused("webhook-sources", "show", "gone", code="not_found")
    assert shell.run("webhook-sources", "token", "ci", "--json").json["hook_path"] not in created.out
    assert "deleted" in shell.run("webhook-sources", "delete", "ci").out
    shell.refused("webhook-sources", "delete", "ci", code="not_found")
    shell.refused("webhook-sources", "set", "x", "--verifier", "github", code="invalid_request", RUNLANE_SECRET_KEY=key)
    shell.refused("webhook-sources", "set", "x", "--verifier", "none", code="invalid_request", RUNLANE_SECRET_KEY=key)
