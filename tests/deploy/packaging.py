"""Build distributions of a source tree with uv, and run what was installed from them, without Node or the checkout."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
# Any moment does, as long as two builds use the same one.
EPOCH = "1767225600"
_SECONDS = 300


def uv(*arguments: str | Path, cwd: Path, path: str | None = None) -> None:
    """Run uv with the packages of its cache, and ask the package index only for those that the cache lacks."""
    command = [UV, *(str(argument) for argument in arguments)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    variables.pop("VIRTUAL_ENV", None)
    if path is not None:
        variables["PATH"] = path
    done: subprocess.CompletedProcess[str] | None = None
    for offline in ("true", "false"):
        variables["UV_OFFLINE"] = offline
        done = subprocess.run(
            command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode == 0:
            return
    assert done is not None
    raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


def copy_of_tree(folder: Path) -> Path:
    """Copy the tracked files, as they are in the working tree, and the built dashboard."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "bench/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src/runlane/ui_assets", folder / "src/runlane/ui_assets")
    return folder


def build(source: Path, out: Path, *options: str) -> None:
    """Build the distributions of a folder where no program is on the PATH, so no Node either."""
    python = ["--python", sys.executable]
    uv("build", "--quiet", "--out-dir", out, *python, *options, source, cwd=out.parent, path=str(out.parent / "none"))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each distribution of a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches."""
    (found,) = folder.glob(pattern)
    return found


def released() -> tuple[str, str]:
    """Return the version and the commit of the newest release that docs/releases.md records."""
    rows = re.findall(
        r"^\| (\S+) \| \d{4}-\d\d-\d\d \| `([0-9a-f]{40})` \|", (ROOT / "docs/releases.md").read_text(), re.MULTILINE
    )
    assert rows, "docs/releases.md records no release"
    return rows[0]


def source_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder, without the source of the dashboard, which needs Node."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, (
        f"The commit {commit} of the newest release is not in this clone. Get the whole history: git fetch --unshallow"
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        # Python 3.11.3 and older have no filters, and this archive needs none; later ones warn without.
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(folder, **options)
    (folder / "ui/package-lock.json").unlink(missing_ok=True)
    return folder


def installed_wheel(source: Path, out: Path) -> Path:
    """Build the wheel of a source tree and install it, without its dependencies; return the folder to import from."""
    build(source, out / "dist", "--wheel")
    target = ["--target", out / "site", "--python", sys.executable]
    # Compiled once: every process that a test starts would do it otherwise.
    uv("pip", "install", "--quiet", "--compile-bytecode", "--no-deps", *target, only(out / "dist", "*.whl"), cwd=out)
    return out / "site"
