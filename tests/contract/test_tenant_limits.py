"""Limits at accept: exact for any caller and server, whole batches only, free for tenants without limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from runlane import App, Context
from runlane.domain.options import RunOptions
from runlane.domain.run import Accepted, Status
from runlane.domain.tenant import TenantLimits
from runlane.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    QueueLimited,
    RateLimited,
    RunlaneError,
)
from runlane.settings import Settings
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, set_tenant
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.search import RunFilter, search_runs
from runlane.submit.tasks import TaskRequest
from tests.harness import Store, new_run

POSTS = 50
ACTOR = "test"
ONE: list[tuple[str, dict[str, Any]]] = [("job", {})]


def make_app(settings: Settings) -> App:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context, n: int = 0) -> int:
        return n

    return app


@pytest.fixture
async def apps(settings: Settings, store: Store) -> AsyncGenerator[Sequence[App]]:
    """Three processes' worth of apps: each has its own connections and its own committer."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(make_app(settings)) for _ in range(3)]


async def post(app: App, **fields: Any) -> Accepted | RunlaneError:
    try:
        return await app.enqueue("job", tenant="acme", **fields)
    except RunlaneError as error:
        return error


async def post_all(apps: Sequence[App], posts: int = POSTS) -> list[Accepted | RunlaneError]:
    return await asyncio.gather(*(post(apps[number % len(apps)]) for number in range(posts)))


def accepted(answers: Sequence[Accepted | RunlaneError]) -> list[str]:
    return [answer.run_id for answer in answers if isinstance(answer, Accepted)]


async def test_fifty_posts_at_once_get_exactly_the_ten_places(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=10), actor=ACTOR)
    answers = await post_all(apps)
    assert len(accepted(answers)) == 10
    assert sum(isinstance(answer, QueueLimited) for answer in answers) == POSTS - 10
    assert await store.count("runs") == await store.count("run_inputs") == await store.count("run_events") == 10
    # A place that becomes free is one place.
    await cancel_run(store.database, accepted(answers)[0])
    assert len(accepted(await post_all(apps))) == 1


async def test_a_full_rate_takes_exactly_one_of_fifty(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(rate_per_second=0.001), actor=ACTOR)
    answers = await post_all(apps)
    assert len(accepted(answers)) == 1
    refused = [answer for answer in answers if isinstance(answer, RateLimited)]
    assert len(refused) == POSTS - 1
    assert all(0 < answer.retry_after_seconds <= 1000 for answer in refused)
    assert {answer.code for answer in refused} == {"rate_limited"}


async def test_the_rate_recovers_with_the_databases_clock(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(rate_per_second=10), actor=ACTOR)
    batch = [("job", {"n": n}) for n in range(10)]
    with pytest.raises(RateLimited, match="At most 10"):
        await apps[0].enqueue_many([*batch, *batch], tenant="acme")
    await apps[0].enqueue_many(batch, tenant="acme")
    await store.sql("update tenants set rate_paid_until = rate_paid_until + 3600000000000 where id = 'acme'")
    answer = await post(apps[1])
    assert isinstance(answer, RateLimited)
    assert 3500 < answer.retry_after_seconds <= 3601
    await store.sql("update tenants set rate_paid_until = rate_paid_until - 3700000000000 where id = 'acme'")
    await apps[2].enqueue_many(batch, tenant="acme")
    assert await store.count("runs") == 20


async def test_runs_beyond_max_running_are_accepted_and_wait(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_running=2), actor=ACTOR)
    assert len(accepted(await post_all(apps, 6))) == 6
    worker = await store.worker()
    claims = await store.claim(worker, 10)
    assert len(claims) == 2
    assert await store.claim(worker, 10) == []
    await store.finish(claims[0])
    assert len(await store.claim(worker, 10)) == 1


async def test_a_batch_over_the_limit_is_refused_whole(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=10), actor=ACTOR)
    await apps[0].enqueue_many(ONE * 8, tenant="acme")
    before = await store.contents()
    with pytest.raises(QueueLimited):
        await apps[0].enqueue_many(ONE * 3, tenant="acme")
    assert await store.contents() == before
    await apps[0].enqueue_many(ONE * 2, tenant="acme")


async def test_a_batch_larger_than_a_commit_is_refused_whole(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=1_500), actor=ACTOR)
    with pytest.raises(QueueLimited):
        await apps[0].enqueue_many(ONE * 1_501, tenant="acme")
    assert await store.count("runs") == 0
    assert len(await apps[0].enqueue_many(ONE * 1_500, tenant="acme")) == 1_500


async def test_the_limit_of_one_tenant_does_not_apply_to_another(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=1), actor=ACTOR)
    await create_tenant(store.database, "free", actor=ACTOR)
    results = await asyncio.gather(
        *(post(apps[0]) for _ in range(5)),
        *(apps[0].enqueue("job", tenant="free") for _ in range(5)),
        *(apps[0].enqueue("job") for _ in range(5)),
    )
    assert len(accepted(results)) == 11
    rows = await store.sql("select tenant, limited, count(*) as n from runs group by tenant, limited order by tenant")
    assert [(row["tenant"], bool(row["limited"]), row["n"]) for row in rows] == [
        ("acme", True, 1),
        ("default", False, 5),
        ("free", False, 5),
    ]


# Runs that are alike, runs that are not, and runs that have more than an input are stored by statements of their own.
@pytest.mark.parametrize(
    "options",
    [RunOptions(), RunOptions(priority=1), RunOptions(tags=("a",))],
    ids=["alike", "different", "tagged"],
)
async def test_the_default_tenant_can_have_limits_too(store: Store, apps: Sequence[App], options: RunOptions) -> None:
    await set_tenant(store.database, "default", TenantChange(max_queued=1), actor=ACTOR)
    with pytest.raises(QueueLimited):
        await apps[0].enqueue_requests([TaskRequest("job", {}, RunOptions()), TaskRequest("job", {}, options)])
    assert await store.count("runs") == 0
    await apps[0].enqueue("job")
    with pytest.raises(QueueLimited):
        await apps[0].enqueue("job")


async def test_a_new_limit_counts_existing_runs(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await apps[0].enqueue_many(ONE * 1_200, tenant="acme")
    await set_tenant(store.database, "acme", TenantChange(max_queued=1_200), actor=ACTOR)
    assert isinstance(await post(apps[1]), QueueLimited)
    await set_tenant(store.database, "acme", TenantChange(max_queued=1_201), actor=ACTOR)
    assert isinstance(await post(apps[1]), Accepted)
    await set_tenant(store.database, "acme", TenantChange(unlimited=frozenset({"max_queued"})), actor=ACTOR)
    assert len(accepted(await post_all(apps, 6))) == 6


async def test_a_limit_set_among_posts_holds_when_it_returns(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    stop = asyncio.Event()

    async def keep_posting(app: App) -> None:
        while not stop.is_set():
            await post(app)

    posters = [asyncio.create_task(keep_posting(app)) for app in apps for _ in range(4)]
    await set_tenant(store.database, "acme", TenantChange(max_queued=0), actor=ACTOR)
    held = await store.count("runs")
    refused = await post_all(apps, 12)
    stop.set()
    await asyncio.gather(*posters)
    assert accepted(refused) == []
    assert await store.count("runs") == held
    rows = await store.sql("select id from runs where not limited")
    assert rows == []


async def test_unknown_and_disabled_tenants_take_nothing(store: Store, apps: Sequence[App]) -> None:
    assert isinstance(await post(apps[0]), NotFound)
    await create_tenant(store.database, "acme", actor=ACTOR)
    assert isinstance(await post(apps[0]), Accepted)
    await set_tenant(store.database, "acme", TenantChange(enabled=False), actor=ACTOR)
    assert isinstance(await post(apps[0]), Forbidden)
    await set_tenant(store.database, "acme", TenantChange(enabled=True), actor=ACTOR)
    assert isinstance(await post(apps[0]), Accepted)
    with pytest.raises(InvalidRequest):
        await apps[0].enqueue("job", tenant="No Such")
    assert await store.count("runs") == 2


async def test_a_deleted_tenant_takes_nothing(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=5), actor=ACTOR)
    await delete_tenant(store.database, "acme", actor=ACTOR)
    assert isinstance(await post(apps[0]), NotFound)


async def test_a_refused_key_is_not_used_up_and_a_replay_is_never_refused(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=1), actor=ACTOR)
    first = await post(apps[0], idempotency_key="first")
    assert isinstance(first, Accepted)
    assert isinstance(await post(apps[0], idempotency_key="second"), QueueLimited)
    assert await store.count("idempotency_keys") == 1
    again = await post(apps[1], idempotency_key="first")
    assert isinstance(again, Accepted)
    assert (again.run_id, again.replayed) == (first.run_id, True)
    await cancel_run(store.database, first.run_id)
    second = await post(apps[1], idempotency_key="second")
    assert isinstance(second, Accepted)
    assert not second.replayed


async def test_twins_of_a_refused_run_are_refused_with_it(store: Store) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=0), actor=ACTOR)
    twin = {"idempotency_key": "k", "fingerprint": "f", "tenant": "acme"}
    verdicts = await store.accept(new_run(**twin), new_run(**twin))
    assert all(isinstance(verdict, QueueLimited) for verdict in verdicts)
    assert await store.count("idempotency_keys") == 0


async def test_idempotency_keys_are_each_tenants_own(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    mine = await apps[0].enqueue("job", {"n": 1}, idempotency_key="k")
    theirs = await apps[0].enqueue("job", {"n": 2}, idempotency_key="k", tenant="acme")
    assert mine.run_id != theirs.run_id
    with pytest.raises(IdempotencyConflict) as conflict:
        await apps[0].enqueue("job", {"n": 3}, idempotency_key="k", tenant="acme")
    assert '"k"' in str(conflict.value)
    assert conflict.value.run_id == theirs.run_id
    with pytest.raises(InvalidRequest):
        await apps[0].enqueue("job", {"n": 2}, idempotency_key="acme\x1fk")


async def test_ordering_keys_are_each_tenants_own(store: Store, apps: Sequence[App]) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=10), actor=ACTOR)
    mine = await apps[0].enqueue("job", ordering_key="k")
    theirs = await apps[0].enqueue("job", ordering_key="k", tenant="acme")
    behind = await apps[0].enqueue("job", ordering_key="k", tenant="acme")
    assert (mine.status, theirs.status, behind.status) == (Status.QUEUED, Status.QUEUED, Status.BLOCKED)
    assert (await store.get(theirs.run_id)).ordering_key == "k"
    for wanted, ids in (
        (RunFilter(ordering_key="k", tenant="acme"), {theirs.run_id, behind.run_id}),
        (RunFilter(ordering_key="k"), {mine.run_id}),
        (RunFilter(tenant="acme"), {theirs.run_id, behind.run_id}),
    ):
        assert {run.id for run in (await search_runs(store.database, wanted)).runs} == ids


async def test_a_run_has_its_tenant_and_its_trace(store: Store, apps: Sequence[App]) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await create_tenant(store.database, "acme", actor=ACTOR)
    run = await apps[0].enqueue("job", tenant="acme", trace=trace)
    plain = await apps[0].enqueue("job")
    assert (await store.get(run.run_id)).tenant == "acme"
    assert (await store.get(plain.run_id)).tenant == "default"
    rows = await store.sql("select run_id, trace from run_inputs")
    assert {row["run_id"]: row["trace"] for row in rows} == {run.run_id: trace, plain.run_id: None}
