"""Fixtures that serve the API over one SQLite file, and over Postgres with Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from itertools import count

import pytest

from runlane.access.keyring import new_key
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.settings import Settings
from runlane.testing import ExternalRedis, RedisServer, redis_for_tests
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import settings_for

_numbers = count(1)
# Runs that a test leaves behind are handed back soon; no test waits for them.
_GRACE_SECONDS = 0.2


@pytest.fixture(scope="session")
def redis_server() -> Generator[RedisServer | ExternalRedis]:
    with redis_for_tests() as server:
        yield server


@pytest.fixture(params=("sqlite", "postgres-redis"))
def settings(request: pytest.FixtureRequest) -> Settings:
    """Return settings of a migrated, empty database."""
    if request.param == "sqlite":
        return settings_for(request.getfixturevalue("sqlite_url"), grace_seconds=_GRACE_SECONDS, secret_key=new_key())
    if request.param == "postgres":
        # One request asks for it: without Redis, Postgres connects the processes.
        url = request.getfixturevalue("postgres_url")
        return settings_for(url, grace_seconds=_GRACE_SECONDS, secret_key=new_key())
    redis: RedisServer | ExternalRedis = request.getfixturevalue("redis_server")
    return settings_for(
        request.getfixturevalue("postgres_url"),
        redis_url=redis.url,
        redis_prefix=f"test{next(_numbers)}",
        grace_seconds=_GRACE_SECONDS,
        secret_key=new_key(),
    )


@pytest.fixture
def own_app(settings: Settings) -> App:
    return copy_of(shop, settings)


@pytest.fixture
async def api(own_app: App) -> AsyncGenerator[Api]:
    """Serve the shop's API with a worker in the same process, and a client with an admin's key."""
    async with serving(own_app, worker=WorkerOptions()) as served:
        yield served


@pytest.fixture
async def idle_api(own_app: App) -> AsyncGenerator[Api]:
    """Serve the same without a worker, so that no run is executed."""
    async with serving(own_app) as served:
        yield served
