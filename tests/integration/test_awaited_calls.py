"""A call of the context that a task does not await fails the run and names the call, since what it wrote is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runlane import Context, Run, Status
from tests.integration.process import Process

FORGOTTEN: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "log": lambda ctx: ctx.log("lost"),
    "checkpoint": lambda ctx: ctx.checkpoint(1),
    "progress": lambda ctx: ctx.progress(0.5),
    "secret": lambda ctx: ctx.secret("NAME"),
}


def _message(run: Run) -> str:
    assert run.status is Status.FAILED
    assert run.error is not None
    return run.error["message"]


@pytest.mark.parametrize("name", FORGOTTEN)
async def test_a_call_without_await_fails_the_run(process: Process, name: str) -> None:
    @process.app.task("forgetful")
    async def forgetful(ctx: Context) -> str:
        FORGOTTEN[name](ctx)
        return "fine"

    await process.start()
    run = await process.run("forgetful")
    assert f"ctx.{name}() at " in _message(run)
    assert f"was called without await, so it did nothing. Write await ctx.{name}(...)" in _message(run)
    assert "test_awaited_calls.py:" in _message(run)
    # Another attempt would make the same mistake.
    assert run.attempt == 1


async def test_the_next_call_stops_a_task_that_forgot_to_await(process: Process) -> None:
    reached: list[str] = []

    @process.app.task("forgetful")
    async def forgetful(ctx: Context) -> None:
        ctx.checkpoint({"page": 1})
        await ctx.log("page 1 is done")
        reached.append("page 2")

    await process.start()
    assert "ctx.checkpoint()" in _message(await process.run("forgetful"))
    assert reached == []


async def test_a_call_that_is_kept_in_a_variable_and_never_awaited_counts(process: Process) -> None:
    @process.app.task("forgetful")
    async def forgetful(ctx: Context) -> str:
        _saving = ctx.checkpoint(1)
        return "fine"

    await process.start()
    assert "ctx.checkpoint()" in _message(await process.run("forgetful"))


async def test_a_task_step_of_an_orchestration_fails_as_well(process: Process) -> None:
    @process.app.task("forgetful")
    async def forgetful(ctx: Context) -> str:
        ctx.checkpoint(1)
        return "fine"

    await process.start()
    steps = [{"type": "task", "id": "call", "task": "forgetful", "retry": {"attempts": 3, "backoff_seconds": 0}}]
    await process.app.sync({"orchestrations": [{"id": "calls", "entry_step_id": "call", "steps": steps}]})
    run = await process.end((await process.app.orchestrate("calls")).run_id)
    assert "ctx.checkpoint() at " in _message(run)
    assert (await process.types(run.id)).count("step_retry") == 0


async def test_every_other_way_to_await_a_call_is_left_alone(process: Process) -> None:
    @process.app.task("careful")
    async def careful(ctx: Context) -> list[Any]:
        first, second = ctx.log("first"), ctx.log("second")
        await asyncio.gather(first, second)
        await asyncio.create_task(ctx.log("third"))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await ctx.log("fourth")
        await asyncio.wait_for(ctx.checkpoint(5), 30)
        await asyncio.wait({asyncio.ensure_future(ctx.progress(0.5))})
        return [ctx.attempt]

    await process.start()
    run = await process.run("careful")
    assert run.result == [1]
    messages = [event.data["message"] for event in await process.events(run.id) if event.type == "log"]
    assert sorted(messages) == ["first", "fourth", "second", "third"]
