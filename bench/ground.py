"""The ground that every measurement stands on: one Postgres with durability on, one Redis-compatible server.

Each measurement gets a database of its own, so that none inherits another's tables, statistics or dead rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import asyncpg

from bench import note
from bench.letters import Mailbox
from bench.process import clean_environment
from runlane.testing import PostgresServer, RedisServer

# The test servers trade durability for speed; a benchmark of durable runs may not.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
    "autovacuum", "max_connections", "wal_level", "wal_sync_method",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where one measurement of one system happens: its database, its queue on Redis."""

    database_url: str
    redis_url: str
    queue: str


class Ground:
    """The running servers."""

    def __init__(self, postgres: PostgresServer, redis: RedisServer, mailbox: Mailbox, log: IO[bytes]) -> None:
        self._postgres = postgres
        self._redis = redis
        self._places = 0
        self.mailbox = mailbox
        self.log = log

    @contextmanager
    def place(self) -> Generator[Place]:
        """A new, empty database and queue, dropped at the end."""
        self._places += 1
        name = f"bench_{self._places}"
        url = self._postgres.create_database(name)
        try:
            yield Place(url, self._redis.url, name)
        finally:
            self._postgres.drop_database(name)

    def environment(self, place: Place, count: int = 0, *, redis: bool = False) -> dict[str, str]:
        """What a process of any system is told; `redis` is for Runlane, which does without unless it is told."""
        news = {"RUNLANE_REDIS_URL": place.redis_url, "RUNLANE_REDIS_PREFIX": place.queue} if redis else {}
        return clean_environment(
            {
                **news,
                "RUNLANE_DATABASE_URL": place.database_url,
                "BENCH_DATABASE_URL": place.database_url,
                "BENCH_REDIS_URL": place.redis_url,
                "BENCH_QUEUE": place.queue,
                note.MAILBOX: self.mailbox.path,
                note.COUNT: str(count),
            }
        )

    async def settings(self) -> Mapping[str, str]:
        """The server's settings that the figures depend on."""
        rows = await query(self._postgres.url, "select name, setting from pg_settings where name = any($1)", SHOWN)
        return {row["name"]: row["setting"] for row in rows}

    async def settle(self) -> None:
        """Write out what the preparation left, so that its checkpoint does not fall into the measurement."""
        await query(self._postgres.url, "checkpoint")


async def query(url: str, sql: str, *parameters: Any) -> list[Mapping[str, Any]]:
    """One statement on a connection of its own."""
    connection = await cast("Any", asyncpg).connect(url)
    try:
        return cast("list[Mapping[str, Any]]", await connection.fetch(sql, *parameters))
    finally:
        await connection.close()


async def wait_for_rows(url: str, sql: str, wanted: int, timeout_seconds: float) -> Mapping[str, Any]:
    """Ask until the first row's `n` is at least `wanted`; the row."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            rows = await query(url, sql)
            if rows and rows[0]["n"] >= wanted:
                return rows[0]
            await asyncio.sleep(0.1)


@contextmanager
def open_ground(log: Path) -> Generator[Ground]:
    """Start the servers. What workers print goes to `log`."""
    with (
        PostgresServer(DURABLE) as postgres,
        RedisServer() as redis,
        Mailbox() as mailbox,
        log.open("wb") as file,
    ):
        yield Ground(postgres, redis, mailbox, file)
