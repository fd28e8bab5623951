"""A local server for tests: its directory, its port, its start and its end.

`servers` contains the differences between PostgreSQL and Redis. This module contains the common part: the server is
ready when start() returns, restarts on the same port after a crash, and leaves nothing behind.
"""

import secrets
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from runlane.testing.account import ServerAccount
from runlane.testing.binaries import ServerError
from runlane.testing.child import Lifeline, LocalProcess

HOST = "127.0.0.1"
START_SECONDS = 60
POLL_SECONDS = 0.01
FAMILY_SECONDS = 15
PORT_TRIES = 5

# The ports are below the range of ephemeral ports. Any client can take a port of that range while a killed server is
# unavailable, even a client that connects to itself while it retries.
PORTS = range(20_000, 32_000)


class LocalServer(ABC):
    """A directory, a port, and a child process that can be stopped or killed."""

    name: str
    orphan_signal = "TERM"
    stop_steps: tuple[tuple[signal.Signals, float], ...]

    def __init__(self) -> None:
        self._home: Path | None = None
        self._port: int | None = None
        self._child: LocalProcess | None = None
        self._lifeline: Lifeline | None = None
        self._account = ServerAccount()

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerError(f"{self.name} has no port before start().")
        return self._port

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ServerError(f"{self.name} is not running, so it has no pid. Call start() first.")
        return self._child.pid

    @property
    @abstractmethod
    def url(self) -> str: ...

    def start(self) -> Self:
        """Start the server and wait until it is ready. After kill(), it has the same port and data directory."""
        if self._child is not None and self._child.alive():
            return self
        try:
            if self._home is None:
                self._home = Path(tempfile.mkdtemp(prefix=f"runlane-{self.name.lower()}-"))
                self._lifeline = Lifeline(self._home, self.orphan_signal)
                self._prepare(self._home)
            self._forget_child()
            self._launch(self._home)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove its data. Safe to call at any time and more than once."""
        self._halt()
        if self._home is not None:
            shutil.rmtree(self._home)
        if self._lifeline is not None:
            self._lifeline.release()
        self._home = self._port = self._lifeline = None

    def restart(self) -> None:
        """Stop the server and start it with the same port and data."""
        self._halt()
        self.start()

    def kill(self) -> None:
        """Crash the server by sending SIGKILL to its main process. start() restarts it with its stored data."""
        if self._child is None:
            raise ServerError(f"{self.name} is not running, so it cannot be killed. Call start() first.")
        self._child.send(signal.SIGKILL)
        self._forget_child()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _prepare(self, home: Path) -> None:
        """Prepare a new directory. Called once."""

    @abstractmethod
    def _command(self, home: Path) -> list[str]: ...

    @abstractmethod
    def _ready(self, home: Path) -> bool: ...

    def _launch(self, home: Path) -> None:
        # Another process can take a free port before the server binds it. Only a first start may then choose another
        # port.
        tries = PORT_TRIES if self._port is None else 1
        for left in reversed(range(tries)):
            if tries > 1:
                self._port = _free_port()
            log = home / "server.log"
            log.unlink(missing_ok=True)
            lifeline = self._lifeline
            if lifeline is None:
                raise ServerError(f"{self.name} has no watcher.")
            self._child = LocalProcess(self._command(home), account=self._account, log=log, cwd=home, lifeline=lifeline)
            failure = self._wait_ready(home, self._child)
            if failure is None:
                return
            text = log.read_text(errors="replace")
            if left and "already in use" in text.lower():
                self._forget_child()
                continue
            raise ServerError(f"{self.name} {failure}. The end of its log:\n{tail(text)}")

    def _wait_ready(self, home: Path, child: LocalProcess) -> str | None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not child.alive():
                return "ended while it started"
            if self._ready(home):
                return None
            time.sleep(POLL_SECONDS)
        return f"was not ready after {START_SECONDS} seconds"

    def _halt(self) -> None:
        if self._child is None:
            return
        for which, seconds in self.stop_steps:
            self._child.send(which)
            if self._child.gone_within(seconds):
                break
        self._forget_child()

    def _forget_child(self) -> None:
        """Wait for the end of a child that was signalled or that has ended."""
        child, self._child = self._child, None
        if child is None:
            return
        gone = child.gone_within(FAMILY_SECONDS)
        child.close()
        if not gone:
            raise ServerError(
                f"{self.name} (pid {child.pid}) was ended, but a process that it had started still runs "
                f"after {FAMILY_SECONDS} seconds. End long statements before you kill or stop the server."
            )


def tail(text: str) -> str:
    """Return the last lines of a log, which contain the reason why a server ended."""
    return "\n".join(text.splitlines()[-30:])


def _free_port() -> int:
    for _ in range(200):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            # The servers also set this option, so connections in TIME_WAIT do not occupy the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                probe.listen()
            except OSError:
                continue
            return port
    raise ServerError(f"No free port was found on {HOST} between {PORTS.start} and {PORTS.stop}.")
