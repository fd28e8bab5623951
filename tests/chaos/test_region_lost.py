"""The region-lost drill: the primary and every process of its region die, and the replica elsewhere is promoted.

With synchronous replication a run that was acknowledged is in the replica, so none is lost.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from runlane.errors import RunlaneError
from runlane.testing import PostgresServer
from runlane.testing.account import choose_account
from runlane.testing.binaries import find_postgres
from runlane.testing.child import clean_environment
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.test_restore import command
from tests.scale import scaled

RUNS = scaled(60, 1000)
BATCH = 5


class Replica(PostgresServer):
    """A standby that follows another server."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def _prepare(self, home: Path) -> None:
        self._account, self._bindir = choose_account(find_postgres(), home)
        source = f"{self._primary.url}?application_name=replica"
        copy = [
            str(self._bindir / "pg_basebackup"),
            "-D",
            str(home / "data"),
            "-R",
            "-X",
            "stream",
            "--checkpoint=fast",
        ]
        subprocess.run(
            self._account.command([*copy, "--no-sync", "-d", source]),
            user=self._account.uid, group=self._account.gid, extra_groups=self._account.groups, cwd=home,
            env=clean_environment(os.environ), check=True, timeout=120,
        )  # fmt: skip


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer({"wal_level": "replica", "max_wal_senders": "4"}) as server:
        yield server
        with suppress(Exception):
            server.kill()


@pytest.fixture
def replica(primary: PostgresServer) -> Iterator[PostgresServer]:
    with Replica(primary) as server:
        yield server
        server.kill()


async def execute(url: str, *statements: str) -> list[Any]:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        return [await connection.fetchval(statement) for statement in statements]
    finally:
        await connection.close()


async def make_synchronous(primary: PostgresServer) -> None:
    """Make every commit wait for the replica, and wait until that is in effect."""
    await execute(primary.url, "alter system set synchronous_standby_names = 'replica'", "select pg_reload_conf()")

    async def in_effect() -> bool:
        (state,) = await execute(primary.url, "select sync_state from pg_stat_replication")
        return state == "sync"

    await eventually(in_effect, "synchronous replication")


async def submit(cluster: Cluster, acknowledged: list[str]) -> None:
    """Start runs until the database is lost; only acknowledged ones count."""
    with suppress(RunlaneError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        while True:
            accepted = await cluster.app.enqueue_many([("short", {"milliseconds": 20})] * BATCH)
            acknowledged.extend(run.run_id for run in accepted)


async def test_no_acknowledged_run_is_lost_with_its_region(
    make_cluster: MakeCluster, primary: PostgresServer, replica: PostgresServer
) -> None:
    lost = await make_cluster(url=primary.create_database(f"region_{uuid4().hex}"))
    await make_synchronous(primary)
    await lost.start_workers(2, concurrency=4)
    acknowledged: list[str] = []
    submitting = asyncio.create_task(submit(lost, acknowledged))

    async def under_load() -> bool:
        return len(acknowledged) >= RUNS and await lost.count("ended_at is not null") >= RUNS // 4

    await eventually(under_load, "runs that are accepted and executed", 120)
    await asyncio.to_thread(primary.kill)
    for process in lost.processes:
        process.kill()
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)

    assert await execute(replica.url, "select pg_promote()") == [True]
    name = urlsplit(lost.url).path
    elsewhere = Cluster(urlunsplit(urlsplit(replica.url)._replace(path=name)), lost.folder)
    try:
        found = {row["id"] for row in await elsewhere.rows("select id from runs")}
        assert set(acknowledged) <= found
        open_runs = await elsewhere.count("ended_at is null")
        planned = await asyncio.to_thread(command, elsewhere, "db", "recovered", "--dry-run", "--json")
        assert planned["continuing"] == open_runs
        assert open_runs
        await asyncio.to_thread(command, elsewhere, "db", "recovered", "--json")
        await elsewhere.start_workers(2, concurrency=8)
        await elsewhere.all_ended(120)
        await elsewhere.check_story()
        assert await elsewhere.count("status <> 'completed'") == 0
    finally:
        await elsewhere.close()
