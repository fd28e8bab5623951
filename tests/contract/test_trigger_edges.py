"""Edges of events and triggers: evaluators, replays and retention that meet, and waits of other tenants."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from runlane import App
from runlane.domain.run import Status
from runlane.domain.tenant_event import Outcome
from runlane.maintenance.retention import Retention
from runlane.store.access.tenants import create_tenant
from runlane.store.events.outcomes import Decision, claim_pairs, decide_pair, match_events
from runlane.store.events.reading import find_event
from runlane.store.events.waiting import OpenMatch, earlier_events, unsearched_waits, waits_for
from runlane.store.orchestration import resume
from runlane.store.orchestration.resume import store_event
from runlane.store.orchestration.waits import NewWait
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Statement
from runlane.triggers.evaluator import TriggerEvaluator
from runlane.triggers.replay import replay_trigger
from runlane.triggers.waiting_runs import WaitingRuns
from tests.contract.test_interleavings import all_wait, held_open, on_postgres
from tests.contract.test_triggers import PAID, app, evaluate, outcomes
from tests.contract.test_waits import PAUSED
from tests.harness import Store, entry_of, eventually, new_run

__all__ = ["app"]


async def waiting(store: Store, tenant: str, *paths: str, lookback_us: int = 0) -> str:
    """Return a run of the tenant that waits for `order.paid` at these steps."""
    await store.add(tenant=tenant)
    claimed = await store.claim_one()
    waits = [NewWait(path, "event", path, "order.paid", "{}", match="{}", lookback_us=lookback_us) for path in paths]
    await store.record(entry_of(claimed, PAUSED, waits=waits))
    return claimed.run_id


async def test_an_evaluator_whose_claim_has_ended_decides_nothing(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await store.database.transact(match_events)
    (late,) = await claim_pairs(store.database, 15)
    await store.sql("update event_outcomes set claimed_until = 1")
    await evaluate(app)
    assert await decide_pair(store.database, late, Decision(Outcome.STARTED, run=new_run())) is None
    assert await store.count("runs") == 1
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED


@on_postgres
async def test_of_two_evaluators_at_once_one_starts_the_run(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await store.database.transact(match_events)
    (pair,) = await claim_pairs(store.database, 15)

    async def lock(session: Session) -> None:
        await session.fetch(Statement("raw", text("select 1 from event_outcomes for update")))

    async with held_open(store, lock):
        both = [
            asyncio.create_task(decide_pair(store.database, pair, Decision(Outcome.STARTED, run=new_run())))
            for _ in range(2)
        ]
        await all_wait(store, *both)
    assert sum(verdict is not None for verdict in await asyncio.gather(*both)) == 1
    assert await store.count("runs") == 1


@on_postgres
async def test_a_replay_leaves_an_event_that_starts_a_run_meanwhile(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await evaluate(app)
    await store.sql("update event_outcomes set outcome = 'failed'")

    async def start(session: Session) -> None:
        await session.fetch(Statement("raw", text("update event_outcomes set outcome = 'started'")))

    async with held_open(store, start):
        replay = asyncio.create_task(
            replay_trigger(
                store.database, "default", "on-paid", from_us=0, until_us=None, after=None, limit=10, dry_run=False,
                actor="test",
            )
        )  # fmt: skip
        await all_wait(store, replay)
    await replay
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED


async def test_retention_keeps_events_that_were_not_matched(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await store.sql("update stored_events set received_at = 1")
    await Retention(store.settings, store.database).run_once()
    assert await store.count("stored_events") == 1
    await evaluate(app)
    assert await store.count("runs") == 1


async def test_an_event_resumes_runs_of_its_own_tenant_alone(app: App, store: Store) -> None:
    await create_tenant(store.database, "other", actor="test")
    mine, theirs = await waiting(store, "default", "pay"), await waiting(store, "other", "pay")
    sent = await app.broadcast("order.paid", {})
    event = await find_event(store.database, "default", sent.event_id)
    assert await WaitingRuns(await app.connect()).resume(event) == 1
    assert [await store.status(run_id) for run_id in (mine, theirs)] == [Status.QUEUED, Status.PAUSED]


async def test_a_page_of_waits_that_ends_within_a_run_loses_none(app: App, store: Store) -> None:
    run_id = await waiting(store, "default", "first", "second")
    event = await find_event(store.database, "default", (await app.broadcast("order.paid", {})).event_id)
    pages = [await waits_for(store.database, event, after) for after in (None, OpenMatch(run_id, "first", {}))]
    assert [[wait.path for wait in page] for page in pages] == [["first", "second"], ["second"]]


async def test_the_look_back_of_a_wait_reaches_into_the_past(app: App, store: Store) -> None:
    hour_us = 3_600_000_000
    await waiting(store, "default", "pay", lookback_us=hour_us)
    (opened,) = await store.sql("select opened_at from run_waits")
    event = await find_event(store.database, "default", (await app.broadcast("order.paid", {})).event_id)
    times = [opened["opened_at"] + 1, opened["opened_at"] - hour_us, opened["opened_at"] - hour_us - 1]
    events = [replace(event, received_at_us=received_at_us) for received_at_us in times]
    found = [len(await waits_for(store.database, item, None)) for item in events]
    assert found == [1, 1, 0]


@pytest.mark.parametrize(("bound", "number"), [(10, 5), (5, 5), (4, 4)])
async def test_a_new_wait_is_compared_with_all_pages_of_earlier_events(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch, bound: int, number: int
) -> None:
    monkeypatch.setattr("runlane.store.events.waiting._EVENTS_AT_ONCE", 2)
    monkeypatch.setattr("runlane.store.events.waiting._LOOKED_AT", bound)
    sent = [(await app.broadcast("order.paid", {"n": n})).event_id for n in range(5)]
    await app.broadcast("order.sent", {})
    await waiting(store, "default", "pay", lookback_us=3_600_000_000)
    ((wait,), _) = await unsearched_waits(store.database)
    found = [event.id async for event in earlier_events(store.database, wait)]
    assert found == sent[:number]


async def test_a_search_for_many_new_waits_continues_in_the_next_pass(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.triggers.waiting_runs._SEARCH_SECONDS", -1.0)
    await app.broadcast("order.paid", {})
    runs = [await waiting(store, "default", "pay", lookback_us=3_600_000_000) for _ in range(3)]
    search = WaitingRuns(await app.connect()).search
    assert [await search() for _ in range(4)] == [True, True, True, False]
    assert {await store.status(run_id) for run_id in runs} == {Status.QUEUED}


async def test_slow_conditions_of_a_tenant_do_not_hold_up_others(app: App, store: Store) -> None:
    """More events of one tenant than a process claims at once, with a condition that uses up its time."""
    await create_tenant(store.database, "acme", actor="test")
    await app.sync({"triggers": [{**PAID, "condition": "sum(range(10 ** 12)) > 0"}]}, tenant="acme")
    await app.sync({"triggers": [{**PAID, "condition": "event.data.order == 7"}]})
    for _ in range(3):
        await app.broadcast_many([{"name": "order.paid", "data": {"order": 1, "who": "x"}}] * 20, tenant="acme")
    settings = store.settings.model_copy(update={"sandbox_condition_seconds": 60.0})
    evaluator = TriggerEvaluator(settings, await app.connect(), app.tasks)

    async def slow_ones_are_claimed() -> bool:
        evaluator.wake()
        rows = await store.sql("select count(*) as n from event_outcomes where claimed_until > 0")
        return rows[0]["n"] >= 20

    async def started() -> bool:
        evaluator.wake()
        return (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED

    evaluator.start()
    try:
        await eventually(slow_ones_are_claimed, "slow conditions")
        sent = await app.broadcast("order.paid", {"order": 7, "who": "Ada"})
        await store.database.transact(match_events)
        await eventually(started, "the trigger of the other tenant")
    finally:
        await evaluator.stop()
    # They were given back when the process stopped, and no event is lost.
    rows = await store.sql("select outcome, count(*) as n from event_outcomes where tenant = 'acme' group by 1")
    assert [dict(row) for row in rows] == [{"outcome": "pending", "n": 60}]


async def test_a_run_with_too_much_unread_stops_no_other_waiting_run(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = await waiting(store, "default", "pay", lookback_us=3_600_000_000)
    other = await waiting(store, "default", "pay")
    await store_event(store.database, full, "other", "x" * 900, "test")
    monkeypatch.setattr(resume, "MAX_UNREAD_BYTES", 1000)
    sent = await app.broadcast("order.paid", {"note": "y" * 200})
    await evaluate(app)
    assert [await store.status(run_id) for run_id in (full, other)] == [Status.PAUSED, Status.QUEUED]
    (outcome,) = (await outcomes(app, sent.event_id)).values()
    assert outcome.outcome is Outcome.PENDING
    # When the run has read what it had, the event resumes it.
    await store.sql("update run_waits set settled_at = 1 where kind = 'sent'")
    await store.sql("update event_outcomes set claimed_until = 1")
    await evaluate(app)
    assert await store.status(full) is Status.QUEUED


async def test_a_wait_that_cannot_be_searched_stops_no_other(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.broadcast("order.paid", {"note": "y" * 200})
    full = await waiting(store, "default", "pay", lookback_us=3_600_000_000)
    await store_event(store.database, full, "other", "x" * 900, "test")
    other = await waiting(store, "default", "pay", lookback_us=3_600_000_000)
    monkeypatch.setattr(resume, "MAX_UNREAD_BYTES", 1000)
    assert await WaitingRuns(await app.connect()).search() is False
    assert [await store.status(run_id) for run_id in (full, other)] == [Status.PAUSED, Status.QUEUED]
