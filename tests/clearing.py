"""Clear a Postgres database that a test has used, so that the next one needs no copy of the template.

A copy has hundreds of files, which take a third of a second of computing and have to be removed at the end. Clearing
takes milliseconds.
"""

from __future__ import annotations

from typing import Any, Final, cast

import asyncpg

from tests.harness import TABLES

_OTHERS: Final = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
_TERMINATE_OTHERS: Final = f"select pg_terminate_backend(pid) {_OTHERS}"
# A transaction that a killed process has begun and Postgres commits later would leave its rows behind.
_AWAIT_OTHERS: Final = f"{_TERMINATE_OTHERS}; select pg_terminate_backend(pid, 60000) {_OTHERS}"
# A test clock would stay where its test has left it.
_REMOVE_CLOCK: Final = (
    "drop function if exists public.clock_timestamp(); drop table if exists public.runlane_test_clock"
)
# The migration creates this tenant, and no run can be accepted without it.
_DEFAULT_TENANT: Final = "insert into tenants (id, name, created_at, updated_at) values ('default', 'default', 0, 0)"
# A procedure keeps its plans for as long as the connection lives, which saves half of the time.
_PROCEDURE: Final = (
    "create or replace procedure pg_temp.clear_tables() language plpgsql as $$ begin "
    + "".join(f"delete from {table}; " for table in TABLES)
    + f"{_DEFAULT_TENANT}; end $$"
)
_CLEAR: Final = f"{_TERMINATE_OTHERS}; {_REMOVE_CLOCK}; call pg_temp.clear_tables()"
# An empty database has 11 MB. Rows that a storm has deleted would slow down every scan of the next test.
_MAX_BYTES: Final = 24_000_000


class ClearingConnection:
    """A connection to a migrated database that can clear it repeatedly."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> ClearingConnection:
        connection: Any = await cast("Any", asyncpg).connect(url)
        await connection.execute(_PROCEDURE)
        return cls(connection)

    async def clear(self) -> None:
        """End all other sessions and delete all rows."""
        await self._connection.execute(_CLEAR)

    async def end_other_sessions(self) -> None:
        """End all other sessions and wait until they are gone."""
        await self._connection.execute(_AWAIT_OTHERS)

    async def has_grown(self) -> bool:
        """Return whether the files of the database are much larger than those of an empty one."""
        return await self._connection.fetchval("select pg_database_size(current_database())") > _MAX_BYTES

    async def close(self) -> None:
        await self._connection.close()


async def clear_for_reuse(url: str) -> bool:
    """Clear a database that processes may have been killed on; return False if it is too large for another test."""
    connection = await ClearingConnection.open(url)
    try:
        if await connection.has_grown():
            return False
        await connection.end_other_sessions()
        await connection.clear()
    finally:
        await connection.close()
    return True
