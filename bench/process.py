"""Worker processes: started with a clean environment, ended by their own pid, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

ROOT = Path(__file__).resolve().parent.parent


class WorkerProcess:
    """One worker command in a process group of its own, since taskiq's has children."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        """Kill its whole group: its database is dropped next, so nothing that an orderly end does is missed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without anybody's Runlane settings: the defaults are what is measured."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RUNLANE_", "PROCRASTINATE_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


@contextmanager
def running(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Generator[WorkerProcess]:
    """A worker process for the length of a `with` block."""
    worker = WorkerProcess(arguments, environment, log)
    try:
        yield worker
    finally:
        worker.stop()


async def answer_of(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], timeout_seconds: float
) -> Any:
    """The JSON that a program prints before it ends by itself."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            told, _ = await program.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
    if program.returncode != 0:
        raise RuntimeError(f"{arguments} ended with {program.returncode}; see {log.name}")
    return orjson.loads(told)


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident memory of a process, and its share of it (PSS), in MB."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS:"), _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _field(path: Path, name: str) -> float:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise LookupError(f"{path} has no {name}")
