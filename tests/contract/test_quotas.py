"""Quotas: exact for any number of processes, from the request after a change on; tenants without them pay nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from runlane import App, Context
from runlane.domain.flow_keys import StartOutcome
from runlane.domain.quota import (
    CHAT_SESSIONS,
    COLLECTING_KEYS,
    EVENTS_PER_MINUTE,
    RUNS_PER_DAY,
    STORED_BYTES,
    QuotaUse,
)
from runlane.domain.run import Accepted
from runlane.domain.tenant import TenantLimits
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest, NotFound, QuotaReached, RateLimited, RunlaneError
from runlane.maintenance.retention import Retention
from runlane.settings import Settings
from runlane.store.access.audit import list_audit
from runlane.store.access.quotas import QUOTAS, read_quotas, server_quotas, set_quota
from runlane.store.access.tenants import create_tenant, delete_tenant, is_free
from tests.contract.test_webhooks import endpoint
from tests.flow_control import accepted, pass_time, start
from tests.harness import Store, completed

ACTOR = "test"
ONE: list[tuple[str, dict[str, Any]]] = [("job", {})]
POSTS = 40


def make_app(settings: Settings) -> App:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context, text: str = "") -> None: ...

    return app


@pytest.fixture
async def apps(settings: Settings, store: Store) -> AsyncGenerator[Sequence[App]]:
    """Three processes' worth of apps, and a tenant."""
    await create_tenant(store.database, "acme", actor=ACTOR)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(make_app(settings)) for _ in range(3)]


async def post(app: App, count: int = 1) -> list[Accepted] | RunlaneError:
    try:
        return await app.enqueue_many(ONE * count, tenant="acme")
    except RunlaneError as error:
        return error


async def quotas(store: Store, tenant: str = "acme") -> dict[str, QuotaUse]:
    found = await read_quotas(store.database, tenant, server_quotas(store.settings))
    return {item.name: item for item in found}


async def use(store: Store, name: str) -> tuple[float | None, float | None]:
    item = (await quotas(store))[name]
    return item.limit, item.used


async def test_exactly_the_quota_is_accepted_from_any_number_of_processes(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "acme", RUNS_PER_DAY, 25, actor=ACTOR)
    answers = await asyncio.gather(*(post(apps[number % 3]) for number in range(POSTS)))
    refused = [answer for answer in answers if isinstance(answer, RunlaneError)]
    assert len(answers) - len(refused) == 25
    assert {error.code for error in refused} == {"quota_reached"}
    assert {type(error) for error in refused} == {QuotaReached}
    assert str(refused[0]) == (
        'Tenant "acme" has started 25 of at most 25 runs today (quota runs_per_day); 1 more would exceed it. '
        "The day ends at midnight UTC."
    )
    assert isinstance(refused[0], RateLimited)
    assert 0 < refused[0].retry_after_seconds <= 86400
    assert await use(store, RUNS_PER_DAY) == (25, 25)
    assert await store.count("runs") == 25


async def test_a_batch_is_accepted_as_a_whole_or_not_at_all(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "acme", RUNS_PER_DAY, 5, actor=ACTOR)
    assert len(await post(apps[0], 3)) == 3  # type: ignore[arg-type]
    assert isinstance(await post(apps[0], 3), QuotaReached)
    assert len(await post(apps[0], 2)) == 2  # type: ignore[arg-type]
    assert await use(store, RUNS_PER_DAY) == (5, 5)


async def test_a_refusal_by_another_limit_is_not_counted(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "small", actor=ACTOR, limits=TenantLimits(max_queued=1))
    await set_quota(store.database, "small", RUNS_PER_DAY, 5, actor=ACTOR)
    await apps[0].enqueue("job", tenant="small")
    with pytest.raises(RateLimited, match="open runs"):
        await apps[0].enqueue("job", tenant="small")
    item = (await quotas(store, "small"))[RUNS_PER_DAY]
    assert (item.limit, item.used) == (5, 1)


async def test_a_quota_counts_the_runs_of_the_day_before_it_was_set(store: Store, apps: Sequence[App]) -> None:
    await post(apps[0], 3)
    await store.add(tenant="default")
    run_id = (await store.claim_one()).run_id
    await store.sql("update runs set accepted_at = 1 where id = :id", id=run_id)
    before = await store.count("runs") - 1 - (0 if (await store.get(run_id)).tenant == "default" else 1)
    await set_quota(store.database, "acme", RUNS_PER_DAY, 10, actor=ACTOR)
    assert await use(store, RUNS_PER_DAY) == (10, before)


async def test_runs_that_are_accepted_while_the_quota_is_set_are_counted(store: Store, apps: Sequence[App]) -> None:
    """Whichever statement accepts them: the one that counts, or the one that began before there was a quota."""
    setting = set_quota(store.database, "acme", RUNS_PER_DAY, 1000, actor=ACTOR)
    answers, _ = await asyncio.gather(asyncio.gather(*(post(apps[number % 3]) for number in range(POSTS))), setting)
    assert not [answer for answer in answers if isinstance(answer, RunlaneError)]
    assert await use(store, RUNS_PER_DAY) == (1000, POSTS)


async def test_a_change_applies_to_the_next_request_and_a_new_day_begins_at_zero(
    store: Store, apps: Sequence[App]
) -> None:
    assert await is_free(store.database, "acme")
    await set_quota(store.database, "acme", RUNS_PER_DAY, 1, actor=ACTOR)
    assert not await is_free(store.database, "acme")
    await post(apps[0])
    assert isinstance(await post(apps[0]), QuotaReached)
    await set_quota(store.database, "acme", RUNS_PER_DAY, 2, actor=ACTOR)
    assert isinstance(await post(apps[0]), list)
    assert isinstance(await post(apps[0]), QuotaReached)
    await store.sql("update tenant_quotas set day = day - 1")
    assert await use(store, RUNS_PER_DAY) == (2, 0)
    assert isinstance(await post(apps[0]), list)
    assert await use(store, RUNS_PER_DAY) == (2, 1)
    await set_quota(store.database, "acme", RUNS_PER_DAY, None, actor=ACTOR)
    assert await is_free(store.database, "acme")
    assert isinstance(await post(apps[0], 5), list)
    assert await use(store, RUNS_PER_DAY) == (None, None)
    entries = [entry for entry in await list_audit(store.database, tenant="acme") if entry.action == "quota.set"]
    assert [(entry.old, entry.new) for entry in entries] == [
        ({"limit": 2}, {"limit": None}),
        ({"limit": 1}, {"limit": 2}),
        ({"limit": None}, {"limit": 1}),
    ]


async def test_exactly_the_quota_of_chat_sessions_can_be_started(store: Store, apps: Sequence[App]) -> None:
    await apps[0].sync({"agents": [{"id": "helper"}]}, tenant="acme")
    await set_quota(store.database, "acme", CHAT_SESSIONS, 3, actor=ACTOR)

    async def chat(number: int) -> Any:
        try:
            return await apps[number % 3].chat("helper", "hi", tenant="acme")
        except RunlaneError as error:
            return error

    answers = await asyncio.gather(*(chat(number) for number in range(8)))
    started = [answer for answer in answers if not isinstance(answer, RunlaneError)]
    assert len(started) == 3
    assert {type(answer) for answer in answers if isinstance(answer, RunlaneError)} == {QuotaReached}
    assert await use(store, CHAT_SESSIONS) == (3, 3)
    # The next turn of a session that exists is not a new session, and a refused one has left no run.
    await apps[0].chat("helper", "more", started[0].session_id, tenant="acme")
    assert await store.count("runs") == 4


async def test_the_use_of_every_quota_with_a_limit_is_shown(store: Store, apps: Sequence[App]) -> None:
    limits = TenantLimits(max_queued=10, max_running=5, rate_per_second=100.0)
    await create_tenant(store.database, "full", actor=ACTOR, limits=limits)
    await apps[0].enqueue_many(ONE * 3, tenant="full")
    found = await quotas(store, "full")
    assert list(found) == [rule.name for rule in QUOTAS]
    assert (found["open_runs"].limit, found["open_runs"].used) == (10, 3)
    assert (found["running_runs"].limit, found["running_runs"].used) == (5, 0)
    assert found["runs_per_second"].limit == 100
    assert (found["secrets"].limit, found["secrets"].used) == (store.settings.max_secrets, 0)
    assert (found["schedules"].limit, found["schedules"].used) == (1000, 0)
    assert (found["webhook_endpoints"].limit, found["webhook_endpoints"].used) == (50, 0)
    assert (found["events_per_minute"].limit, found["events_per_minute"].used, found["events_per_minute"].per) == (
        store.settings.events_per_minute, 0, "minute",
    )  # fmt: skip
    unlimited = {item.name: item.used for item in found.values() if item.limit is None}
    names = (RUNS_PER_DAY, "cost_usd_per_day", CHAT_SESSIONS, STORED_BYTES, COLLECTING_KEYS, "memories", "triggers")
    assert unlimited == dict.fromkeys(names)


def size(value: str) -> dict[str, Any]:
    return {"text": value}


async def test_stored_bytes_are_counted_from_the_request_on_and_refused_beyond_the_quota(
    store: Store, apps: Sequence[App]
) -> None:
    app = apps[0]
    await app.enqueue("job", size("x" * 1000), tenant="acme")
    await app.enqueue("job", size("x" * 5000))
    await set_quota(store.database, "acme", STORED_BYTES, 4000, actor=ACTOR)
    before = int((await use(store, STORED_BYTES))[1] or 0)
    # The input as JSON, and the event of the acceptance.
    assert 1000 < before < 1500
    inputs = [("job", size("é" * 100)), ("job", size("y" * 300))]
    await app.enqueue_many(inputs, tenant="acme")
    added = sum(len(dump_json(given).encode()) for _, given in inputs)
    assert await use(store, STORED_BYTES) == (4000, before + added)
    await app.broadcast("order.paid", "z" * 500, tenant="acme")
    assert await use(store, STORED_BYTES) == (4000, before + added + 502)
    for work in (
        lambda: app.enqueue("job", size("x" * 3000), tenant="acme"),
        lambda: app.broadcast("order.paid", "z" * 3000, tenant="acme"),
    ):
        with pytest.raises(QuotaReached, match="stored_bytes"):
            await work()
    assert await store.count("runs") == 4
    assert await store.count("stored_events") == 1
    await app.enqueue("job", size("x" * 9000))


async def test_results_and_deletions_are_found_by_counting_again(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "acme", STORED_BYTES, 100_000, actor=ACTOR)
    await store.add(tenant="acme", input='"a"', target="job")
    await store.finish(await store.claim_one(), completed(dump_json("r" * 2000)))
    assert (await use(store, STORED_BYTES))[1] == 3
    retention = Retention(store.settings, store.database)
    await retention.run_once()
    # It was counted when the quota was set.
    assert (await use(store, STORED_BYTES))[1] == 3
    await store.sql("update tenant_quotas set counted_at = 1")
    await retention.run_once()
    counted = (await use(store, STORED_BYTES))[1] or 0
    rows = await store.sql("select data from run_events")
    assert counted == 3 + 2002 + sum(len(row["data"]) for row in rows)
    await store.sql("update runs set ended_at = 1")
    await retention.run_once()
    await store.sql("update tenant_quotas set counted_at = 1")
    await retention.run_once()
    assert (await use(store, STORED_BYTES))[1] == 0


async def test_a_tenant_without_the_quota_of_bytes_is_not_metered(store: Store, apps: Sequence[App]) -> None:
    async def metered() -> bool:
        return bool((await store.sql("select metered from tenants where id = 'acme'"))[0]["metered"])

    assert not await metered()
    await set_quota(store.database, "acme", STORED_BYTES, 10, actor=ACTOR)
    await set_quota(store.database, "acme", RUNS_PER_DAY, 10, actor=ACTOR)
    await set_quota(store.database, "acme", RUNS_PER_DAY, None, actor=ACTOR)
    assert await metered()
    await set_quota(store.database, "acme", STORED_BYTES, None, actor=ACTOR)
    assert not await metered()


async def test_events_per_minute_of_a_tenant_replace_those_of_the_server(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "acme", EVENTS_PER_MINUTE, 2, actor=ACTOR)
    for number in range(2):
        await apps[number].broadcast("order.paid", number, tenant="acme")
    assert await use(store, EVENTS_PER_MINUTE) == (2, 2)
    with pytest.raises(RateLimited, match="2 events per minute"):
        await apps[2].broadcast("order.paid", 3, tenant="acme")
    await apps[2].broadcast("order.paid", 3)
    await set_quota(store.database, "acme", EVENTS_PER_MINUTE, 0, actor=ACTOR)
    with pytest.raises(RateLimited):
        await apps[0].broadcast("order.paid", 4, tenant="acme")
    await set_quota(store.database, "acme", EVENTS_PER_MINUTE, None, actor=ACTOR)
    assert await store.count("stored_events") == 3


DEBOUNCE: dict[str, Any] = {"debounce": {"key": "{{k}}", "delay_seconds": 60}}
BATCH: dict[str, Any] = {"batch": {"key": "{{k}}", "max_size": 2, "max_wait_seconds": 60}}


async def test_exactly_the_quota_of_keys_collects_starts(store: Store, apps: Sequence[App]) -> None:
    await accepted(store, start(DEBOUNCE, {"k": "before"}))
    await set_quota(store.database, "default", COLLECTING_KEYS, 5, actor="test")
    verdicts = await asyncio.gather(*(store.accept(start(DEBOUNCE, {"k": f"k{number}"})) for number in range(8)))
    refused = [verdict for (verdict,) in verdicts if not isinstance(verdict, Accepted)]
    assert len(refused) == 4
    assert all(isinstance(verdict, QuotaReached) for verdict in refused)
    assert "5 of at most 5 keys" in str(refused[0])
    # A start that joins a run needs no key, and other rules and plain runs have no part in it.
    assert (await accepted(store, start(DEBOUNCE, {"k": "before"}))).outcome is StartOutcome.DEBOUNCED
    await accepted(store, start({"throttle": {"key": "{{k}}", "max": 1, "per_seconds": 60}}, {"k": "x"}))
    await store.add()
    assert (await quotas(store, "default"))[COLLECTING_KEYS].used == 5
    await pass_time(store, 61)
    assert (await accepted(store, start(DEBOUNCE, {"k": "after"}))).outcome is StartOutcome.DEBOUNCED


async def test_a_batch_that_is_full_frees_its_key(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "default", COLLECTING_KEYS, 1, actor="test")
    for verdict in await store.accept(*(start(BATCH, {"k": "a", "n": number}) for number in range(5))):
        assert isinstance(verdict, Accepted), verdict
    (refused,) = await store.accept(start(BATCH, {"k": "b"}))
    assert isinstance(refused, QuotaReached)
    await accepted(store, start(BATCH, {"k": "a"}))
    await accepted(store, start(BATCH, {"k": "b"}))
    await accepted(store, start({"batch": {"key": "one", "max_size": 1, "max_wait_seconds": 60}}, {"k": "c"}))


async def test_triggers_beyond_the_quota_are_refused_and_nothing_is_synced(store: Store, apps: Sequence[App]) -> None:
    def triggers(count: int) -> dict[str, Any]:
        return {"triggers": [{"id": f"t{number}", "event": "order.paid", "task": "job"} for number in range(count)]}

    await set_quota(store.database, "acme", "triggers", 2, actor=ACTOR)
    await apps[0].sync(triggers(2), tenant="acme")
    with pytest.raises(QuotaReached, match="2 of at most 2 triggers"):
        await apps[0].sync(triggers(3), tenant="acme")
    assert await use(store, "triggers") == (2, 2)
    # A change of those that exist is allowed when the quota is smaller.
    await set_quota(store.database, "acme", "triggers", 1, actor=ACTOR)
    changed = triggers(2)
    changed["triggers"][0]["event"] = "order.sent"
    await apps[0].sync(changed, tenant="acme")


async def test_endpoints_of_a_tenant_have_a_quota_of_their_own(store: Store, apps: Sequence[App]) -> None:
    await set_quota(store.database, "acme", "webhook_endpoints", 1, actor=ACTOR)
    await endpoint(store, "we_a", "acme")
    with pytest.raises(QuotaReached):
        await endpoint(store, "we_b", "acme")
    await endpoint(store, "we_c")
    assert await use(store, "webhook_endpoints") == (1, 1)


async def test_a_warning_is_logged_once_when_most_of_a_quota_is_used(
    store: Store, apps: Sequence[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_quota(store.database, "acme", RUNS_PER_DAY, 5, actor=ACTOR)
    logged: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            logged.append({"event": event, **fields})

    def get_logger(_name: str) -> Log:
        return Log()

    monkeypatch.setattr(structlog, "get_logger", get_logger)
    for _ in range(6):
        await post(apps[0])
    assert logged == [{"event": "quota_warning", "tenant": "acme", "quota": RUNS_PER_DAY, "limit": 5, "used": 4}]


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("open_runs", 1, "runlane tenants set acme"),
        ("secrets", 1, "RUNLANE_MAX_SECRETS"),
        (RUNS_PER_DAY, -1, "between 0 and"),
        (RUNS_PER_DAY, 1.5, "whole number"),
    ],
)
async def test_an_invalid_quota_is_refused(
    store: Store, apps: Sequence[App], name: str, limit: float, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await set_quota(store.database, "acme", name, limit, actor=ACTOR)
    assert await store.count("tenant_quotas") == 0


async def test_an_unknown_quota_is_not_found(store: Store, apps: Sequence[App]) -> None:
    with pytest.raises(NotFound, match='did you mean "runs_per_day"'):
        await set_quota(store.database, "acme", "runs_per_dya", 1, actor=ACTOR)
    assert await store.count("tenant_quotas") == 0


async def test_quotas_belong_to_a_tenant_and_are_deleted_with_it(store: Store, apps: Sequence[App]) -> None:
    with pytest.raises(NotFound):
        await set_quota(store.database, "nobody", RUNS_PER_DAY, 1, actor=ACTOR)
    with pytest.raises(NotFound):
        await quotas(store, "nobody")
    await set_quota(store.database, "acme", RUNS_PER_DAY, 0, actor=ACTOR)
    assert isinstance(await post(apps[0]), QuotaReached)
    await apps[0].enqueue("job")
    await delete_tenant(store.database, "acme", actor=ACTOR)
    assert await store.count("tenant_quotas") == 0
