"""Servers and clusters of the chaos tests, with their own Postgres and Redis, because the tests crash them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from runlane.settings import Settings
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer, RedisServer
from tests import forking
from tests.chaos.cluster import Cluster, MakeCluster
from tests.conftest import in_new_loop


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> None:
    """Start the process that forks commands while no event loop runs."""
    forking.prepare()


@pytest.fixture(scope="session")
def forked_providers() -> None:
    """Start the process that forks workers with the packages of model providers."""
    forking.prepare(forking.PROVIDERS)


@pytest.fixture(scope="session")
def chaos_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
        # An orderly stop would first write out dozens of databases that no test needs any more.
        server.kill()


@pytest.fixture(scope="session")
def chaos_template(chaos_postgres: PostgresServer) -> str:
    """Return the name of a migrated, empty database to copy."""
    url = chaos_postgres.create_database("chaos_template")
    in_new_loop(lambda: upgrade(Settings(database_url=SecretStr(url))))
    return "chaos_template"


@pytest.fixture
def chaos_redis() -> Iterator[RedisServer]:
    """Yield a Redis of this test alone, which it may stop, kill and empty."""
    with RedisServer() as server:
        yield server


@pytest.fixture
async def make_cluster(
    chaos_postgres: PostgresServer,
    chaos_template: str,
    sqlite_template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[MakeCluster]:
    """Yield a function that makes a cluster on a new database: make_cluster("postgres", RUNLANE_LEASE_SECONDS="3")."""
    clusters: list[Cluster] = []

    async def make(
        kind: str = "postgres", url: str | None = None, *, shipped_defaults: bool = False, **environment: str
    ) -> Cluster:
        folder = tmp_path / f"cluster-{len(clusters)}"
        folder.mkdir()
        monkeypatch.setenv("CHAOS_FOLDER", str(folder))
        if url is not None:
            await upgrade(Settings(database_url=SecretStr(url)))
        elif kind == "postgres":
            url = chaos_postgres.create_database(f"chaos_{uuid4().hex}", chaos_template)
        else:
            shutil.copyfile(sqlite_template, folder / "runlane.db")
            url = f"sqlite:///{folder / 'runlane.db'}"
        cluster = Cluster(url, folder, shipped_defaults=shipped_defaults, **environment)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        await cluster.close()


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> Cluster:
    """Return a cluster on Postgres that notices dead workers quickly."""
    return await make_cluster()
