"""The process of `runlane serve` and `runlane dev`: the API until a signal; then streams end and runs drain.

A server that other machines can reach rejects requests without a key, so it does not start before a key exists. On
loopback it is open as long as there are no keys; `runlane dev` is always open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import webbrowser
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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
from runlane.cli.definitions_watcher import DefinitionsWatcher
from runlane.cli.dev import owns_database, print_welcome
from runlane.cli.dev_record import DevServer, remove_record, write_record
from runlane.cli.graphs_watcher import GraphsWatcher
from runlane.cli.ports import DEFAULT_PORT, bind, listen
from runlane.cli.process import SECOND_SIGNAL, end_stuck_process, handle_signals, run_process
from runlane.cli.service_manager import LoopPulse, ServiceManager
from runlane.cli.startup import StartupResponder
from runlane.definitions.checks.environment import environment_of
from runlane.domain.source import source_of
from runlane.errors import ConfigurationError
from runlane.graphs.config_file import GraphsFile
from runlane.store.access.keys import has_keys

log = structlog.get_logger(__name__)

DEFAULT_HOST = "127.0.0.1"
# How long requests in flight may take after a signal. Streams and long polls end at once.
_REQUESTS_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to serve. `worker` executes runs in this process; `dev_folder` are the definitions of `runlane dev`.

    Dev also reloads the graphs of `graphs_file`. `ui` serves the dashboard, `open_ui` opens it in a browser.
    `startup` has the port if the process listens on it already.
    """

    host: str
    port: int | None
    worker: WorkerOptions | None = None
    dev_folder: Path | None = None
    graphs_file: GraphsFile | None = None
    ui: bool = True
    open_ui: bool = False
    startup: StartupResponder | None = None

    @property
    def is_dev(self) -> bool:
        return self.dev_folder is not None


def run_server(app: App, options: ServerOptions) -> None:
    """Serve the app until a signal."""
    run_process(serve_app(app, options))


async def serve_app(app: App, options: ServerOptions) -> bool:
    """Serve until a signal. Return whether code is stuck in a thread."""
    startup = options.startup
    bound = bind(options.host, options.port, dev=options.is_dev) if startup is None else startup.listening
    identity = Identity(uuid4().hex, project_id(Path.cwd())) if options.is_dev else None
    try:
        return await _serve_on(bound, app, options, identity)
    finally:
        if identity is not None:
            remove_record(identity.instance)
        await app.close()
        bound.close()


class _Server(uvicorn.Server):
    """Leaves signals to this module: uvicorn would first wait for streams, which do not end by themselves.

    `on_listening` is called once clients can connect. `accepted` are connections of clients that came earlier.
    """

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self.accepted: list[socket.socket] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            for connection in self.accepted:
                # A client may have closed its connection meanwhile.
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
            self._on_listening()

    def _protocol(self) -> Any:
        protocol: Any = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _serve_on(bound: socket.socket, app: App, options: ServerOptions, identity: Identity | None) -> bool:
    access = await check_access(app, options)
    api = build_api(app, access=access, worker=options.worker, identity=identity, ui=options.ui)
    port = bound.getsockname()[1]
    url = f"http://[{options.host}]:{port}" if ":" in options.host else f"http://{options.host}:{port}"

    manager = ServiceManager()

    def report_listening() -> None:
        manager.ready()
        manager.start_watchdog(LoopPulse(asyncio.get_running_loop()).is_alive)
        log.info("serving", url=url, access=access.value, tasks=len(app.tasks), worker=options.worker is not None)
        if identity is not None:
            write_record(DevServer(url, os.getpid(), identity.instance, app.settings.shown_database))
            taken = options.port is None and port != DEFAULT_PORT
            print_welcome(app, url, default_port_taken=taken, ui=options.ui and app.settings.ui)
        if options.open_ui:
            webbrowser.open(f"{url}/ui/")

    async with api.router.lifespan_context(api):
        services: Services = api.state.parts
        if services.worker is not None:
            # The API runs on the same event loop, so it does not answer either.
            services.worker.on_stuck = end_stuck_process
        config = server_config(api, app.settings, timeout_graceful_shutdown=_REQUESTS_SECONDS)
        server = _Server(config, report_listening)
        stopping = asyncio.Event()
        _handle_signals(server, services, stopping, manager)
        draining = asyncio.create_task(_stop_when_drained(server, services, stopping))
        watchers = _watchers(app, services, options)
        try:
            for watcher in watchers:
                await watcher.start()
            if options.startup is None:
                listen(bound, options.host)
            else:
                server.accepted = options.startup.stop()
            await server.serve([bound])
        finally:
            manager.close()
            draining.cancel()
            for watcher in watchers:
                await watcher.stop()
    return services.worker is not None and services.worker.has_stuck_code


def _watchers(app: App, services: Services, options: ServerOptions) -> list[DefinitionsWatcher | GraphsWatcher]:
    """Return what `runlane dev` watches: definitions, and graphs."""
    folder = options.dev_folder
    if folder is None:
        return []
    definitions = DefinitionsWatcher(
        services.database,
        folder,
        app.tasks,
        source=app.settings.definitions_source or source_of(folder),
        owns_database=owns_database(app.settings),
        environment=environment_of(app.settings),
    )
    if options.graphs_file is None or services.worker is None:
        return [definitions]
    return [definitions, GraphsWatcher(services.worker, options.graphs_file)]


async def check_access(app: App, options: ServerOptions) -> RequestAccess:
    """Return whether requests need a key. Refuse to serve other machines before a key exists."""
    if options.is_dev:
        return RequestAccess.OPEN_ON_LOOPBACK
    if await has_keys(await app.database()):
        return RequestAccess.KEYS
    if is_loopback(options.host):
        log.warning("open_on_loopback", cure="make a key and restart: runlane keys create NAME --role platform_admin")
        return RequestAccess.OPEN_ON_LOOPBACK
    raise ConfigurationError(
        f'No API key exists, so a server on "{options.host}" would reject every request. Create one first: '
        "runlane keys create NAME --role platform_admin. Or serve this machine only: --host 127.0.0.1"
    )


async def _stop_when_drained(server: _Server, services: Services, stopping: asyncio.Event) -> None:
    """Stop serving after the worker has drained: until then health checks are answered, and /ready is 503."""
    await stopping.wait()
    try:
        if services.worker is not None:
            await services.worker.drain()
    finally:
        server.should_exit = True


def _handle_signals(server: _Server, services: Services, stopping: asyncio.Event, manager: ServiceManager) -> None:
    def stop() -> None:
        manager.stopping()
        active = 0 if services.worker is None else services.worker.active
        hint = {"hint": SECOND_SIGNAL} if active else {}
        log.info("stopping", followers=services.tail.followers, active=active, **hint)
        services.end_streams()
        stopping.set()

    def stop_now() -> None:
        log.info("stopping_now")
        server.force_exit = True
        if services.worker is not None:
            services.worker.hurry()

    handle_signals(stop, stop_now)
