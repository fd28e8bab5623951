"""Schedules in a running app: every kind of target, outages and pauses, with the time of the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runlane import App, Context, Firing
from runlane.settings import Settings
from runlane.submit.schedules import Schedules, parse_schedule
from runlane.testing import DatabaseClock, RunningApp
from tests.harness import eventually

ECHO = {"id": "echo", "steps": [{"id": "say", "type": "print", "print_content": "{{user_input}}"}]}
HELPER = {"id": "helper", "model": "scripted", "answers": ["one", "two", "three", "four"]}


def make_app() -> App:
    app = App()

    @app.task("slot")
    async def slot(ctx: Context) -> dict[str, Any] | None:
        found = ctx.schedule
        if found is None:
            return None
        previous = None if found.previous_slot is None else found.previous_slot.isoformat()
        return {"id": found.id, "slot": found.slot.isoformat(), "previous": previous, "kind": found.kind}

    return app


async def create(verbs: Schedules, schedule_id: str, **fields: Any) -> None:
    body = {
        "id": schedule_id,
        "target": {"kind": "task", "name": "slot"},
        "spec": [{"every_seconds": 3600}],
        "overlap": "allow",
        **fields,
    }
    await verbs.create("default", parse_schedule(body), actor="test")


async def firings(verbs: Schedules, schedule_id: str, count: int) -> list[Firing]:
    """Wait for this many firings and return them, oldest first."""

    async def found() -> list[Firing]:
        page = list(await verbs.firings("default", schedule_id))
        return page if len(page) >= count else []

    return list(reversed(await eventually(found, f"{count} firings of {schedule_id}")))


@pytest.fixture
async def running(settings: Settings) -> Any:
    async with RunningApp(make_app(), settings, clock=DatabaseClock(settings)) as app:
        yield app


async def test_a_task_reads_its_slot(running: RunningApp) -> None:
    verbs = await running.app.schedules()
    await create(verbs, "s")
    assert await running.clock.now() is not None
    await running.clock.advance(timedelta(hours=1, seconds=1))
    (first,) = await firings(verbs, "s", 1)
    await running.clock.advance(timedelta(hours=1))
    _, second = await firings(verbs, "s", 2)
    ended = await running.app.wait(second.run_id or "", timeout=60)
    result = ended.result
    assert (result["id"], result["kind"]) == ("s", "tick")
    earlier = await running.app.wait(first.run_id or "", timeout=60)
    assert (earlier.result["previous"], result["previous"]) == (None, earlier.result["slot"])
    plain = await running.run("slot")
    assert plain.result is None


async def test_every_kind_of_target(running: RunningApp) -> None:
    app, verbs = running.app, await running.app.schedules()
    await app.sync({"orchestrations": [ECHO], "agents": [HELPER]})
    posted = await app.chat("helper", "hello")
    await app.wait(posted.run_id, timeout=60)
    await create(verbs, "o", target={"kind": "orchestration", "name": "echo"}, message="tick")
    await create(verbs, "a", target={"kind": "agent", "name": "helper"}, message="tick")
    chat = {"kind": "chat", "name": "helper", "session_id": posted.session_id}
    await create(verbs, "c", target=chat, message="and now?", overlap="queue_all")
    await running.clock.advance(timedelta(hours=1, seconds=1))
    for name in ("o", "a", "c"):
        (firing,) = await firings(verbs, name, 1)
        assert firing.run_id is not None, firing
        ended = await app.wait(firing.run_id, timeout=60)
        assert (ended.status.value, ended.schedule_id, ended.slot_us) == ("completed", name, firing.slot_us), (
            ended.error
        )
    await running.clock.advance(timedelta(hours=1))
    _, second = await firings(verbs, "c", 2)
    await app.wait(second.run_id or "", timeout=60)
    turns = await app.chat("helper", "bye", posted.session_id)
    assert turns.turn == 4


async def test_an_outage_is_caught_up_with_by_policy(running: RunningApp) -> None:
    verbs = await running.app.schedules()
    for policy in ("none", "latest", "all"):
        await create(verbs, policy, catch_up=policy, catch_up_window_seconds=3 * 3600)
    # The same as processes that could not reach the database for this time.
    await running.clock.advance(timedelta(hours=6, minutes=5))
    found = {
        policy: [(firing.outcome.value, firing.count) for firing in await firings(verbs, policy, count)]
        for policy, count in (("none", 1), ("latest", 2), ("all", 4))
    }
    assert found == {
        "none": [("missed", 6)],
        "latest": [("missed", 5), ("started", 1)],
        "all": [("missed", 3), ("started", 1), ("started", 1), ("started", 1)],
    }


async def test_a_pause_of_hours(running: RunningApp) -> None:
    verbs = await running.app.schedules()
    await create(verbs, "s")
    await verbs.pause("default", "s", "night", actor="ann")
    await running.clock.advance(timedelta(hours=5, seconds=1))
    resumed, started = await verbs.resume("default", "s", actor="ann", catch_up="latest")
    assert resumed.status == "active"
    assert [firing.outcome.value for firing in started] == ["started"]
    assert [(firing.outcome.value, firing.count) for firing in await firings(verbs, "s", 2)] == [
        ("missed", 4),
        ("started", 1),
    ]
    await running.clock.advance(timedelta(hours=1))
    assert [firing.outcome.value for firing in await firings(verbs, "s", 3)][-1] == "started"
