"""The worker process: find the app, run until a signal, drain, and leave with an exit code that tells."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from pathlib import Path

import structlog

from runlane.app import App
from runlane.errors import AppNotFound, InvalidRequest, RunlaneError, nearest
from runlane.settings import EMBEDDED_FILE

log = structlog.get_logger(__name__)


def run_worker(path: str, lanes: str | None, concurrency: int | None, *, dev: bool) -> None:
    """Execute runs of the app at this path until a signal says stop."""
    _configure_logs(dev=dev)
    app = find_app(path)
    only = None if lanes is None else [name.strip() for name in lanes.split(",") if name.strip()]
    if only == []:
        raise InvalidRequest("--lanes names no lane. Name some, comma-separated, or leave it out to serve all of them.")
    try:
        import uvloop
    except ImportError:
        stuck = asyncio.run(_serve(app, only, concurrency, dev=dev))
    else:
        stuck = uvloop.run(_serve(app, only, concurrency, dev=dev))
    if stuck:
        # A thread that will not stop would keep the interpreter alive; its run has been handed back.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


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


async def _serve(app: App, lanes: list[str] | None, concurrency: int | None, *, dev: bool) -> bool:
    stopping = asyncio.Event()
    signals = 0
    worker = None

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            log.info("stopping", grace_seconds=app.settings.grace_seconds)
            stopping.set()
        elif signals == 2 and worker is not None:
            log.info("stopping_now")
            worker.hurry()
        else:
            os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with app:
        worker = await app.worker(lanes, concurrency)
        worker.narrate = dev
        duties = await app.duties()
        try:
            await worker.start()
            for duty in duties:
                duty.start()
            if dev:
                _greet(app)
            await stopping.wait()
        finally:
            await worker.stop()
            for duty in duties:
                await duty.stop()
        return worker.has_stuck_code


def _greet(app: App) -> None:
    database = app.settings.shown_database
    names = ", ".join(sorted(app.tasks)) or "none"
    print(f"Runlane dev: tasks {names}; database {database}. Ctrl-C stops.", flush=True)
    if database == str(EMBEDDED_FILE):
        print("Enqueue from another process in this folder; look with: runlane runs list", flush=True)


def _configure_logs(*, dev: bool) -> None:
    renderer = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if dev or sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if dev else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
