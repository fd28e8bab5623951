"""The choice of the bus: Redis when its URL is set, else the bus of the process."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.bus.memory import MemoryBus
from runlane.settings import Settings


def make_bus(settings: Settings) -> Bus:
    """Return the bus of the settings; the caller starts it."""
    if settings.redis_url is None:
        return MemoryBus()
    from runlane.bus.redis import RedisBus

    return RedisBus(settings.redis_url.get_secret_value(), settings.redis_prefix)
