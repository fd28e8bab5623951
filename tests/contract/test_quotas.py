"""Quotas: exact for any number of processes, from the request after a change on; tenants without them pay nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from runlane import App, Context
from runlane.domain.quota import CHAT_SESSIONS, RUNS_PER_DAY, QuotaUse
from runlane.domain.run import Accepted
from runlane.domain.tenant import TenantLimits
from runlane.errors import InvalidRequest, NotFound, QuotaReached, RateLimited, RunlaneError
from runlane.settings import Settings
from runlane.store.access import quota_warnings
from runlane.store.access.audit import list_audit
from runlane.store.access.quotas import QUOTAS, read_quotas, server_quotas, set_quota
from runlane.store.access.tenants import create_tenant, delete_tenant, is_free
from tests.harness import Store

ACTOR = "test"
ONE: list[tuple[str, dict[str, Any]]] = [("job", {})]
POSTS = 40


def make_app(settings: Settings) -> App:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

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
        'Tenant "acme" has started 25 of at most 25 runs today (quota runs_per_day); 1 more would pass that. '
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
    assert [item.used for item in found.values() if item.limit is None] == [None] * 3


async def test_a_warning_is_logged_once_when_most_of_a_quota_is_used(
    store: Store, apps: Sequence[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_quota(store.database, "acme", RUNS_PER_DAY, 5, actor=ACTOR)
    logged: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            logged.append({"event": event, **fields})

    monkeypatch.setattr(quota_warnings, "log", Log())
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
