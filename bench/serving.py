"""One serving process of Runlane, as in production: on Postgres, with a key, and with Redis unless told otherwise."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import orjson

from bench.ground import Ground, Place
from bench.process import running
from bench.wire import HOST, Caller
from runlane.settings import load_settings
from runlane.store.access.keys import create_key
from runlane.store.sql.migrate import open_ready

_READY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, the key to it, and its process."""

    port: int
    key: str
    pid: int = 0

    def caller(self) -> Caller:
        """A new connection to it."""
        return Caller(self.port, self.key)


@asynccontextmanager
async def serving(ground: Ground, place: Place, *, redis: bool = True) -> AsyncGenerator[Served]:
    """`runlane serve` for the length of a block. The place's schema must be there."""
    served = Served(free_port(), await _key(place))
    command = ["-m", "runlane", "serve", "bench.systems.runlane:app", "--port", str(served.port)]
    with running(command, ground.environment(place, redis=redis), ground.log) as process:
        await _ready(served, "connected" if redis else "not configured")
        yield replace(served, pid=process.pid)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    """Wait until a process that was just started listens."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def _key(place: Place) -> str:
    database = await open_ready(load_settings(database_url=place.database_url), 2)
    try:
        return (await create_key(database, "bench", "platform_admin", actor="bench"))[1]
    finally:
        await database.close()


async def _ready(served: Served, redis: str) -> None:
    await listening(served.port)
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            async with served.caller() as caller:
                status, body = await caller.ask("GET", "/ready")
            if status == 200 and orjson.loads(body)["redis"] == redis:
                return
            await asyncio.sleep(0.1)
