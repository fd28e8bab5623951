"""The serving process: the API, perhaps with a worker inside; until a signal, then streams end first and runs drain.

A server that others can reach lets nobody in without a key, so it does not start while there is none. On loopback it
is open as long as there are no keys; `runlane dev` always is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from uuid import uuid4

import structlog
import uvicorn

from runlane.addresses import is_loopback
from runlane.api.auth import RequestAccess
from runlane.api.identity import Identity, project_id
from runlane.api.protocol import server_config
from runlane.api.server import build_api
from runlane.api.services import Services, WorkerOptions
from runlane.app import App
from runlane.cli.dev import check_database, owns_database
from runlane.cli.process import SECOND_SIGNAL, configure_logs, end_stuck_process, find_app, greet, run_loop
from runlane.cli.running import Running, remove_record, write_record
from runlane.cli.target import refuse_url
from runlane.cli.watch import Watch
from runlane.definitions.checks.environment import environment_of
from runlane.domain.source import source_of
from runlane.errors import ConfigurationError
from runlane.settings import DEFINITIONS_FOLDER
from runlane.store.access.keys import has_keys

log = structlog.get_logger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
# How long requests that are under way may take after a signal. Streams and long polls end at once.
_REQUESTS_SECONDS = 10


def run_server(
    path: str | None,
    *,
    host: str,
    port: int | None,
    wish: WorkerOptions | None,
    dev: bool,
    definitions: Path | None = None,
    shared_database: bool = False,
) -> None:
    """Serve the app at this path, or no tasks at all, until a signal says stop. Dev follows the definitions' folder."""
    if not dev:
        refuse_url("serve", "Set RUNLANE_DATABASE_URL to the database to serve, or unset RUNLANE_URL.")
    configure_logs(dev=dev)
    if dev and not is_loopback(host):
        raise ConfigurationError(
            f'runlane dev is open to everybody who can reach it, so it serves loopback only, not "{host}". '
            "Use: runlane serve --worker --host HOST"
        )
    if definitions is not None and not definitions.is_dir():
        raise ConfigurationError(f"There is no folder {definitions} with definitions. Check --definitions.")
    if dev:
        # Definitions come from the person who started this, on their own machine.
        os.environ.setdefault("RUNLANE_MCP_STDIO", "true")
    app = App() if path is None else find_app(path)
    if dev:
        check_database(app.settings, shared=shared_database)
    folder = (definitions or app.settings.definitions_dir or DEFINITIONS_FOLDER) if dev else None
    if run_loop(_serve(app, host=host, port=port, wish=wish, dev=dev, folder=folder)):
        # A thread that will not stop would keep the interpreter alive; its run has been handed back.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would first wait for streams that never end by themselves.

    `on_listening` is called once a client that connects is let in.
    """

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _serve(
    app: App, *, host: str, port: int | None, wish: WorkerOptions | None, dev: bool, folder: Path | None
) -> bool:
    listening = _bind(host, port, dev=dev)
    try:
        return await _serve_on(listening, app, host=host, port=port, wish=wish, dev=dev, folder=folder)
    finally:
        listening.close()


async def _serve_on(
    listening: socket.socket,
    app: App,
    *,
    host: str,
    port: int | None,
    wish: WorkerOptions | None,
    dev: bool,
    folder: Path | None,
) -> bool:
    identity = Identity(uuid4().hex, project_id(Path.cwd())) if dev else None
    try:
        access = await _access(app, host, dev=dev)
        api = build_api(app, access=access, worker=wish, identity=identity)
        used = listening.getsockname()[1]
        url = _url(host, used)

        def say_so() -> None:
            log.info("serving", url=url, access=access.value, tasks=len(app.tasks), worker=wish is not None)
            if identity is not None:
                write_record(Running(url, os.getpid(), identity.instance, app.settings.shown_database))
                greet(app, url, moved=port is None and used != DEFAULT_PORT)

        async with api.router.lifespan_context(api):
            parts: Services = api.state.parts
            if parts.worker is not None:
                # The API is on the same event loop, so it does not answer either.
                parts.worker.on_stuck = end_stuck_process
            server = _Server(
                server_config(api, app.settings, timeout_graceful_shutdown=_REQUESTS_SECONDS),
                say_so,
            )
            stopping = asyncio.Event()
            _handle_signals(server, parts, stopping)
            ending = asyncio.create_task(_end_when_drained(server, parts, stopping))
            watch = None if folder is None else _watch(app, parts, folder)
            try:
                if watch is not None:
                    await watch.start()
                _listen(listening, host)
                await server.serve([listening])
            finally:
                ending.cancel()
                if watch is not None:
                    await watch.stop()
        return parts.worker is not None and parts.worker.has_stuck_code
    finally:
        if identity is not None:
            remove_record(identity.instance)
        await app.close()


def _watch(app: App, parts: Services, folder: Path) -> Watch:
    source = app.settings.definitions_source or source_of(folder)
    return Watch(
        parts.database,
        folder,
        app.tasks,
        source=source,
        owns_database=owns_database(app.settings),
        environment=environment_of(app.settings),
    )


async def _access(app: App, host: str, *, dev: bool) -> RequestAccess:
    if dev:
        return RequestAccess.OPEN_ON_LOOPBACK
    if await has_keys(await app.database()):
        return RequestAccess.KEYS
    if is_loopback(host):
        log.warning("open_on_loopback", cure="make a key and restart: runlane keys create NAME --role platform_admin")
        return RequestAccess.OPEN_ON_LOOPBACK
    raise ConfigurationError(
        f'There is no API key, so a server on "{host}" would let nobody in. Make one first: '
        "runlane keys create NAME --role platform_admin. Or serve this machine only: --host 127.0.0.1"
    )


async def _end_when_drained(server: _Server, parts: Services, stopping: asyncio.Event) -> None:
    """Stop serving after the worker has drained: until then probes get their answers, and /ready is 503."""
    await stopping.wait()
    try:
        if parts.worker is not None:
            await parts.worker.drain()
    finally:
        server.should_exit = True


def _handle_signals(server: _Server, parts: Services, stopping: asyncio.Event) -> None:
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            active = 0 if parts.worker is None else parts.worker.active
            hint = {"hint": SECOND_SIGNAL} if active else {}
            log.info("stopping", followers=parts.tail.followers, active=active, **hint)
            parts.end_streams()
            stopping.set()
        elif signals == 2:
            log.info("stopping_now")
            server.force_exit = True
            if parts.worker is not None:
                parts.worker.hurry()
        else:
            os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _bind(host: str, port: int | None, *, dev: bool) -> socket.socket:
    """A socket on the port that was asked for; if nobody asked and the usual one is taken, dev takes a free one."""
    wanted = DEFAULT_PORT if port is None else port
    free_choice = dev and port is None
    try:
        return _bound(host, wanted, listen=free_choice)
    except OSError as error:
        if free_choice:
            return _bound(host, 0)
        raise _taken(host, wanted, error) from None


def _listen(bound: socket.socket, host: str) -> None:
    """Listen on the port. The event loop would do that, too, but not say that somebody else was quicker."""
    try:
        bound.listen()
    except OSError as error:
        raise _taken(host, bound.getsockname()[1], error) from None


def _taken(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The API cannot listen on {host}:{port}: {error.strerror or error}. Choose another with --port."
    )


def _bound(host: str, port: int, *, listen: bool = False) -> socket.socket:
    """A socket on this port. Only one that listens is alone there: several may be bound that do not listen yet."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if listen:
            bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
