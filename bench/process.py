"""Start worker processes with a clean environment, and stop them by their pid."""

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
    """One worker command in its own process group, because the command of taskiq has children."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], program: str = sys.executable
    ) -> None:
        self._child = subprocess.Popen(
            [program, *arguments],
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
        """Kill the whole group. Its database is dropped next, so an orderly shutdown is not needed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of Runlane, because the defaults are measured."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RUNLANE_", "PROCRASTINATE_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


@contextmanager
def running(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], *, program: str = sys.executable
) -> Generator[WorkerProcess]:
    """Run a worker process for the duration of a `with` block, by default one of this Python."""
    worker = WorkerProcess(arguments, environment, log, program)
    try:
        yield worker
    finally:
        worker.stop()


async def run_json_program(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], timeout_seconds: float
) -> Any:
    """Run a program to its end and return the JSON that it prints."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, _ = await program.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
    if program.returncode != 0:
        raise RuntimeError(f"{arguments} exited with {program.returncode}; see {log.name}")
    return orjson.loads(output)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the resident memory (RSS) and the proportional share (PSS) of a process, in MB."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS:"), _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _field(path: Path, name: str) -> float:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise LookupError(f"{path} has no {name}")
