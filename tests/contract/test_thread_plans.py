"""Postgres' plans for the statements that runs of graphs and readers of threads issue: by index, also without rows."""

from __future__ import annotations

from typing import Any, cast

import asyncpg

from runlane.store.queue import events
from runlane.store.sql.database import Session, open_database
from runlane.store.sql.statement import Statement
from runlane.store.threads import checkpoints, deletion, expiry, graph_writes, items, refresh, run_ends
from tests.harness import settings_for
from tests.threads import checkpoint_writes

_PLACE = {"before": None, "after_id": None, "after_ns": None, "after_thread": None, "limit": 10}
_WRITES = checkpoint_writes(1)


def _twice(*member: Any) -> list[tuple[Any, ...]]:
    return [member, member]


# What each statement must find its rows by.
STATEMENTS: dict[str, tuple[Statement, list[tuple[Any, ...]] | None, dict[str, Any], str]] = {
    "newest": (checkpoints._NEWEST, None, {"thread": "t", "ns": ""}, "(thread ="),
    "history": (checkpoints._OF_NAMESPACE, None, {"thread": "t", "ns": "", **_PLACE}, "(thread ="),
    "values": (checkpoints._VALUES, _twice("t", "", "a", "1"), {}, "(version = batch.version)"),
    "writes": (checkpoints._WRITES, _twice("t", "", "c"), {}, "(checkpoint_id = batch.id)"),
    "store checkpoints": (graph_writes.STORE_CHECKPOINTS, _twice("r", 1, *_WRITES.checkpoints[0]), {}, "(id = batch"),
    "store values": (graph_writes.STORE_VALUES, _twice("r", 1, *_WRITES.values[0]), {}, "(id = batch.run_id)"),
    "results": (graph_writes.SET_RESULTS, _twice("r", 1, "t", "idle", None, None), {}, "(run_id = batch.run_id)"),
    "outcomes": (graph_writes.SET_OUTCOMES, _twice("r", 1, "success"), {}, "(run_id = runs.id)"),
    "ends": (run_ends._END, _twice("t", 1, None), {}, "(key = batch.key)"),
    "special runs": (run_ends._SPECIAL, None, {"ids": ["r"]}, "(run_id = ANY"),
    "newest of threads": (refresh._NEWEST, None, {"keys": ["t"]}, "(thread = threads.key)"),
    "newer": (refresh._NEWER, _twice("t", "", "c", 1), {}, "(id = batch.id)"),
    "rollback": (deletion._WRITES_OF_RUNS, None, {"thread": "t", "run_ids": ["r"]}, "(thread ="),
    "orphaned writes": (deletion._ORPHANED_WRITES, None, {"thread": "t"}, "(thread ="),
    "unused values": (deletion._DELETE_VALUES, _twice("t", "", "a", "1"), {}, "(version = batch.version)"),
    "expired": (expiry._EXPIRED, None, {}, "(expires_at <="),
    "expired items": (items._SWEEP, None, {}, "(expires_at <="),
    "get items": (items._GET, _twice("default", "a", "k"), {}, "(key = (batch.key)::text)"),
    "search": (
        items._SCAN,
        None,
        {"tenant": "t", "first": "a", "last": "b", "after_namespace": "", "after_key": "", "limit": 9},
        "(namespace >=",
    ),
}


async def test_statements_of_threads_read_by_index_alone(copied_postgres: str) -> None:
    database = await open_database(settings_for(copied_postgres))

    async def explain(session: Session) -> dict[str, str]:
        fetch = cast("Any", session)._fetch
        plans: dict[str, str] = {}
        for name, (statement, members, params, _) in STATEMENTS.items():
            sql, arguments = statement.bound("postgresql", {"rule": None, **params}, members)
            plans[name] = "\n".join(row[0] for row in await fetch(name, f"explain {sql}", arguments))
        return plans

    try:
        plans = await database.transact(explain)
    finally:
        await database.close()
    assert {name: plan for name, plan in plans.items() if "Seq Scan" in plan or "Sort" in plan} == {}
    missing = {name: plan for name, plan in plans.items() if STATEMENTS[name][3] not in plan}
    assert missing == {}


async def test_events_of_many_runs_are_read_by_index_without_statistics(copied_postgres: str) -> None:
    connection = await cast("Any", asyncpg).connect(copied_postgres)
    try:
        await connection.execute(
            "alter table run_events set (autovacuum_enabled = off); "
            "insert into run_events (run_id, seq, attempt, type, at, data) "
            "select 'run_' || n % 20000, n / 20000, 1, 'log', "
            "1, repeat('x', 300) from generate_series(0, 179999) as n"
        )
        members = [(f"run_{number}", 3) for number in range(17)]
        sql, arguments = events._LINES["postgresql"].bound("postgresql", {"limit": 500}, members)
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain {sql}", *arguments))
        assert "Seq Scan" not in plan, plan
        assert len(await connection.fetch(sql, *arguments)) == 17 * 5
    finally:
        await connection.close()
