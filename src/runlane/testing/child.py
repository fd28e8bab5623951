"""One server process: started, signalled, and ended no later than this process.

Two pipes ensure this. The server and all its children hold one end of the first pipe: when that end is closed, all of
them have ended. This process holds one end of the second pipe: when it ends for any reason, a watcher detects that the
pipe is closed, stops the server and removes its directory.
"""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from runlane.testing.account import ServerAccount
from runlane.testing.binaries import ServerError

# A watcher is used instead of PR_SET_PDEATHSIG: the kernel clears that setting when a child changes its user, sends the
# signal when the starting thread ends rather than the process, and supports it on Linux only. The watcher reads the pid
# to watch, line by line (0 for none), until the pipe is closed.
WATCHER = """
pid=0
while read -r line && [ "$line" != end ]; do pid=$line; done
if [ "$pid" -gt 0 ] && kill -s "$2" "$pid" 2>/dev/null; then
    tries=0
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        if [ "$tries" -gt 100 ]; then kill -s KILL "$pid" 2>/dev/null; break; fi
        sleep 0.1
    done
fi
rm -rf -- "$1"
"""


class Lifeline:
    """Binds a server and its directory to the lifetime of this process."""

    def __init__(self, home: Path, signal_name: str) -> None:
        # The watcher has a separate session, so that an interrupt at the terminal reaches the tests but not the
        # watcher.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "sh", str(home), signal_name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def guard(self, pid: int) -> None:
        self._send(str(pid))

    def release(self) -> None:
        """End the watcher, which removes the directory if it still exists."""
        # An explicit message is needed because a process forked by the tests may hold a copy of this end of the pipe.
        self._send("end")
        self._watcher.communicate()

    def _send(self, line: str) -> None:
        stdin = self._watcher.stdin
        if stdin is None:
            raise ServerError("The watcher has no input.")
        stdin.write(f"{line}\n".encode())
        stdin.flush()


class LocalProcess:
    """A running server with every process that it has forked."""

    def __init__(
        self, command: Sequence[str], *, account: ServerAccount, log: Path, cwd: Path, lifeline: Lifeline
    ) -> None:
        self._lifeline = lifeline
        self._family, held_by_family = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    account.command(command),
                    user=account.uid,
                    group=account.gid,
                    extra_groups=account.groups,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=clean_environment(os.environ),
                    pass_fds=(held_by_family,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._family)
            raise
        finally:
            os.close(held_by_family)
        lifeline.guard(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, which: signal.Signals) -> None:
        # Popen first checks whether the child still exists, so a reused pid is never signalled.
        self._process.send_signal(which)

    def gone_within(self, seconds: float) -> bool:
        """Wait until the server and all its children have ended."""
        readable, _, _ = select.select([self._family], [], [], seconds)
        if not readable:
            return False
        self._process.wait()
        self._lifeline.guard(0)
        return True

    def close(self) -> None:
        os.close(self._family)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of other PostgreSQL servers and clients."""
    kept = {name: value for name, value in environment.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}
