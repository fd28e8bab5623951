"""Choose the bus: Redis if its URL is set, else Postgres if it is the database, else the bus of the process."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.bus.memory import MemoryBus
from runlane.extras import requires_extra
from runlane.settings import Settings


def make_bus(settings: Settings) -> Bus:
    """Return the bus of the settings; the caller starts it."""
    if settings.redis_url is not None:
        with requires_extra("redis", "RUNLANE_REDIS_URL"):
            from runlane.bus.redis import RedisBus

        return RedisBus(settings.redis_url.get_secret_value(), settings.redis_prefix)
    if settings.wakes_through_postgres:
        from runlane.bus.postgres import PostgresBus

        return PostgresBus(settings)
    return MemoryBus()
