"""Idempotency keys: the same request makes one run, however often and from whichever process it comes."""

from __future__ import annotations

import asyncio

import pytest

from runlane import App, Context, IdempotencyConflict
from runlane.domain.run import Accepted, Status
from runlane.settings import Settings
from runlane.store.queue.lanes import declare_lanes, move_kinds
from tests.harness import Store, new_run


async def test_the_same_body_is_the_same_run(store: Store) -> None:
    (first,) = await store.add_all(new_run(idempotency_key="k", fingerprint="f"))
    (second,) = await store.add_all(new_run(idempotency_key="k", fingerprint="f"))
    assert not first.replayed
    assert second == Accepted(first.run_id, Status.QUEUED, "default", replayed=True)
    assert await store.count("runs") == await store.count("run_inputs") == await store.count("run_events") == 1


async def test_a_replay_returns_the_present_state_of_the_run(store: Store) -> None:
    await store.add(idempotency_key="k", fingerprint="f")
    claimed = await store.claim_one()
    await store.finish(claimed)
    (again,) = await store.add_all(new_run(idempotency_key="k", fingerprint="f"))
    assert again.status is Status.COMPLETED


async def test_another_body_is_a_conflict_and_stores_nothing(store: Store) -> None:
    run_id = await store.add(idempotency_key="k", fingerprint="f")
    before = await store.contents()
    (verdict,) = await store.accept(new_run(idempotency_key="k", fingerprint="other"))
    assert isinstance(verdict, IdempotencyConflict)
    assert verdict.run_id == run_id
    assert "use a new key" in str(verdict)
    assert await store.contents() == before


async def test_a_conflict_spoils_nothing_for_the_others(store: Store) -> None:
    await store.add(idempotency_key="k", fingerprint="f")
    verdicts = await store.accept(
        new_run(), new_run(idempotency_key="k", fingerprint="other"), new_run(idempotency_key="l", fingerprint="f")
    )
    assert [type(verdict).__name__ for verdict in verdicts] == ["Accepted", "IdempotencyConflict", "Accepted"]
    assert await store.count("runs") == 3


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, Status.QUEUED),
        ({"delay_us": 60_000_000}, Status.SCHEDULED),
        ({"hold": True}, Status.AWAITING_APPROVAL),
        ({"ordering_key": "taken"}, Status.BLOCKED),
    ],
)
async def test_twice_within_one_batch(store: Store, fields: dict[str, object], status: Status) -> None:
    await store.add(ordering_key="taken")
    await declare_lanes(store.database, ["bulk"])
    await move_kinds(store.database, ["job"], "bulk")
    one, two, three = await store.accept(
        new_run(idempotency_key="k", fingerprint="f", **fields),
        new_run(idempotency_key="k", fingerprint="f", **fields),
        new_run(idempotency_key="k", fingerprint="zz", **fields),
    )
    assert isinstance(one, Accepted)
    assert two == Accepted(one.run_id, status, "bulk", replayed=True)
    assert isinstance(three, IdempotencyConflict)
    assert await store.count("runs") == 2


async def test_fifty_callers_at_once_get_one_run(settings: Settings) -> None:
    apps = [App(settings) for _ in range(3)]

    async def job(ctx: Context, n: int) -> None: ...

    for app in apps:
        app.task("job")(job)
        await app.connect()
    try:
        answers = await asyncio.gather(
            *(apps[number % 3].enqueue("job", {"n": 1}, idempotency_key="upload-991") for number in range(50))
        )
        assert len({answer.run_id for answer in answers}) == 1
        assert sum(not answer.replayed for answer in answers) == 1
        with pytest.raises(IdempotencyConflict):
            await apps[0].enqueue("job", {"n": 2}, idempotency_key="upload-991")
    finally:
        for app in apps:
            await app.close()


async def test_the_same_request_written_another_way_is_the_same(settings: Settings) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context, a: int, b: int) -> None: ...

    async with app:
        first = await app.enqueue("job", {"a": 1, "b": 2}, idempotency_key="k")
        again = await app.enqueue("job", {"b": 2, "a": 1}, idempotency_key="k", delay_seconds=0.0)
        assert (again.run_id, again.replayed) == (first.run_id, True)


@pytest.mark.parametrize(
    "change",
    [{"priority": 1}, {"ordering_key": "None"}, {"delay_seconds": 1}, {"hold": True}, {"on_dead": "block"}],
)
async def test_every_part_of_a_request_counts(settings: Settings, change: dict[str, object]) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

    async with app:
        await app.enqueue("job", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await app.enqueue("job", idempotency_key="k", **change)  # pyright: ignore[reportArgumentType]
