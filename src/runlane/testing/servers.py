"""A real PostgreSQL and a real Redis-compatible server, for tests and benchmarks.

Each server has its own temporary directory and port and needs only the programs. It can be restarted and killed,
because tests must check the state after a crash. If the environment names a running server, that server is used instead
and cannot be crashed.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from runlane.testing import databases
from runlane.testing.account import choose_account
from runlane.testing.binaries import ServerError, find_postgres, find_redis
from runlane.testing.child import clean_environment
from runlane.testing.local import HOST, START_SECONDS, LocalServer, tail

# No test cuts the power of the machine, so commits do not wait for the disk. Commits still reach the operating system
# before they are acknowledged; with synchronous_commit=off, a killed server would lose the last commits.
POSTGRES_OPTIONS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    # The memory is in files of the data directory: containers often have a small /dev/shm, and a killed server leaks
    # memory there.
    "dynamic_shared_memory_type": "mmap",
}


REDIS_OPTIONS: Mapping[str, str] = {"save": "", "appendonly": "no"}


class PostgresServer(LocalServer):
    """A PostgreSQL cluster. `options` override or add server settings, such as fsync."""

    name = "PostgreSQL"
    orphan_signal = "QUIT"
    # The steps are a fast shutdown, an immediate shutdown, and a kill.
    stop_steps = ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 0))

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._options = {**POSTGRES_OPTIONS, **(options or {})}
        self._bindir = Path()

    @property
    def url(self) -> str:
        return f"postgresql://app@{HOST}:{self.port}/postgres"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, empty or as a copy of `template`, and return its URL.

        It may be called in a running event loop.
        """
        return databases.create(self.url, name, template)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and close the connections to it."""
        databases.drop(self.url, name)

    def _prepare(self, home: Path) -> None:
        self._account, self._bindir = choose_account(find_postgres(), home)
        command = [str(self._bindir / "initdb"), "-D", str(home / "data"), "-U", "app", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        answer = subprocess.run(
            self._account.command(command),
            user=self._account.uid,
            group=self._account.gid,
            extra_groups=self._account.groups,
            cwd=home,
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_SECONDS,
            check=False,
        )
        if answer.returncode != 0:
            raise ServerError(f"initdb failed. The end of its output:\n{tail(answer.stdout.decode(errors='replace'))}")

    def _command(self, home: Path) -> list[str]:
        # The path of a socket has a short limit. With a long TMPDIR, the server has no socket.
        sockets = str(home) if len(str(home)) < 80 else ""
        options = {"listen_addresses": HOST, "unix_socket_directories": sockets, **self._options}
        command = [str(self._bindir / "postgres"), "-D", str(home / "data"), "-p", str(self.port)]
        for key, value in options.items():
            command += ["-c", f"{key}={value}"]
        return command

    def _ready(self, home: Path) -> bool:
        # The port opens before recovery ends; the eighth line is set when sessions are accepted. The first line
        # distinguishes the file of this server from the file of a killed server.
        try:
            lines = (home / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


class RedisServer(LocalServer):
    """A Redis-compatible server that stores nothing on disk unless `options` enable it."""

    name = "Redis"
    stop_steps = ((signal.SIGTERM, 10), (signal.SIGKILL, 0))

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._options = {**REDIS_OPTIONS, **(options or {})}
        self._program = Path()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _prepare(self, home: Path) -> None:
        self._program = find_redis()

    def _command(self, home: Path) -> list[str]:
        options = {"bind": HOST, "port": str(self.port), "dir": str(home), **self._options}
        command = [str(self._program)]
        for key, value in options.items():
            command += [f"--{key}", value]
        return command

    def _ready(self, home: Path) -> bool:
        # The pid distinguishes this server from another server that has taken the port.
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as link:
                link.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                answer = b"".join(iter(lambda: link.recv(65536), b""))
        except OSError:
            return False
        return answer.startswith(b"+PONG") and f"process_id:{self.pid}\r".encode() in answer


class _External:
    """A server that this test suite did not start. It can be used, but not stopped or crashed."""

    def __init__(self, url: str, default_port: int, variable: str) -> None:
        self.url = url
        self.port = urlsplit(url).port or default_port
        self._variable = variable

    @property
    def pid(self) -> int:
        raise self._not_owned("has no known pid")

    def start(self) -> Self:
        """Do nothing, because the server is already running."""
        return self

    def stop(self) -> None:
        """Do nothing. The server continues to run."""

    def restart(self) -> None:
        raise self._not_owned("cannot be restarted")

    def kill(self) -> None:
        raise self._not_owned("cannot be killed")

    def _not_owned(self, problem: str) -> ServerError:
        return ServerError(
            f"The server named by {self._variable} {problem}: this suite did not start it. "
            f"Unset {self._variable} to run these tests against a server of their own."
        )


class ExternalPostgres(_External):
    """The PostgreSQL server of TEST_DATABASE_URL. Its user needs the right to create databases."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 5432, "TEST_DATABASE_URL")

    def create_database(self, name: str, template: str | None = None) -> str:
        return databases.create(self.url, name, template)

    def drop_database(self, name: str) -> None:
        databases.drop(self.url, name)


class ExternalRedis(_External):
    """The Redis-compatible server of TEST_REDIS_URL."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 6379, "TEST_REDIS_URL")


@contextmanager
def postgres_for_tests(
    options: Mapping[str, str] | None = None,
) -> Generator[PostgresServer | ExternalPostgres]:
    """Yield the server of TEST_DATABASE_URL, to which `options` do not apply; without that variable, a new server."""
    url = os.environ.get("TEST_DATABASE_URL")
    if url:
        yield ExternalPostgres(url)
        return
    with PostgresServer(options) as server:
        yield server


@contextmanager
def redis_for_tests(options: Mapping[str, str] | None = None) -> Generator[RedisServer | ExternalRedis]:
    """Yield the server of TEST_REDIS_URL, to which `options` do not apply; without that variable, a new server."""
    url = os.environ.get("TEST_REDIS_URL")
    if url:
        yield ExternalRedis(url)
        return
    with RedisServer(options) as server:
        yield server
