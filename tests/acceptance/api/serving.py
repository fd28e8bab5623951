"""Servers for tests of the API: most in this process, those that are killed or signalled in their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, cast

import httpx2
import orjson
import pytest
import uvicorn
from fastapi import FastAPI

from runlane.api import server as server_module
from runlane.api.auth import RequestAccess
from runlane.api.protocol import server_config
from runlane.api.route_table import RouteTable
from runlane.api.server import build_api
from runlane.api.services import Services, WorkerOptions
from runlane.app import App
from runlane.settings import Settings
from runlane.store.access.keys import create_key
from tests import forking
from tests.harness import eventually

API = "/api/v2"
START_SECONDS = 60.0


class Api:
    """A served API and a client of it."""

    def __init__(self, url: str, parts: Services, client: httpx2.AsyncClient, application: Any) -> None:
        self.url = url
        self.parts = parts
        self.client = client
        self.application = application

    async def key(self, role: str = "platform_admin", tenant: str = "default") -> str:
        """Create a key with this role and return it."""
        return (await create_key(self.parts.database, role, role, actor="test", tenant=tenant))[1]

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(API + path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return await self.client.post(API + path, json=body, **options)

    async def run(self, task: str, wait: bool = True, **options: Any) -> dict[str, Any]:
        """Run a task and return its run, by default after its end."""
        answer = await self.post(f"/tasks/{task}/run", options)
        assert answer.status_code == 202, answer.text
        if not wait:
            return answer.json()
        ended = await self.get(f"/runs/{answer.json()['run_id']}/wait", params={"timeout_seconds": 60})
        assert ended.json()["status"] in ("completed", "failed", "cancelled"), ended.text
        return ended.json()


def copy_of(app: App, settings: Settings) -> App:
    """Return an app with the same tasks and other settings."""
    own = App(settings)
    own.include(app)
    return own


_include_routes: Callable[[FastAPI], RouteTable] = cast("Any", server_module)._include_routes
_included: list[tuple[FastAPI, RouteTable]] = []


def _share_routes(application: FastAPI) -> RouteTable:
    """Give every application of this process the routes of the first one.

    Including them takes ten milliseconds of computing for each application, and FastAPI completes a route when it is
    first tried, which takes a quarter of a second for all of them. A route takes what it works with from the
    application of its request.
    """
    if not _included:
        _included.append((application, _include_routes(application)))
    first, table = _included[0]
    application.router.routes = first.router.routes
    application.router.middleware_stack = table
    for error, handler in first.exception_handlers.items():
        application.exception_handlers.setdefault(error, handler)
    return table


# Reading and hashing the files of the dashboard takes half as long as everything else that starts a server.
_load_dashboard_once = cache(server_module.load_dashboard)


@asynccontextmanager
async def serving(
    app: App, *, access: RequestAccess = RequestAccess.KEYS, worker: WorkerOptions | None = None, key: bool = True
) -> AsyncGenerator[Api]:
    """Serve an app on a free port of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "_include_routes", _share_routes)
        patch.setattr(server_module, "load_dashboard", _load_dashboard_once)
        application = build_api(app, access=access, worker=worker)
    async with application.router.lifespan_context(application):
        listening = socket.create_server(("127.0.0.1", 0))
        parts: Services = application.state.parts
        server = uvicorn.Server(server_config(application, app.settings, timeout_graceful_shutdown=5))
        server.capture_signals = _no_signals
        task = asyncio.create_task(server.serve([listening]))
        await eventually(lambda: server.started, "the server")
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        headers: dict[str, str] = {}
        if key:
            raw = (await create_key(parts.database, "test", "platform_admin", actor="test"))[1]
            headers["Authorization"] = f"Bearer {raw}"
        try:
            # Loading the certificates takes longer than most tests, and plain HTTP does not need them.
            async with httpx2.AsyncClient(
                base_url=url, headers=headers, timeout=90, trust_env=False, verify=False
            ) as client:
                yield Api(url, parts, client, application)
        finally:
            parts.end_streams()
            server.should_exit = True
            await task
            listening.close()


@contextmanager
def _no_signals() -> Generator[None]:
    yield


def frames(text: str) -> list[dict[str, Any]]:
    """Return the events of SSE text; each with its id, if it has one, as `_id`."""
    found: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith(":")]
        if not lines:
            continue
        data = next(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        event = orjson.loads(data)
        for line in lines:
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
                event["_id"] = int(event_id) if event_id.isdecimal() else event_id
        found.append(event)
    return found


class Process:
    """A runlane command in a process of its own."""

    def __init__(self, arguments: Sequence[str], settings: Settings, **environment: str) -> None:
        assert settings.database_url is not None
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")},
            "RUNLANE_DATABASE_URL": settings.database_url.get_secret_value(),
            "RUNLANE_WORKER_HEALTH_PORT": "0",
            "RUNLANE_REDIS_PREFIX": settings.redis_prefix,
            **environment,
        }
        if settings.redis_url is not None:
            env["RUNLANE_REDIS_URL"] = settings.redis_url.get_secret_value()
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._process = forking.Popen(
            [sys.executable, "-m", "runlane", *arguments],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for the first log line of this event and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._find_line(event) or not self._reader.is_alive(), START_SECONDS)
        line = self._find_line(event)
        assert line is not None, f"No {event!r} from process {self.pid}:\n{self.output}"
        return line

    def _find_line(self, event: str) -> dict[str, Any] | None:
        for line in self._lines:
            if line.startswith("{") and f'"event": "{event}"' in line:
                return orjson.loads(line)
        return None

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float = 60.0) -> int:
        """Return the exit code, once the process has ended."""
        self._process.wait(seconds)
        return self._process.returncode

    def close(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(30)
        self._reader.join(30)
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def process(*arguments: str, settings: Settings, **environment: str) -> Generator[Process]:
    """A runlane command, ended by us at the latest."""
    started = Process(arguments, settings, **environment)
    try:
        yield started
    finally:
        started.close()
