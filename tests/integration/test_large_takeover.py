"""Taking over the runs of many workers at once."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import asyncpg

from runlane import Settings
from runlane.store.queue.reaping import take_over
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer

RUNS = 20_000


async def test_a_whole_cluster_with_ordering_keys_is_taken_over() -> None:
    # Room for about 13,000 locks, as in a server with default settings.
    with PostgresServer({"max_connections": "100"}) as server:
        url = server.create_database(f"takeover_{uuid4().hex}")
        # It is about locks, not about how fast the machine is.
        settings = Settings(database_url=url, worker_health_port=0, database_timeout_seconds=60)  # type: ignore[arg-type]
        await upgrade(settings)
        operator: Any = await cast("Any", asyncpg).connect(url)
        await operator.execute(
            """
            insert into runs (id, target, lane, status, rank, priority, attempt, max_attempts, max_losses, last_seq,
                              accepted_at, claimed_at, worker_id, ordering_key, key_no, holds_key)
            select 'run_' || i, 't', 'default', 'running', i, 0, 1, 3, 10, 2, 1, 1, 'wrk_' || i / 50, 'k' || i, 1, true
            from generate_series(1, $1) as i
            """,
            RUNS,
        )
        database = await open_database(settings)
        workers = [f"wrk_{number}" for number in range(RUNS // 50 + 1)]
        taken = await database.transact(lambda session: take_over(session, workers))
        await database.close()
        waiting = await operator.fetchval("select count(*) from runs where status = 'queued' and holds_key")
        await operator.close()
    assert taken.runs == waiting == RUNS
