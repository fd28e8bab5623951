"""`runlane memory`, as processes on a file."""

from __future__ import annotations

from tests.acceptance.conftest import Shell


def test_a_person_keeps_a_memory(shell: Shell) -> None:
    made = shell.run("memory", "create-memory", "notes", "--json").json
    memory_id = made["id"]
    assert shell.run("memory", "list-memories", "--json").json[0]["title"] == "notes"
    entry = shell.run("memory", "create-entry", memory_id, "Ada prefers tea.", "--tag", "kind=fact", "--json").json
    assert entry["tags"] == {"kind": "fact"}
    shell.run("memory", "correct-entry", memory_id, entry["id"], "Ada prefers coffee.", "--reason", "she asked")
    page = shell.run("memory", "list-entries", memory_id, "--json").json
    assert [item["text"] for item in page["entries"]] == ["Ada prefers coffee.", "Ada prefers tea."]
    hits = shell.run("memory", "search", memory_id, "what does Ada prefer", "--json").json
    assert [hit["entry"]["text"] for hit in hits] == ["Ada prefers coffee."]
    shell.run("memory", "put-context", memory_id, "Everything about Ada.")
    assert shell.run("memory", "get-context", memory_id, "--json").json["content"] == "Everything about Ada."
    assert shell.run("memory", "await-commit", memory_id, "--json").json["state"] == "committed"
    assert shell.run("memory", "status", "--json").json["mode"] in ("local", "direct")
    shell.run("memory", "delete-entry", memory_id, entry["id"])
    exported = shell.run("memory", "export", memory_id).json
    assert [item["text"] for item in exported["entries"]] == ["Ada prefers coffee."]
    shell.run("memory", "delete-all", "--confirm", "default")
    assert shell.run("memory", "list-memories", "--json").json == []
