"""Databases for every test: a real Postgres for the session with one migrated database, cleared before each test.

Clearing takes a few milliseconds, a fresh copy of a template hundreds; a test that changes the schema still uses a
copy. SQLite files are copied, which is cheap.

The contract suite runs on three backends. `postgres-pgbouncer` is Postgres with the settings for PgBouncer in
transaction mode: no prepared statements, settings with each transaction, no session locks. With TEST_PGBOUNCER=1 a real
PgBouncer is in between.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from runlane import failpoints
from runlane.redaction import LOGS
from runlane.settings import Settings
from runlane.store.queue.lanes import declare_lanes
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import upgrade
from runlane.testing import ExternalPostgres, PostgresServer, postgres_for_tests
from tests.clearing import ClearingConnection
from tests.harness import Store, settings_for
from tests.pgbouncer import pgbouncer_for
from tests.scale import scaled
from tests.scheduling import DurationRecorder, LongestFirst
from tests.variants import PGBOUNCER, choose_items

BACKENDS = ("sqlite", "postgres", PGBOUNCER)
_TEMPLATE = "runlane_template"
_SHARED = "runlane_shared"
_REPEAT_TIMEOUT_SECONDS = 5.0
_numbers = count(1)

# Without a deadline: on a busy machine any example may take long.
hypothesis_settings.register_profile(
    "suite", deadline=None, max_examples=scaled(40, 400), suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Make the suite independent of its environment."""
    # A shell makes background processes ignore SIGINT, and the programs that the tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Older Pythons leave a stream open if its connect was cancelled at the last moment; newer ones close it.
    if not hasattr(asyncio.StreamWriter, "__del__"):
        for message in ("unclosed <socket", "unclosed transport"):
            config.addinivalue_line("filterwarnings", f"ignore:{message}:ResourceWarning")
    if os.environ.get("TEST_DURATIONS") == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(DurationRecorder())


@pytest.hookimpl(optionalhook=True, hookwrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None]:
    """Repeat the signal that ends a test after its time limit.

    The first one may be raised inside any task of the event loop, which then ends instead of the test.
    """
    yield
    if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, _REPEAT_TIMEOUT_SECONDS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    """Spread files over processes by how long they take."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep modules and tests, which live as long as the process, out of every garbage collection."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the variants that differ."""
    items[:] = choose_items(items)


def in_new_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run async set-up from a plain fixture, whether or not an event loop is running."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(lambda: asyncio.run(work())).result()


@pytest.fixture(scope="session", autouse=True)
def uncached_loggers() -> Generator[None]:
    """Let every logger follow the configuration of its test: one that a command has cached would keep the command's."""
    configure: Callable[..., None] = structlog.configure

    def configure_without_cache(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_without_cache)
        yield


@pytest.fixture(autouse=True)
def quiet_logs() -> None:
    """Keep log lines of workers out of the test report; a command that a test ran here has configured logs."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture(autouse=True)
def reset_failpoints() -> Generator[None]:
    """Remove failpoint hooks that a failed test left behind."""
    yield
    failpoints.install(None)


@pytest.fixture(autouse=True)
def reset_log_redaction() -> Generator[None]:
    """Drop the values that a test has registered for redaction in logs."""
    yield
    LOGS.forget_all()


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer | ExternalPostgres]:
    with postgres_for_tests() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer | ExternalPostgres) -> Generator[str]:
    postgres_server.drop_database(_TEMPLATE)
    url = postgres_server.create_database(_TEMPLATE)
    in_new_loop(lambda: upgrade(settings_for(url)))
    yield _TEMPLATE
    postgres_server.drop_database(_TEMPLATE)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.db"
    in_new_loop(lambda: upgrade(settings_for(f"sqlite:///{path}")))
    return path


@pytest.fixture
def empty_postgres(postgres_server: PostgresServer | ExternalPostgres) -> Generator[str]:
    """Create a database without a schema and return its URL."""
    name = f"runlane_test_{next(_numbers)}"
    postgres_server.drop_database(name)
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture
def copied_postgres(postgres_server: PostgresServer | ExternalPostgres, postgres_template: str) -> Generator[str]:
    """Create a migrated database for this test alone and return its URL."""
    name = f"runlane_test_{next(_numbers)}"
    postgres_server.drop_database(name)
    yield postgres_server.create_database(name, postgres_template)
    postgres_server.drop_database(name)


class DatabaseCleaner:
    """Clears the shared database over its own connection, in its own thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._connection: ClearingConnection = self._run(ClearingConnection.open(url))

    def clear(self) -> None:
        self._run(self._connection.clear())

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@pytest.fixture(scope="session")
def shared_postgres(
    postgres_server: PostgresServer | ExternalPostgres, postgres_template: str
) -> Generator[DatabaseCleaner]:
    postgres_server.drop_database(_SHARED)
    cleaner = DatabaseCleaner(postgres_server.create_database(_SHARED, postgres_template))
    yield cleaner
    cleaner.close()
    postgres_server.drop_database(_SHARED)


@pytest.fixture
def postgres_url(shared_postgres: DatabaseCleaner) -> str:
    """Return the URL of the shared database, cleared."""
    shared_postgres.clear()
    return shared_postgres.url


@pytest.fixture
def pgbouncer_url(postgres_url: str) -> Generator[str]:
    """Return the URL of the shared database through a real PgBouncer, which `make deploy-check` asks for.

    One for each test: clearing the database ends all sessions, and a pool would offer them to the next test.
    """
    with pgbouncer_for(postgres_url) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    path = tmp_path / "runlane.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=BACKENDS)
def settings(request: pytest.FixtureRequest) -> Settings:
    """Return settings of a migrated, empty database. Suites on fewer backends override this fixture."""
    backend: str = request.param
    url: str = request.getfixturevalue("sqlite_url" if backend == "sqlite" else "postgres_url")
    if backend != PGBOUNCER:
        return settings_for(url)
    if os.environ.get("TEST_PGBOUNCER") == "1":
        url = request.getfixturevalue("pgbouncer_url")
    return settings_for(url, pgbouncer=True)


@pytest.fixture
async def store(settings: Settings) -> AsyncGenerator[Store]:
    """Open the store of this test, with the lane `default`."""
    database = await open_database(settings)
    await declare_lanes(database, ["default"])
    try:
        yield Store(settings, database)
    finally:
        await database.close()
