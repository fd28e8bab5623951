"""The commands for secrets, as processes. No value is ever an argument, nor printed."""

from __future__ import annotations

import json
import os
import pty
import stat
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.acceptance.conftest import Shell
from tests.server_process import command, serving

CANARY = "canary-0c83aa-secret"
TOOL = {
    "name": "issues",
    "tool_type": "http",
    "method": "GET",
    "url": "https://api.example.com/issues",
    "headers": {"Authorization": "Bearer {secret.GITHUB_TOKEN}"},
}


def give(shell: Shell, *arguments: str, value: str | bytes, expect: int = 0, **variables: str) -> str:
    done = forking.run(
        [sys.executable, "-m", "runlane", "secrets", *arguments],
        cwd=shell.folder,
        env=shell.environment | variables,
        input=value.encode() if isinstance(value, str) else value,
        capture_output=True,
        timeout=120,
        check=False,
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == expect, output
    assert CANARY not in output
    assert "Traceback" not in output
    return output


def with_key(shell: Shell, *keys: str) -> list[str]:
    made = [*keys, shell.run("secrets", "new-key", "--json").json["key"]]
    shell.environment["RUNLANE_SECRET_KEY"] = ",".join(reversed(made))
    return made


def test_a_secrets_life(shell: Shell) -> None:
    with_key(shell)
    assert "TOKEN: version 1" in give(shell, "set", "TOKEN", value=f"{CANARY}\n")
    report = json.loads(give(shell, "set", "TOKEN", "--json", value=f"{CANARY}-2"))
    assert (report["name"], report["version"], report["tenant"]) == ("TOKEN", 2, "default")
    file = shell.folder / "value"
    file.write_text(f"{CANARY}-of-a-file\n")
    shell.run("secrets", "set", "OTHER", "--from-file", "value")
    listed = shell.run("secrets", "list")
    assert [line[0] for line in listed.lines] == ["secret", "OTHER", "TOKEN"]
    assert CANARY not in listed.out
    assert [item["name"] for item in shell.run("secrets", "list", "--json").json] == ["OTHER", "TOKEN"]
    assert shell.run("secrets", "delete", "TOKEN", "--json").json["deleted"]["version"] == 2
    assert "OTHER: deleted." in shell.run("secrets", "delete", "OTHER").out
    assert 'No secret "OTHER"' in shell.refused("secrets", "delete", "OTHER", code="not_found")
    actions = [entry["action"] for entry in shell.run("audit", "list", "--json").json]
    assert actions == ["secret.delete", "secret.delete", "secret.set", "secret.set", "secret.set"]


def test_the_definitions_that_refer_to_a_secret_are_listed(shell: Shell) -> None:
    shell.environment.setdefault("RUNLANE_DATABASE_URL", f"sqlite:///{shell.folder / 'own.db'}")
    shell.run("db", "upgrade")
    assert shell.run("secrets", "used-by", "HUB", "--json").json == []
    folder = shell.folder / "definitions" / "mcp_servers"
    folder.mkdir(parents=True)
    server = {"name": "hub", "server_type": "remote", "url": "https://example.com/mcp", "token": "{secret.HUB}"}
    (folder / "hub.json").write_text(json.dumps(server))
    shell.run("sync")
    assert shell.run("secrets", "used-by", "HUB", "--json").json == [{"kind": "mcp_server", "id": "hub", "name": ""}]
    assert "is not a valid secret name" in shell.refused("secrets", "used-by", "9X", code="invalid_request")


def test_refusals_give_the_reason_and_not_the_value(shell: Shell) -> None:
    shell.environment.setdefault("RUNLANE_DATABASE_URL", f"sqlite:///{shell.folder / 'own.db'}")
    assert "runlane secrets new-key" in give(shell, "set", "TOKEN", value=CANARY, expect=1)
    with_key(shell)
    assert "at least 8 characters" in give(shell, "set", "TOKEN", value="1234567\n", expect=1)
    assert "is not a valid secret name" in give(shell, "set", "9X", value=CANARY, expect=1)
    assert "UTF-8" in give(shell, "set", "TOKEN", value=b"\xff\xfe" * 20, expect=1)
    assert "at most 65536" in give(shell, "set", "TOKEN", value="abcd" * 20_000, expect=1)
    assert 'No tenant "unknown"' in give(shell, "set", "TOKEN", "--tenant", "unknown", value=CANARY, expect=1)
    assert "cannot be read" in shell.refused("secrets", "set", "T", "--from-file", "none", code="invalid_request")
    wrong = shell.refused("secrets", "list", code="invalid_settings", RUNLANE_SECRET_KEY="not-a-key-at-all")
    assert "RUNLANE_SECRET_KEY: a key must be 32 bytes" in wrong
    assert "not-a-key-at-all" not in wrong


def test_keys_are_changed(shell: Shell) -> None:
    first = with_key(shell)
    for name in ("A", "B", "C"):
        give(shell, "set", name, value=f"{CANARY}-{name}")
    assert "3, all encrypted with the key" in shell.run("doctor", expect=_health(shell)).out
    with_key(shell, *first)
    assert "3 are encrypted with an older key" in shell.run("doctor", expect=_health(shell)).out
    done = shell.run("secrets", "rotate")
    assert done.out.startswith("3 encrypted again with the key ")
    assert shell.run("secrets", "rotate", "--json").json["rotated"] == 0
    shell.environment["RUNLANE_SECRET_KEY"] = first[0]
    broken = shell.run("doctor", "--json", expect=1).json
    (finding,) = [item for item in broken["findings"] if item["check"] == "secrets"]
    assert finding["level"] == "broken"
    assert "3 cannot be read" in finding["message"]
    lost = shell.run("secrets", "rotate", "--json", expect=1).json
    assert [item["name"] for item in lost["unreadable"]] == ["A", "B", "C"]


def _health(shell: Shell) -> int:
    return shell.run("doctor", "--json", expect=0).code


def test_the_embedded_file_needs_no_key(embedded: Shell) -> None:
    give(embedded, "set", "TOKEN", value=CANARY)
    file = embedded.folder / ".runlane" / "secret.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in embedded.run("doctor").out
    give(embedded, "set", "TOKEN", value=f"{CANARY}-2")
    assert embedded.run("secrets", "list", "--json").json[0]["version"] == 2


def test_a_new_key_is_printed_alone(embedded: Shell) -> None:
    keys = [embedded.run("secrets", "new-key") for _ in range(2)]
    assert len({answer.out for answer in keys}) == 2
    assert [len(answer.out.splitlines()) for answer in keys] == [1, 1]
    assert "RUNLANE_SECRET_KEY" in keys[0].err


def test_a_value_is_prompted_for_without_echo(embedded: Shell) -> None:
    leader, follower = pty.openpty()
    child = forking.Popen(
        [sys.executable, "-m", "runlane", "secrets", "set", "TOKEN"],
        cwd=embedded.folder,
        env=embedded.environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    output = b""
    try:
        while b"Value of TOKEN: " not in output:
            output += os.read(leader, 1000)
        os.write(leader, f"{CANARY}\n".encode())
        while b"version 1" not in output:
            output += os.read(leader, 1000)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(leader)
    assert CANARY.encode() not in output


def test_missing_secrets_are_warnings_of_validate_and_sync(embedded: Shell) -> None:
    folder = embedded.folder / "definitions" / "tools"
    folder.mkdir(parents=True)
    (folder / "issues.json").write_text(json.dumps(TOOL))
    alone = embedded.run("validate", "--json").json
    assert (alone["valid"], alone["problems"]) == (True, [])
    assert not (embedded.folder / ".runlane").exists()
    report = embedded.run("sync", "--json").json
    assert ["GITHUB_TOKEN is not set" in item["message"] for item in report["warnings"]] == [True]
    checked = embedded.run("validate")
    assert "runlane secrets set GITHUB_TOKEN" in checked.out
    give(embedded, "set", "GITHUB_TOKEN", value=CANARY)
    assert embedded.run("validate", "--json").json["problems"] == []
    assert embedded.run("sync", "--json").json["warnings"] == []


def test_the_commands_work_over_http(embedded: Shell, tmp_path: Path) -> None:
    with serving(embedded.folder, {}, "dev", "tasks:app") as server:
        url = {"RUNLANE_URL": server.url}
        made = command(embedded.folder, "secrets", "set", "TOKEN", "--json", given=CANARY, **url)
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["version"] == 1
        listed = command(embedded.folder, "secrets", "list", "--json", **url)
        assert [item["name"] for item in json.loads(listed.stdout)] == ["TOKEN"]
        assert "0 encrypted again" in command(embedded.folder, "secrets", "rotate", **url).stdout
        assert "TOKEN: deleted." in command(embedded.folder, "secrets", "delete", "TOKEN", **url).stdout
        assert "not_found" in command(embedded.folder, "secrets", "delete", "TOKEN", **url).stderr
    assert CANARY not in "".join(file.read_text() for file in embedded.folder.glob("*.log"))


@pytest.mark.parametrize("arguments", [("set", "TOKEN", CANARY), ("set",)])
def test_a_value_cannot_be_an_argument(embedded: Shell, arguments: tuple[str, ...]) -> None:
    embedded.run("secrets", *arguments, expect=2)
