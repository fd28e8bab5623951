"""Lists: the duration of one page of runs, by filter, among very many runs, on Postgres and SQLite.

The runs are loaded by SQL without ANALYZE: most belong to one tenant and have completed, the newest tenth is queued.
Each filter matches runs that are rare, old, or frequent. First pages and pages from the middle are measured.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers
from runlane.domain.ids import run_id_at
from runlane.domain.run import Status
from runlane.settings import load_settings
from runlane.store.queue.run_counts import count_runs
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.sql.database import Database, open_database
from runlane.store.sql.migrate import upgrade

SYSTEM_OF: Final = {"postgresql": "runlane", "sqlite": "runlane-sqlite"}
_TRIES: Final = 12
_PAGE: Final = 50
_TENANTS: Final = 50
# The first run was accepted at this time, and one more in each of the milliseconds after it.
_FIRST_MS: Final = 1_767_225_600_000

# Every 20th run belongs to another tenant; the oldest ten runs belong to a tenant of their own.
_TENANT: Final = (
    "case when n <= 10 then 'small' when n % 20 = 0 then 'tenant-' || (n / 20 % {tenants}) else 'default' end"
)
_STATUS: Final = (
    "case when n > {runs} * 9 / 10 then 'queued' when n % 10000 = 3 then 'paused' when n % 10000 = 5 then 'running' "
    "when n % 50 = 7 then 'failed' when n % 200 = 11 then 'cancelled' else 'completed' end"
)
_TARGET: Final = "case when n % 100000 = 17 then 'rare' else 'task-' || (n / 1000 % 20) end"
_LANE: Final = "case when n % 100000 = 17 then 'rare' else 'lane-' || (n / 1000 % 5) end"
_RUNS: Final = (
    "insert into runs (id, tenant, target, lane, status, rank, priority, max_attempts, max_losses, last_seq, "
    f"accepted_at, ended_at, worker_id, ordering_key) "
    f"select {{id}}, {_TENANT}, {_TARGET}, {_LANE}, {_STATUS}, n, 0, 3, 10, 1, "
    f"({_FIRST_MS} + n) * 1000, case when ({_STATUS}) in ('completed', 'failed', 'cancelled') then n end, "
    f"case when ({_STATUS}) = 'running' then 'wrk_' || n end, "
    "case when n % 100 = 0 then 'key-' || (n / 100 % 100) end from {numbers}"
)
_TAGS: Final = (
    f"insert into run_tags (tenant, tag, run_id) select {_TENANT}, "
    "case when n % 10000 = 1 then 'rare' else 'nightly' end, {id} from {numbers} where n % 100 = 1"
)
# Every 100th run was started by a schedule, most of them by one.
_SCHEDULED: Final = (
    f"insert into run_tags (tenant, tag, run_id) select {_TENANT}, "
    "case when n % 10000 = 2 then '#schedule:yearly' else '#schedule:hourly' end, {id} from {numbers} where n % 100 = 2"
)
# Every third run is a child of the run before it.
_KEYS: Final = (
    "insert into idempotency_keys (key, fingerprint, run_id, created_at) select 'child-' || n, '', {id}, 0 "
    "from {numbers} where n % 3 = 0"
)
_CHILDREN: Final = (
    "insert into run_children (key, run_id, path, begun_at) select 'child-' || n, {parent}, 'work', 0 from {numbers} "
    "where n % 3 = 0"
)
_NUMBERS: Final = {
    "postgresql": "(select generate_series(1, {runs}) as n) as numbers",
    "sqlite": "(with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {runs}) "
    "select n from numbers)",
}
_ID: Final = {
    "postgresql": f"'run_' || lpad(to_hex({_FIRST_MS} + {{n}}), 12, '0') || lpad(to_hex({{n}}), 20, '0')",
    "sqlite": f"'run_' || printf('%012x%020x', {_FIRST_MS} + {{n}}, {{n}})",
}


def filters(runs: int) -> Mapping[str, RunFilter]:
    """Return the filters that are measured, by what they show."""
    tenant: dict[str, Any] = {"tenant": "default"}
    return {
        "all tenants": RunFilter(),
        "all tenants, failed": RunFilter(statuses=(Status.FAILED,)),
        "all tenants, rare target": RunFilter(target="rare"),
        "tenant": RunFilter(**tenant),
        "tenant with 10 old runs": RunFilter(tenant="small"),
        "tenant, completed": RunFilter(**tenant, statuses=(Status.COMPLETED,)),
        "tenant, paused": RunFilter(**tenant, statuses=(Status.PAUSED,)),
        "tenant, running": RunFilter(**tenant, statuses=(Status.RUNNING,)),
        "tenant, no run": RunFilter(**tenant, statuses=(Status.BLOCKED,)),
        "all tenants, roots": RunFilter(roots_only=True),
        "tenant, roots": RunFilter(**tenant, roots_only=True),
        "tenant, failed roots": RunFilter(**tenant, roots_only=True, statuses=(Status.FAILED,)),
        "tenant with 10 old runs, roots": RunFilter(tenant="small", roots_only=True),
        "target": RunFilter(**tenant, target="task-7"),
        "rare target": RunFilter(**tenant, target="rare"),
        "target, failed": RunFilter(**tenant, target="task-7", statuses=(Status.FAILED,)),
        "lane": RunFilter(**tenant, lane="lane-3"),
        "rare lane, completed": RunFilter(**tenant, lane="rare", statuses=(Status.COMPLETED,)),
        "ordering key": RunFilter(ordering_key="key-3"),
        "tag": RunFilter(**tenant, tags=("nightly",)),
        "rare tag": RunFilter(**tenant, tags=("rare",)),
        "tag, failed": RunFilter(**tenant, tags=("nightly",), statuses=(Status.FAILED,)),
        "schedule": RunFilter(**tenant, schedule_id="hourly"),
        "rare schedule": RunFilter(**tenant, schedule_id="yearly"),
        "schedule, failed": RunFilter(**tenant, schedule_id="hourly", statuses=(Status.FAILED,)),
        "a second long ago": RunFilter(
            **tenant,
            accepted_from_us=(_FIRST_MS + runs // 4) * 1000,
            accepted_before_us=(_FIRST_MS + runs // 4 + 1000) * 1000,
        ),
        "text without a match": RunFilter(**tenant, text="no such text"),
        "target and lane": RunFilter(**tenant, target="task-7", lane="lane-2"),
    }


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per database and filter the times of first pages and of pages from the middle."""
    with servers.workspace() as workspace, TemporaryDirectory() as folder:
        path = Path(folder) / "lists.db"
        await SYSTEMS["runlane"](workspace).prepare()
        await _fill_postgres(workspace.database_url, sizes.listed)
        await upgrade(load_settings(database_url=f"sqlite:///{path}"))
        _fill_sqlite(path, sizes.listed)
        await servers.checkpoint()
        for url in (workspace.database_url, f"sqlite:///{path}"):
            database = await open_database(load_settings(database_url=url))
            try:
                async for sample in _measure(database, sizes.listed):
                    yield sample
            finally:
                await database.close()


async def _measure(database: Database, runs: int) -> AsyncGenerator[Sample]:
    middle = run_id_at((_FIRST_MS + runs // 2) * 1000)
    system = SYSTEM_OF[database.dialect]
    for name, wanted in filters(runs).items():
        for below, what in ((None, "first page"), (middle, "middle")):
            times = [
                await _time(lambda w=wanted, b=below: search_runs(database, w, below=b, limit=_PAGE))
                for _ in range(_TRIES)
            ]
            yield Sample("lists", system, f"{name}, {what}", 0, "ms", times[2:])
    times = [await _time(lambda: count_runs(database, "default")) for _ in range(_TRIES)]
    yield Sample("lists", system, "counts by status", 0, "ms", times[2:])


async def _time(read: Callable[[], Any]) -> float:
    started = time.perf_counter()
    await read()
    return (time.perf_counter() - started) * 1000


def _statements(dialect: str, runs: int) -> list[str]:
    numbers = _NUMBERS[dialect].format(runs=runs)
    filled = {"runs": runs, "tenants": _TENANTS, "numbers": numbers, "id": _ID[dialect].format(n="n")}
    filled["parent"] = _ID[dialect].format(n="(n - 1)")
    names = [f"tenant-{number}" for number in range(_TENANTS)]
    tenants = [
        f"insert into tenants (id, name, created_at, updated_at) values ('{name}', '{name}', 0, 0)"
        for name in ("small", *names)
    ]
    return [*tenants, *(rows.format(**filled) for rows in (_RUNS, _TAGS, _SCHEDULED, _KEYS, _CHILDREN))]


async def _fill_postgres(url: str, runs: int) -> None:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        for statement in _statements("postgresql", runs):
            await connection.execute(statement)
    finally:
        await connection.close()


def _fill_sqlite(path: Path, runs: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in _statements("sqlite", runs):
            connection.execute(statement)
        connection.commit()
