"""The worker process: find the app, run until a signal, drain, and leave with an exit code that tells."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, MutableMapping
from io import StringIO
from pathlib import Path
from typing import Any, TextIO, TypeVar

import structlog

from runlane.app import App
from runlane.cli.dev import describe_sharing, owns_database
from runlane.cli.target import URL_VARIABLE, refuse_url
from runlane.cli.terminal import block, one_line, write_line
from runlane.errors import AppNotFound, InvalidRequest, RunlaneError, nearest
from runlane.observability.tracing import start_tracing, stop_tracing
from runlane.redaction import LOGS
from runlane.settings import EMBEDDED_FILE

log = structlog.get_logger(__name__)

T = TypeVar("T")

# The exit code of a process whose event loop is stuck: its supervisor starts another one.
STUCK_EXIT_CODE = 70
# Logged when a drain begins, for the person at the terminal.
SECOND_SIGNAL = "Press Ctrl-C again, or send SIGTERM again, to hand unfinished runs back at once."


def run_worker(path: str | None, lanes: str | None, concurrency: int | None) -> None:
    """Execute runs of the app at this path, or those that need no tasks, until a signal says stop."""
    refuse_url("worker", "Set RUNLANE_DATABASE_URL to the server's database, or unset RUNLANE_URL.")
    configure_logs(dev=False)
    app = App() if path is None else find_app(path)
    if run_loop(_serve(app, lane_names(lanes), concurrency)):
        # A thread that will not stop would keep the interpreter alive; its run has been handed back.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def end_stuck_process() -> None:
    """End this process from another thread, because its event loop never will."""
    log.error("ending_stuck_process", exit_code=STUCK_EXIT_CODE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STUCK_EXIT_CODE)


def lane_names(lanes: str | None) -> list[str] | None:
    """The lanes of a comma-separated option; None for all."""
    if lanes is None:
        return None
    names = [name.strip() for name in lanes.split(",") if name.strip()]
    if not names:
        raise InvalidRequest("--lanes names no lane. Name some, comma-separated, or leave it out to serve all of them.")
    return names


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run an event loop to its end, the fastest that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def find_app(path: str) -> App:
    """The App at module:name, imported with the current folder on the path."""
    module_name, _, name = path.partition(":")
    if not module_name:
        raise AppNotFound(f'"{path}" is no app path. Form: package.module:name, such as shop.tasks:app')
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except RunlaneError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise AppNotFound(f"{module_name} does not import: {error}. Install what it needs, or fix it.") from error
        raise AppNotFound(
            f'There is no module "{module_name}" here. Run the command from the folder that contains it ({here} is '
            "searched), or install the package."
        ) from None
    except Exception as error:
        raise AppNotFound(f"{module_name} does not import: {type(error).__name__}: {error}") from error
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if not name and len(apps) == 1:
        return next(iter(apps.values()))
    found = getattr(module, name, None) if name else None
    if isinstance(found, App):
        return found
    if not apps:
        raise AppNotFound(f"{module_name} has no App. Make one there: app = runlane.App()")
    raise AppNotFound(f'{module_name} has no App "{name}"{nearest(name, apps)}. Apps there: {", ".join(sorted(apps))}.')


async def _serve(app: App, lanes: list[str] | None, concurrency: int | None) -> bool:
    stopping = asyncio.Event()
    signals = 0
    worker = None

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            active = 0 if worker is None else worker.active
            hint = {"hint": SECOND_SIGNAL} if active else {}
            log.info("stopping", grace_seconds=app.settings.grace_seconds, active=active, **hint)
            stopping.set()
        elif signals == 2 and worker is not None:
            log.info("stopping_now")
            worker.hurry()
        else:
            os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    start_tracing(app.settings, "runlane-worker")
    async with app:
        worker = await app.worker(lanes, concurrency)
        worker.on_stuck = end_stuck_process
        duties = await app.duties()
        try:
            await worker.start()
            for duty in duties:
                duty.start()
            await stopping.wait()
        finally:
            await worker.stop()
            for duty in duties:
                await duty.stop()
            stop_tracing()
        return worker.has_stuck_code


def greet(app: App, url: str, *, moved: bool = False) -> None:
    """Print where `runlane dev` serves and what it has. `moved` says that the usual port was taken."""
    database = app.settings.shown_database
    if moved:
        write_line(f"The usual port 8765 is taken. This server is {url}; commands in this folder use it.")
    elsewhere = os.environ.get(URL_VARIABLE)
    if elsewhere:
        write_line(f"RUNLANE_URL is set: commands in such a shell use {elsewhere}, not this server.")
    names = ", ".join(sorted(app.tasks)) or "none"
    write_line(f"Runlane dev: tasks {names}; database {database}. Ctrl-C stops.")
    write_line(f"API on {url}, reference on {url}/docs")
    if not owns_database(app.settings):
        write_line(describe_sharing(app.settings))
    if database == str(EMBEDDED_FILE):
        write_line("Enqueue from another process in this folder; look with: runlane runs list")


def configure_logs(*, dev: bool, quiet: bool = False) -> None:
    """Log lines for programs, or for the person at the terminal. They carry the run that they are about.

    `quiet` is for commands that are over soon: only what went wrong.
    """
    renderers: list[Any] = (
        [
            _without_control_characters,
            # Pretty tracebacks with the value of every variable take seconds, in which no run goes on, and show inputs.
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_safe_traceback),
        ]
        if dev or sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if dev else [structlog.processors.format_exc_info]),
            *renderers,
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING if quiet else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # What libraries log, such as the traceback of a request that failed.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_CleanFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _without_control_characters(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the fields of a log line before colours are added to it."""
    return {one_line(name): _safe_field(name, value) for name, value in fields.items()}


def _safe_field(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return block(value) if name in ("exception", "stack") else one_line(value)
    # The console shows these with repr(), which escapes the strings inside.
    if name == "exc_info" or value is None or isinstance(value, int | float | list | tuple | dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    return one_line(repr(value))


def _safe_traceback(out: TextIO, exc_info: Any) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(block(text.getvalue()))


def _without_secrets(logger: Any, method: str, line: Any) -> Any:
    return LOGS.clean_json(line) if isinstance(line, str) else line


class _CleanFormatter(logging.Formatter):
    """The last hand on a line of somebody else's."""

    def format(self, record: logging.LogRecord) -> str:
        return block(LOGS.clean(super().format(record)))
