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
from tests.clearing import clear_for_reuse
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
        # An orderly stop would first write out databases that no test needs any more.
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


class DatabasePool:
    """Migrated, empty databases of a server, each of which is used by one test after the other."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._used: list[str] = []

    async def take(self) -> str:
        """Return the URL of a database that no test uses."""
        while self._used:
            url = self._used.pop()
            if await clear_for_reuse(url):
                return url
        return self.create()

    def create(self) -> str:
        return self._server.create_database(f"chaos_{uuid4().hex}", self._template)

    def give_back(self, url: str) -> None:
        self._used.append(url)


@pytest.fixture(scope="session")
def chaos_databases(chaos_postgres: PostgresServer, chaos_template: str) -> DatabasePool:
    return DatabasePool(chaos_postgres, chaos_template)


@pytest.fixture
async def make_cluster(
    chaos_databases: DatabasePool,
    sqlite_template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[MakeCluster]:
    """Yield a function that makes a cluster on an empty database: make_cluster("postgres", RUNLANE_LEASE_SECONDS="3").

    A test that changes the schema or the options of its database passes own_database=True.
    """
    clusters: list[Cluster] = []
    taken: list[str] = []

    async def make(
        kind: str = "postgres",
        url: str | None = None,
        *,
        shipped_defaults: bool = False,
        own_database: bool = False,
        **environment: str,
    ) -> Cluster:
        folder = tmp_path / f"cluster-{len(clusters)}"
        folder.mkdir()
        monkeypatch.setenv("CHAOS_FOLDER", str(folder))
        if url is not None:
            await upgrade(Settings(database_url=SecretStr(url)))
        elif kind == "postgres" and own_database:
            url = chaos_databases.create()
        elif kind == "postgres":
            url = await chaos_databases.take()
            taken.append(url)
        else:
            shutil.copyfile(sqlite_template, folder / "runlane.db")
            url = f"sqlite:///{folder / 'runlane.db'}"
        cluster = Cluster(url, folder, shipped_defaults=shipped_defaults, **environment)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        await cluster.close()
    for url in taken:
        chaos_databases.give_back(url)


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> Cluster:
    """Return a cluster on Postgres that notices dead workers quickly."""
    return await make_cluster()
