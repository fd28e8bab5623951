"""A clock for tests: the time of a database advances on command, for every process that uses the database.

Runlane uses the time of the database for all due times: waits, schedules, retries, leases, retention. So a test can
pass a wait of a week within a second, with real processes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Self

from runlane.settings import Settings
from runlane.store.sql import postgres
from runlane.store.sql.database import open_database, read_clock
from runlane.store.sql.migrate import upgrade
from runlane.store.sql.sqlite_clock import SqliteClock

# The schema of the tables precedes the schema of the built-in functions, so statements use this function.
_INSTALL = """
create table if not exists runlane_test_clock (advanced interval not null);
insert into runlane_test_clock select '0' where not exists (select from runlane_test_clock);
create or replace function public.clock_timestamp() returns timestamptz language sql volatile
    as 'select pg_catalog.clock_timestamp() + (select advanced from public.runlane_test_clock)';
do $$ begin
    execute format('alter database %I set search_path = public, pg_catalog', current_database());
end $$;
"""
_MOVE_LEASES = """
update workers set lease_until = lease_until + {us}, heartbeat_at = heartbeat_at + {us} where ended_at is null
"""


class DatabaseClock:
    """Advances the time of one database. Start it before the processes that use the database connect."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sqlite: SqliteClock | None = None

    async def start(self) -> Self:
        """Migrate the database and install the clock."""
        await upgrade(self._settings)
        path = self._settings.sqlite_path
        if path is None:
            connection = await postgres.connect(self._settings)
            try:
                await connection.execute(_INSTALL)
            finally:
                await connection.close()
        elif self._sqlite is None:
            # The file stays open, because the time would return to the host's time when the last process closes it.
            self._sqlite = SqliteClock.open(path)
        return self

    async def stop(self) -> None:
        """Release the database. On Postgres, the time stays advanced."""
        if self._sqlite is not None:
            self._sqlite.close()
            self._sqlite = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def now(self) -> datetime:
        """Return the time of the database."""
        database = await open_database(self._settings)
        try:
            return datetime.fromtimestamp(await read_clock(database) / 1_000_000, UTC)
        finally:
            await database.close()

    async def advance(self, by: float | timedelta, *, leases: bool = False) -> None:
        """Advance the time by seconds or a timedelta.

        The leases of live workers advance with it, as if the workers had renewed them meanwhile. With `leases`, leases
        are not advanced, so they expire.
        """
        moved = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if moved < timedelta():
            raise ValueError(f"The time of a database cannot move back by {-moved}. Advance it by zero or more.")
        moved_us = moved // timedelta(microseconds=1)
        move_leases = "select 1" if leases else _MOVE_LEASES.format(us=moved_us)
        if self._settings.sqlite_path is None:
            await self._advance_postgres(moved, move_leases)
        else:
            await asyncio.to_thread(self._advance_sqlite, moved_us, move_leases)

    async def _advance_postgres(self, moved: timedelta, move_leases: str) -> None:
        connection = await postgres.connect(self._settings)
        try:
            async with connection.transaction():
                # A renewal that has read the old time must not overwrite a lease that was advanced.
                await connection.execute("lock table workers in access exclusive mode")
                await connection.execute(move_leases)
                await connection.execute("update runlane_test_clock set advanced = advanced + $1", moved)
        finally:
            await connection.close()

    def _advance_sqlite(self, moved_us: int, move_leases: str) -> None:
        if self._sqlite is None:
            raise RuntimeError('The clock is not started. Use "async with DatabaseClock(settings)".')
        path, timeout_seconds = self._settings.sqlite_path, self._settings.database_timeout_seconds
        assert path is not None  # noqa: S101 - the caller has checked it
        with closing(sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            connection.execute(move_leases)
            self._sqlite.advance(moved_us)
            connection.execute("commit")
