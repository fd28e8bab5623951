"""`runlane memory`, as processes on a file."""

from __future__ import annotations

from tests.acceptance.conftest import Shell


def test_a_person_keeps_a_memory(shell: Shell) -> None:
    made = shell.run("memory", "create-memory", "notes", "--json").json
    memory_id = made["id"]
    assert shell.run("memory", "list-memories", "--json").json[0]["title"] == "notes"
    described = ("--tag", "kind=fact", "--metadata", '{"page": 7}', "--expires", "2999-01-31T12:00:00Z")
    entry = shell.run("memory", "create-entry", memory_id, "Ada prefers tea.", *described, "--json").json
    assert (entry["tags"], entry["metadata"]) == ({"kind": "fact"}, {"page": 7})
    assert entry["expires_at"].startswith("2999-01-31T12:00:00")
    shell.run("memory", "correct-entry", memory_id, entry["id"], "Ada prefers coffee.", "--reason", "she asked")
    page = shell.run("memory", "list-entries", memory_id, "--json").json
    assert [item["text"] for item in page["entries"]] == ["Ada prefers coffee.", "Ada prefers tea."]
    for wrong in ("--before=99999999999999999999", "--after=-1"):
        shell.refused("memory", "list-entries", memory_id, wrong, code="invalid_request")
    hits = shell.run("memory", "search", memory_id, "what does Ada prefer", "--json").json
    assert [hit["entry"]["text"] for hit in hits] == ["Ada prefers coffee."]
    shell.run("memory", "put-context", memory_id, "Everything about Ada.")
    assert shell.run("memory", "get-context", memory_id, "--json").json["content"] == "Everything about Ada."
    shell.run("memory", "put-context", memory_id, "Half done.", "--name", "progress")
    shell.run("memory", "delete-fragment", memory_id, "progress")
    assert [info["name"] for info in shell.run("memory", "manifest", memory_id, "--json").json] == ["context"]
    vault = shell.run("memory", "create-vault", "archive", "--json").json["id"]
    shell.run("memory", "move-memory", memory_id, vault)
    assert shell.run("memory", "get-memory", memory_id, "--json").json["vault_id"] == vault
    assert shell.run("memory", "await-commit", memory_id, "--json").json["state"] == "committed"
    assert shell.run("memory", "status", "--json").json["mode"] in ("local", "direct")
    shell.run("memory", "delete-entry", memory_id, entry["id"])
    exported = shell.run("memory", "export", memory_id).json
    assert [item["text"] for item in exported["entries"]] == ["Ada prefers coffee."]
    shell.run("memory", "delete-all", "--confirm", "default")
    assert shell.run("memory", "list-memories", "--json").json == []


def test_every_verb_of_the_memory_design_is_a_command(shell: Shell) -> None:
    user = shell.run("memory", "create-user", "ada", "--email", "ada@example.com").out
    assert user.strip() == "User created: ada (ada@example.com)"
    assert shell.run("memory", "get-user", "ada", "--json").json["email"] == "ada@example.com"
    vault = shell.run("memory", "create-vault", "work", "--json").json["id"]
    assert shell.run("memory", "get-vault", vault, "--json").json["title"] == "work"
    assert [item["title"] for item in shell.run("memory", "list-vaults", "--json").json] == ["work"]
    memory_id = shell.run("memory", "create-memory", "notes", "--vault", vault, "--json").json["id"]
    assert shell.run("memory", "await-consistency", memory_id, "--json").json["state"] == "committed"
    assert shell.run("memory", "get-prompts").json["templates"].keys() >= {"entry_capture_prompt"}
    tools = {tool["name"]: tool for tool in shell.run("memory", "get-tools-schema").json}
    assert tools["add_entry"]["inputSchema"]["required"] == ["memory_id", "raw_entry"]
    shell.run("memory", "delete-memory", memory_id)
    shell.run("memory", "delete-vault", vault)
    assert shell.run("memory", "list-vaults", "--json").json == []


def test_a_tenant_with_memories_is_not_deleted(shell: Shell) -> None:
    """A later tenant with the same id would have them."""
    shell.run("tenants", "create", "acme")
    shell.run("memory", "create-user", "ada", "--email", "ada@example.com", "--tenant", "acme")
    shell.run("memory", "create-vault", "work", "--user", "ada", "--tenant", "acme")
    shell.run("memory", "create-memory", "notes", "--tenant", "acme")
    assert "has memories" in shell.refused("tenants", "delete", "acme", code="conflict")
    memory_id = shell.run("memory", "list-memories", "--tenant", "acme", "--json").json[0]["id"]
    shell.run("memory", "delete-memory", memory_id, "--tenant", "acme")
    shell.run("tenants", "delete", "acme")
    shell.run("tenants", "create", "acme")
    assert shell.run("memory", "list-vaults", "--tenant", "acme", "--json").json == []
    shell.run("memory", "create-user", "ada", "--email", "ada@example.com", "--tenant", "acme")
