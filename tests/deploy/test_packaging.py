"""The wheel and the source distribution: complete, reproducible, and enough to run Runlane without its repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest

from deploy.sbom import bill_of_materials
from tests.deploy.packaging import EPOCH, ROOT, UV, build, copy_of_tree, digests, only, uv
from tests.server_process import free_port

START_SECONDS = 120
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TASKS = """
from runlane import App, Context

app = App()

@app.task("greet")
async def greet(ctx: Context, name: str) -> str:
    return f"Hello {name}"
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the source distribution, and of the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("first")
    build(copy_of_tree(folder / "source"), folder / "dist")
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment with the wheel and the locked packages, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    requirements = folder / "requirements.txt"
    uv("export", "--frozen", "--no-dev", "--no-emit-project", "--quiet", "-o", requirements, cwd=ROOT)
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    python = ["--python", folder / "venv/bin/python"]
    uv("pip", "install", "--quiet", *python, "--require-hashes", "-r", requirements, cwd=folder)
    wheel = only(distributions, "*.whl")
    uv("pip", "install", "--quiet", "--compile-bytecode", *python, "--no-deps", wheel, cwd=folder)
    return folder / "venv/bin"


def clean_environment(programs: Path, **variables: str) -> dict[str, str]:
    """Return an environment with the installed programs alone on the PATH."""
    return {"PATH": str(programs), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **variables}


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Run `runlane dev` of the installed package in an empty folder; yield its URL."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tasks.py").write_text(TASKS)
    url = f"http://127.0.0.1:{(port := free_port())}"
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [installed / "runlane", "dev", "tasks:app", "--port", str(port)],
            cwd=folder, env=clean_environment(installed), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _responds(f"{url}/ready"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_two_builds_of_the_same_source_are_equal(distributions: Path, tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        build(copy_of_tree(tmp_path / "elsewhere"), tmp_path / "dist")
    finally:
        os.umask(umask)
    first = digests(distributions)
    assert set(first) == {f"runlane-{VERSION}-py3-none-any.whl", f"runlane-{VERSION}.tar.gz"}
    assert digests(tmp_path / "dist") == first


def test_the_distributions_have_the_dashboard_and_no_tests(distributions: Path) -> None:
    with zipfile.ZipFile(only(distributions, "*.whl")) as wheel:
        names = wheel.namelist()
    assert "runlane/ui_assets/index.html" in names
    assert "runlane/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"runlane", f"runlane-{VERSION}.dist-info"}
    with tarfile.open(only(distributions, "*.tar.gz")) as source:
        carried = {name.removeprefix(f"runlane-{VERSION}/") for name in source.getnames()}
    assert {"src/runlane/ui_assets/index.html", "ui/build_hook.py", "LICENSE", "CHANGELOG.md", "PKG-INFO"} <= carried
    assert not [name for name in carried if name.startswith(("tests/", "ui/tests/", "deploy/", ".ci/"))]


def test_the_bill_of_materials_has_every_installed_package_and_the_libraries_of_the_dashboard(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    document = bill_of_materials(UV)
    identities = {item["purl"] for item in document["components"]}
    names = {name.partition("@")[0] for name in identities if name.startswith("pkg:pypi/")}
    site = only(installed.parent / "lib", "python*") / "site-packages"
    packages = {
        re.sub(r"[-_.]+", "-", path.name.rpartition("-")[0].removesuffix(".dist")).lower()
        for path in (Path(folder.name.removesuffix(".dist-info")) for folder in site.glob("*.dist-info"))
    }
    assert {f"pkg:pypi/{name}" for name in packages - {"runlane"}} <= names
    assert any(name.startswith("pkg:npm/react@") for name in identities)
    assert not any("vite@" in name for name in identities), "what only builds the dashboard is not part of it"
    assert document == bill_of_materials(UV)


def test_the_installed_package_runs_without_the_repository(installed: Path, tmp_path: Path) -> None:
    program = "import runlane, sys; print(runlane.__file__); print(sys.path)"
    commands = {"version": [installed / "runlane", "--version"], "place": [installed / "python", "-c", program]}
    printed = {
        name: subprocess.run(
            command, cwd=tmp_path, env=clean_environment(installed), capture_output=True, text=True, check=True
        ).stdout
        for name, command in commands.items()
    }
    assert printed["version"].strip() == VERSION
    assert str(installed.parent) in printed["place"]
    assert str(ROOT) not in printed["place"]
    assert not (installed / "node").exists()


def test_runlane_dev_of_the_installed_package_serves_a_run(server: str, installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "runlane", "run", "greet", "--input", '{"name": "Ada"}', "--follow", "--url", server],
        cwd=tmp_path, env=clean_environment(installed), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello Ada" in done.stdout


def test_runlane_dev_of_the_installed_package_serves_the_dashboard(server: str) -> None:
    page = _read(f"{server}/ui/")
    (script,) = re.findall(r'<script type="module"[^>]* src="([^"]+)"', page)
    assert len(_read(f"{server}/ui/{script.removeprefix('/ui/').removeprefix('./')}")) > 1000
