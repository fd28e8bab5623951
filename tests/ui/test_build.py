"""The build of the dashboard: types, rules, unit tests, size budget, and the types of the API."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.ui.api_schema import TYPES, digest

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "ui"


def npm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / ".ci" / "with-node", "npm", "run", "--silent", *arguments]
    return subprocess.run(command, cwd=UI, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", ["check", "test", "size"])
def test_the_checks_of_the_dashboard_pass(script: str) -> None:
    done = npm(script)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_are_those_of_the_api() -> None:
    first_line = TYPES.read_text().partition("\n")[0]
    assert digest() in first_line, "The HTTP API has changed. Generate its types: make ui-types"


def test_the_lock_names_no_registry_and_exact_versions() -> None:
    package = json.loads((UI / "package.json").read_text())
    lock = json.loads((UI / "package-lock.json").read_text())
    wanted = {**package["dependencies"], **package["devDependencies"]}
    assert all(version[0].isdigit() for version in wanted.values())
    assert [path for path, entry in lock["packages"].items() if "resolved" in entry] == []
    # A bundled package is part of the archive of another one, which has the integrity of both.
    own = {path: entry for path, entry in lock["packages"].items() if path and not entry.get("inBundle")}
    assert [path for path, entry in own.items() if "integrity" not in entry] == []


def test_notices_and_compressed_files_are_built() -> None:
    assets = ROOT / "src" / "runlane" / "ui_assets"
    assert "react " in (assets / "third-party-notices.txt").read_text()
    scripts = list((assets / "assets").glob("*.js"))
    large = [script for script in scripts if script.stat().st_size >= 1_000]
    assert large
    assert all(Path(f"{script}.br").exists() and Path(f"{script}.gz").exists() for script in large)
    assert list(assets.rglob("*.map")) == []
