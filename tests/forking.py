"""`runlane` commands as real processes that start in a few milliseconds.

An interpreter needs about a second to import Runlane. A template process imports it once and forks for each command.
The fork has its own pid, environment, folder, files and signals, and is a child of the test process, so it can be
waited for, frozen and killed like any other. `Popen` and `run` take what their namesakes in `subprocess` take.
Commands other than `python -m runlane` and `python -c` are started as usual.

A test of what a process imports, or of the memory that it may map, starts an interpreter of its own with `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_COMMAND = [sys.executable, "-m", "runlane"]
_PROGRAM = [sys.executable, "-c"]
_SET_CHILD_SUBREAPER = 36
_HERE = Path(__file__).parent


class _Template:
    """The process that forks. Started when the first command is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """Return the pid of a new process, which is a child of this one."""
        with self._lock:
            channel = self._open()
            # The fork is orphaned at once and passes to its nearest ancestor that takes orphans, which is this process.
            _adopt_orphans(True)
            try:
                data = json.dumps(request).encode()
                channel.sendmsg([len(data).to_bytes(4, "big") + data], [_rights(files)])
                answer = channel.recv(4, socket.MSG_WAITALL)
            finally:
                _adopt_orphans(False)
        if len(answer) != 4:
            raise RuntimeError("The template process ended.")
        return int.from_bytes(answer, "big")

    def close(self) -> None:
        """End the template process. Its forks are not its children and continue."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait()

    def _open(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                plain = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
                self._process = subprocess.Popen(
                    [sys.executable, str(_HERE / "forking_template.py"), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=plain,
                )
            atexit.register(self.close)
        return self._channel


_template = _Template()


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, with a fork of the template process for Runlane's commands and programs."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        start = cast("Any", super())._execute_child
        given = inspect.signature(start).bind(args, *rest).arguments
        command: list[str] = [os.fspath(word) for word in args]
        program = command[2] if command[:2] == _PROGRAM else None
        if (command[:3] != _COMMAND and program is None) or given["preexec_fn"] is not None:
            start(args, *rest)
            return
        request: dict[str, Any] = {
            "program": program,
            "arguments": command[3:],
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "new_session": bool(given["start_new_session"]),
        }
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        files = [own if end == -1 else end for own, end in enumerate(ends)]
        this = cast("Any", self)
        this.pid = _template.fork(request, files)
        this._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        this._close_pipe_fds(*(given[name] for name in names))


def run(
    command: Sequence[str],
    *,
    input: str | bytes | None = None,  # noqa: A002 - as in subprocess.run
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, with a fork of the template process for Runlane's commands and programs."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, cast("int", process.returncode), out, err)
    if check:
        done.check_returncode()
    return done


def _rights(files: Sequence[int]) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files)


def _adopt_orphans(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
