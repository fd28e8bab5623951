"""The demand for workers, which autoscalers poll. It is read at most once per second for each set of lanes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace

from runlane.domain.scaling import Demand, workers_for
from runlane.store.queue.scaling import read_demand
from runlane.store.sql.database import Database

_KEEP_SECONDS = 1.0
# The number of cached sets of lanes. If more are read, the oldest leaves the cache.
_MOST = 100


class DemandCache:
    """The results of the last second. Concurrent requests share one read."""

    def __init__(self) -> None:
        self._found: dict[frozenset[str] | None, tuple[float, Demand]] = {}
        self._reading = asyncio.Lock()

    async def read(self, database: Database, lanes: Collection[str] | None, concurrency: int) -> Demand:
        """Return the demand in these lanes, or in every lane."""
        key = None if lanes is None else frozenset(lanes)
        async with self._reading:
            at, demand = self._found.get(key, (float("-inf"), None))
            if demand is None or time.monotonic() - at >= _KEEP_SECONDS:
                demand = await read_demand(database, lanes)
                self._found.pop(key, None)
                self._found[key] = (time.monotonic(), demand)
                for oldest in list(self._found)[:-_MOST]:
                    del self._found[oldest]
        return replace(demand, wanted_workers=workers_for(demand.wanted_slots, concurrency))
