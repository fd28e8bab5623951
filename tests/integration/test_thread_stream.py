"""A reader of a thread goes from run to run, and holds little while it waits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from runlane import App
from runlane.access.policy import LOCAL
from runlane.api.agent_server.thread_stream import RUN_MODES, ThreadFollower, follow_thread
from runlane.api.auth import RequestAccess
from runlane.api.services import Services, start_parts, stop_parts
from runlane.domain.events import Notice
from runlane.domain.graph import CancelAction, GraphRequest, graph_target
from runlane.domain.thread import Thread
from runlane.errors import Unauthorized
from runlane.store.threads.cancelling import cancel_thread_runs
from runlane.store.threads.thread_start import ThreadStart
from runlane.store.threads.threads import find_thread
from tests.harness import new_run, settings_for

# The key of a thread of the default tenant is its id.
THREAD = "t1"


@pytest.fixture
async def parts(sqlite_url: str) -> AsyncGenerator[Services]:
    started = await start_parts(App(settings_for(sqlite_url)), RequestAccess.OPEN_ON_LOOPBACK, None)
    try:
        yield started
    finally:
        await stop_parts(started)


@pytest.fixture
def followed(parts: Services, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The runs and threads that are followed at the moment."""
    names: set[str] = set()
    follow_on_bus = parts.connection.bus.follow

    def follow(name: str, receive: Any) -> Callable[[], None]:
        end = follow_on_bus(name, receive)
        names.add(name)

        def ended() -> None:
            names.discard(name)
            end()

        return ended

    monkeypatch.setattr(parts.connection.bus, "follow", follow)
    return names


async def start_run(parts: Services) -> str:
    run = new_run(target=graph_target("g"), input=GraphRequest().to_json())
    start = ThreadStart("default", THREAD, "a", "g", run, GraphRequest(), creates=True)
    (started,) = await parts.thread_starts.start_runs([start])
    parts.connection.bus.publish([Notice(THREAD, 1)])
    return started.accepted.run_id


async def end_runs(parts: Services) -> None:
    changes = await cancel_thread_runs(parts.database, "default", THREAD, CancelAction.INTERRUPT, actor="test")
    for change in changes:
        parts.connection.bus.publish(change.notices)


async def follow_from_the_first_run(parts: Services) -> ThreadFollower:
    thread = await find_thread(parts.database, "default", THREAD)
    return await follow_thread(parts, LOCAL, thread, [RUN_MODES], "-")


async def test_a_reader_follows_the_run_that_it_reads_or_the_thread(parts: Services, followed: set[str]) -> None:
    first = await start_run(parts)
    follower = await follow_from_the_first_run(parts)
    assert await follower.next(0) == b""
    assert followed == {first}

    await end_runs(parts)
    assert b"event: end" in await follower.next(60)
    assert await follower.next(0) == b""
    assert followed == {THREAD}

    async with asyncio.timeout(60):
        reading = asyncio.create_task(follower.next(60))
        second = await start_run(parts)
        while followed != {second}:  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0)
        await end_runs(parts)
        assert b"event: end" in await reading
    follower.close()
    assert followed == set()


async def test_a_waiting_reader_ends_when_streams_end(parts: Services, followed: set[str]) -> None:
    await start_run(parts)
    await end_runs(parts)
    follower = await follow_from_the_first_run(parts)
    assert b"event: end" in await follower.next(60)
    async with asyncio.timeout(60):
        reading = asyncio.create_task(follower.next(600))
        while THREAD not in followed:  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0)
        parts.end_streams()
        assert await reading == b""
    assert follower.ended
    assert not follower.complete
    follower.close()


async def test_a_revoked_reader_of_an_open_run_ends_at_once(parts: Services, followed: set[str]) -> None:
    """Without the wake-up it would end with the next comment of the stream, and `next` with its timeout."""
    run_id = await start_run(parts)
    follower = await follow_from_the_first_run(parts)
    async with asyncio.timeout(60):
        reading = asyncio.create_task(follower.next(600))
        while followed != {run_id}:  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0)
        follower.revoke(Unauthorized())
        assert await reading == b""
    assert follower.ended
    assert not follower.complete
    follower.close()
    assert followed == set()


async def test_a_reader_that_is_revoked_while_it_opens_a_run_gets_nothing_of_it(
    parts: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_run(parts)
    await end_runs(parts)
    follower = await follow_from_the_first_run(parts)
    follow = parts.tail.follow

    async def revoke_then_follow(*given: Any) -> Any:
        follower.revoke(Unauthorized())
        return await follow(*given)

    monkeypatch.setattr(parts.tail, "follow", revoke_then_follow)
    async with asyncio.timeout(60):
        assert await follower.next(600) == b""
    assert follower.ended
    follower.close()


async def test_a_reader_does_not_keep_the_state_of_the_thread(parts: Services) -> None:
    await start_run(parts)
    follower = await follow_from_the_first_run(parts)
    assert await follower.next(0) == b""
    gc.collect()
    assert [found for found in gc.get_objects() if isinstance(found, Thread)] == []
    follower.close()
