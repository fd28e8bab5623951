"""`runlane mcp check`, and what `runlane dev` lets definitions do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runlane.testing import FakeMcp
from tests import forking
from tests.server_process import environment, serving


@pytest.fixture(scope="module")
def fake() -> Generator[FakeMcp]:
    forking.prepare(forking.MCP)
    with FakeMcp() as fake:
        yield fake


def run(folder: Path, *arguments: str, secret: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runlane", *arguments]
    return forking.run(
        command,
        cwd=folder,
        env=environment(RUNLANE_OUTBOUND_ALLOW="127.0.0.1", **forking.MCP),
        input=secret,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def define(folder: Path, **body: Any) -> None:
    file = folder / "definitions" / "mcp_servers" / f"{body['name']}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(body))


def test_a_server_is_checked_from_the_folder_with_secrets_of_the_database(tmp_path: Path, fake: FakeMcp) -> None:
    define(tmp_path, name="fake", url=fake.url, token="{secret.TOKEN}", effects={"once": "once"})
    missing = run(tmp_path, "mcp", "check", "fake")
    assert missing.returncode == 1
    assert "unknown_secret" in missing.stderr
    assert run(tmp_path, "secrets", "set", "TOKEN", secret="a canary value").returncode == 0
    fake.control(token="a canary value")
    listed = run(tmp_path, "mcp", "check", "fake")
    assert listed.returncode == 0, listed.stderr
    assert "fake__add  The sum of two numbers.\n" in listed.stdout
    assert listed.stdout.endswith("10 tools.\n")
    report = json.loads(run(tmp_path, "mcp", "check", "fake", "--json").stdout)
    effects = {tool["name"]: tool["effect"] for tool in report["tools"]}
    assert (effects["fake__once"], effects["fake__add"]) == ("once", "repeatable")
    fake.control(token="another")
    refused = run(tmp_path, "mcp", "check", "fake", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]) == (1, "mcp_refused")
    assert "canary" not in refused.stdout + refused.stderr
    unknown = run(tmp_path, "mcp", "check", "fak")
    assert unknown.returncode != 0
    assert 'did you mean "fake"' in unknown.stderr


def test_a_server_connects_to_the_mcp_server_of_a_stored_definition(tmp_path: Path, fake: FakeMcp) -> None:
    fake.control(token="a canary value")
    define(tmp_path, name="fake", url=fake.url, token="{secret.TOKEN}")
    define(tmp_path, name="program", server_type="stdio", command=fake.command[0], args=fake.command[1:])
    assert run(tmp_path, "secrets", "set", "TOKEN", secret="a canary value").returncode == 0
    assert run(tmp_path, "sync").returncode == 0
    # The server reads the stored definition, and not the folder of the caller.
    (tmp_path / "definitions").rename(tmp_path / "elsewhere")
    allowed = {"RUNLANE_OUTBOUND_ALLOW": "127.0.0.1", **forking.MCP}
    key = json.loads(run(tmp_path, "keys", "create", "boss", "--role", "platform_admin", "--json").stdout)["key"]
    with serving(tmp_path, allowed, "serve") as server:
        there = ("--url", server.url, "--api-key", key)
        listed = run(tmp_path, "mcp", "check", "fake", *there)
        assert (listed.returncode, listed.stdout.splitlines()[-1]) == (0, "10 tools."), listed.stderr
        fake.control(token="another")
        refused = run(tmp_path, "mcp", "check", "fake", *there, "--json")
        assert (refused.returncode, json.loads(refused.stdout)["error"]) == (1, "mcp_refused")
        assert "canary" not in refused.stdout + refused.stderr
        # It starts programs of definitions only where the operator allows it.
        program = run(tmp_path, "mcp", "check", "program", *there)
        assert (program.returncode, "RUNLANE_MCP_STDIO" in program.stderr) == (1, True)
        both = run(tmp_path, "mcp", "check", "fake", *there, "--dir", "elsewhere")
        assert "Leave --dir out" in both.stderr
        assert "did you mean" in run(tmp_path, "mcp", "check", "fak", *there).stderr


def test_a_program_is_checked_from_the_database(tmp_path: Path, fake: FakeMcp) -> None:
    fake.control()
    define(tmp_path, name="local", server_type="stdio", command=fake.command[0], args=fake.command[1:])
    assert run(tmp_path, "sync").returncode == 0
    (tmp_path / "definitions").rename(tmp_path / "elsewhere")
    listed = run(tmp_path, "mcp", "check", "local")
    assert listed.returncode == 0, listed.stderr
    assert "local__echo  Returns the text.\n" in listed.stdout
