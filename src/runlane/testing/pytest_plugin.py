"""pytest fixtures: an app that executes its runs on a new database for each test.

Load the plugin with `pytest_plugins = ["runlane.testing.pytest_plugin"]` in the topmost conftest.py and define
`runlane_app` there. This is the only module that imports pytest, so the package does not depend on it. `running_app` is
an async fixture of pytest-asyncio, declared so that it works in the modes auto and strict. `running_app_in_thread`
needs no event loop in the test.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from runlane.app import App
from runlane.settings import Settings, load_settings
from runlane.store.sql.migrate import upgrade
from runlane.testing.clock import DatabaseClock
from runlane.testing.running import RunningApp
from runlane.testing.servers import ExternalPostgres, PostgresServer, postgres_for_tests

try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = None


@pytest.fixture
def runlane_app() -> App:
    """The app under test. Each project defines its own."""
    raise pytest.UsageError(
        "The fixture runlane_app is not defined. Define it in conftest.py so that it returns your App: "
        "@pytest.fixture def runlane_app(): return app"
    )


@pytest.fixture
def runlane_database_url(tmp_path: Path) -> str:
    """The URL of this test's database: a SQLite file. Return `runlane_postgres_url` instead to test on Postgres."""
    return f"sqlite:///{tmp_path / 'runlane.db'}"


@pytest.fixture
def runlane_settings(runlane_database_url: str) -> Settings:
    """The settings of the app under test: those of the environment, except the database and Redis.

    To change settings, define a fixture of the same name that requests this fixture and returns a copy with other
    values.
    """
    return load_settings(database_url=SecretStr(runlane_database_url), redis_url=None, worker_health_port=0)


@pytest.fixture
def runlane_clock(runlane_settings: Settings) -> DatabaseClock:
    """The clock of this test's database. `await running_app.clock.advance(seconds)` advances it."""
    return DatabaseClock(runlane_settings)


async def _running_app(
    runlane_app: App, runlane_settings: Settings, runlane_clock: DatabaseClock
) -> AsyncGenerator[RunningApp]:
    """The app with a worker and the background services in the event loop of the test, for async tests."""
    async with RunningApp(runlane_app, runlane_settings, clock=runlane_clock) as running:
        yield running


def _no_running_app() -> RunningApp:
    """Fail with a message, because pytest-asyncio is not installed."""
    raise pytest.UsageError("The fixture running_app needs pytest-asyncio. Install it, or use running_app_in_thread.")


running_app = pytest.fixture(_no_running_app) if async_fixture is None else async_fixture(_running_app)


@pytest.fixture
def running_app_in_thread(
    runlane_app: App, runlane_settings: Settings, runlane_clock: DatabaseClock
) -> Generator[RunningApp]:
    """The app with a worker and the background services in the thread of `app.blocking`, for synchronous tests."""
    running = RunningApp(runlane_app, runlane_settings, clock=runlane_clock)
    runlane_app.blocking(running.start())
    try:
        yield running
    finally:
        runlane_app.blocking(running.stop())


@pytest.fixture(scope="session")
def runlane_postgres() -> Generator[PostgresServer | ExternalPostgres]:
    """A Postgres server for the whole session: the server of TEST_DATABASE_URL, or one that is started here."""
    with postgres_for_tests() as server:
        yield server


@pytest.fixture(scope="session")
def runlane_postgres_template(runlane_postgres: PostgresServer | ExternalPostgres) -> Generator[str]:
    """The name of a migrated database. Tests get copies of it, which is faster than migrating each database."""
    name = f"runlane_template_{secrets.token_hex(6)}"
    settings = load_settings(database_url=SecretStr(runlane_postgres.create_database(name)), redis_url=None)
    try:
        # The database is created in a thread, because the event loop may be running when a fixture is set up.
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(lambda: asyncio.run(upgrade(settings))).result()
        yield name
    finally:
        runlane_postgres.drop_database(name)


@pytest.fixture
def runlane_postgres_url(
    runlane_postgres: PostgresServer | ExternalPostgres, runlane_postgres_template: str
) -> Generator[str]:
    """The URL of a migrated Postgres database that only this test uses."""
    name = f"runlane_test_{secrets.token_hex(6)}"
    try:
        yield runlane_postgres.create_database(name, runlane_postgres_template)
    finally:
        runlane_postgres.drop_database(name)
