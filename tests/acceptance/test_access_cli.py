"""The commands for keys, tenants, roles and the audit log, as processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runlane.testing import RedisServer
from tests import forking


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
    return {**kept, "RUNLANE_DATABASE_URL": f"sqlite:///{tmp_path / 'runlane.db'}"}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [sys.executable, "-m", "runlane", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def json_of(environment: dict[str, str], *arguments: str) -> Any:
    done = run(environment, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_key_is_shown_once_and_can_be_revoked(environment: dict[str, str]) -> None:
    made = json_of(environment, "keys", "create", "ci", "--role", "operator", "--expires-days", "3")
    assert re.fullmatch(r"sk-rl-[0-9a-f]{64}", made["key"])
    assert (made["name"], made["role"], made["tenant"], made["prefix"]) == (
        "ci",
        "operator",
        "default",
        made["key"][:12],
    )
    listed = run(environment, "keys", "list")
    assert made["id"] in listed.stdout
    assert made["key"] not in listed.stdout
    assert json_of(environment, "keys", "revoke", made["id"])["revoked_at_us"] is not None
    assert "\trevoked\t" in run(environment, "keys", "list").stdout


def test_the_key_is_the_first_line_for_people(environment: dict[str, str]) -> None:
    done = run(environment, "keys", "create", "ci", "--role", "viewer")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"sk-rl-[0-9a-f]{64}", done.stdout.splitlines()[0])


def test_a_key_that_was_made_elsewhere_is_stored_once(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "admin-key"
    secret = "sk-rl-" + "5a" * 32
    file.write_text(f"{secret}\n")
    store = ["keys", "create", "admin", "--role", "platform_admin", "--key-file", str(file)]
    made = json_of(environment, *store)
    assert (made["key"], made["prefix"], made["role"]) == (None, secret[:12], "platform_admin")
    again = run(environment, *store)
    assert again.returncode == 0, again.stderr
    assert made["id"] in again.stdout
    assert secret not in again.stdout
    assert len(json_of(environment, "keys", "list")) == 1
    # It stays revoked, whatever repeats the command.
    json_of(environment, "keys", "revoke", made["id"])
    assert "revoked" in run(environment, *store).stdout


def test_what_is_not_a_key_is_not_stored(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "admin-key"
    store = ["keys", "create", "admin", "--role", "viewer", "--key-file", str(file)]
    missing = run(environment, *store)
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr
    file.write_text("secret of another kind")
    wrong = run(environment, *store)
    assert wrong.returncode == 1
    assert "is not an API key" in wrong.stderr
    assert "another kind" not in wrong.stderr
    file.write_text("sk-rl-" + "0" * 64)
    elsewhere = run(environment, *store, "--url", "http://127.0.0.1:1")
    assert elsewhere.returncode == 1
    assert "A server creates its keys itself" in elsewhere.stderr


def test_tenants_roles_and_the_audit_log(environment: dict[str, str]) -> None:
    made = json_of(environment, "tenants", "create", "acme", "--max-queued", "5", "--rate", "2.5")
    assert (made["max_queued"], made["rate_per_second"]) == (5, 2.5)
    changed = json_of(
        environment, "tenants", "set", "acme", "--max-running", "2", "--no-limit", "max_queued", "--disable"
    )
    assert changed["changed"] == {
        "enabled": {"old": True, "new": False},
        "max_queued": {"old": 5, "new": None},
        "max_running": {"old": None, "new": 2},
    }
    json_of(environment, "roles", "set", "night", "runs:read", "runs:write")
    assert {role["name"] for role in json_of(environment, "roles", "list")} > {"viewer", "night"}
    json_of(environment, "roles", "delete", "night")
    json_of(environment, "tenants", "delete", "acme")
    assert [tenant["id"] for tenant in json_of(environment, "tenants", "list")] == ["default"]
    entries = json_of(environment, "audit", "list")
    assert [entry["action"] for entry in entries] == [
        "tenant.delete",
        "role.delete",
        "role.set",
        "tenant.set",
        "tenant.create",
    ]
    assert all(entry["actor"].startswith("cli") for entry in entries)
    assert (entries[3]["old"]["max_queued"], entries[3]["new"]["max_queued"]) == (5, None)
    of_role = json_of(environment, "audit", "list", "--subject", "night", "--actor", entries[0]["actor"])
    assert [entry["action"] for entry in of_role] == ["role.delete", "role.set"]
    assert json_of(environment, "audit", "list", "--actor", "cli:none") == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("keys", "create", "ci", "--role", "operater"), 1, 'did you mean "operator"'),
        (("keys", "create", "ci", "--role", "viewer", "--tenant", "unknown"), 1, 'No tenant "unknown"'),
        (("keys", "create", "ci"), 2, "--role"),
        (("keys", "revoke", "key_none"), 1, "not_found"),
        (("tenants", "create", "No Such"), 1, "invalid_request"),
        (("tenants", "create", "default"), 1, "conflict"),
        (("tenants", "delete", "default"), 1, "cannot be deleted"),
        (("tenants", "set", "default"), 1, "Nothing to change"),
        (("roles", "set", "viewer", "runs:read"), 1, "built in"),
        (("roles", "set", "night", "runs:raed"), 1, 'did you mean "runs:read"'),
    ],
)
def test_refusals_give_the_reason(
    environment: dict[str, str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = run(environment, *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("alive", [True, False], ids=["redis", "redis-away"])
def test_nothing_but_the_answer_is_on_stdout_with_redis(environment: dict[str, str], alive: bool) -> None:
    with RedisServer() as server:
        with_redis = {**environment, "RUNLANE_REDIS_URL": server.url}
        if not alive:
            server.kill()
        made = json_of(with_redis, "keys", "create", "ci", "--role", "operator")
        assert made["id"] in [key["id"] for key in json_of(with_redis, "keys", "list")]
        assert json_of(with_redis, "lanes", "list")
        assert json_of(with_redis, "runs", "list") == []
        assert json_of(with_redis, "limits", "list")
        assert json_of(with_redis, "usage") == []
