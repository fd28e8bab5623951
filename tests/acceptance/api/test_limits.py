"""Limits of model providers and usage over HTTP: they can be read and changed while runs are executed, per tenant."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from runlane import Client, Forbidden, InvalidRequest, NotFound
from runlane.domain.usage import UsageRow
from runlane.errors import Conflict
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.store.access.tenants import create_tenant
from runlane.store.rate_limits import limits as limit_store
from runlane.store.sql.database import Session, read_clock
from runlane.store.usage import ADD_USAGE, CallUsage, usage_rows
from tests.acceptance.api.serving import API, Api
from tests.harness import Store, eventually, new_run


async def ignore(reason: str) -> None:
    """Waiting without a word."""


async def listed(api: Api, credential: str) -> dict[str, Any]:
    answer = await api.get("/limits")
    assert answer.status_code == 200, answer.text
    return {item["credential"]: item for item in answer.json()["limits"]}[credential]


async def test_limits_are_listed_with_what_is_used_now(idle_api: Api) -> None:
    assert (await listed(idle_api, "openai"))["in_flight"] == 8
    assert (await listed(idle_api, "openai"))["default"] is True
    limiter = ClusterLimiter(idle_api.parts.database)
    try:
        slot = await limiter.acquire("openai", tokens=120, timeout_seconds=10, on_wait=ignore)
        now = (await listed(idle_api, "openai"))["now"]
        assert now == {
            "in_flight": 1, "requests_this_minute": 1, "tokens_this_minute": 120, "waiting_processes": 0,
        }  # fmt: skip
        await limiter.slow_down("openai", 30, "429 Too Many Requests")
        await slot.release(20)
        seen = await listed(idle_api, "openai")
        assert seen["now"]["in_flight"] == 0
        assert seen["now"]["tokens_this_minute"] == 20
        assert seen["backing_off_reason"] == "429 Too Many Requests"
        left = datetime.fromisoformat(seen["backing_off_until"]) - datetime.now(UTC)
        assert timedelta(seconds=10) < left <= timedelta(seconds=31)
    finally:
        await limiter.close()


async def test_a_change_takes_effect_and_is_in_the_audit_log(idle_api: Api) -> None:
    limiter = ClusterLimiter(idle_api.parts.database)
    try:
        await (await limiter.acquire("openai@acme", tokens=1, timeout_seconds=10, on_wait=ignore)).release(1)
        async with Client(idle_api.url, await idle_api.key()) as client:
            changed = await client.set_limits("openai@acme", in_flight=2, requests_per_minute=60)
            assert (changed.in_flight, changed.requests_per_minute, changed.default) == (2, 60, False)
            again = await client.set_limits("openai@acme", in_flight=None, tokens_per_minute=9)
            assert (again.in_flight, again.requests_per_minute, again.tokens_per_minute) == (None, 60, 9)
            await eventually(lambda: limiter.state.limits("openai@acme").tokens_per_minute == 9, "the new limits")
            assert [item.in_flight for item in await client.limits() if item.credential == "openai@acme"] == [None]
            back = await client.reset_limits("openai@acme")
            assert (back.in_flight, back.requests_per_minute, back.default) == (8, None, True)
            with pytest.raises(InvalidRequest, match="Nothing to change"):
                await client.set_limits("openai")
            with pytest.raises(InvalidRequest, match="is not a valid credential"):
                await client.set_limits("{x}", in_flight=1)
    finally:
        await limiter.close()
    entries = (await idle_api.get("/audit", params={"subject": "openai@acme"})).json()["entries"]
    assert [entry["action"] for entry in entries] == ["limits.reset", "limits.set", "limits.set"]
    assert entries[1]["old"] == {"in_flight": 2, "requests_per_minute": 60, "tokens_per_minute": None}
    assert entries[1]["new"] == {"in_flight": None, "requests_per_minute": 60, "tokens_per_minute": 9}


async def test_callers_without_permission_cannot_change_limits(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key("viewer")) as client:
        assert await client.limits() == []
        with pytest.raises(Forbidden):
            await client.set_limits("openai", in_flight=1)
        with pytest.raises(Forbidden):
            await client.reset_limits("openai")
    answer = await idle_api.client.put(f"{API}/limits/openai", json={"in_flight": -1})
    assert answer.status_code == 422
    answer = await idle_api.client.put(f"{API}/limits/openai", json={"speed": 1})
    assert answer.status_code == 422


async def test_usage_is_each_tenants_own(idle_api: Api) -> None:
    database = idle_api.parts.database
    store = Store(idle_api.parts.app.settings, database)
    await create_tenant(database, "acme", actor="test")
    await store.accept(new_run())
    (claimed,) = await store.claim(await store.worker())
    calls = [
        CallUsage(claimed.run_id, claimed.attempt, tenant, "writer", model, 100, 10, cost)
        for tenant, model, cost in (("default", "a", 0.5), ("default", "b", None), ("acme", "a", 2.0))
    ]

    async def work(session: Session) -> None:
        await session.fetch(ADD_USAGE, usage_rows(calls))

    await database.transact(work)
    async with Client(idle_api.url, await idle_api.key("viewer", "acme")) as client:
        own = await client.usage(group="model")
        assert [(item.key, item.cost_usd) for item in own.usage] == [("a", 2.0)]
        assert own.tenant == "acme"
        with pytest.raises(NotFound):
            await client.usage(tenant="default")
    async with Client(idle_api.url, await idle_api.key()) as client:
        everything = await client.usage(group="agent")
        assert everything.total == UsageRow("total", 3, 300, 30, 2.5, 1)
        assert [(row.key, row.calls) for row in (await client.usage(group="tenant")).usage] == [
            ("acme", 1),
            ("default", 2),
        ]
        assert (await client.usage(tenant="default")).total.unpriced_calls == 1
        assert (await client.usage(first=date(2020, 1, 1), last=date(2020, 1, 2))).usage == ()
        with pytest.raises(InvalidRequest):
            await client.usage(first=date(2020, 1, 2), last=date(2020, 1, 1))


async def test_the_most_expensive_runs_are_each_tenants_own(idle_api: Api) -> None:
    database = idle_api.parts.database
    store = Store(idle_api.parts.app.settings, database)
    await create_tenant(database, "acme", actor="test")
    for tenant, cost in (("default", 0.5), ("acme", 2.0), ("default", 1.5)):
        run = await store.add(target="agent:writer", tenant=tenant)
        now = await read_clock(database)
        await store.sql(f"update runs set status = 'completed', ended_at = {now}, attempt = 1 where id = '{run}'")
        await store.sql(
            "insert into run_calls (run_id, path, key, attempt, kind, payload, tokens_in, tokens_out, cost_usd, at) "
            f"values ('{run}', 'p', 'k', 1, 'model', '{{}}', 7, 3, {cost}, {now})"
        )
    async with Client(idle_api.url, await idle_api.key("viewer", "acme")) as client:
        own = await client.expensive_runs()
        assert [(run.tenant, run.cost_usd, run.tokens, run.status) for run in own.runs] == [
            ("acme", 2.0, 10, "completed")
        ]
        assert (own.tenant, own.complete) == ("acme", True)
        with pytest.raises(NotFound):
            await client.expensive_runs(tenant="default")
    async with Client(idle_api.url, await idle_api.key()) as client:
        assert [run.cost_usd for run in (await client.expensive_runs()).runs] == [2.0, 1.5, 0.5]
        assert [run.cost_usd for run in (await client.expensive_runs(tenant="default", limit=1)).runs] == [1.5]
        assert (await client.expensive_runs(first=date(2020, 1, 1), last=date(2020, 1, 2))).runs == ()


async def test_a_tenant_has_a_cap_per_day(idle_api: Api) -> None:
    made = await idle_api.post("/tenants", {"id": "acme", "max_cost_usd_per_day": 5, "on_cap": "ask"})
    assert (made.status_code, made.json()["max_cost_usd_per_day"], made.json()["on_cap"]) == (201, 5.0, "ask")
    changed = await idle_api.client.patch(f"{API}/tenants/acme", json={"max_cost_usd_per_day": None})
    assert (changed.json()["max_cost_usd_per_day"], changed.json()["on_cap"]) == (None, "ask")
    wrong = await idle_api.client.patch(f"{API}/tenants/acme", json={"on_cap": "beg"})
    assert wrong.status_code == 422


async def test_a_tenant_has_a_bounded_number_of_credentials(idle_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker reads all credentials twice a second, those of every tenant."""
    monkeypatch.setattr(limit_store, "MAX_CREDENTIALS", 3)
    await create_tenant(idle_api.parts.database, "ac_me", actor="test")
    async with Client(idle_api.url, await idle_api.key("operator", "ac_me")) as client:
        for number in range(3):
            await client.set_limits(f"p{number}@ac_me", in_flight=1)
        with pytest.raises(Conflict, match="3 credentials"):
            await client.set_limits("another@ac_me", in_flight=1)
        await client.set_limits("p0@ac_me", in_flight=2)
    async with Client(idle_api.url, await idle_api.key()) as admin:
        # Neither the operator's own credentials count, nor those of a tenant with a similar name.
        await admin.set_limits("another", in_flight=1)
        await admin.set_limits("p9@acxme", in_flight=1)
