"""What a test suite needs to run against real servers.

Durability cannot be shown against a double, so our suite and our users' suites start a real PostgreSQL
and a real Redis-compatible server, stop them, and kill them, with nothing installed but wheels.
"""

from runlane.testing import crash_points
from runlane.testing.binaries import MissingBinaryError, ServerError
from runlane.testing.fake_mcp import FakeMcp, FakeMcpCall
from runlane.testing.servers import (
    ExternalPostgres,
    ExternalRedis,
    PostgresServer,
    RedisServer,
    postgres_for_tests,
    redis_for_tests,
)

__all__ = [
    "ExternalPostgres",
    "ExternalRedis",
    "FakeMcp",
    "FakeMcpCall",
    "MissingBinaryError",
    "PostgresServer",
    "RedisServer",
    "ServerError",
    "crash_points",
    "postgres_for_tests",
    "redis_for_tests",
]
