"""Whether a commit happened is answered once it is certain: an open transaction is neither committed nor aborted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import asyncpg
import pytest

from tests.harness import Store, eventually


@pytest.mark.parametrize("settings", ["postgres", "postgres-pgbouncer"], indirect=True)
@pytest.mark.parametrize(("end", "committed"), [("commit", True), ("rollback", False)])
async def test_the_fate_of_an_open_transaction_is_waited_for(
    store: Store, postgres_url: str, end: str, committed: bool
) -> None:
    # Within one transaction the server's activity looks the same all the time, so another connection watches it.
    open_one: Any = await cast("Any", asyncpg).connect(postgres_url)
    watching: Any = await cast("Any", asyncpg).connect(postgres_url)
    try:
        await open_one.execute("begin")
        mark: str = await open_one.fetchval("select pg_current_xact_id()::text")
        asking = asyncio.create_task(store.database.was_committed(mark))

        async def asked() -> bool:
            found = await watching.fetchval(
                "select count(*) from pg_stat_activity "
                "where query like '%pg_xact_status%' and state = 'idle' and pid <> pg_backend_pid()"
            )
            return asking.done() or found > 0

        await eventually(asked, "the first question for the transaction's fate")
        await open_one.execute(end)
        assert await asking is committed
    finally:
        await open_one.close()
        await watching.close()
