"""One server process: started, signalled, known to be gone, and unable to outlive us.

Two pipes carry the certainty. The server and all that it forks hold one end of the first: when that end is
closed, the whole family is gone. We hold one end of the second: when we die, however we die, a watcher sees
it closed, stops the server and removes its directory.
"""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from runlane.testing.account import ServerAccount
from runlane.testing.binaries import ServerError

# A watcher and not PR_SET_PDEATHSIG: the kernel clears that when a child changes its user, sends it when the
# starting thread ends rather than the process, and knows it on Linux only. The watcher reads the pid to look
# after, line by line (0 for none), until we close the pipe or die.
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
    """Ties a server and its directory to the life of this process."""

    def __init__(self, home: Path, signal_name: str) -> None:
        # Its own session, so that an interrupt typed at the terminal reaches the tests and not the watcher.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "sh", str(home), signal_name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def guard(self, pid: int) -> None:
        self._tell(str(pid))

    def release(self) -> None:
        """Let the watcher end. It removes the directory if that is still there."""
        # Said and not only closed: a process forked by the tests may hold a copy of our end of the pipe.
        self._tell("end")
        self._watcher.communicate()

    def _tell(self, line: str) -> None:
        stdin = self._watcher.stdin
        if stdin is None:
            raise ServerError("The watcher has no input.")
        stdin.write(f"{line}\n".encode())
        stdin.flush()


class LocalProcess:
    """A running server and every process that it forks."""

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
        # Popen looks first whether the child is still ours, so a pid that was given away is never hit.
        self._process.send_signal(which)

    def gone_within(self, seconds: float) -> bool:
        """Wait until the server and everything it forked have ended."""
        readable, _, _ = select.select([self._family], [], [], seconds)
        if not readable:
            return False
        self._process.wait()
        self._lifeline.guard(0)
        return True

    def close(self) -> None:
        os.close(self._family)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings that are meant for other PostgreSQL servers and clients."""
    kept = {name: value for name, value in environment.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}
