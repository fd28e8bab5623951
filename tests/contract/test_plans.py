"""Postgres' plans for the hot statements: by index alone, without statistics and with many runs waiting."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator
from functools import partial
from itertools import count
from typing import Any, cast

import asyncpg
import pytest

from runlane.domain.run import Status
from runlane.settings import Settings
from runlane.store.access.idempotency import _FORGET_ABANDONED, _FORGET_OLD
from runlane.store.access.limit_changes import _MARK
from runlane.store.access.tenants import _HAS_RUNS
from runlane.store.orchestration.children import _MARKED, _PARENTS_OF, _TAKE_ENDED, _WAKE, MARK_CHILDREN
from runlane.store.queue import claim_survey
from runlane.store.queue.claim import CLAIM, CLAIM_LIMITED, CLAIM_QUARANTINED
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.operation_gauges import _OLDEST_ENDED
from runlane.store.queue.overview import _OF_TENANT
from runlane.store.queue.reaping import TAKE_BACK
from runlane.store.queue.record import RECORD
from runlane.store.queue.retention import _BACKWARDS, _CUT_ALL, _CUT_ONE, _OLD, _TO_CUT
from runlane.store.queue.run_counts import COUNTS
from runlane.store.queue.run_lists import FLOORS, SEARCHES
from runlane.store.queue.run_ranges import RunIndex
from runlane.store.queue.runs import _READ
from runlane.store.queue.timers import _QUEUE_PAUSED, _QUEUE_SCHEDULED
from runlane.store.schedules.rows import LATEST_FIRINGS
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session, open_database
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.claims import _ENDPOINTS, _IN_FLIGHT, _TAKE
from runlane.store.webhooks.endpoints import _LIST as _LIST_ENDPOINTS
from runlane.store.webhooks.outbox import _SUBSCRIPTIONS
from runlane.store.webhooks.results import RECORD_TRIES
from runlane.testing import ExternalPostgres, PostgresServer
from tests.conftest import in_new_loop
from tests.harness import Store, settings_for

ROWS = 100_000


_FILLED = "runlane_many_runs"
_numbers = count(1)


@pytest.fixture(scope="module")
def filled(postgres_server: PostgresServer | ExternalPostgres, postgres_template: str) -> Generator[str]:
    """Return the name of a database to copy, with many queued runs that no ANALYZE has seen."""
    postgres_server.drop_database(_FILLED)
    in_new_loop(partial(_fill, postgres_server.create_database(_FILLED, postgres_template)))
    yield _FILLED
    postgres_server.drop_database(_FILLED)


async def _fill(url: str) -> None:
    connection = await cast("Any", asyncpg).connect(url)
    await connection.execute(
        "alter table runs set (autovacuum_enabled = off); "
        "insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, accepted_at) "
        "select 'run_' || n, 'job', case when n % 2 = 0 then 'default' else 'media' end, 'queued', n, 0, 3, 10, n "
        f"from generate_series(1, {ROWS}) as n"
    )
    await connection.close()


@pytest.fixture
def settings(
    request: pytest.FixtureRequest, postgres_server: PostgresServer | ExternalPostgres, filled: str
) -> Generator[Settings]:
    name = f"runlane_plans_{next(_numbers)}"
    postgres_server.drop_database(name)
    url = postgres_server.create_database(name, filled)
    yield settings_for(url, pgbouncer=getattr(request, "param", "postgres") != "postgres")
    postgres_server.drop_database(name)


@pytest.fixture
async def full(settings: Settings) -> AsyncGenerator[Store]:
    """A store with many queued runs that no ANALYZE has seen."""
    database = await open_database(settings)
    store = Store(settings, database)
    await declare_lanes(database, ["default", "media"])
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
        # The session sends the settings of its transaction before its first statement.
        rows = await cast("Any", session)._fetch("explain", f"explain (costs off) {sql}", arguments)
        return "\n".join(row[0] for row in rows)

    return await store.database.transact(work)


def check(plan: str, index: str) -> None:
    lines = [line.strip(" ->") for line in plan.splitlines()]
    assert any(index in line for line in lines), plan
    assert not [line for line in lines if line.startswith("Seq Scan on runs")], plan
    assert not [line for line in lines if line.startswith(("Sort", "Hash", "Merge"))], plan


@pytest.mark.parametrize("settings", ["postgres", "postgres-pgbouncer"], indirect=True)
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


LISTS: dict[RunIndex, tuple[str, ...]] = {
    RunIndex.ID: ("runs_pkey",),
    RunIndex.STATUS: ("runs_ended_status", "runs_waiting"),
    RunIndex.TARGET: ("runs_ended_target", "runs_waiting"),
    RunIndex.LANE: ("runs_ended_target", "runs_waiting"),
    RunIndex.TARGET_AND_LANE: ("runs_ended_target", "runs_waiting"),
    RunIndex.KEY: ("runs_by_key",),
    RunIndex.TAG: ("run_tags_pkey",),
    RunIndex.PARENT: ("run_children_run",),
    RunIndex.IDS: ("runs_pkey",),
}


@pytest.fixture
async def varied(full: Store) -> Store:
    """The same store with runs of every kind."""
    await full.sql("update runs set tenant = 'acme', target = 'mail' where rank % 1000 = 0")
    await full.sql("update runs set status = 'completed', ended_at = rank where rank % 2 = 0")
    await full.sql("update runs set status = 'failed' where rank % 500 = 0 and ended_at is not null")
    await full.sql("update runs set status = 'running', worker_id = 'wrk' where rank % 5000 = 1")
    await full.sql("update runs set ordering_key = 'k' || rank % 100 where rank % 10 = 0")
    await full.sql(
        "insert into run_tags (tenant, tag, run_id) select tenant, 'tag' || rank % 10, id from runs where rank % 50 = 0"
    )
    await full.sql(
        "insert into run_children (key, run_id, path, begun_at) select 'key' || n, 'run_' || n / 10, 'path', n "
        "from generate_series(1, 20000) as n"
    )
    await full.sql(
        "insert into idempotency_keys (key, fingerprint, run_id, created_at) select 'key' || n, '', 'run_' || n, n "
        "from generate_series(1, 20000) as n"
    )
    return full


@pytest.mark.parametrize("analyzed", [False, True])
async def test_every_list_goes_by_its_indexes(varied: Store, analyzed: bool) -> None:
    """However rare the matching runs are: no list reads all runs, sorts them, or walks over those of other ranges."""
    if analyzed:
        await varied.sql("analyze")
    statuses = [status.value for status in Status]
    params: dict[str, Any] = {
        "accepted_from": None, "accepted_before": None, "pattern": "%x%",
        "tenant": "acme", "tenants": ["acme", "default"], "ordering_key": "k1", "parent": "run_1", "ids": ["run_1"],
        "statuses": statuses, "waiting_statuses": statuses, "ended_statuses": statuses, "with_running": True,
        "tag": "tag1", "other_tags": ["tag2"], "other_count": 1, "below": "zzzz", "floor": "", "limit": 50,
        "skipped": 100, "most": 100, "worker_id": "wrk_1", "error_code": "timeout", "roots_only": True,
        "definition": "v1", "min_duration_us": 1, "max_duration_us": 2, "min_cost_usd": 0.1, "max_cost_usd": 0.2,
    }  # fmt: skip
    for index, names in LISTS.items():
        statements = [SEARCHES["postgresql"][index]]
        if index in FLOORS["postgresql"]:
            statements.append(FLOORS["postgresql"][index])
        if index in COUNTS["postgresql"]:
            statements.append(COUNTS["postgresql"][index])
        given = {"target": "none" if "target" in index else None, "lane": "media" if "lane" in index else None}
        for statement in statements:
            plan = await plan_of(varied, statement, **(params | given))
            for name in names:
                assert name in plan, plan
            assert "Seq Scan" not in plan, plan
            check_scans(plan)


def check_scans(plan: str) -> None:
    """Check that every scan of an index is bound by a condition, or reads the few runs that are running."""
    lines = plan.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if "Index" in line and "Scan" in line and "runs_running" not in line:
            assert "Index Cond:" in following, plan
        assert not any(other in line for other in ("Bitmap", "Hash", "Merge Join")), plan


async def test_a_change_of_limits_finds_the_open_runs_by_their_index(varied: Store) -> None:
    begin = {"after_target": "", "after_lane": "", "after_status": "", "after_id": ""}
    plan = await plan_of(varied, _MARK, tenant="acme", **begin)
    check(plan, "runs_waiting")
    check(plan, "runs_running")
    plan = await plan_of(varied, _HAS_RUNS, tenant="acme")
    for index in ("runs_waiting", "runs_running", "runs_ended_"):
        check(plan, index)
    assert "Index Scan using runs_waiting" in await plan_of(varied, _OF_TENANT, tenant="acme")


async def test_a_blocked_run_finds_the_holder_of_its_key_by_index(full: Store) -> None:
    plan = await plan_of(full, _READ, run_id="run_1")
    check(plan, "runs_key_holder")
    check(plan, "runs_pkey")


async def test_deliveries_are_claimed_and_recorded_by_index(full: Store) -> None:
    """However many were delivered before, and however many tenants have endpoints."""
    await full.sql(
        "insert into webhook_endpoints (id, tenant, kind, url, description, rate_per_second, max_in_flight, "
        "created_at, updated_at) select 'we_' || n, 'tenant' || n, 'endpoint', '', '', 1, 1, 0, 0 "
        "from generate_series(1, 2000) as n"
    )
    await full.sql(
        "insert into webhook_deliveries (id, message_id, endpoint_id, tenant, type, status, max_tries, next_at, "
        "created_at) select 'whd_' || n, 'msg', 'we_' || (n % 2000), 'default', 't', "
        "case when n % 100 = 0 then 'pending' else 'delivered' end, 10, n, n from generate_series(1, 20000) as n"
    )
    claim = await plan_of(full, _TAKE, endpoint_id="we_1", slots=5, lease_us=1, only_neutral=False)
    check(claim, "webhook_deliveries_endpoint_due")
    # The endpoints are few and sorted; their deliveries are not read.
    assert "webhook_deliveries_endpoint_due" in await plan_of(full, _ENDPOINTS)
    check(await plan_of(full, _IN_FLIGHT, ids=["we_1"]), "webhook_deliveries_")
    check(await plan_of(full, _SUBSCRIPTIONS, tenants=["tenant7"]), "webhook_endpoints_tenant")
    tries = [("whd_1", 1, "delivered", None, 0, 1, 200, None, None, None, None, None, None)]
    check(await plan_of(full, RECORD_TRIES, tries), "webhook_deliveries_pkey")
    plan = await plan_of(full, RECORD, [("run_1", 1, None, 0, None, 1, None, None, None, None, None, None)])
    check(plan, "webhook_endpoints_tenant")
    # The list of endpoints reads the latest deliveries of each, however many there are.
    plan = await plan_of(full, _LIST_ENDPOINTS, tenant=None, after=None, limit=100)
    assert "Index Scan Backward using webhook_deliveries_endpoint " in plan, plan
    assert "Seq Scan on webhook_deliveries" not in plan, plan


async def test_the_latest_firings_are_read_by_index(full: Store) -> None:
    """However many firings the schedules have had."""
    await full.sql(
        "insert into schedule_firings (schedule_uid, slot, due_at, decided_at, kind, outcome, run_id) "
        "select 'uid' || (n % 2), n, n, n, 'tick', 'started', 'run_' || n from generate_series(1, 20000) as n"
    )
    for analyzed in (False, True):
        if analyzed:
            await full.sql("analyze schedule_firings")
        plan = await plan_of(full, LATEST_FIRINGS, [("uid0",), ("uid1",)], skipped=9)
        check(plan, "schedule_firings_pkey")
        check(plan, "runs_pkey")
        assert re.search(r"Index Cond: \(.*slot >= ", plan), plan


async def test_the_oldest_ended_run_is_found_by_index(full: Store) -> None:
    check(await plan_of(full, _OLDEST_ENDED), "runs_ended")
