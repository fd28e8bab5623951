"""Flow control: each rule keeps its promise, for starts one after another, in one transaction and at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from runlane import NotFound, WrongState, queries
from runlane.domain.flow_keys import StartOutcome
from runlane.domain.run import Accepted, RunHook, Status
from runlane.domain.tenant import TenantLimits
from runlane.domain.text import load_json
from runlane.errors import BacklogFull, IdempotencyConflict, QueueLimited, RunlaneError, StartLimited, UniqueConflict
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.accept import stand_alone
from runlane.store.queue.committer import Committer
from runlane.store.queue.dependency_rows import LOCK_RUNS
from runlane.store.queue.flow_starts import LockedByOthers
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.retention import delete_leftovers, delete_old
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import approve_run, cancel_run
from runlane.store.sql.database import Database, Session, open_database
from runlane.submit.repeats import restarted_run
from tests.faults import Fault, FaultyDatabase
from tests.flow_control import accept_in_groups, accepted, described, pass_time, run_timers, start
from tests.harness import Store, completed, dead, failed_once, new_run

CANCELLED = Finish(AttemptOutcome.CANCELLED, Status.CANCELLED)
UNIQUE: dict[str, Any] = {"unique": {"key": "{{customer}}"}}
SEVEN = {"customer": 7}


@pytest.fixture
async def stores(store: Store, settings: Settings) -> AsyncGenerator[list[Store]]:
    """The database as three processes open it."""
    opened = [Store(settings, await open_database(settings, 4)) for _ in range(2)]
    yield [store, *opened]
    for other in opened:
        await other.database.close()


def unique(on_conflict: str) -> dict[str, Any]:
    return {"unique": {"key": "{{customer}}", "on_conflict": on_conflict}}


async def refusal(store: Store, request: Any) -> RunlaneError:
    (verdict,) = await store.accept(request)
    assert isinstance(verdict, RunlaneError), verdict
    return verdict


async def test_a_start_without_rules_is_accepted_by_the_short_statement(store: Store) -> None:
    assert stand_alone([new_run()])
    assert not stand_alone([start(UNIQUE, SEVEN)])
    await store.add()
    assert await store.count("flow_keys") == 0


# Unique while open


async def test_a_second_start_is_rejected_with_the_id_of_the_open_run(store: Store) -> None:
    first = await accepted(store, start(UNIQUE, SEVEN))
    error = await refusal(store, start(UNIQUE, SEVEN))
    assert isinstance(error, UniqueConflict)
    assert (error.run_id, error.http_status) == (first.run_id, 409)
    assert (await accepted(store, start(UNIQUE, {"customer": 8}))).outcome is StartOutcome.STARTED
    assert await store.count("runs") == 2


@pytest.mark.parametrize("end", [completed(), dead(), CANCELLED], ids=["completed", "failed", "cancelled"])
async def test_the_end_of_a_run_frees_its_key(store: Store, end: Finish) -> None:
    await accepted(store, start(UNIQUE, SEVEN))
    await store.finish(await store.claim_one(), end)
    await accepted(store, start(UNIQUE, SEVEN))


async def test_a_cancelled_an_expired_and_a_lost_run_free_their_keys(store: Store) -> None:
    first = await accepted(store, start(UNIQUE, SEVEN))
    await cancel_run(store.database, first.run_id)
    second = await accepted(store, start({**UNIQUE, "expires_after_seconds": 60}, SEVEN))
    await pass_time(store, 61)
    await run_timers(store)
    assert await store.status(second.run_id) is Status.CANCELLED
    third = await accepted(store, start(UNIQUE, SEVEN, max_losses=0))
    claimed = await store.claim_one()
    await store.database.transact(lambda session: take_over(session, [worker_of(claimed)]))
    assert await store.status(third.run_id) is Status.FAILED
    await accepted(store, start(UNIQUE, SEVEN))


def worker_of(claimed: Any) -> str:
    return load_json(claimed.notice.lines[0].data)["worker_id"]


async def test_a_run_that_is_retried_or_waits_keeps_its_key(store: Store) -> None:
    await accepted(store, start(UNIQUE, SEVEN))
    await store.finish(await store.claim_one(), failed_once())
    assert isinstance(await refusal(store, start(UNIQUE, SEVEN)), UniqueConflict)


async def test_return_gives_the_open_run_and_remembers_the_idempotency_key(store: Store) -> None:
    first = await accepted(store, start(unique("return"), SEVEN))
    second = await accepted(store, start(unique("return"), SEVEN, idempotency_key="k", fingerprint="f"))
    assert (second.run_id, second.outcome) == (first.run_id, StartOutcome.EXISTING)
    await store.finish(await store.claim_one())
    third = await accepted(store, start(unique("return"), SEVEN, idempotency_key="k", fingerprint="f"))
    assert (third.run_id, third.replayed) == (first.run_id, True)


async def test_skip_stores_nothing_but_a_count(store: Store) -> None:
    await accepted(store, start(unique("skip"), SEVEN))
    skipped = await accepted(store, start(unique("skip"), SEVEN, idempotency_key="k", fingerprint="f"))
    assert (skipped.run_id, skipped.outcome, skipped.status) == ("", StartOutcome.SKIPPED, Status.CANCELLED)
    assert (await store.count("runs"), await store.count("idempotency_keys")) == (1, 0)
    assert (await store.sql("select skipped from flow_keys"))[0]["skipped"] == 1


async def test_replace_cancels_a_waiting_run_in_the_same_transaction(store: Store) -> None:
    first = await accepted(store, start(unique("replace"), SEVEN, ordering_key="k"))
    behind = await store.add(ordering_key="k")
    second = await accepted(store, start(unique("replace"), SEVEN))
    assert second.replaced_run_id == first.run_id
    run = await store.get(first.run_id)
    assert (run.status, (run.error or {})["type"]) == (Status.CANCELLED, "replaced")
    assert await store.status(second.run_id) is Status.QUEUED
    assert await store.status(behind) is Status.QUEUED
    await store.check_stream(first.run_id)


async def test_replace_requests_the_cancellation_of_a_running_run_and_takes_its_key(store: Store) -> None:
    first = await accepted(store, start(unique("replace"), SEVEN))
    claimed = await store.claim_one()
    second = await accepted(store, start(unique("replace"), SEVEN))
    assert (await store.get(first.run_id)).cancel_requested_at_us is not None
    assert "cancel_requested" in await store.event_types(first.run_id)
    await store.finish(claimed, CANCELLED)
    assert isinstance(await refusal(store, start(UNIQUE, SEVEN)), UniqueConflict)
    assert await store.status(second.run_id) is Status.QUEUED


async def test_starts_of_one_transaction_see_each_other(store: Store) -> None:
    verdicts = await accept_in_groups(store, [start(UNIQUE, SEVEN), start(UNIQUE, SEVEN)])
    assert isinstance(verdicts[0], Accepted)
    assert isinstance(verdicts[1], UniqueConflict)
    verdicts = await accept_in_groups(store, [start(unique("replace"), SEVEN) for _ in range(3)])
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    open_runs = await store.sql("select id from runs where ended_at is null")
    assert [row["id"] for row in open_runs] == [verdicts[-1].run_id]  # type: ignore[union-attr]


async def test_of_many_starts_at_once_one_wins(stores: list[Store]) -> None:
    verdicts = await asyncio.gather(*(store.accept(start(UNIQUE, SEVEN)) for store in stores for _ in range(5)))
    assert sum(isinstance(verdict, Accepted) for (verdict,) in verdicts) == 1


async def test_a_failed_run_is_not_retried_while_its_key_is_taken(store: Store) -> None:
    first = await accepted(store, start(UNIQUE, SEVEN))
    await store.finish(await store.claim_one(), dead())
    second = await accepted(store, start(UNIQUE, SEVEN))
    with pytest.raises(UniqueConflict) as raised:
        await retry_run(store.database, first.run_id)
    assert raised.value.run_id == second.run_id
    await store.finish(await store.claim_one())
    await retry_run(store.database, first.run_id)
    assert isinstance(await refusal(store, start(UNIQUE, SEVEN)), UniqueConflict)


async def test_a_restart_of_a_failed_run_has_its_unique_key(store: Store) -> None:
    first = await accepted(store, start(UNIQUE, SEVEN))
    await store.finish(await store.claim_one(), dead())
    restart = await restarted_run(store.database, first.run_id)
    (verdict,) = await store.accept(restart)
    assert isinstance(verdict, Accepted)
    assert isinstance(await refusal(store, start(UNIQUE, SEVEN)), UniqueConflict)
    assert isinstance(await refusal(store, await restarted_run(store.database, first.run_id)), UniqueConflict)


# Keys


async def test_keys_belong_to_a_tenant_a_rule_and_a_target(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    await accepted(store, start(UNIQUE, SEVEN))
    await accepted(store, start(UNIQUE, SEVEN, tenant="acme"))
    await accepted(store, start({"rate_limit": {"key": "{{customer}}", "max": 1, "per_seconds": 60}}, SEVEN))
    assert await store.count("flow_keys") == 3


async def test_keys_that_are_idle_are_deleted_and_others_stay(store: Store) -> None:
    await accepted(store, start({"rate_limit": {"key": "idle", "max": 1, "per_seconds": 60}}))
    await accepted(store, start({"throttle": {"key": "busy", "max": 1, "per_seconds": 10 * 86400}}))
    await store.sql("update flow_keys set used_on = used_on - 2")
    await pass_time(store, 86400)
    await store.database.transact(lambda session: delete_leftovers(session, 1))
    (left,) = await store.sql("select key from flow_keys")
    assert left["key"].endswith("busy")


# Idempotency windows


async def test_an_idempotency_key_returns_its_run_within_a_window_that_does_not_slide(store: Store) -> None:
    rules = {"idempotency_seconds": 3600}
    same: dict[str, Any] = {"idempotency_key": "k", "fingerprint": "f"}
    first = await accepted(store, start(rules, **same))
    await pass_time(store, 3000)
    assert (await accepted(store, start(rules, **same))).run_id == first.run_id
    await pass_time(store, 700)
    second = await accepted(store, start(rules, **same))
    assert (second.run_id != first.run_id, second.replayed) == (True, False)
    assert isinstance(await refusal(store, start(rules, idempotency_key="k", fingerprint="g")), IdempotencyConflict)
    assert (await accepted(store, start(rules, **same))).run_id == second.run_id


# Rate limits


def rate(most: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {"rate_limit": {"key": "{{customer}}", "max": most, "per_seconds": seconds, **more}}


async def test_a_rate_limit_rejects_with_the_time_to_wait(store: Store) -> None:
    for _ in range(3):
        await accepted(store, start(rate(3, 60), SEVEN))
    error = await refusal(store, start(rate(3, 60), SEVEN))
    assert isinstance(error, StartLimited)
    assert 19 < error.retry_after_seconds <= 20
    await accepted(store, start(rate(3, 60), {"customer": 8}))
    await pass_time(store, 20)
    await accepted(store, start(rate(3, 60), SEVEN))
    assert isinstance(await refusal(store, start(rate(3, 60), SEVEN)), StartLimited)


async def test_a_burst_is_what_may_come_at_once(store: Store) -> None:
    requests = [start(rate(60, 60, burst=2), SEVEN) for _ in range(5)]
    verdicts = await accept_in_groups(store, requests)
    assert [isinstance(verdict, Accepted) for verdict in verdicts] == [True, True, False, False, False]


async def test_a_dropped_start_is_counted_and_leaves_nothing_else(store: Store) -> None:
    await accepted(store, start(rate(1, 60, on_limit="drop"), SEVEN))
    dropped = await accepted(store, start(rate(1, 60, on_limit="drop"), SEVEN, idempotency_key="k", fingerprint="f"))
    assert (dropped.run_id, dropped.outcome) == ("", StartOutcome.DROPPED)
    assert (await store.count("runs"), await store.count("idempotency_keys")) == (1, 0)
    assert (await store.sql("select skipped from flow_keys"))[0]["skipped"] == 1


async def test_a_rate_limit_is_exact_under_concurrent_starts(stores: list[Store]) -> None:
    verdicts = await asyncio.gather(*(store.accept(start(rate(7, 3600), SEVEN)) for store in stores for _ in range(10)))
    assert sum(isinstance(verdict, Accepted) for (verdict,) in verdicts) == 7


async def test_a_request_for_many_runs_is_refused_as_a_whole(store: Store) -> None:
    before = await store.contents()
    verdicts = await store.accept(*(start(rate(3, 60), SEVEN) for _ in range(4)))
    assert {type(verdict) for verdict in verdicts} == {StartLimited}
    after = await store.contents()
    after["flow_keys"] = before["flow_keys"]
    assert after == before
    await store.add_all(*(start(rate(3, 60), SEVEN) for _ in range(3)))


# Throttle


def throttle(most: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {"throttle": {"key": "{{customer}}", "max": most, "per_seconds": seconds, **more}}


async def test_throttled_runs_are_due_one_interval_after_another_in_their_order(store: Store) -> None:
    requests = [start(throttle(2, 60), SEVEN) for _ in range(4)]
    await store.add_all(*requests)
    other = await accepted(store, start(throttle(2, 60), {"customer": 8}))
    runs = [await store.get(request.id) for request in requests]
    assert [run.status for run in runs] == [Status.QUEUED, *[Status.SCHEDULED] * 3]
    dues = [run.due_at_us or 0 for run in runs[1:]]
    assert [later - earlier for earlier, later in pairwise(dues)] == [30_000_000, 30_000_000]
    assert described(runs[1]).startswith("throttled until ")
    assert await store.status(other.run_id) is Status.QUEUED
    await pass_time(store, 31)
    await run_timers(store)
    assert [await store.status(request.id) for request in requests] == [
        Status.QUEUED, Status.QUEUED, Status.SCHEDULED, Status.SCHEDULED,
    ]  # fmt: skip


async def test_the_backlog_of_a_throttle_is_bounded(store: Store) -> None:
    rules = throttle(1, 60, max_backlog=2)
    for _ in range(3):
        await accepted(store, start(rules, SEVEN))
    assert isinstance(await refusal(store, start(rules, SEVEN)), BacklogFull)
    await pass_time(store, 61)
    await accepted(store, start(rules, SEVEN))


async def test_a_cancelled_throttled_run_leaves_its_time_unused(store: Store) -> None:
    await accepted(store, start(throttle(1, 60), SEVEN))
    second = await accepted(store, start(throttle(1, 60), SEVEN))
    await cancel_run(store.database, second.run_id)
    third = await accepted(store, start(throttle(1, 60), SEVEN))
    assert (third.due_at_us or 0) - (second.due_at_us or 0) == 60_000_000


# Debounce


def debounce(seconds: float, **more: Any) -> dict[str, Any]:
    return {"debounce": {"key": "{{customer}}", "delay_seconds": seconds, **more}}


async def test_starts_become_one_run_with_the_last_input(store: Store) -> None:
    first = await accepted(store, start(debounce(10), {"customer": 7, "text": "a"}))
    await pass_time(store, 4)
    second = await accepted(
        store, start(debounce(10), {"customer": 7, "text": "b"}, idempotency_key="k", fingerprint="f")
    )
    assert (first.run_id, first.debounced) == (second.run_id, second.debounced)
    assert second.debounced
    run = await store.get(first.run_id)
    assert (run.status, run.input) == (Status.SCHEDULED, {"customer": 7, "text": "b"})
    assert run.due_at_us == second.due_at_us
    assert described(run).startswith("debounced until ")
    assert await store.event_types(first.run_id) == ["queued", "starts_joined"]
    again = await accepted(
        store, start(debounce(10), {"customer": 7, "text": "b"}, idempotency_key="k", fingerprint="f")
    )
    assert (again.run_id, again.replayed) == (first.run_id, True)
    await pass_time(store, 11)
    await run_timers(store)
    claimed = await store.claim_one()
    assert load_json(claimed.input) == {"customer": 7, "text": "b"}
    await store.check_stream(first.run_id)


async def test_with_leading_the_first_input_wins(store: Store) -> None:
    rules = debounce(10, mode="leading")
    first = await accepted(store, start(rules, {"customer": 7, "text": "a"}))
    await accepted(store, start(rules, {"customer": 7, "text": "b"}))
    assert (await store.get(first.run_id)).input == {"customer": 7, "text": "a"}


async def test_the_delay_is_bounded_since_the_first_start(store: Store) -> None:
    rules = debounce(10, max_delay_seconds=25)
    first = await accepted(store, start(rules, SEVEN))
    for _ in range(4):
        await pass_time(store, 6)
        assert (await accepted(store, start(rules, SEVEN))).run_id == first.run_id
    (key,) = await store.sql("select opened_at, due_at from flow_keys")
    assert key["due_at"] - key["opened_at"] == 25_000_000
    await pass_time(store, 2)
    assert (await accepted(store, start(rules, SEVEN))).run_id != first.run_id


async def test_a_run_that_is_due_started_or_cancelled_is_not_changed(store: Store) -> None:
    first = await accepted(store, start(debounce(10), {"customer": 7, "text": "a"}))
    await pass_time(store, 11)
    second = await accepted(store, start(debounce(10), {"customer": 7, "text": "b"}))
    assert second.run_id != first.run_id
    assert (await store.get(first.run_id)).input == {"customer": 7, "text": "a"}
    await cancel_run(store.database, second.run_id)
    assert (await accepted(store, start(debounce(10), SEVEN))).run_id not in (first.run_id, second.run_id)


async def test_starts_of_one_transaction_join_the_run_that_it_begins(store: Store) -> None:
    requests = [start(debounce(10), {"customer": 7, "text": text}) for text in "abc"]
    verdicts = await accept_in_groups(store, requests)
    assert {verdict.run_id for verdict in verdicts if isinstance(verdict, Accepted)} == {requests[0].id}
    assert await store.count("runs") == 1
    assert (await store.get(requests[0].id)).input == {"customer": 7, "text": "c"}


async def test_of_many_starts_at_once_all_join_one_run(stores: list[Store]) -> None:
    verdicts = await asyncio.gather(
        *(store.accept(start(debounce(600), {"customer": 7, "n": n})) for store in stores for n in range(5))
    )
    assert len({verdict.run_id for (verdict,) in verdicts if isinstance(verdict, Accepted)}) == 1


async def test_a_debounced_run_may_be_held_and_have_an_ordering_key(store: Store) -> None:
    await store.add(ordering_key="k")
    first = await accepted(store, start(debounce(10), SEVEN, ordering_key="k", hold=True))
    assert await store.status(first.run_id) is Status.BLOCKED
    assert (await accepted(store, start(debounce(10), SEVEN, ordering_key="k"))).run_id == first.run_id
    await store.finish(await store.claim_one())
    assert await store.status(first.run_id) is Status.AWAITING_APPROVAL
    await approve_run(store.database, first.run_id)
    assert await store.status(first.run_id) is Status.SCHEDULED


# Batches


def batch(size: int, seconds: float = 600) -> dict[str, Any]:
    return {"batch": {"key": "{{customer}}", "max_size": size, "max_wait_seconds": seconds}}


async def items_of(store: Store, run_id: str) -> list[dict[str, Any]]:
    return ((await store.get(run_id)).input or {})["items"]


async def test_inputs_are_collected_in_order_until_the_batch_is_full(store: Store) -> None:
    found = [await accepted(store, start(batch(3), {"customer": 7, "n": n})) for n in range(4)]
    assert len({item.run_id for item in found[:3]}) == 1
    assert found[3].run_id != found[0].run_id
    assert {item.outcome for item in found} == {StartOutcome.BATCHED}
    reason = described(await store.get(found[3].run_id))
    assert reason.startswith("collecting a batch until ")
    assert reason.endswith(": 1 of 3")
    await run_timers(store)
    assert await store.status(found[0].run_id) is Status.QUEUED
    assert await store.status(found[3].run_id) is Status.SCHEDULED
    assert await items_of(store, found[0].run_id) == [
        {"start_id": item.start_id, "input": {"customer": 7, "n": n}} for n, item in enumerate(found[:3])
    ]
    await pass_time(store, 601)
    await run_timers(store)
    assert [item["input"]["n"] for item in await items_of(store, found[3].run_id)] == [3]
    assert await store.count("batch_items") == 0
    assert not (await store.sql("select hooks from runs"))[0]["hooks"] & RunHook.COLLECTS


async def test_a_batch_is_not_ready_before_its_input_is_complete(store: Store) -> None:
    found = await accepted(store, start(batch(1), SEVEN))
    assert await store.claim(await store.worker()) == []
    await run_timers(store)
    assert (await store.claim_one()).run_id == found.run_id


async def test_a_transaction_with_many_starts_fills_several_batches(store: Store) -> None:
    requests = [start(batch(3), {"customer": 7, "n": n}) for n in range(8)]
    verdicts = [verdict for verdict in await accept_in_groups(store, requests) if isinstance(verdict, Accepted)]
    ids = list(dict.fromkeys(verdict.run_id for verdict in verdicts))
    assert [sum(verdict.run_id == run_id for verdict in verdicts) for run_id in ids] == [3, 3, 2]
    await pass_time(store, 601)
    await run_timers(store)
    collected = [item["input"]["n"] for run_id in ids for item in await items_of(store, run_id)]
    assert collected == list(range(8))


async def test_a_start_is_found_while_its_batch_is_completed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await accepted(store, start({"batch": {"max_size": 1, "max_wait_seconds": 60}}, {"n": 1}))
    read = queries.read_batch_starts

    async def complete_first(database: Database, run_id: str) -> set[str]:
        await run_timers(store)
        return await read(database, run_id)

    monkeypatch.setattr(queries, "read_batch_starts", complete_first)
    assert (await queries.get_start(store.database, one.run_id, one.start_id or "")).run_id == one.run_id
    with pytest.raises(NotFound, match='no start "start_1"'):
        await queries.get_start(store.database, one.run_id, "start_1")


async def test_a_batch_has_at_most_a_megabyte(store: Store) -> None:
    large = "x" * 400_000
    found = [await accepted(store, start(batch(100), {"customer": 7, "text": large})) for _ in range(3)]
    assert [item.run_id == found[0].run_id for item in found] == [True, True, False]
    await run_timers(store)
    assert await store.status(found[0].run_id) is Status.QUEUED


async def test_each_input_is_in_one_batch_under_concurrent_starts(stores: list[Store]) -> None:
    numbers = list(range(5 * len(stores)))
    verdicts = await asyncio.gather(
        *(stores[n % len(stores)].accept(start(batch(4), {"customer": 7, "n": n})) for n in numbers)
    )
    store = stores[0]
    await pass_time(store, 601)
    await run_timers(store)
    ids = {verdict.run_id for (verdict,) in verdicts if isinstance(verdict, Accepted)}
    collected = [item["input"]["n"] for run_id in ids for item in await items_of(store, run_id)]
    assert sorted(collected) == numbers


async def test_a_repeated_start_of_a_batch_gets_its_part_again(store: Store) -> None:
    same: dict[str, Any] = {"idempotency_key": "k", "fingerprint": "f"}
    await accepted(store, start(batch(5), SEVEN))
    first = await accepted(store, start(batch(5), SEVEN, **same))
    again = await accepted(store, start(batch(5), SEVEN, **same))
    assert (again.run_id, again.start_id, again.replayed) == (first.run_id, first.start_id, True)
    await pass_time(store, 601)
    await run_timers(store)
    assert len(await items_of(store, first.run_id)) == 2


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_COMMIT, Fault.TIMEOUT])
async def test_an_input_is_collected_once_although_the_answer_of_its_commit_is_lost(store: Store, fault: Fault) -> None:
    first = await accepted(store, start(batch(5), {"customer": 7, "n": 1}))
    database = FaultyDatabase(store.database, [fault])
    committer = Committer(database, lambda lanes: None)
    await committer.start()
    (second,) = await committer.accept([start(batch(5), {"customer": 7, "n": 2})], 30)
    await committer.stop()
    assert isinstance(second, Accepted)
    assert (second.run_id, database.seen[0]) == (first.run_id, fault)
    await pass_time(store, 601)
    await run_timers(store)
    assert [item["input"]["n"] for item in await items_of(store, first.run_id)] == [1, 2]
    await store.check_stream(first.run_id)


async def test_a_start_that_finds_its_run_locked_is_decided_again(stores: list[Store]) -> None:
    """A transaction that changes the debounced run, and one that joins it, do not wait for each other."""
    store = stores[0]
    first = await accepted(store, start(debounce(600), SEVEN))
    joined = asyncio.Event()
    locked = asyncio.Event()

    async def hold(session: Session) -> None:
        await session.fetch(LOCK_RUNS, ids=session.texts([first.run_id]))
        locked.set()
        await asyncio.wait_for(joined.wait(), 30)

    if store.database.dialect == "sqlite":
        return
    holding = asyncio.create_task(stores[1].database.transact(hold))
    await locked.wait()
    with pytest.raises(LockedByOthers):
        await store.accept(start(debounce(600), SEVEN))
    joined.set()
    await holding
    assert (await accepted(store, start(debounce(600), SEVEN))).run_id == first.run_id


async def test_a_deleted_batch_leaves_no_items(store: Store) -> None:
    found = await accepted(store, start(batch(5), SEVEN))
    await cancel_run(store.database, found.run_id)
    assert await store.count("batch_items") == 1
    await store.sql("update runs set ended_at = 1")
    await store.database.transact(lambda session: delete_old(session, 1))
    assert await store.count("batch_items") == 0


# Maximum backlog


def backlog(most: int) -> dict[str, Any]:
    return {"max_backlog": {"key": "{{customer}}", "max": most}}


async def test_beyond_the_backlog_starts_are_rejected_until_one_has_started(store: Store) -> None:
    for _ in range(2):
        await accepted(store, start(backlog(2), SEVEN))
    error = await refusal(store, start(backlog(2), SEVEN))
    assert (type(error), error.code, error.http_status) == (BacklogFull, "backlog_full", 429)
    await accepted(store, start(backlog(2), {"customer": 8}))
    claimed = await store.claim_one()
    await accepted(store, start(backlog(2), SEVEN))
    # A run that waits for its second attempt has started.
    await store.finish(claimed, failed_once())
    assert isinstance(await refusal(store, start(backlog(2), SEVEN)), BacklogFull)


async def test_a_backlog_is_exact_under_concurrent_starts(stores: list[Store]) -> None:
    verdicts = await asyncio.gather(*(store.accept(start(backlog(4), SEVEN)) for store in stores for _ in range(5)))
    assert sum(isinstance(verdict, Accepted) for (verdict,) in verdicts) == 4


# Expiry


@pytest.mark.parametrize(
    "fields",
    [{}, {"delay_us": 3_600_000_000}, {"hold": True}, {"ordering_key": "taken"}],
    ids=["queued", "delayed", "held", "blocked"],
)
async def test_a_run_that_has_not_started_expires(store: Store, fields: dict[str, Any]) -> None:
    await store.add(ordering_key="taken", hold=True)
    run_id = (await accepted(store, start({"expires_after_seconds": 60}, **fields))).run_id
    await run_timers(store)
    assert not (await store.status(run_id)).terminal
    assert (await store.get(run_id)).expires_at_us is not None
    await store.sql(f"update runs set expires_at = expires_at - 61000000 where id = '{run_id}'")
    assert await store.claim(await store.worker()) == []
    await run_timers(store)
    run = await store.get(run_id)
    assert (run.status, (run.error or {})["type"]) == (Status.CANCELLED, "expired")
    await store.check_stream(run_id)
    with pytest.raises(WrongState):
        await retry_run(store.database, run_id)


async def test_a_run_that_has_started_does_not_expire(store: Store) -> None:
    run_id = (await accepted(store, start({"expires_after_seconds": 60}))).run_id
    claimed = await store.claim_one()
    await store.finish(claimed, failed_once())
    await pass_time(store, 61)
    await run_timers(store)
    assert await store.status(run_id) is Status.QUEUED
    assert (await store.claim_one()).run_id == run_id


async def test_a_run_that_expires_passes_its_ordering_key_on(store: Store) -> None:
    await accepted(store, start({"expires_after_seconds": 60}, ordering_key="k"))
    behind = await store.add(ordering_key="k")
    await pass_time(store, 61)
    await run_timers(store)
    assert await store.status(behind) is Status.QUEUED


# Limits of tenants come first


async def test_the_limits_of_a_tenant_are_checked_before_its_rules(store: Store) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=1), actor="test")
    first = await accepted(store, start(debounce(600), SEVEN, tenant="acme"))
    assert isinstance(await refusal(store, start(debounce(600), SEVEN, tenant="acme")), QueueLimited)
    await cancel_run(store.database, first.run_id)
    again = await accepted(store, start(debounce(600), SEVEN, tenant="acme"))
    assert again.run_id != first.run_id
    assert (await store.sql("select limited from runs where id = :id", id=again.run_id))[0]["limited"]


async def test_many_keys_in_one_transaction_take_a_constant_number_of_statements(store: Store) -> None:
    async def statements(count: int) -> int:
        rules = {**UNIQUE, **rate(5, 60), **backlog(5)}
        requests = [start(rules, {"customer": f"{count}-{n}"}) for n in range(count)]
        counted = 0

        async def work(session: Any) -> None:
            nonlocal counted
            from runlane.store.queue.accept import accept

            class Counting:
                dialect = session.dialect
                texts = session.texts
                lock = session.lock
                try_lock = session.try_lock
                freed = session.freed

                async def fetch(self, *given: Any, **params: Any) -> Any:
                    nonlocal counted
                    counted += 1
                    return await session.fetch(*given, **params)

                async def write(self, *given: Any, **params: Any) -> Any:
                    nonlocal counted
                    counted += 1
                    return await session.write(*given, **params)

            await accept(Counting(), requests, [1] * count)

        await store.database.transact(work)
        return counted

    assert await statements(300) == await statements(3)
