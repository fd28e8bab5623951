"""What the doctor reads about events, incoming webhooks, endpoints and quotas."""

from __future__ import annotations

from runlane.domain.quota import RUNS_PER_DAY, STORED_BYTES
from runlane.domain.webhook_source import SourceOptions, Verifier
from runlane.store.access.quota_health import NearlyUsed, read_nearly_used
from runlane.store.access.quotas import set_quota
from runlane.store.events.health import EventHealth, read_event_health
from runlane.store.events.rates import pay_rate
from runlane.store.events.sources import NewSource, put_source
from runlane.store.webhooks.retention import webhook_overview
from tests.contract.test_webhooks import endpoint
from tests.harness import Store, new_run


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
