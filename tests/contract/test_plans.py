"""Postgres' plans for the hot statements: by index alone, without statistics and with many runs waiting."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from runlane.domain.run import Status
from runlane.settings import Settings
from runlane.store.access.idempotency import _FORGET_ABANDONED, _FORGET_OLD
from runlane.store.orchestration.children import _MARKED, _PARENTS_OF, _TAKE_ENDED, _WAKE, MARK_CHILDREN
from runlane.store.queue import claim_survey
from runlane.store.queue.claim import CLAIM, CLAIM_LIMITED, CLAIM_QUARANTINED
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.reaping import TAKE_BACK
from runlane.store.queue.record import RECORD
from runlane.store.queue.retention import _BACKWARDS, _CUT_ALL, _CUT_ONE, _OLD, _TO_CUT
from runlane.store.queue.runs import _READ
from runlane.store.queue.search import _FLOOR, _FLOOR_OF_TENANT, _SEARCH, _SEARCH_OF_TENANT
from runlane.store.queue.timers import _QUEUE_PAUSED, _QUEUE_SCHEDULED
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session, open_database
from runlane.store.sql.statement import Statement
from tests.harness import Store, settings_for

ROWS = 100_000


@pytest.fixture(params=["postgres", "postgres-pgbouncer"])
def settings(request: pytest.FixtureRequest, copied_postgres: str) -> Settings:
    return settings_for(copied_postgres, pgbouncer=request.param != "postgres")


@pytest.fixture
async def full(settings: Settings) -> AsyncGenerator[Store]:
    """A store with many queued runs that no ANALYZE has seen."""
    database = await open_database(settings)
    store = Store(settings, database)
    await declare_lanes(database, ["default", "media"])
    await store.sql("alter table runs set (autovacuum_enabled = off)")
    await store.sql(
        "insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, accepted_at) "
        "select 'run_' || n, 'job', case when n % 2 = 0 then 'default' else 'media' end, 'queued', n, 0, 3, 10, n "
        f"from generate_series(1, {ROWS}) as n"
    )
    (analyzed,) = await store.sql(
        "select last_analyze is null and last_autoanalyze is null as never from pg_stat_user_tables "
        "where relname = 'runs'"
    )
    assert analyzed["never"]
    try:
        yield store
    finally:
        await database.close()


async def plan_of(store: Store, statement: Statement | CompoundWrite, members: Any = None, **params: Any) -> str:
    if isinstance(statement, CompoundWrite):
        sql, arguments = statement.bound(params, members)
    else:
        sql, arguments = statement.bound("postgresql", params, members)

    async def work(session: Session) -> str:
        connection = cast("Any", session)._connection
        rows = await connection.fetch(f"explain (costs off) {sql}", *arguments)
        return "\n".join(row[0] for row in rows)

    return await store.database.transact(work)


def check(plan: str, index: str) -> None:
    lines = [line.strip(" ->") for line in plan.splitlines()]
    assert any(index in line for line in lines), plan
    assert not [line for line in lines if line.startswith("Seq Scan on runs")], plan
    assert not [line for line in lines if line.startswith(("Sort", "Hash", "Merge"))], plan


async def test_a_claim_and_its_survey_use_the_index_of_ready_runs(full: Store) -> None:
    worker = await full.worker()
    wanted = {"targets": ["job"], "orchestrations": "orchestration:", "agents": "agent:"}
    first = {"worker_id": worker, **wanted}
    begin = {"queue_lane": "", "queue_tenant": "", **wanted}
    served = [("default",), ("media",)]
    check(await plan_of(full, claim_survey.LANES, lane_after="", **first), "runs_ready")
    check(await plan_of(full, claim_survey.LANES_OF_SOME, served, **first), "runs_ready")
    check(await plan_of(full, claim_survey.LIMITED, **begin), "runs_ready_limited")
    check(await plan_of(full, claim_survey.LIMITED_OF_SOME, served, **begin), "runs_ready_limited")
    check(await plan_of(full, claim_survey.QUARANTINED, **wanted), "runs_ready_quarantined")
    check(await plan_of(full, claim_survey.QUARANTINED_OF_SOME, served, **wanted), "runs_ready_quarantined")
    check(await plan_of(full, CLAIM, lane="default", slots=50, **first), "runs_ready")
    check(await plan_of(full, CLAIM_LIMITED, lane="default", tenant="t", slots=50, **first), "runs_ready_limited")
    check(await plan_of(full, CLAIM_QUARANTINED, ids=["run_1"], slots=5, worker_id=worker), "runs_ready_quarantined")


async def test_the_other_hot_statements_use_their_indexes(full: Store) -> None:
    check(
        await plan_of(full, RECORD, [("run_1", 1, None, 0, None, 1, None, None, None, None, None, None)]), "runs_pkey"
    )
    check(await plan_of(full, TAKE_BACK, [("wrk", 2)]), "runs_running")
    check(await plan_of(full, TAKE_BACK, [("wrk", 2), ("other", 1)]), "runs_running")
    check(await plan_of(full, _QUEUE_SCHEDULED), "runs_due")
    check(await plan_of(full, _QUEUE_PAUSED), "runs_paused_due")


async def test_child_runs_are_found_by_index(full: Store) -> None:
    await full.sql(
        "insert into run_children (key, run_id, path, begun_at, cancel_at) select 'key' || n, 'run_' || n, 'path', n, "
        "case when n = 1 then 1 end from generate_series(1, 20000) as n"
    )
    check(await plan_of(full, _MARKED), "run_children_marked")
    check(await plan_of(full, MARK_CHILDREN, run_id="run_1"), "run_children_run")
    check(await plan_of(full, _PARENTS_OF, ids=["run_1"]), "idempotency_keys_run")
    check(await plan_of(full, _TAKE_ENDED, ids=["run_1"]), "run_children_run")
    check(await plan_of(full, _WAKE, ids=["run_1"]), "runs_pkey")


async def test_an_end_finds_its_run_by_key_and_not_among_all_that_run(full: Store) -> None:
    """Postgres takes the partial index of running runs for nearly empty, and would walk it for every member."""
    await full.sql("update runs set status = 'running', attempt = 1 where rank <= 2000")
    for analyzed in (False, True):
        if analyzed:
            await full.sql("analyze runs")
        plan = await plan_of(full, RECORD, [("run_1", 1, None, 0, None, 1, None, None, None, None, None, None)])
        check(plan, "runs_pkey")
        assert "runs_running" not in plan


async def test_runs_that_are_not_due_are_not_read(full: Store) -> None:
    """However many runs wait for their time or are kept after their end: the clock bounds the index."""
    await full.sql("update runs set status = 'scheduled', due_at = rank where rank <= 2000")
    await full.sql("update runs set status = 'completed', ended_at = rank where rank > 98000")
    for plan, bound in (
        (await plan_of(full, _QUEUE_SCHEDULED), "(due_at <= "),
        (await plan_of(full, _OLD, keep_seconds=1.0), "(ended_at < "),
    ):
        assert [line for line in plan.splitlines() if "Index Cond:" in line and bound in line], plan


async def test_cutting_events_looks_at_those_runs_and_their_events_only(full: Store) -> None:
    await full.sql("update runs set status = 'completed', ended_at = rank, last_seq = 3 where rank > 50000")
    look_back = await plan_of(full, _BACKWARDS, keep_seconds=1.0, before=99_000)
    to_cut = await plan_of(full, _TO_CUT, keep_seconds=1.0, since=60_000)
    for plan, bound in ((look_back, "(ended_at < '99000'::bigint)"), (to_cut, "(ended_at >= '60000'::bigint)")):
        check(plan, "runs_ended")
        assert [line for line in plan.splitlines() if "Index Cond:" in line and bound in line], plan
    check(await plan_of(full, _CUT_ALL, ids=["run_1", "run_2"]), "run_events_pkey")
    check(await plan_of(full, _CUT_ONE, run_id="run_1", first=5), "run_events_pkey")


async def test_a_request_with_a_key_does_not_read_the_answers_to_all_others(full: Store) -> None:
    await full.sql(
        "insert into api_answers (key, fingerprint, created_at) "
        "select 'k' || n, '', n from generate_series(1, 20000) as n"
    )
    old = await plan_of(full, _FORGET_OLD)
    check(old, "api_answers_created")
    assert [line for line in old.splitlines() if "Index Cond: (created_at < " in line], old
    check(await plan_of(full, _FORGET_ABANDONED, key="k5"), "api_answers_pkey")


async def test_a_search_goes_by_the_tenants_index_and_stops(full: Store) -> None:
    """However few of the runs are the tenant's own."""
    await full.sql("update runs set tenant = 'acme' where rank % 1000 = 0")
    filters: dict[str, Any] = {
        "statuses": [status.value for status in Status], "target": "none", "lane": None, "ordering_key": None,
        "accepted_from": None, "accepted_before": None, "pattern": "%x%", "below": "zzzz", "floor": "", "limit": 50,
    }  # fmt: skip
    check(await plan_of(full, _SEARCH_OF_TENANT, tenant="acme", **filters), "runs_tenant")
    check(await plan_of(full, _FLOOR_OF_TENANT, tenant="acme", below="zzzz", skipped=19_999), "runs_tenant")
    check(await plan_of(full, _SEARCH, **filters), "runs_pkey")
    check(await plan_of(full, _FLOOR, below="zzzz", skipped=19_999), "runs_pkey")


async def test_a_blocked_run_finds_the_holder_of_its_key_by_index(full: Store) -> None:
    plan = await plan_of(full, _READ, run_id="run_1")
    check(plan, "runs_key_holder")
    check(plan, "runs_pkey")
