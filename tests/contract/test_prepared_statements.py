"""Each database accepts every statement of the store: its tables, columns, functions and the types of its parameters.

So no statement is tried for the first time on a database in a test of an interface, and those need one database each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast

import asyncpg
import pytest

from runlane.settings import Settings
from runlane.store.sql.golden import find_statements
from runlane.store.sql.statement import Dialect
from tests.harness import Store

# Statements for the other database, and for memory files and their index of words.
_OF_COPIES = {
    "memory_add_words",
    "memory_clear_dropped",
    "memory_drop_words",
    "memory_last_row",
    "memory_move_words",
    "memory_pending_ops",
    "memory_words_lock",
    "memory_words_position",
    "memory_words_range",
}
_POSTGRES_ONLY = {"limit_wait_for_writers", "use_one_snapshot", "wait_for_writers"}
OF_OTHERS: dict[Dialect, set[str]] = {
    "postgresql": _OF_COPIES
    | {"can_measure_tables", "memory_copy_head", "memory_mark_stale", "memory_move_rows", "memory_park"}
    | {"memory_waiting_ops"},
    "sqlite": _OF_COPIES | _POSTGRES_ONLY | {"memory_search"},
}
Prepare = Callable[[str], Coroutine[Any, Any, None]]


@pytest.fixture
async def prepare(settings: Settings, store: Store) -> AsyncGenerator[Prepare]:
    """Let the database parse and plan SQL without executing it."""
    assert settings.database_url is not None
    if store.database.dialect == "sqlite":
        file = cast("sqlite3.Connection", cast("Any", store.database)._connection)

        async def explain(sql: str) -> None:
            file.execute(f"explain {sql}", [None] * sql.count("?"))

        yield explain
        return
    connection = await cast("Any", asyncpg).connect(settings.database_url.get_secret_value())

    async def prepare(sql: str) -> None:
        await connection.prepare(sql)

    yield prepare
    await connection.close()


async def test_every_statement_is_accepted_by_its_database(store: Store, prepare: Prepare) -> None:
    dialect: Dialect = store.database.dialect
    refused: dict[str, str] = {}
    for name, statement in find_statements(dialect).items():
        for sql in statement.texts(dialect).values():
            try:
                await prepare(sql)
            except (sqlite3.Error, cast("Any", asyncpg).PostgresError) as error:
                refused[name] = str(error)
    assert {name: error for name, error in refused.items() if name not in OF_OTHERS[dialect]} == {}
    assert OF_OTHERS[dialect] == set(refused)


async def test_a_wrong_statement_is_refused(prepare: Prepare) -> None:
    for sql in ("select nothing from runs", "select no_function(status) from runs", "selec status from runs"):
        with pytest.raises((sqlite3.Error, cast("Any", asyncpg).PostgresError)):
            await prepare(sql)
