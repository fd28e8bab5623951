"""`runlane` commands and Python programs as real processes that start in a few milliseconds.

An interpreter needs about a second to import Runlane. A template process imports it once and forks for each command.
The fork has its own pid, environment, folder, files and signals, and is a child of the test process, so it can be
waited for, frozen and killed like any other. `Popen` and `run` take what their namesakes in `subprocess` take.
A command is `python -m MODULE`, `python -c PROGRAM` or `python FILE`; any other is started as usual.

The environment of a command may name further modules to import first, in PRELOAD; each such list has its own template,
which is a fork of the first one.

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

# A variable of a command's environment, with names of modules.
PRELOAD = "TEST_PRELOAD"
# Workers that call models import these first, for two to four seconds of computing.
PROVIDERS = {PRELOAD: "pydantic_ai.models.openai pydantic_ai.models.anthropic pydantic_ai.providers.openai_compatible"}
# Workers that call tools of MCP servers import these first.
MCP = {PRELOAD: "runlane.tools.mcp.connection runlane.tools.mcp.process runlane.tools.mcp.convert"}
# Workers that host graphs import these first.
GRAPHS = {PRELOAD: "runlane.graphs.hosting langgraph.graph"}
READY = b"ready"
_SET_CHILD_SUBREAPER = 36
_HERE = Path(__file__).parent
# Whether this process takes orphans is a property of the whole process. A template may be started as a fork of another.
_one_at_a_time = threading.RLock()


class _Template:
    """A process that forks. Started when its first command is."""

    def __init__(self, modules: str) -> None:
        self._modules = modules.split()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[Any] | None = None

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """Return the pid of a new process, which is a child of this one."""
        channel = self.open()
        with _one_at_a_time:
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

    def open(self) -> socket.socket:
        """Start the process if it does not run yet, and wait until it has imported everything."""
        with _one_at_a_time:
            if self._channel is None:
                self._channel = self._start()
                atexit.register(self.close)
            return self._channel

    def _start(self) -> socket.socket:
        channel, theirs = socket.socketpair()
        start = Popen if self._modules else subprocess.Popen
        with theirs:
            plain = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
            self._process = start(
                [sys.executable, str(_HERE / "forking_template.py"), *self._modules], stdin=theirs.fileno(), env=plain
            )
        if channel.recv(len(READY)) != READY:
            raise RuntimeError("The template process did not start.")
        return channel


_templates: dict[str, _Template] = {}


def prepare(preload: Mapping[str, str] | None = None) -> None:
    """Start the template process before the first command needs it, which would block an event loop meanwhile."""
    modules = (preload or {}).get(PRELOAD, "")
    _templates.setdefault(modules, _Template(modules)).open()


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, with a fork of the template process for Python programs."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        start = cast("Any", super())._execute_child
        given = inspect.signature(start).bind(args, *rest).arguments
        command: list[str] = [os.fspath(word) for word in args]
        program = _program(command)
        if program is None or given["preexec_fn"] is not None:
            start(args, *rest)
            return
        environment = dict(os.environ if given["env"] is None else given["env"])
        request: dict[str, Any] = {
            **program,
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "environment": environment,
            "new_session": bool(given["start_new_session"]),
        }
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        files = [own if end == -1 else end for own, end in enumerate(ends)]
        this = cast("Any", self)
        modules = environment.get(PRELOAD, "")
        this.pid = _templates.setdefault(modules, _Template(modules)).fork(request, files)
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
    """`subprocess.run`, with a fork of the template process for Python programs."""
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


def _program(command: Sequence[str]) -> dict[str, Any] | None:
    """Return what a command executes and its arguments; None if it is not a Python program."""
    match command:
        case [sys.executable, "-m" | "-c" as flag, what, *arguments]:
            return {"kind": "module" if flag == "-m" else "code", "what": what, "arguments": arguments}
        case [sys.executable, file, *arguments] if file.endswith(".py"):
            return {"kind": "file", "what": file, "arguments": arguments}
        case _:
            return None


def _rights(files: Sequence[int]) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files)


def _adopt_orphans(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
