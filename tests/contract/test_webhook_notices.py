"""Budgets and quotas that are nearly used up: reported once, in the transaction that uses them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runlane.domain.budget import BudgetNotice, SpendingCap, notice_of
from runlane.domain.quota import RUNS_PER_DAY
from runlane.domain.webhook_events import WebhookType, schema_of
from runlane.errors import Conflict
from runlane.store.access.quotas import set_quota
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, set_tenant
from runlane.store.orchestration.calls import CallKind, CallRecord
from runlane.store.queue.claim import Claimed
from runlane.store.queue.commit_members import merge_entries
from runlane.store.sql.database import Session
from runlane.store.webhooks.notices import report_quota
from runlane.store.webhooks.retention import delete_old_messages
from runlane.templates.json_schema import misfit
from tests.contract.test_webhooks import claim, endpoint
from tests.harness import Store, completed, entry_of, new_run


async def messages(store: Store) -> list[dict[str, Any]]:
    """Return the messages about budgets and quotas, oldest first."""
    rows = await store.sql("select type, body from webhook_messages order by id")
    found = [json.loads(row["body"]) for row in rows if not row["type"].startswith("run.")]
    for message in found:
        assert misfit(message, schema_of(WebhookType(message["type"]))) is None
    return found


async def spend(store: Store, claimed: Claimed, number: int, cost_usd: float) -> None:
    call = CallRecord("step", f"m{number}", CallKind.MODEL, "{}", "openai:gpt", "writer", 1, 1, cost_usd)
    await store.record(entry_of(claimed, calls=[call], tenant="acme"))


@pytest.fixture
async def run(store: Store) -> Claimed:
    """A running run of a tenant that may spend a dollar a day."""
    await create_tenant(store.database, "acme", actor="test")
    await set_tenant(store.database, "acme", TenantChange(max_cost_usd_per_day=1.0, on_cap="ask"), actor="test")
    await store.add(tenant="acme")
    return await store.claim_one()


async def test_a_daily_budget_is_reported_at_four_fifths_and_when_it_is_reached(store: Store, run: Claimed) -> None:
    await endpoint(store, tenant="acme")
    for number, cost in enumerate((0.5, 0.25, 0.1, 0.05, 0.05, 0.05, 0.2)):
        await spend(store, run, number, cost)
    warning, reached = await messages(store)
    assert (warning["type"], reached["type"]) == ("budget.warning", "budget.reached")
    assert warning["data"] == {
        "scope": "tenant", "name": "acme", "limit_usd": 1.0, "spent_usd": pytest.approx(0.85), "on_cap": "ask",
        "run_id": None, "target": None, "lane": None, "url": None,
    }  # fmt: skip
    assert reached["data"]["spent_usd"] == pytest.approx(1.0)
    # A budget that was raised is reported again.
    await set_tenant(store.database, "acme", TenantChange(max_cost_usd_per_day=1.5), actor="test")
    await spend(store, run, 8, 0.1)
    assert [item["type"] for item in await messages(store)] == ["budget.warning", "budget.reached", "budget.warning"]


async def test_concurrent_spending_reports_a_budget_once(store: Store, run: Claimed) -> None:
    await endpoint(store, tenant="acme")
    runs = await store.add_all(*(new_run(tenant="acme") for _ in range(6)))
    claims = await store.claim(await store.worker(), len(runs))
    await spend(store, run, 0, 0.85)
    await asyncio.gather(*(spend(store, claimed, 1, 0.001) for claimed in claims))
    assert [item["type"] for item in await messages(store)] == ["budget.warning"]


async def test_the_budget_of_a_run_is_reported_with_what_its_attempt_stores(store: Store, run: Claimed) -> None:
    await endpoint(store, tenant="acme")

    def notice(spent: float, limit: float = 2.0) -> BudgetNotice:
        found = notice_of(SpendingCap("run", limit, spent, "fail", "article"), "orchestration:article")
        assert found is not None
        return found

    assert notice_of(SpendingCap("run", 2.0, 1.59), "t") is None
    assert notice_of(SpendingCap("run", None, 100.0), "t") is None
    await store.record(entry_of(run, budgets=[notice(1.6)], tenant="acme"))
    await store.record(entry_of(run, budgets=[notice(1.7), notice(2.0)], tenant="acme"))
    (merged,), _ = merge_entries([entry_of(run, budgets=[notice(1.9)]), entry_of(run, budgets=[notice(2.5, 3.0)])])
    await store.record(merged)
    found = await messages(store)
    assert [(item["type"], item["data"]["limit_usd"]) for item in found] == [
        ("budget.warning", 2.0), ("budget.reached", 2.0), ("budget.warning", 3.0),
    ]  # fmt: skip
    assert {(item["data"]["run_id"], item["data"]["target"]) for item in found} == {
        (run.run_id, "orchestration:article")
    }
    # An attempt that has lost its run reports nothing.
    await store.finish(run)
    lost = entry_of(run, budgets=[notice(5.0, 6.0)], tenant="acme")
    assert await store.record(lost) == {}
    assert len(await messages(store)) == 3


async def test_a_tenant_without_endpoints_or_budget_has_no_notices(store: Store, run: Claimed) -> None:
    await spend(store, run, 0, 5.0)
    await endpoint(store, "we_other")
    await store.add()
    other = await store.claim_one()
    await spend(store, other, 0, 5.0)
    assert await store.count("webhook_notices") == 0
    assert await messages(store) == []
    # An endpoint that is created later gets what is true then.
    await endpoint(store, tenant="acme")
    await spend(store, run, 1, 0.0)
    assert await messages(store) == []
    await spend(store, run, 2, 0.1)
    assert [item["type"] for item in await messages(store)] == ["budget.reached"]
    await store.record(entry_of(run, completed(), tenant="acme"))
    await store.sql("update webhook_deliveries set status = 'discarded', next_at = null")
    await store.sql("delete from runs where tenant = 'acme'")
    await delete_tenant(store.database, "acme", actor="test")
    assert await store.count("webhook_notices") == 0


async def test_a_quota_is_reported_once_a_day_and_with_its_run(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    await endpoint(store, tenant="acme", types=["quota.warning"])
    await set_quota(store.database, "acme", RUNS_PER_DAY, 5, actor="test")
    for _ in range(5):
        await store.accept(new_run(tenant="acme"))
    (warning,) = await messages(store)
    assert warning["data"] == {"quota": RUNS_PER_DAY, "limit": 5, "used": 4}
    # A larger quota on the same day is not reported again; on the next day it is.
    await store.database.transact(lambda session: report_quota(session, "acme", RUNS_PER_DAY, 9, 8))
    assert len(await messages(store)) == 1
    await store.sql("update webhook_notices set day = day - 1, created_at = 1")
    await store.database.transact(lambda session: report_quota(session, "acme", RUNS_PER_DAY, 9, 8))
    assert len(await messages(store)) == 2
    await store.database.transact(lambda session: delete_old_messages(session, 86_400.0))
    assert await store.count("webhook_notices") == 1
    assert {item.type for item in await claim(store)} == {"quota.warning"}


async def test_a_notice_of_a_transaction_that_is_rolled_back_is_sent_later(store: Store) -> None:
    await endpoint(store)

    async def failing(session: Session) -> None:
        await report_quota(session, "default", RUNS_PER_DAY, 10, 8)
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.database.transact(failing)
    await store.database.transact(lambda session: report_quota(session, "default", RUNS_PER_DAY, 10, 9))
    assert [item["data"]["used"] for item in await messages(store)] == [9]
