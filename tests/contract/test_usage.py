"""Usage of models: added up behind the fence, read per day, agent and model, and known by budgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from runlane.domain.tenant import TenantBudget
from runlane.domain.usage import sum_used
from runlane.errors import InvalidRequest
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, find_tenant, is_free, set_tenant
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Session
from runlane.store.usage import ADD_USAGE, SHARDS, CallUsage, read_budget, read_usage, usage_rows
from tests.harness import Store

_numbers = count(1)


def call(claimed: Claimed, **fields: Any) -> CallUsage:
    plain = CallUsage(claimed.run_id, claimed.attempt, "default", "writer", "openai:gpt", 100, 20, 0.5)
    return replace(plain, **fields)


async def running(store: Store) -> Claimed:
    await store.add()
    (claimed,) = await store.claim(await store.worker())
    return claimed


async def add(store: Store, *calls: CallUsage, shard: int = 0) -> None:
    async def work(session: Session) -> None:
        await session.fetch(ADD_USAGE, usage_rows(calls, shard))

    await store.database.transact(work)


async def spent(store: Store, tenant: str, agent: str | None = None) -> float:
    today = datetime.now(UTC).date()
    used = await read_usage(store.database, tenant, today - timedelta(days=1), today + timedelta(days=1), "agent")
    return sum(row.cost_usd or 0.0 for row in used if agent in (None, row.key))


async def test_calls_are_added_up_and_an_unknown_price_is_not_zero(store: Store) -> None:
    one = await running(store)
    await add(store, call(one), call(one, cost_usd=None, tokens_in=7), call(one, agent="", model="other", cost_usd=2.0))
    await add(store, call(one, cost_usd=0.25), shard=5)
    assert await spent(store, "default") == pytest.approx(2.75)
    assert await spent(store, "default", "writer") == pytest.approx(0.75)
    assert await spent(store, "default", "unknown") == 0
    assert await spent(store, "another") == 0
    today = datetime.now(UTC).date()
    (day,) = await read_usage(store.database, "default", today - timedelta(days=1), today + timedelta(days=1), "day")
    assert (day.calls, day.tokens_in, day.tokens_out, day.unpriced_calls) == (4, 307, 80, 1)
    assert day.key in (today.isoformat(), (today + timedelta(days=1)).isoformat())
    by_agent = await read_usage(store.database, None, today, today + timedelta(days=1), "agent")
    assert [(used.key, used.calls) for used in by_agent] == [("", 1), ("writer", 3)]
    by_model = await read_usage(store.database, "default", today, today + timedelta(days=1), "model")
    assert [(used.key, used.calls) for used in by_model] == [("openai:gpt", 3), ("other", 1)]
    assert sum_used(by_model) == replace(day, key="total")
    assert await read_usage(store.database, "another", today, today, "day") == []
    assert sum_used([]).cost_usd == 0


async def test_the_cost_of_calls_that_have_no_price_at_all_is_unknown(store: Store) -> None:
    one = await running(store)
    await add(store, call(one, model="own", cost_usd=None), call(one, model="known", cost_usd=0.5))
    today = datetime.now(UTC).date()
    used = await read_usage(store.database, "default", today, today + timedelta(days=1), "model")
    assert [(item.key, item.cost_usd, item.unpriced_calls) for item in used] == [("known", 0.5, 0), ("own", None, 1)]
    assert sum_used(used).cost_usd == 0.5
    assert sum_used(used[1:]).cost_usd is None


async def test_an_attempt_that_lost_its_run_adds_nothing(store: Store) -> None:
    one = await running(store)
    await add(store, call(one, attempt=one.attempt + 1), call(one, run_id="run_unknown", model="m"))
    assert await store.sql("select * from usage_daily") == []


async def test_many_workers_add_to_the_same_rows_without_getting_in_each_others_way(store: Store) -> None:
    one = await running(store)
    models = ("a", "b", "c", "d")

    async def work(number: int) -> None:
        order = models if number % 2 else models[::-1]
        # Two of them share a shard on purpose, and write their rows in opposite orders.
        await add(store, *(call(one, model=model, cost_usd=0.001) for model in order), shard=number % 2)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(number) for number in range(40)))
    assert await spent(store, "default") == pytest.approx(40 * 4 * 0.001)
    rows = await store.sql("select * from usage_daily")
    assert len(rows) <= 2 * 4 * 2
    assert {row["shard"] for row in rows} <= set(range(SHARDS))


async def test_a_tenant_has_a_budget_that_accepting_runs_does_not_look_at(store: Store) -> None:
    tenant = f"acme{next(_numbers)}"
    made = await create_tenant(store.database, tenant, actor="test", budget=TenantBudget(5.0, "ask"))
    assert made.budget == TenantBudget(5.0, "ask")
    assert await is_free(store.database, tenant)
    one = await running(store)
    await add(store, call(one, tenant=tenant, cost_usd=1.5), call(one, tenant=tenant, agent="x", cost_usd=1.0))
    known = await read_budget(store.database, tenant, "x")
    assert (known.tenant_limit_usd, known.on_cap) == (5.0, "ask")
    assert (known.tenant_usd, known.agent_usd) == (pytest.approx(2.5), pytest.approx(1.0))
    change = TenantChange(on_cap="fail", unlimited=frozenset({"max_cost_usd_per_day"}))
    old, new = await set_tenant(store.database, tenant, change, actor="test")
    assert (old.budget, new.budget) == (TenantBudget(5.0, "ask"), TenantBudget(None, "fail"))
    unlimited = await read_budget(store.database, tenant)
    assert (unlimited.tenant_limit_usd, unlimited.tenant_usd, unlimited.agent_usd) == (None, 0, 0)
    for wrong in (TenantChange(on_cap="beg"), TenantChange(max_cost_usd_per_day=-1.0)):
        with pytest.raises(InvalidRequest):
            await set_tenant(store.database, tenant, wrong, actor="test")
    assert (await find_tenant(store.database, tenant)).budget == TenantBudget(None, "fail")
    await delete_tenant(store.database, tenant, actor="test")
    assert await spent(store, tenant) == 0


async def test_an_unknown_tenant_has_no_budget(store: Store) -> None:
    known = await read_budget(store.database, "unknown", "agent")
    assert (known.tenant_limit_usd, known.on_cap, known.tenant_usd, known.agent_usd) == (None, "fail", 0, 0)
