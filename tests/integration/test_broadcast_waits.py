"""Runs that wait for an event of their tenant: one event resumes all that match, in order of arrival and once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane import App
from runlane.domain.run import Status
from runlane.domain.tenant_event import WAITING_RUNS, Outcome
from runlane.settings import Settings
from runlane.store.events.reading import outcomes_of_event
from runlane.store.orchestration.resume import answer_by_event
from runlane.triggers.evaluator import TriggerEvaluator
from runlane.triggers.waiting_runs import matches
from tests.harness import eventually, settings_for


def waiting(**fields: Any) -> dict[str, Any]:
    return {
        "id": "waiting",
        "state_schema": {"order": {"type": "integer"}},
        "steps": [
            {"id": "payment", "type": "wait", "event": "order.paid", "match": {"order": "{{order}}"},
             "output_key": "paid", "next_step_id": "say", **fields},
            {"id": "say", "type": "print", "print_content": "{{paid.by}}"},
        ],
    }  # fmt: skip


@pytest.fixture(params=("sqlite", "postgres"))
def settings(request: pytest.FixtureRequest) -> Settings:
    return settings_for(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def app(settings: Settings) -> AsyncGenerator[App]:
    async with App(settings) as app:
        worker = await app.worker()
        await worker.start()
        try:
            yield app
        finally:
            await worker.stop()


async def evaluate(app: App) -> None:
    evaluator = TriggerEvaluator(app.settings, await app.connect(), app.tasks)
    while await evaluator.run_once():
        await evaluator.finish()
    await evaluator.finish()
    await evaluator.stop()


async def paused(app: App, order: int, name: str = "waiting") -> str:
    """Start a run and return its id when it waits."""
    run = await app.orchestrate(name, input={"order": order})

    async def waits() -> bool:
        return (await app.get(run.run_id)).status is Status.PAUSED

    await eventually(waits, "the wait")
    return run.run_id


async def test_one_event_resumes_all_that_match(app: App) -> None:
    await app.sync({"orchestrations": [waiting()]})
    mine = [await paused(app, 7) for _ in range(3)]
    other = await paused(app, 8)
    await app.broadcast("order.paid", {"order": 9, "by": "another"})
    await app.broadcast("order.sent", {"order": 7, "by": "another"})
    await app.broadcast("order.paid", {"order": 7, "by": "Ada"})
    await evaluate(app)
    for run_id in mine:
        run = await app.wait(run_id, 60)
        assert (run.status, run.result) == (Status.COMPLETED, "Ada")
    assert (await app.get(other)).status is Status.PAUSED
    # An event that is sent to the run itself is accepted as before.
    await app.send_event(other, "order.paid", {"by": "direct"})
    assert (await app.wait(other, 60)).result == "direct"


async def test_events_before_the_wait_count_only_within_the_lookback(app: App) -> None:
    late = {**waiting(lookback_seconds=3600), "id": "late"}
    await app.sync({"orchestrations": [waiting(), late]})
    await app.broadcast("order.paid", {"order": 7, "by": "first"})
    await app.broadcast("order.paid", {"order": 7, "by": "second"})
    await evaluate(app)
    strict, relaxed = await paused(app, 7), await paused(app, 7, "late")
    await evaluate(app)
    assert (await app.wait(relaxed, 60)).result == "first"
    assert (await app.get(strict)).status is Status.PAUSED
    await app.broadcast("order.paid", {"order": 7, "by": "third"})
    await evaluate(app)
    assert (await app.wait(strict, 60)).result == "third"


async def test_a_run_uses_an_event_once(app: App) -> None:
    def step(name: str, following: str) -> dict[str, Any]:
        return {"id": name, "type": "wait", "event": "tick", "match": {}, "lookback_seconds": 3600, "output_key": name,
                "next_step_id": following}  # fmt: skip

    twice = {
        "id": "twice",
        "steps": [step("one", "two"), step("two", "say"),
                  {"id": "say", "type": "print", "print_content": "{{one}} {{two}}"}],
    }  # fmt: skip
    await app.sync({"orchestrations": [twice]})
    await app.broadcast("tick", "a")
    run = await app.orchestrate("twice")

    async def at_second() -> bool:
        await evaluate(app)
        return any(wait.path == "two" for wait in await app.waits(run.run_id))

    await eventually(at_second, "the second wait")
    await evaluate(app)
    await app.broadcast("tick", "b")

    async def ended() -> bool:
        await evaluate(app)
        return (await app.get(run.run_id)).status.terminal

    await eventually(ended, "the end")
    assert (await app.get(run.run_id)).result == "a b"


async def test_a_wait_without_match_ignores_events_of_the_tenant(app: App) -> None:
    plain = waiting()
    del plain["steps"][0]["match"]
    await app.sync({"orchestrations": [plain]})
    run_id = await paused(app, 7)
    await app.broadcast("order.paid", {"order": 7, "by": "x"})
    await evaluate(app)
    assert (await app.get(run_id)).status is Status.PAUSED


@pytest.mark.parametrize(
    ("match", "data", "expected"),
    [
        ({}, None, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a.b": 1}, {"a": {"b": 1}}, True),
        ({"a.b": 1}, {"a.b": 1}, True),
        ({"a.b": None}, {"a": {}}, False),
        ({"a": 1}, [1], False),
        ({"a": [1, {"x": 2}]}, {"a": [1, {"x": 2}]}, True),
    ],
)
def test_values_are_compared_by_key_and_path(match: dict[str, Any], data: Any, expected: bool) -> None:
    assert matches(match, data) is expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"event": "run.completed"}, "atch needs an event"),
        ({"match": None, "lookback_seconds": 5}, "lookback_seconds is only used with match"),
        ({"match": {"order": "{{ordr}}"}}, "never has a value"),
    ],
)
async def test_checks(app: App, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        await app.sync({"orchestrations": [waiting(**fields)]})


async def test_the_rest_is_resumed_by_another_evaluator(app: App) -> None:
    await app.sync({"orchestrations": [waiting()]})
    runs = [await paused(app, 7) for _ in range(3)]
    sent = await app.broadcast("order.paid", {"order": 7, "by": "Ada"})
    database = await app.database()
    # An evaluator that has resumed one run and died.
    await answer_by_event(database, runs[0], "payment", sent.event_id, {"order": 7, "by": "Ada"})
    assert await answer_by_event(database, runs[0], "payment", sent.event_id, {"by": "again"}) is None
    await evaluate(app)
    assert [(await app.wait(run_id, 60)).result for run_id in runs] == ["Ada"] * 3
    (outcome,) = await outcomes_of_event(database, "default", sent.event_id)
    assert (outcome.trigger, outcome.outcome) == (WAITING_RUNS, Outcome.RESUMED)
