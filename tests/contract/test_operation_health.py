"""What the doctor reads about events, incoming webhooks, endpoints, quotas and open transactions."""

from __future__ import annotations

import pytest

from runlane.diagnosis import work_findings
from runlane.diagnosis.checks import check_work
from runlane.diagnosis.operation_findings import flow_findings
from runlane.domain.finding import Level
from runlane.domain.flow_keys import FlowRule
from runlane.domain.quota import RUNS_PER_DAY, STORED_BYTES
from runlane.domain.webhook_source import SourceOptions, Verifier
from runlane.errors import InvalidRequest
from runlane.store.access.quota_health import NearlyUsed, read_nearly_used
from runlane.store.access.quotas import set_quota
from runlane.store.access.tenants import create_tenant
from runlane.store.events.health import EventHealth, read_event_health
from runlane.store.events.rates import pay_rate
from runlane.store.events.sources import NewSource, put_source
from runlane.store.queue.flow_overview import ClosedLimit, FlowHealth, list_flow_keys, read_flow_health
from runlane.store.sql.database import Session
from runlane.store.webhooks.retention import webhook_overview
from tests.contract.test_webhooks import endpoint
from tests.flow_control import accepted, start
from tests.harness import Store, new_run
from tests.limits import LimitedStore, shared


async def source(store: Store, name: str, *, enabled: bool = True) -> None:
    new = NewSource(Verifier.STANDARD, "order", SourceOptions(), enabled, 60, "key", "sealed", f"hash of {name}")
    await put_source(store.database, "default", name, new, actor="test")


async def test_events_and_sources_that_need_attention_are_found(store: Store) -> None:
    assert await read_event_health(store.database) == EventHealth(0, 0, (), ())
    await source(store, "silent")
    await source(store, "used")
    await source(store, "off", enabled=False)
    await store.database.transact(lambda session: pay_rate(session, "source:default:used", 1, 60, "It"))
    # A source that was created today may not have got its first request yet.
    assert (await read_event_health(store.database)).unverified == ()
    await store.sql("update webhook_sources set created_at = 1")
    for event, received in (("evt_old", 1), ("evt_new", 2**60)):
        await store.sql(
            "insert into stored_events (id, tenant, name, data, source, depth, received_at) "
            "values (:id, 'default', 'order.paid', '1', 'api', 0, :at)",
            id=event,
            at=received,
        )
    for trigger, decided in (("fails", 2**60), ("failed_long_ago", 1)):
        await store.sql(
            "insert into event_outcomes (event_id, trigger, tenant, outcome, created_at, decided_at, claimed_until) "
            "values ('evt_old', :trigger, 'default', 'failed', 1, :at, 0)",
            trigger=trigger,
            at=decided,
        )
    await store.sql("insert into dependency_work (run_id, kind, created_at) values ('run_1', 'ended', 1)")
    assert await read_event_health(store.database) == EventHealth(1, 1, ("fails",), ("silent",))


async def test_quotas_and_endpoints_that_need_attention_are_found(store: Store) -> None:
    await set_quota(store.database, "default", RUNS_PER_DAY, 5, actor="test")
    await set_quota(store.database, "default", STORED_BYTES, 1_000_000, actor="test")
    for _ in range(3):
        await store.accept(new_run())
    assert await read_nearly_used(store.database) == []
    await store.accept(new_run())
    assert await read_nearly_used(store.database) == [NearlyUsed("default", RUNS_PER_DAY, 5, 4)]
    await store.sql("update tenant_quotas set day = day - 1")
    assert await read_nearly_used(store.database) == []
    await endpoint(store)
    await store.sql("update webhook_endpoints set failures = 19")
    assert (await webhook_overview(store.database)).failing == 0
    await store.sql("update webhook_endpoints set failures = 20")
    assert (await webhook_overview(store.database)).failing == 1


async def test_limits_and_backlogs_that_need_attention_are_found(store: Store) -> None:
    limited = LimitedStore(store)
    await limited.set_shared("gpu", 0)
    await limited.set_shared("free", 0)
    await limited.add(shared("gpu"))
    backlog = {"max_backlog": {"key": "{{k}}", "max": 5}}
    for number in range(3):
        await accepted(store, start(backlog, {"k": "a", "n": number}))
    await accepted(store, start(backlog, {"k": "b"}))
    health = await read_flow_health(store.database)
    assert health == FlowHealth((ClosedLimit("default", "gpu", 1),), (), ())
    assert "is 0" in next(flow_findings(health)).message
    await limited.set_shared("gpu", 1)
    await limited.admit()
    late = await limited.add(shared("gpu"))
    await store.sql("update runs set accepted_at = accepted_at - :us where id = :id", us=7_200_000_000, id=late)
    await accepted(store, start(backlog, {"k": "a"}))
    health = await read_flow_health(store.database)
    assert health.closed == ()
    assert [(wait.waiting, wait.run_id) for wait in health.long] == [(1, late)]
    assert [(item.target, item.key, item.waiting, item.most) for item in health.nearly_full] == [("job", "a", 4, 5)]
    messages = [finding.message for finding in flow_findings(health)]
    assert any("the oldest for 2.0 hours" in message for message in messages)
    assert 'job: 4 of at most 5 runs wait for the key "a"' in messages


async def test_keys_of_flow_control_show_their_skipped_starts(store: Store) -> None:
    await create_tenant(store.database, "default2", actor="test")
    unique = {"unique": {"key": "{{k}}", "on_conflict": "skip"}}
    drop = {"rate_limit": {"key": "{{k}}", "max": 1, "per_seconds": 60, "on_limit": "drop"}}
    for _ in range(3):
        await accepted(store, start(unique, {"k": "a"}))
    for _ in range(2):
        await accepted(store, start(drop, {"k": "b"}))
    await accepted(store, start({"debounce": {"key": "{{k}}", "delay_seconds": 60}}, {"k": "c"}))
    await accepted(store, start(unique, {"k": "a"}, tenant="default2"))
    found = await list_flow_keys(store.database, "default")
    shown = {(use.rule.value, use.target, use.key): (use.skipped, use.starts) for use in found}
    assert shown == {
        ("unique", "job", "a"): (2, None),
        ("rate_limit", "job", "b"): (1, None),
        ("debounce", "job", "c"): (0, 1),
    }
    pages = [await list_flow_keys(store.database, "default", limit=2)]
    pages.append(await list_flow_keys(store.database, "default", limit=2, after=pages[0][-1].id))
    assert [use for page in pages for use in page] == list(found)
    skipped = await list_flow_keys(store.database, "default", rule=FlowRule.UNIQUE, target="job", only_skipped=True)
    assert [use.key for use in skipped] == ["a"]
    assert await list_flow_keys(store.database, "default", target="Job") == []
    assert [use.skipped for use in await list_flow_keys(store.database, "default2")] == [0]
    with pytest.raises(InvalidRequest, match="cursor"):
        await list_flow_keys(store.database, "default", after="%")


async def test_an_open_transaction_of_another_session_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_findings, "OLD_TRANSACTION_SECONDS", 1e-9)

    async def level() -> Level:
        (found,) = (item for item in await check_work(store.database) if item.check == "transactions")
        return found.level

    async def level_within(session: Session) -> Level:
        await session.lock(exclusive=[1])
        return await level()

    if store.database.dialect == "sqlite":
        # In a file a transaction is one call of one thread, so none is open for long.
        assert await level() is Level.OK
    else:
        assert await store.database.transact(level_within) is Level.WARNING
