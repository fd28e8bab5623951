"""Stored events and triggers: each id once, one outcome and at most one run per event and trigger, loops cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane import App, Context, InvalidRequest, NotFound, RateLimited
from runlane.domain.run import Status
from runlane.domain.tenant_event import MAX_DEPTH, Outcome, TriggerOutcome, listens
from runlane.maintenance.retention import Retention
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, set_tenant
from runlane.store.events.outcomes import claim_pairs, match_events
from runlane.store.events.reading import find_event, list_events, outcomes_of_event, outcomes_of_trigger
from runlane.triggers import evaluator as evaluator_module
from runlane.triggers.evaluator import TriggerEvaluator
from runlane.triggers.replay import replay_trigger
from tests.harness import Store, completed, dead

HELLO: dict[str, Any] = {
    "id": "hello",
    "steps": [{"id": "say", "type": "print", "print_content": "Hello, {{user_input}} {{order}}"}],
    "state_schema": {"order": {}},
}
PAID: dict[str, Any] = {
    "id": "on-paid",
    "event": "order.paid",
    "task": "ship",
    "input": {"order": "{{event.data.order}}", "note": "paid by {{event.data.who}}"},
}


@pytest.fixture
async def app(store: Store) -> AsyncGenerator[App]:
    app = App(store.settings)

    @app.task("ship")
    async def ship(ctx: Context, order: int, note: str = "") -> None:
        pass

    async with app:
        yield app


async def evaluator_of(app: App) -> TriggerEvaluator:
    return TriggerEvaluator(app.settings, await app.connect(), app.tasks)


async def evaluate(app: App) -> None:
    """Evaluate until nothing is left that can be decided now."""
    evaluator = await evaluator_of(app)
    try:
        while await evaluator.run_once():
            await evaluator.finish()
        await evaluator.finish()
    finally:
        await evaluator.stop()


async def outcomes(app: App, event_id: str) -> dict[str, TriggerOutcome]:
    return {item.trigger: item for item in await outcomes_of_event(await app.database(), "default", event_id)}


async def test_an_event_starts_a_run_with_its_input_and_origin(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 7, "who": "Ada"}, key="customer-1")
    await evaluate(app)
    (outcome,) = (await outcomes(app, sent.event_id)).values()
    assert (outcome.outcome, outcome.trigger) == (Outcome.STARTED, "on-paid")
    assert outcome.run_id is not None
    run = await app.get(outcome.run_id)
    assert (run.target, run.status) == ("ship", Status.QUEUED)
    assert run.input == {"order": 7, "note": "paid by Ada"}
    assert run.origin == {"trigger": "on-paid", "event": sent.event_id, "depth": 1}


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("order.paid", "order.paid", True),
        ("order.paid", "order.paid.late", False),
        ("order.*", "order.paid", True),
        ("order.*", "order.paid.late", True),
        ("order.*", "orders.paid", False),
        ("*", "order.paid", True),
        ("*", "run.completed", False),
        ("run.*", "run.completed", True),
        ("run.failed", "run.completed", False),
    ],
)
def test_names_and_patterns(pattern: str, name: str, expected: bool) -> None:
    assert listens(pattern, name) is expected


async def test_conditions_filter_and_their_errors_are_outcomes(app: App, store: Store) -> None:
    triggers = [
        {**PAID, "id": "large", "condition": "event.data.amount > 100"},
        {**PAID, "id": "small", "condition": "event.data.amount <= 100 and event.name == 'order.paid'"},
        {**PAID, "id": "broken", "condition": "event.data.amount > event.data.missing"},
        {**PAID, "id": "missing", "input": {"order": "{{event.data.nothing}}"}},
        {**PAID, "id": "wrong", "input": {"order": "text"}},
        {**PAID, "id": "off", "enabled": False},
        {**PAID, "id": "other", "event": "order.sent"},
    ]
    await app.sync({"triggers": triggers})
    sent = await app.broadcast("order.paid", {"order": 7, "who": "Ada", "amount": 50})
    await evaluate(app)
    found = await outcomes(app, sent.event_id)
    assert {name: item.outcome for name, item in found.items()} == {
        "large": Outcome.FILTERED,
        "small": Outcome.STARTED,
        "broken": Outcome.FAILED,
        "missing": Outcome.FAILED,
        "wrong": Outcome.FAILED,
    }
    assert "nothing" in (found["missing"].reason or "")
    assert "order" in (found["wrong"].reason or "")
    assert await store.count("runs") == 1


async def test_orchestrations_and_agents_are_targets(app: App, store: Store) -> None:
    agent = {"id": "helper", "model": "scripted", "answers": ["done"]}
    start = {"id": "greet", "event": "user.*", "orchestration_id": "hello", "message": "{{event.data.name}}",
             "input": {"order": "{{event.data}}"}, "ordering_key": "user-{{event.key}}", "priority": 5}  # fmt: skip
    ask = {"id": "ask", "event": "user.created", "agent_id": "helper", "message": "Welcome {{event.data.name}}"}
    await app.sync({"orchestrations": [HELLO], "agents": [agent], "triggers": [start, ask]})
    sent = await app.broadcast("user.created", {"name": "Ada"}, key="7")
    await evaluate(app)
    found = await outcomes(app, sent.event_id)
    greeting = await app.get(found["greet"].run_id or "")
    assert (greeting.target, greeting.priority, greeting.ordering_key) == ("orchestration:hello", 5, "user-7")
    assert greeting.input == {"message": "Ada", "input": {"order": {"name": "Ada"}}}
    assert (await app.get(found["ask"].run_id or "")).target == "agent:helper"


async def test_an_id_is_stored_once_within_its_time(app: App, store: Store) -> None:
    events = [{"name": "a.b", "data": {"n": n}, "id": sent_id} for n, sent_id in enumerate(["x", "y", "x"])]
    first = await app.broadcast_many(events)
    assert [item.duplicate for item in first] == [False, False, True]
    assert first[2].event_id == first[0].event_id
    again = await asyncio.gather(*(app.broadcast("a.b", {"n": 9}, id="x") for _ in range(5)))
    assert {(item.event_id, item.duplicate) for item in again} == {(first[0].event_id, True)}
    assert (await find_event(store.database, "default", first[0].event_id)).data == {"n": 0}
    await store.sql("update event_ids set received_at = received_at - 90000000000")
    assert not (await app.broadcast("a.b", id="x")).duplicate
    assert await store.count("stored_events") == 3


async def test_ids_of_one_tenant_mean_nothing_to_another(app: App, store: Store) -> None:
    await create_tenant(store.database, "other", actor="test")
    await app.sync({"triggers": [PAID]}, tenant="other")
    mine = await app.broadcast("order.paid", {"order": 1, "who": "a"}, id="x")
    theirs = await app.broadcast("order.paid", {"order": 2, "who": "b"}, id="x", tenant="other")
    assert not theirs.duplicate
    await evaluate(app)
    assert await outcomes(app, mine.event_id) == {}
    (outcome,) = await outcomes_of_event(store.database, "other", theirs.event_id)
    assert (await app.get(outcome.run_id or "")).tenant == "other"
    with pytest.raises(NotFound):
        await find_event(store.database, "default", theirs.event_id)
    assert [item.id for item in (await list_events(store.database, "default"))[0]] == [mine.event_id]


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a.", "a b", "ä", "run.completed", "x" * 129, 7])
async def test_bad_names_are_refused(app: App, store: Store, name: Any) -> None:
    with pytest.raises(InvalidRequest):
        await app.broadcast(name)
    assert await store.count("stored_events") == 0


async def test_bad_events_store_nothing(app: App, store: Store) -> None:
    with pytest.raises(InvalidRequest, match="1 to 100"):
        await app.broadcast_many([{"name": "a"}] * 101)
    with pytest.raises(InvalidRequest, match="nmae is not a field of an event"):
        await app.broadcast_many([{"name": "a"}, {"nmae": "b"}])
    with pytest.raises(InvalidRequest, match="bytes"):
        await app.broadcast("a", "x" * 1024 * 1024)
    with pytest.raises(InvalidRequest):
        await app.broadcast("a", id="x" * 257)
    with pytest.raises(NotFound):
        await app.broadcast("a", tenant="unknown")
    assert await store.count("stored_events") == 0


async def test_the_rate_of_a_tenant_is_exact(store: Store) -> None:
    app = App(store.settings.model_copy(update={"events_per_minute": 10}))
    async with app:
        sent = await asyncio.gather(*(app.broadcast("a.b") for _ in range(15)), return_exceptions=True)
        assert sum(isinstance(item, RateLimited) for item in sent) == 5
        assert await store.count("stored_events") == 10
        with pytest.raises(RateLimited) as refused:
            await app.broadcast("a.b")
        assert refused.value.retry_after_seconds > 0
        await store.sql("update event_rates set paid_until = paid_until - 60000000")
        await app.broadcast_many([{"name": "a.b"}] * 10)


async def test_ends_of_runs_are_events_only_where_a_trigger_listens(app: App, store: Store) -> None:
    quiet = await store.add()
    await store.finish(await store.claim_one())
    assert await store.count("stored_events") == 0
    after = {"id": "after", "event": "run.completed", "run_target": "job", "task": "ship",
             "input": {"order": "{{event.data.result.order}}"}}  # fmt: skip
    failed = {"id": "failed", "event": "run.failed", "task": "ship", "input": {"order": 0}}
    await app.sync({"triggers": [after, failed]}, source="s")
    run_id = await store.add()
    await store.finish(await store.claim_one(), completed('{"order":5}'))
    await evaluate(app)
    (event,) = (await list_events(store.database, "default"))[0]
    assert (event.name, event.key, event.source, event.depth) == ("run.completed", run_id, "run", 0)
    found = await outcomes(app, event.id)
    assert {name: item.outcome for name, item in found.items()} == {"after": Outcome.STARTED}
    assert (await app.get(found["after"].run_id or "")).input == {"order": 5}
    await store.add()
    await store.finish(await store.claim_one(), dead())
    names = sorted(item.name for item in (await list_events(store.database, "default"))[0])
    assert names == ["run.completed", "run.failed"]
    # Without listening triggers there are no events again.
    await app.sync({"triggers": []}, source="s", remove_missing=True)
    await store.add()
    await store.finish(await store.claim_one(), completed())
    assert len((await list_events(store.database, "default"))[0]) == 2
    assert quiet


async def test_a_loop_of_triggers_is_cut(app: App, store: Store) -> None:
    await app.sync({"triggers": [{"id": "again", "event": "run.completed", "task": "ship", "input": {"order": 1}}]})
    await store.add()
    worker = await store.worker()
    await store.finish((await store.claim(worker))[0])
    for depth in range(1, MAX_DEPTH + 1):
        await evaluate(app)
        (claimed,) = await store.claim(worker, targets=("ship",))
        run = await app.get(claimed.run_id)
        assert run.origin is not None
        assert run.origin["depth"] == depth
        await store.finish(claimed)
    await evaluate(app)
    assert await store.claim(worker, targets=("ship",)) == []
    (last,) = await outcomes_of_trigger(store.database, "default", "again", outcome=Outcome.FAILED)
    assert "chain of 20 triggers" in (last.reason or "")


async def test_many_evaluators_start_one_run_per_pair(app: App, store: Store) -> None:
    await app.sync({"triggers": [{**PAID, "id": f"t{number}"} for number in range(3)]})
    for start in range(10):
        await app.broadcast_many(
            [{"name": "order.paid", "data": {"order": start * 10 + n, "who": "x"}} for n in range(10)]
        )
    evaluators = [await evaluator_of(app) for _ in range(6)]

    async def work(evaluator: TriggerEvaluator) -> None:
        while await evaluator.run_once():
            # What this one has claimed is claimable by all others at once.
            await store.sql("update event_outcomes set claimed_until = 0 where outcome = 'pending'")
        await evaluator.finish()

    await asyncio.gather(*(work(evaluator) for evaluator in evaluators))
    await evaluate(app)
    rows = await store.sql(
        "select outcome, count(*) as n, count(distinct run_id) as runs from event_outcomes group by 1"
    )
    assert [dict(row) for row in rows] == [{"outcome": "started", "n": 300, "runs": 300}]
    assert await store.count("runs") == 300


async def test_an_evaluator_that_dies_leaves_its_pairs_to_others(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await store.database.transact(match_events)
    (pair,) = await claim_pairs(store.database, 15)
    assert (pair.event_id, pair.trigger_id) == (sent.event_id, "on-paid")
    await evaluate(app)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.PENDING
    await store.sql("update event_outcomes set claimed_until = 1")
    await evaluate(app)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED


async def test_a_limit_of_the_tenant_postpones_a_trigger(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    await set_tenant(store.database, "default", TenantChange(max_queued=1), actor="test")
    await store.add()
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await evaluate(app)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.PENDING
    await store.finish(await store.claim_one())
    await store.sql("update event_outcomes set claimed_until = 1")
    await evaluate(app)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED


async def test_a_task_that_this_process_lacks_is_left_to_others(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    async with App(store.settings) as without_tasks:
        await evaluate(without_tasks)
        assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.PENDING
        await store.sql("update event_outcomes set claimed_until = 1, created_at = created_at - 61000000")
        await evaluate(without_tasks)
    found = (await outcomes(app, sent.event_id))["on-paid"]
    assert (found.outcome, "ship" in (found.reason or "")) == (Outcome.FAILED, True)


async def test_an_event_that_has_waited_for_an_evaluator_is_left_to_others_as_well(app: App, store: Store) -> None:
    """Events of another tenant, or an outage, may delay the first evaluation; that must not decide its outcome."""
    await app.sync({"triggers": [PAID]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await store.sql("update stored_events set received_at = received_at - 3600000000")
    async with App(store.settings) as without_tasks:
        evaluator = await evaluator_of(without_tasks)
        await store.database.transact(match_events)
        await store.sql("update event_outcomes set created_at = created_at - 3600000000")
        await evaluator.run_once()
        await evaluator.stop()
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.PENDING
    await store.sql("update event_outcomes set claimed_until = 1")
    await evaluate(app)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.STARTED


async def test_a_replayed_event_is_retried_like_a_new_one(app: App, store: Store) -> None:
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    await evaluate(app)
    await app.sync({"triggers": [PAID]})
    await store.sql("update stored_events set received_at = received_at - 3600000000")
    await replay_trigger(
        store.database, "default", "on-paid", from_us=0, until_us=None, after=None, limit=10, dry_run=False, actor="x"
    )
    await store.sql("update event_outcomes set created_at = created_at - 3600000000")
    async with App(store.settings) as without_tasks:
        await evaluate(without_tasks)
    assert (await outcomes(app, sent.event_id))["on-paid"].outcome is Outcome.PENDING


async def test_a_pair_that_cannot_be_decided_does_not_stop_the_others(
    app: App, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.sync({"triggers": [PAID, {**PAID, "id": "broken"}]})
    sent = await app.broadcast("order.paid", {"order": 1, "who": "x"})
    decide = evaluator_module.decide_pair

    async def broken(database: Any, pair: Any, decision: Any) -> Any:
        if pair.trigger_id == "broken" and decision.outcome is Outcome.STARTED:
            raise ValueError("a flaw")
        return await decide(database, pair, decision)

    monkeypatch.setattr(evaluator_module, "decide_pair", broken)
    await evaluate(app)
    found = await outcomes(app, sent.event_id)
    assert (found["on-paid"].outcome, found["broken"].outcome) == (Outcome.STARTED, Outcome.PENDING)
    await store.sql("update event_outcomes set claimed_until = 1, created_at = created_at - 61000000")
    await evaluate(app)
    ended = (await outcomes(app, sent.event_id))["broken"]
    assert (ended.outcome, "flaw" in (ended.reason or "")) == (Outcome.FAILED, False)


async def test_a_replay_starts_what_was_filtered_failed_or_earlier(app: App, store: Store) -> None:
    sent = [await app.broadcast("order.paid", {"order": n, "who": "x"}) for n in range(4)]
    await app.broadcast("order.sent")
    await evaluate(app)
    await app.sync({"triggers": [{**PAID, "condition": "event.data.order == 1"}]})
    options: dict[str, Any] = {"from_us": 0, "until_us": None, "after": None, "limit": 100, "actor": "test"}
    dry = await replay_trigger(store.database, "default", "on-paid", **options, dry_run=True)
    assert (dry.events, dry.started_before, dry.dry_run) == (tuple(item.event_id for item in sent), 0, True)
    assert await store.count("event_outcomes") == 0
    done = await replay_trigger(store.database, "default", "on-paid", **options, dry_run=False)
    assert done.events == dry.events
    await evaluate(app)
    assert await store.count("runs") == 1
    await app.sync({"triggers": [PAID]})
    again = await replay_trigger(store.database, "default", "on-paid", **options, dry_run=False)
    assert (len(again.events), again.started_before) == (3, 1)
    await evaluate(app)
    assert await store.count("runs") == 4
    options["limit"] = 2
    page = await replay_trigger(store.database, "default", "on-paid", **options, dry_run=True)
    assert page.next_cursor == sent[1].event_id


async def test_retention_deletes_events_with_their_outcomes(app: App, store: Store) -> None:
    await app.sync({"triggers": [PAID]})
    await app.broadcast("order.paid", {"order": 1, "who": "x"}, id="x")
    await evaluate(app)
    await app.broadcast("order.paid", {"order": 2, "who": "x"}, id="y")
    await store.sql("update stored_events set received_at = received_at - 8 * 86400000000 where matched_at is not null")
    await store.sql("update event_ids set received_at = received_at - 8 * 86400000000 where sent_id = 'x'")
    await Retention(store.settings, store.database).run_once()
    assert [await store.count(name) for name in ("stored_events", "event_outcomes", "event_ids")] == [1, 0, 1]


async def test_a_deleted_tenant_leaves_no_events(app: App, store: Store) -> None:
    await create_tenant(store.database, "other", actor="test")
    await app.sync({"triggers": [{**PAID, "event": "run.completed"}]}, tenant="other")
    await app.broadcast("order.paid", id="x", tenant="other")
    await delete_tenant(store.database, "other", actor="test")
    for table in ("stored_events", "event_ids", "event_outcomes", "run_listeners"):
        assert await store.count(table) == 0
