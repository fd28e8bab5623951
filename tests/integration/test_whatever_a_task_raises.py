"""Whatever a task raises, its attempt ends: no run stays `running` on a worker that does not execute it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from runlane import App, Context, LeaseLost, RunCancelled, Settings, Status


def make_app(folder: Path) -> App:
    app = App(Settings(database_url=f"sqlite:///{folder}/runs.db", worker_health_port=0))  # type: ignore[arg-type]

    @app.task("generator_exit", max_attempts=1)
    async def generator_exit(ctx: Context) -> None:
        raise GeneratorExit

    @app.task("system_exit", max_attempts=1)
    async def system_exit(ctx: Context) -> None:
        sys.exit(3)

    @app.task("system_exit_in_thread", max_attempts=1)
    def system_exit_in_thread(ctx: Context) -> None:
        sys.exit(3)

    @app.task("group", max_attempts=1)
    async def group(ctx: Context) -> None:
        async def child() -> None:
            raise RunCancelled("raised inside a group")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())

    @app.task("cancelled_by_hand", max_attempts=1)
    async def cancelled_by_hand(ctx: Context) -> None:
        raise RunCancelled("by hand")

    @app.task("lost_by_hand", max_attempts=1)
    def lost_by_hand(ctx: Context) -> None:
        raise LeaseLost("by hand")

    return app


@pytest.mark.parametrize(
    "name",
    ["generator_exit", "system_exit", "system_exit_in_thread", "group", "cancelled_by_hand", "lost_by_hand"],
)
async def test_no_exception_leaves_a_run_behind(tmp_path: Path, name: str) -> None:
    app = make_app(tmp_path)
    async with app:
        worker = await app.worker()
        await worker.start()
        try:
            run = await app.wait((await app.enqueue(name)).id, timeout=30)
        finally:
            await worker.stop(0)
    assert run.status is Status.FAILED
    assert run.error is not None
