"""Edges of webhooks on both databases: leases that have ended, results, rotations and replays that meet."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runlane.domain.webhook import DeliveryStatus, origin_id
from runlane.domain.webhook_events import WebhookType, schema_of
from runlane.errors import Conflict
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.webhooks import held
from runlane.store.webhooks.claims import ClaimedDelivery
from runlane.store.webhooks.deliveries import list_deliveries, replay_all
from runlane.store.webhooks.endpoints import (
    delete_endpoint,
    disable_endpoint,
    enable_endpoint,
    find_endpoint,
    rotate_secret,
)
from runlane.store.webhooks.outbox import NewMessage, RunTarget, add_messages
from runlane.store.webhooks.results import record_tries, release
from runlane.store.webhooks.retention import delete_old_messages
from runlane.store.webhooks.secrets import NewSecret, valid_secrets
from runlane.templates.json_schema import misfit
from tests.contract.test_interleavings import all_wait, held_open, on_postgres
from tests.contract.test_schedules import finish_one
from tests.contract.test_webhooks import NO, OK, claim, claimed_for, endpoint, make_due, record, send
from tests.flow_control import pass_time, run_timers
from tests.flow_control import start as start_with
from tests.harness import Store
from tests.schedules import HOUR, MINUTE, SECOND, ScheduleStore


async def test_a_stopping_process_leaves_what_another_one_has_claimed_since(store: Store) -> None:
    await endpoint(store)
    await send(store)
    late = await claim(store)
    await make_due(store)
    (current,) = await claim(store)
    await store.database.transact(lambda session: release(session, late))
    assert await claim(store) == []
    assert await record(store, (current, OK)) == 1


async def test_a_delivery_whose_lease_has_ended_does_not_count_as_in_flight(store: Store) -> None:
    await endpoint(store, max_in_flight=1)
    await send(store, 2)
    (abandoned,) = await claim(store)
    await make_due(store)
    (again,) = await claim(store)
    assert await claim(store) == []
    await record(store, (again, OK))
    (other,) = await claim(store)
    assert {again.id, other.id} >= {abandoned.id}


async def test_an_ordered_endpoint_gets_messages_of_one_moment_in_their_order(store: Store) -> None:
    await endpoint(store, ordered=True)
    await send(store, 3, run_id="run_1")
    await store.sql("update webhook_deliveries set created_at = 1")
    sent: list[ClaimedDelivery] = []
    for _ in range(3):
        (one,) = await claim(store)
        await record(store, (one, OK))
        sent.append(one)
    assert [item.id for item in sent] == sorted(item.id for item in sent)


async def test_of_two_rotations_at_the_same_moment_one_is_refused(store: Store) -> None:
    """Both have read version 1. The second one would return a secret that is not stored."""
    await endpoint(store)

    async def rotate(value: str) -> None:
        secret = NewSecret("we_a", 2, "default", "key", value)
        await rotate_secret(store.database, "we_a", secret, overlap_us=60_000_000, actor="test")

    await rotate("first")
    with pytest.raises(Conflict, match="rotated at this moment"):
        await rotate("second")
    found = await store.database.transact(lambda session: valid_secrets(session, ["we_a"]))
    assert [(secret.version, secret.value) for secret in found["we_a"]] == [(2, "first"), (1, "sealed")]


async def test_a_replay_leaves_other_tenants_and_earlier_replays(store: Store) -> None:
    await create_tenant(store.database, "other", actor="test")
    await endpoint(store)
    await send(store)
    await record(store, *((item, OK) for item in await claim(store)))
    wanted = {"endpoint": None, "status": DeliveryStatus.DELIVERED.value, "type": None, "run_id": None}
    # The second time, the first replay has been delivered, too; it is not repeated.
    for tenant, count in (("other", 0), ("default", 1), ("default", 1)):
        done = await replay_all(store.database, tenant, **wanted, since_us=None, max_tries=1, actor="test")
        assert done == count
        await record(store, *((item, OK) for item in await claim(store)))
    assert await store.count("webhook_deliveries") == 3


async def test_a_deleted_endpoint_stays_until_its_deliveries_are_gone(store: Store) -> None:
    """The claim discards them, and it finds them by their endpoint."""
    await endpoint(store)
    await send(store)
    await delete_endpoint(store.database, "we_a", actor="test")
    await store.sql("update webhook_endpoints set updated_at = 1, served_at = 1")
    for keep_seconds, left in ((3600.0, 1), (0.0, 0)):
        await store.database.transact(lambda session, keep=keep_seconds: delete_old_messages(session, keep))
        assert await store.count("webhook_endpoints") == left


@on_postgres
async def test_failures_that_two_processes_record_at_once_all_count(store: Store) -> None:
    await endpoint(store)
    await send(store, 2)
    first, second = await claim(store)
    async with held_open(store, lambda session: record_tries(session, [(first, NO)])):
        other = asyncio.create_task(record(store, (second, NO)))
        await all_wait(store, other)
    assert await other == 1
    assert (await find_endpoint(store.database, "we_a")).failures == 2


async def schedule_messages(store: Store) -> list[tuple[str, str, int]]:
    """Return type, reason and count of the messages about schedules."""
    rows = await store.sql("select body from webhook_messages where type like 'schedule.%' order by id")
    found: list[dict[str, Any]] = [json.loads(row["body"]) for row in rows]
    for body in found:
        assert misfit(body, schema_of(WebhookType(body["type"]))) is None
        assert body["data"]["schedule_id"] == "s"
    return [(body["type"], body["data"]["reason"], body["data"]["count"]) for body in found]


async def test_missed_slots_are_reported_whatever_decides_them(store: Store) -> None:
    await endpoint(store, types=["schedule.missed", "schedule.failed"])
    schedules = ScheduleStore(store)
    await schedules.create(catch_up="none", overlap="allow")
    await schedules.tick(3 * HOUR + 5 * MINUTE)
    await schedules.verbs.pause("default", "s", "x", actor="test")
    await schedules.pass_time(2 * HOUR)
    await schedules.verbs.resume("default", "s", actor="test")
    await schedules.pass_time(4 * HOUR)
    await schedules.verbs.patch("default", "s", {"spec": [{"every_seconds": 1800}]}, actor="test")
    assert await schedule_messages(store) == [
        ("schedule.missed", "catch_up_window", 3),
        ("schedule.missed", "paused", 2),
        ("schedule.missed", "edited", 4),
    ]


async def test_a_slot_whose_run_is_refused_is_reported_when_it_is_due_and_when_it_has_waited(store: Store) -> None:
    await endpoint(store, types=["schedule.missed", "schedule.failed"])
    schedules = ScheduleStore(store)
    await schedules.create(overlap="queue_all")
    for _ in range(2):
        await schedules.tick(HOUR + SECOND)
    # The limit stops the buffered slot, which the service starts, and the next one at its time.
    await set_tenant(store.database, "default", TenantChange(max_queued=0), actor="test")
    await finish_one(store)
    await schedules.tick()
    assert await schedule_messages(store) == [("schedule.failed", "queue_limited", 1)]
    await schedules.tick(HOUR + SECOND)
    assert await schedule_messages(store) == [("schedule.failed", "queue_limited", 1)] * 2
    assert await schedules.outcomes() == ["started", "failed_to_start", "failed_to_start"]


async def test_a_run_that_expires_is_reported(store: Store) -> None:
    await endpoint(store, types=["run.cancelled"])
    await store.accept(start_with({"expires_after_seconds": 60}))
    await pass_time(store, 61)
    await run_timers(store)
    (delivery,) = await claim(store)
    assert json.loads(delivery.body)["data"]["error"]["type"] == "expired"


async def new_endpoints(store: Store, tenant: str, prefix: str, count: int, **fields: Any) -> list[str]:
    await store.sql("insert into tenants (id, name, created_at, updated_at) values (:id, :id, 0, 0)", id=tenant)
    # Not the warning that most of the quota of endpoints is used.
    given = {"types": ["run.completed"], **fields}
    return [await endpoint(store, f"we_{prefix}{number:02}", tenant, **given) for number in range(count)]


@pytest.mark.parametrize("fields", [{"rate_per_second": 0.01}, {"max_in_flight": 1}, {"ordered": True}], ids=str)
async def test_endpoints_that_wait_do_not_hide_others(store: Store, fields: dict[str, Any]) -> None:
    """A claim reads a page of endpoints. Those that cannot be served must not fill every page."""
    blocked = await new_endpoints(store, "acme", "a", 50, **fields)
    await endpoint(store, "we_late")
    # Each of them sends one message, and more are due.
    await send(store, 2, tenant="acme", run_id="run_1")
    sending = (await claimed_for(store, total=1000)).deliveries
    assert sorted(item.endpoint_id for item in sending) == blocked
    for _ in range(2):
        await send(store)
        found = [await claimed_for(store, total=1000, sending=sending) for _ in range(2)]
        (late,) = [item for claimed in found for item in claimed.deliveries]
        assert late.endpoint_id == "we_late"
        await record(store, (late, OK))
        # Nothing more can be claimed now, so the process waits a moment instead of claiming again and again.
        assert (found[1].more, found[1].again_seconds) == (False, 0.1)


async def test_a_process_waits_for_the_rate_of_an_endpoint(store: Store) -> None:
    """Not shorter: it would claim ten times in each second, for as long as a message waits."""
    await endpoint(store, rate_per_second=0.01)
    await send(store, 3)
    first, second = [await claimed_for(store, total=10) for _ in range(2)]
    assert (len(first.deliveries), len(second.deliveries)) == (1, 0)
    for claimed in (first, second):
        assert claimed.again_seconds is not None
        assert 50 < claimed.again_seconds <= 100


async def test_an_endpoint_with_many_places_leaves_some_for_others(store: Store) -> None:
    """It hangs: what it has claimed stays in flight."""
    await endpoint(store, "we_slow", types=["run.failed"])
    await endpoint(store, "we_well", types=["run.completed"])
    await send(store, 30, type="run.failed")
    sending: list[ClaimedDelivery] = []
    for _ in range(5):
        sending += (await claimed_for(store, total=10, sending=sending)).deliveries
    assert [item.endpoint_id for item in sending] == ["we_slow"] * 6
    await send(store)
    (other,) = (await claimed_for(store, total=10, sending=sending)).deliveries
    assert other.endpoint_id == "we_well"


async def test_a_tenant_with_many_endpoints_leaves_places_for_others(store: Store) -> None:
    await new_endpoints(store, "acme", "a", 20)
    await endpoint(store, "we_other")
    await send(store, tenant="acme")
    sending: list[ClaimedDelivery] = []
    for _ in range(5):
        sending += (await claimed_for(store, total=10, sending=sending)).deliveries
    assert [item.tenant for item in sending] == ["acme"] * 8
    await send(store)
    (other,) = (await claimed_for(store, total=10, sending=sending)).deliveries
    assert other.endpoint_id == "we_other"


@on_postgres
async def test_retention_keeps_an_origin_that_a_run_is_about_to_use(store: Store) -> None:
    """Without it, the message would exist and no process would ever send it."""
    url = "https://example.com/done"
    message = NewMessage("default", "run.completed", {}, own=RunTarget(url, {}))
    await store.database.transact(lambda session: add_messages(session, [message]))
    await store.sql("delete from webhook_deliveries")
    await store.sql("update webhook_endpoints set updated_at = 1, served_at = 1")
    async with held_open(store, lambda session: add_messages(session, [message])):
        deleting = asyncio.create_task(store.database.transact(lambda session: delete_old_messages(session, 3600.0)))
        await all_wait(store, deleting)
    await deleting
    (delivery,) = await claim(store)
    assert delivery.endpoint_id == origin_id("default", url)


async def test_an_origin_in_use_is_not_written_again(store: Store) -> None:
    """Otherwise, runs with webhooks of the same origin would wait for each other when they end."""
    message = NewMessage("default", "run.completed", {}, own=RunTarget("https://example.com/done", {}))

    async def add() -> int:
        return await store.database.transact(lambda session: add_messages(session, [message]))

    assert await add() == 1
    before = await store.sql("select updated_at from webhook_endpoints")
    assert await add() == 1
    assert await store.sql("select updated_at from webhook_endpoints") == before


async def test_the_previous_secret_signs_until_its_overlap_ends(store: Store) -> None:
    await endpoint(store)
    secret = NewSecret("we_a", 2, "default", "key", "new")
    await rotate_secret(store.database, "we_a", secret, overlap_us=24 * HOUR, actor="test")

    async def valid() -> list[str]:
        found = await store.database.transact(lambda session: valid_secrets(session, ["we_a"]))
        return [secret.value for secret in found["we_a"]]

    for passed, expected in ((24 * HOUR - MINUTE, ["new", "sealed"]), (MINUTE + SECOND, ["new"])):
        await store.sql("update webhook_secrets set valid_until = valid_until - :us", us=passed)
        assert await valid() == expected


@pytest.mark.parametrize("send_held", [True, False])
async def test_an_endpoint_with_many_held_messages_is_enabled(
    store: Store, monkeypatch: pytest.MonkeyPatch, send_held: bool
) -> None:
    """Changing those of weeks in one statement would take longer than a statement may."""
    monkeypatch.setattr("runlane.store.webhooks.held.HELD_AT_ONCE", 4)
    moved: list[int] = []
    part = held._settle_part

    async def noted(*given: Any, **named: Any) -> Any:
        result = await part(*given, **named)
        moved.append(result[0])
        # A claim of another process meanwhile changes nothing.
        assert await claim(store) == []
        return result

    monkeypatch.setattr(held, "_settle_part", noted)
    await endpoint(store)
    await send(store, 10)
    await disable_endpoint(store.database, "we_a", "x", actor="test")
    assert await claim(store) == []
    assert len(await list_deliveries(store.database, status="held")) == 10
    _, count = await enable_endpoint(store.database, "we_a", send_held=send_held, actor="test")
    assert (count, moved) == (10, [4, 4, 0])
    status = DeliveryStatus.PENDING if send_held else DeliveryStatus.DISCARDED
    assert {item.status for item in await list_deliveries(store.database)} == {status}
    if send_held:
        # Those that were released first are due soon.
        assert len(await claim(store)) == 2
        await make_due(store)
        assert len(await claim(store)) == 10


async def test_a_deleted_endpoint_leaves_no_held_message(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.store.webhooks.held.HELD_AT_ONCE", 4)
    await endpoint(store)
    await send(store, 10)
    await disable_endpoint(store.database, "we_a", "x", actor="test")
    assert await claim(store) == []
    await delete_endpoint(store.database, "we_a", actor="test")
    assert {item.status for item in await list_deliveries(store.database)} == {DeliveryStatus.DISCARDED}
