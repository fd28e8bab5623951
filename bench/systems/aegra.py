"""Aegra: an agent server for LangGraph on Postgres, in an environment of its own.

Runlane does not depend on it: its packages are installed once into a cache folder, with the LangGraph that Runlane is
measured with. Its production command, `aegra serve`, starts one process, which serves the API and executes
runs. By default runs are tasks of that process. With Redis, processes share runs through a queue with leases, and
another process continues the runs of one that has died.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from bench.http_client import HOST
from bench.process import ROOT, children, clean_environment, running
from bench.server import ApiServer, free_port, wait_until_listening
from bench.servers import Servers, Workspace

VERSION = "0.11.0"
# It needs a newer Python than Runlane.
_PYTHONS = ("3.12", "3.13", "3.14")
_CONFIG = ROOT / "bench" / "systems" / "aegra.json"
# Beside the tool that installs it, because the checks read everything below bench.
_CACHE = ROOT / ".uv" / "bench"
_INSTALL_SECONDS = 600


class NotInstalled(Exception):
    """Aegra cannot be installed here. The text says why."""


@dataclass(frozen=True, slots=True)
class Aegra:
    """An installed Aegra. `versions` are those that its figures depend on."""

    home: Path
    versions: str

    @asynccontextmanager
    async def serving(
        self, servers: Servers, workspace: Workspace, processes: int, *, redis: bool
    ) -> AsyncGenerator[list[ApiServer]]:
        """Run processes of its production command for the duration of a block."""
        environment = self._environment(servers, workspace, redis=redis)
        found: list[ApiServer] = []
        with ExitStack() as stack:
            # The first one creates the tables.
            for _ in range(processes):
                port = free_port()
                command = ("serve", "--host", HOST, "--port", str(port), "--config", str(_CONFIG))
                program = str(self.home / "bin" / "aegra")
                process = stack.enter_context(running(command, environment, servers.log, program=program))
                await wait_until_listening(port)
                # The command starts the server as a child.
                found.append(ApiServer(port, "none", children(process.pid)[0]))
            yield found

    def _environment(self, servers: Servers, workspace: Workspace, *, redis: bool) -> Mapping[str, str]:
        kept = {key: value for key, value in servers.environment(workspace).items() if key != "VIRTUAL_ENV"}
        # The names keep the measurements apart. Its default level logs every request and run.
        return {
            **kept,
            "DATABASE_URL": workspace.database_url,
            "REDIS_BROKER_ENABLED": "true" if redis else "false",
            "REDIS_URL": workspace.redis_url,
            "REDIS_CHANNEL_PREFIX": f"{workspace.queue}:run:",
            "WORKER_QUEUE_KEY": f"{workspace.queue}:jobs",
            "LOG_LEVEL": "WARNING",
        }


async def install(log: IO[bytes]) -> Aegra:
    """Return Aegra, installed if it was not before; raise NotInstalled if that fails."""
    home = _CACHE / f"aegra-{VERSION}-langgraph-{version('langgraph')}"
    stamp = home / "installed"
    if not stamp.exists():
        await asyncio.to_thread(_install, home, log)
        stamp.write_text(f"aegra-api {VERSION}, langgraph {version('langgraph')}, Python {_version_of(home)}")
    return Aegra(home, stamp.read_text())


def _install(home: Path, log: IO[bytes]) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
    python = next(_interpreters(), None)
    if python is None:
        raise NotInstalled(f"no Python {_PYTHONS[0]} or later was found")
    packages = [f"aegra-api=={VERSION}", f"aegra-cli=={VERSION}", f"langgraph=={version('langgraph')}"]
    # uv does not read the certificates of the system by default.
    environment = {"UV_SYSTEM_CERTS": "true", **clean_environment({"UV_PYTHON_DOWNLOADS": "never"})}
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", python, str(home)],
        [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *packages],
    ):
        try:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=True, timeout=_INSTALL_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotInstalled(f"{error}; see {log.name}") from error


def _interpreters() -> Generator[str]:
    """Yield interpreters that can start: those on PATH, and those that a version manager keeps beside this one."""
    beside = Path(sys.base_prefix).parent
    for wanted in _PYTHONS:
        for candidate in (sys.executable, f"python{wanted}", *sorted(map(str, beside.glob(f"*/bin/python{wanted}")))):
            try:
                done = subprocess.run(
                    [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError):
                continue
            found, _, path = done.stdout.strip().partition(" ")
            if found == wanted:
                yield path


def _version_of(home: Path) -> str:
    command = [str(home / "bin" / "python"), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
