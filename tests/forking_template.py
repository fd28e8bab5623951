"""The template process of `tests.forking`: imports what commands need, then forks for each request.

Requests come over its standard input. It has one thread and no event loop, so a fork is safe. A fork leaves the
template at once through a second fork, so that the test process, which takes orphans at that moment, becomes its
parent.
"""

from __future__ import annotations

import array
import gc
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any, cast

_FILES = 3
_MODULES = (
    "alembic.command",
    "asyncpg",
    "fastapi",
    "httpx2",
    "redis.asyncio",
    "rich.live",
    "rich.table",
    "sqlalchemy.ext.asyncio",
    "structlog",
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "runlane.api.protocol",
    "runlane.api.server",
    "runlane.app",
    "runlane.cli.commands",
    "runlane.client",
    "runlane.maintenance.registry",
    "runlane.orchestration.executor",
    "runlane.store.queue.run_lists",
    "runlane.store.sql.migrate",
    "runlane.store.sql.postgres",
    "runlane.store.sql.sqlite",
    "runlane.testing.crash_points",
    "runlane.triggers.evaluator",
    "runlane.triggers.waiting_runs",
    "runlane.worker.worker",
    "runlane.worker_factory",
)


def main() -> None:
    channel = socket.socket(fileno=0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in (*_MODULES, *_commands(), *sys.argv[1:]):
        __import__(module)
    gc.freeze()
    channel.sendall(b"ready")
    while True:
        request = _receive(channel)
        if request is None:
            channel.close()
            return
        pid_end, answer = os.pipe()
        middle = os.fork()
        if middle == 0:
            channel.close()
            os.close(pid_end)
            _leave(request, answer)
        os.close(answer)
        for file in request["files"]:
            os.close(file)
        os.waitpid(middle, 0)
        channel.sendall(os.read(pid_end, 4))
        os.close(pid_end)


def _commands() -> list[str]:
    """Return the modules of the command line, each of which is otherwise imported by the command that needs it."""
    import runlane.cli

    return [module.name for module in pkgutil.iter_modules(runlane.cli.__path__, "runlane.cli.")]


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    rights = array.array("i", [0] * _FILES)
    data, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_LEN(_FILES * rights.itemsize), socket.MSG_WAITALL)
    if len(data) < 4:
        return None
    body = channel.recv(int.from_bytes(data, "big"), socket.MSG_WAITALL)
    for _, _, given in ancillary:
        rights = array.array("i")
        rights.frombytes(given[: _FILES * rights.itemsize])
    return {**json.loads(body), "files": list(rights)}


def _leave(request: dict[str, Any], answer: int) -> None:
    """Fork again, and end, so that the fork becomes a child of the test process."""
    ready, go = os.pipe()
    child = os.fork()
    if child != 0:
        os.write(answer, child.to_bytes(4, "big"))
        os._exit(0)
    os.close(go)
    # The write end is closed when the parent has ended.
    os.read(ready, 1)
    os.close(ready)
    os.close(answer)
    try:
        _execute(request)
    finally:
        os._exit(70)


def _execute(request: dict[str, Any]) -> None:
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
    os.closerange(_FILES, 256)
    # As in a started interpreter. With the default of SIGPIPE a write to a closed socket would end the process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w", unbuffered), _text(2, "w", unbuffered)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    warnings.resetwarnings()
    code = 0
    try:
        _PROGRAMS[request["kind"]](request["what"], request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _end(code)


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = [name, *arguments]
    sys.path[0] = str(Path.cwd())
    runpy.run_module(name, run_name="__main__")


def _run_code(code: str, arguments: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main_module.__dict__)


def _run_file(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")
    main_module.__file__ = path
    exec(compile(Path(path).read_text("utf-8"), path, "exec"), main_module.__dict__)


_PROGRAMS = {"module": _run_module, "code": _run_code, "file": _run_file}


def _end(code: int) -> None:
    """End as an interpreter does: threads are joined, exit functions run, streams are flushed."""
    import atexit
    import threading

    cast("Any", threading)._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    os._exit(code)


def _text(file: int, mode: str, unbuffered: bool = False) -> Any:
    raw = io.FileIO(file, mode, closefd=False)
    buffer: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    lines = mode == "w" and (raw.isatty() or file == 2)
    errors = "backslashreplace" if file == 2 else "strict"
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


if __name__ == "__main__":
    main()
