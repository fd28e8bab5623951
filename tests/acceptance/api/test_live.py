"""Open pages get hints about what changes in their tenant, from every process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from runlane.api import live
from runlane.api.live import LiveHub
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.bus.memory import MemoryBus
from runlane.domain.access import BUILT_IN_ROLES, PLATFORM_ADMIN, Principal
from runlane.domain.hints import HINTS_KEY, MAX_HINT_IDS, Hint, HintSet, Topic
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually


class Listener:
    """A page that collects its frames."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    @property
    def hints(self) -> list[dict[str, Any]]:
        return [hint for frame in self.frames for hint in frame["hints"]]

    def topics(self) -> set[str]:
        return {hint["topic"] for hint in self.hints}

    def ids(self, topic: str) -> set[str]:
        return {name for hint in self.hints if hint["topic"] == topic for name in hint["ids"] or ()}


@asynccontextmanager
async def listening(api: Api, **headers: str) -> AsyncGenerator[Listener]:
    """Follow the hints of a key, after the first frame."""
    listener = Listener()

    async def read() -> None:
        last = ""
        async with api.client.stream("GET", f"{API}/live", headers=headers) as stream:
            assert stream.status_code == 200
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    last = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    listener.frames.append({**orjson.loads(line.removeprefix("data: ")), "id": last})

    task = asyncio.create_task(read())
    try:
        await eventually(lambda: bool(listener.frames) or task.done(), "the first frame")
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hinted(condition: Callable[[], bool], what: str) -> None:
    await eventually(condition, what)


async def test_a_change_of_a_run_is_hinted_to_its_tenant_alone(idle_api: Api) -> None:
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await idle_api.key('viewer', tenant='acme')}"}
    ours = {"Authorization": f"Bearer {await idle_api.key('viewer')}"}
    async with listening(idle_api, **ours) as page, listening(idle_api, **acme) as other, listening(idle_api) as admin:
        assert page.frames[0]["type"] == "hello"
        run_id = (await idle_api.run("greet", wait=False))["run_id"]
        await hinted(lambda: run_id in page.ids("runs"), "the hint")
        await hinted(lambda: run_id in admin.ids("runs"), "the hint of the platform admin")
        theirs = await idle_api.key("operator", tenant="acme")
        answer = await idle_api.post("/tasks/greet/run", {}, headers={"Authorization": f"Bearer {theirs}"})
        await hinted(lambda: answer.json()["run_id"] in other.ids("runs"), "the hint of the other tenant")
        assert run_id not in other.ids("runs")
        assert answer.json()["run_id"] not in page.ids("runs")
        assert {hint["tenant"] for hint in other.hints} <= {"acme", None}


async def test_failures_and_questions_have_topics_of_their_own(api: Api) -> None:
    async with listening(api) as page:
        failed = await api.run("fail")
        await hinted(lambda: failed["run_id"] in page.ids("dead_letters"), "the dead letter")
        held = await api.run("greet", wait=False, hold=True)
        await hinted(lambda: held["run_id"] in page.ids("inbox"), "the approval")
        await api.client.patch(f"{API}/lanes/default", json={"max_slots": 5})
        await hinted(lambda: "lanes" in page.topics(), "the lane")


async def test_a_change_of_a_memory_is_hinted_with_its_id(idle_api: Api) -> None:
    viewer = {"Authorization": f"Bearer {await idle_api.key('viewer')}"}
    async with listening(idle_api, **viewer) as page:
        memory = (await idle_api.post("/memory/memories", {"title": "customer-7"})).json()["id"]
        await hinted(lambda: memory in page.ids("memory"), "the new memory")
        page.frames.clear()
        await idle_api.post(f"/memory/memories/{memory}/entries", {"text": "Prefers short answers."})
        await hinted(lambda: memory in page.ids("memory"), "the new entry")
        assert {hint["tenant"] for hint in page.hints if hint["topic"] == "memory"} == {"default"}


async def test_a_tenant_gets_no_hints_of_topics_that_its_role_cannot_read(idle_api: Api) -> None:
    viewer = {"Authorization": f"Bearer {await idle_api.key('viewer')}"}
    async with listening(idle_api, **viewer) as page, listening(idle_api) as admin:
        await idle_api.post("/keys", {"name": "new", "role": "viewer"})
        await idle_api.client.patch(f"{API}/lanes/default", json={"max_slots": 5})
        await hinted(lambda: {"access", "lanes"} <= admin.topics(), "the hints of the admin")
        await hinted(lambda: "lanes" in page.topics(), "the hint of the viewer")
        assert "access" not in page.topics()


async def test_a_page_that_reconnects_gets_what_it_has_missed(idle_api: Api) -> None:
    async with listening(idle_api):
        async with listening(idle_api) as page:
            first = (await idle_api.run("greet", wait=False))["run_id"]
            await hinted(lambda: first in page.ids("runs"), "the first run")
            last = page.frames[-1]["id"]
        second = (await idle_api.run("greet", wait=False))["run_id"]
        async with listening(idle_api, **{"Last-Event-ID": last}) as page:
            await hinted(lambda: second in page.ids("runs"), "the missed run")
            assert "all" not in page.topics()
    for unknown in (last, "nonsense", "x-1", "0192-99999999999999999999"):
        async with listening(idle_api, **{"Last-Event-ID": unknown}) as page:
            await hinted(lambda page=page: "all" in page.topics(), "the hint to read everything")


async def test_changes_of_another_process_are_hinted(settings: Settings) -> None:
    """Over the bus at once; with one SQLite file, by looking what has changed in it."""
    one, other = serving(copy_of(shop, settings)), serving(copy_of(shop, settings), worker=WorkerOptions())
    async with one as first, other as second, listening(first) as page:
        for api in (first, second):
            if api.parts.database.dialect == "postgresql":
                await eventually(lambda api=api: api.parts.connection.bus.reaches_others, "the bus")
        run_id = (await second.run("greet", wait=False))["run_id"]
        await hinted(lambda: run_id in page.ids("runs"), "the hint")
        failed = (await second.run("fail"))["run_id"]
        await hinted(lambda: failed in page.ids("dead_letters"), "the dead letter")
        await second.client.patch(f"{API}/lanes/default", json={"max_slots": 5})
        await hinted(lambda: "lanes" in page.topics(), "the lane")
        if first.parts.database.dialect == "sqlite":
            # Its worker writes heartbeats all the time; they change nothing that a page shows.
            assert "all" not in page.topics()


@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
async def test_postgres_connects_the_processes_without_redis(settings: Settings) -> None:
    async with serving(copy_of(shop, settings)) as first, serving(copy_of(shop, settings)) as second:
        assert first.parts.connection.bus.kind == "postgres"
        for api in (first, second):
            await eventually(lambda api=api: api.parts.connection.bus.reaches_others, "the bus")
        async with listening(first) as page:
            run_id = (await second.run("greet", wait=False))["run_id"]
            await hinted(lambda: run_id in page.ids("runs"), "the hint")


async def test_without_a_page_nothing_listens(idle_api: Api) -> None:
    hub = idle_api.parts.live
    async with listening(idle_api):
        assert hub.followers == 1
    await eventually(lambda: hub.followers == 0, "the page has left")
    sender = idle_api.parts.connection.hints
    sender._cease()
    assert idle_api.parts.connection.bus.on_publish is None
    await idle_api.run("greet", wait=False)
    assert not sender._pending


async def test_hints_of_many_runs_are_one(own_app: App) -> None:
    bus = MemoryBus()
    connection = await own_app.connect()
    hub = LiveHub(connection.database, bus)
    reader = Principal("key", "key", "default", "viewer", BUILT_IN_ROLES["viewer"])
    follower = hub.follow(reader, None)
    try:
        assert b'"hello"' in await follower.next(5)
        for number in range(MAX_HINT_IDS + 1):
            hub._pending.add(Hint(Topic.RUNS, "default", (f"run_{number}",)))
        hub._changed.set()
        frame = orjson.loads((await follower.next(5)).partition(b"data: ")[2])
        assert frame["hints"] == [{"topic": "runs", "tenant": "default", "ids": None}]
    finally:
        follower.close()
        await hub.stop()
        await own_app.close()
    assert HINTS_KEY not in bus._followers


async def test_changes_between_two_frames_are_one_frame(own_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    assert live.FRAME_SECONDS == 0.25
    monkeypatch.setattr(live, "FRAME_SECONDS", 3600.0)
    bus = MemoryBus()
    connection = await own_app.connect()
    hub = LiveHub(connection.database, bus)
    reader = Principal("key", "key", "default", PLATFORM_ADMIN, BUILT_IN_ROLES[PLATFORM_ADMIN])
    follower = hub.follow(reader, None)
    try:
        assert b'"hello"' in await follower.next(5)
        for topic in (Topic.LANES, Topic.WORKERS):
            hub._pending.add(Hint(topic))
            hub._changed.set()
            if topic is Topic.LANES:
                assert b'"lanes"' in await follower.next(5)
        # The hub has had its turns, and waits for the time of its next frame.
        for _ in range(20):
            await asyncio.sleep(0)
        assert ([len(hints) for _, hints in hub._frames], bool(hub._pending)) == ([1], True)
    finally:
        follower.close()
        await hub.stop()
        await own_app.close()


def test_hints_of_one_topic_and_tenant_are_merged() -> None:
    hints = HintSet()
    for hint in (Hint("runs", "a", ("1",)), Hint("runs", "a", ("2", "1")), Hint("runs", "b", ("3",)), Hint("lanes")):
        hints.add(hint)
    assert hints.take() == [Hint("runs", "a", ("1", "2")), Hint("runs", "b", ("3",)), Hint("lanes")]
    assert not hints
    hints.add(Hint("runs", "a"))
    hints.add(Hint("runs", "a", ("1",)))
    assert hints.take() == [Hint("runs", "a")]


async def test_a_worker_that_starts_is_hinted(own_app: App, settings: Settings) -> None:
    second = serving(copy_of(shop, settings), worker=WorkerOptions())
    async with serving(own_app) as api, listening(api) as page, second:
        await hinted(lambda: bool({"workers", "all"} & page.topics()), "the worker")
