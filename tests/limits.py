"""Helpers for tests of concurrency limits: runs with limits, an admitter without a loop, and the invariants."""

from __future__ import annotations

from typing import Any

from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyStrategy
from runlane.store.queue.admitter import Admitter
from runlane.store.queue.shared_limits import set_shared_limit
from tests.harness import Store


def limit(key: str, most: int, strategy: ConcurrencyStrategy = ConcurrencyStrategy.QUEUE) -> ConcurrencyLimit:
    """Return a limit of one key."""
    return ConcurrencyLimit(f"default/job/{key}", most, key, None, strategy)


def shared(name: str, strategy: ConcurrencyStrategy = ConcurrencyStrategy.QUEUE) -> ConcurrencyLimit:
    """Return a limit that the tenant stores."""
    return ConcurrencyLimit("", None, name, name, strategy)


class LimitedStore:
    """A store whose freed limits are collected; `admit` is what the admitter of a process does after each commit."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.freed: set[str] = set()
        self.rung: set[str] = set()
        self.cancelled: list[str] = []
        store.database.on_freed = self.freed.update
        self.admitter = Admitter(store.database, self.rung.update, lambda notices: None, self.cancelled.append)

    async def add(self, *limits: ConcurrencyLimit, **fields: Any) -> str:
        return await self.store.add(limits=limits, **fields)

    async def admit(self) -> None:
        """Admit what the commits so far have freed."""
        while self.freed:
            keys = set(self.freed)
            self.freed.clear()
            await self.admitter.admit(keys)

    async def set_shared(self, name: str, most: int) -> None:
        await set_shared_limit(self.store.database, "default", name, most, actor="test")
        await self.admit()

    async def slots(self) -> dict[str, int]:
        rows = await self.store.sql("select key, count(*) as n from limit_slots group by key")
        return {row["key"].rpartition("/")[2].rpartition("\x1f")[2]: row["n"] for row in rows}

    async def waiting(self) -> list[str]:
        return [
            row["run_id"] for row in await self.store.sql("select run_id from limit_waits order by key, turn, place")
        ]

    async def check(self) -> None:
        """Check that the rows of slots and waits agree with the statuses of the runs."""
        rows = await self.store.sql(
            "select id, status, limits, (select count(*) from limit_slots where run_id = id) as slots, "
            "(select count(*) from limit_waits where run_id = id) as waits "
            "from runs join run_inputs on run_inputs.run_id = runs.id where limits is not null"
        )
        for row in rows:
            admitted = row["status"] in ("queued", "running")
            assert (row["slots"] > 0) == admitted, row
            assert row["waits"] == 0 or row["status"] == "blocked", row
