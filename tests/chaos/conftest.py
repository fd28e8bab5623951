"""The servers and clusters of the chaos tests. They bring their own Postgres and Redis, because they crash them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from runlane.settings import Settings
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer, RedisServer
from tests.chaos.cluster import Cluster, MakeCluster


@pytest.fixture(scope="session")
def chaos_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
        # An orderly stop would first write out dozens of databases that nobody needs any more.
        server.kill()


@pytest.fixture
def chaos_redis() -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may stop, kill and empty."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def make_cluster(
    chaos_postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeCluster]:
    """A cluster on a database of its own: await make_cluster("postgres", RUNLANE_LEASE_SECONDS="3")."""
    clusters: list[Cluster] = []

    async def make(kind: str = "postgres", url: str | None = None, **environment: str) -> Cluster:
        folder = tmp_path / f"cluster-{len(clusters)}"
        folder.mkdir()
        monkeypatch.setenv("CHAOS_FOLDER", str(folder))
        if url is None and kind == "postgres":
            url = chaos_postgres.create_database(f"chaos_{uuid4().hex}")
        elif url is None:
            url = f"sqlite:///{folder / 'runlane.db'}"
        await upgrade(Settings(database_url=SecretStr(url)))
        cluster = Cluster(url, folder, **environment)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        await cluster.close()


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> Cluster:
    """A cluster on Postgres with the defaults."""
    return await make_cluster()
