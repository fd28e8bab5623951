"""Start one API server of Runlane as in production: on Postgres, with a key, and by default with Redis."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import orjson

from bench.http_client import HOST, HttpConnection
from bench.process import running
from bench.servers import Servers, Workspace
from runlane.settings import load_settings
from runlane.store.access.keys import create_key
from runlane.store.sql.migrate import open_ready

_READY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The port, the API key and the process of a server."""

    port: int
    key: str
    pid: int = 0

    def connection(self) -> HttpConnection:
        """Return a new connection to the server."""
        return HttpConnection(self.port, self.key)


@asynccontextmanager
async def serving(servers: Servers, workspace: Workspace, *, redis: bool = True) -> AsyncGenerator[ApiServer]:
    """Run `runlane serve` for the duration of a block. The schema of the workspace must exist."""
    server = ApiServer(free_port(), await _create_key(workspace))
    command = ["-m", "runlane", "serve", "bench.systems.runlane:app", "--port", str(server.port)]
    with running(command, servers.environment(workspace, redis=redis), servers.log) as process:
        await _wait_until_ready(server, "connected" if redis else "not configured")
        yield replace(server, pid=process.pid)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


async def wait_until_listening(port: int) -> None:
    """Wait until a process listens on the port."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def _create_key(workspace: Workspace) -> str:
    database = await open_ready(load_settings(database_url=workspace.database_url), 2)
    try:
        return (await create_key(database, "bench", "platform_admin", actor="bench"))[1]
    finally:
        await database.close()


async def _wait_until_ready(server: ApiServer, redis: str) -> None:
    await wait_until_listening(server.port)
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            async with server.connection() as connection:
                status, body = await connection.request("GET", "/ready")
            if status == 200 and orjson.loads(body)["redis"] == redis:
                return
            await asyncio.sleep(0.1)
