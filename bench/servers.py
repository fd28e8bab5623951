"""The servers of the benchmarks: one Postgres with durability on, one Redis-compatible server.

Each measurement gets its own database, so that none inherits tables, statistics or dead rows of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import asyncpg

from bench import notify
from bench.notifications import Receiver
from bench.process import clean_environment
from runlane.testing import PostgresServer, RedisServer

# The servers for tests trade durability for speed; a benchmark of durable runs must not.
# Fifty idle workers and four servers hold more connections than the servers for tests accept.
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "600"}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
    "autovacuum", "max_connections", "wal_level", "wal_sync_method",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workspace:
    """The database and the Redis queue of one measurement of one system."""

    database_url: str
    redis_url: str
    queue: str


class Servers:
    """The running servers, and the receiver of notifications."""

    def __init__(self, postgres: PostgresServer, redis: RedisServer, receiver: Receiver, log: IO[bytes]) -> None:
        self._postgres = postgres
        self._redis = redis
        self._workspaces = 0
        self.receiver = receiver
        self.log = log

    @contextmanager
    def workspace(self) -> Generator[Workspace]:
        """Create an empty database and queue, and drop them at the end."""
        self._workspaces += 1
        name = f"bench_{self._workspaces}"
        url = self._postgres.create_database(name)
        try:
            yield Workspace(url, self._redis.url, name)
        finally:
            self._postgres.drop_database(name)

    def environment(self, workspace: Workspace, count: int = 0, *, redis: bool = False) -> dict[str, str]:
        """Return the environment of a worker process of any system; `redis` makes Runlane use Redis."""
        redis_settings = (
            {"RUNLANE_REDIS_URL": workspace.redis_url, "RUNLANE_REDIS_PREFIX": workspace.queue} if redis else {}
        )
        return clean_environment(
            {
                **redis_settings,
                "RUNLANE_DATABASE_URL": workspace.database_url,
                "BENCH_DATABASE_URL": workspace.database_url,
                "BENCH_REDIS_URL": workspace.redis_url,
                "BENCH_QUEUE": workspace.queue,
                notify.RECEIVER: self.receiver.path,
                notify.COUNT: str(count),
            }
        )

    async def settings(self) -> Mapping[str, str]:
        """Return the settings of Postgres that the figures depend on."""
        rows = await query(self._postgres.url, "select name, setting from pg_settings where name = any($1)", SHOWN)
        return {row["name"]: row["setting"] for row in rows}

    def postgres_cpu_ns(self) -> int:
        """Return the CPU time that the processes of Postgres have used so far, without those that have ended."""
        server = Path("/proc", str(self._postgres.pid))
        processes = [server.name, *(server / "task" / server.name / "children").read_text().split()]
        total = 0
        for pid in processes:
            with suppress(OSError):  # it has ended since
                total += int(Path("/proc", pid, "schedstat").read_text().split()[0])
        return total

    async def checkpoint(self) -> None:
        """Run a checkpoint, so that none caused by the preparation occurs during the measurement."""
        await query(self._postgres.url, "checkpoint")


async def query(url: str, sql: str, *parameters: Any) -> list[Mapping[str, Any]]:
    """Execute one statement on its own connection."""
    connection = await cast("Any", asyncpg).connect(url)
    try:
        return cast("list[Mapping[str, Any]]", await connection.fetch(sql, *parameters))
    finally:
        await connection.close()


async def wait_for_rows(url: str, sql: str, wanted: int, timeout_seconds: float) -> Mapping[str, Any]:
    """Poll until `n` of the first row is at least `wanted`, and return the row."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            rows = await query(url, sql)
            if rows and rows[0]["n"] >= wanted:
                return rows[0]
            await asyncio.sleep(0.1)


@contextmanager
def start_servers(log: Path) -> Generator[Servers]:
    """Start the servers. Output of workers goes to `log`."""
    with (
        PostgresServer(SETTINGS) as postgres,
        RedisServer() as redis,
        Receiver() as receiver,
        log.open("wb") as file,
    ):
        yield Servers(postgres, redis, receiver, file)
