"""An app in several event loops: each has its own connection, and a loop that ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from runlane import App, Context
from runlane.settings import Settings
from tests.harness import eventually


def _app(settings: Settings) -> App:
    app = App(settings)

    @app.task("report")
    def report(ctx: Context, month: str) -> str:
        return month

    return app


def _enqueue_in_a_new_loop(app: App) -> None:
    async def enqueue() -> None:
        async with app:
            await app.enqueue("report", {"month": "june"})

    asyncio.run(enqueue())


# The sockets of a loop that was closed without a word are dropped, which Python rightly calls unclosed.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_ended_leave_no_connection_behind(settings: Settings) -> None:
    app = _app(settings)
    asyncio.run(app.enqueue("report", {"month": "first"}))
    before = threading.active_count()
    for _ in range(5):
        asyncio.run(app.enqueue("report", {"month": "more"}))
    assert len(app._resources) == 1
    # The thread of a loop that was forgotten closes its file before it ends.
    asyncio.run(eventually(lambda: threading.active_count() <= before, "the threads to end"))
    del app
    gc.collect()


def test_code_without_an_event_loop_waits_at_the_bridge(settings: Settings) -> None:
    app = _app(settings)
    accepted = app.blocking(app.enqueue("report", {"month": "may"}))
    run = app.blocking(app.get(accepted.id))
    assert run.input == {"month": "may"}
    app.blocking(app.close())
    assert not app._resources


async def test_a_thread_with_its_own_loop_does_not_take_the_connection_of_another(settings: Settings) -> None:
    app = _app(settings)
    async with app:
        here = await app.connect()
        await asyncio.to_thread(_enqueue_in_a_new_loop, app)
        assert await app.connect() is here
        assert (await app.enqueue("report", {"month": "july"})).status == "queued"
