"""What a task may do, async and plain: results, context, retries, failures, time-outs."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from runlane import Context, Fail, InvalidRequest, Retry, RunCancelled, Status
from runlane.domain.task import make_task
from runlane.store.failures.letters import read_letter
from runlane.store.queue.runs import read_attempts
from tests.harness import eventually
from tests.integration.process import Process

number: ContextVar[int] = ContextVar("number", default=0)


async def test_async_and_plain_functions_return_their_result(process: Process) -> None:
    @process.app.task("async")
    async def on_loop(ctx: Context, a: int, b: int = 2) -> dict[str, Any]:
        return {"sum": a + b, "thread": threading.current_thread() is threading.main_thread()}

    @process.app.task("plain")
    def in_thread(ctx: Context, a: int, b: int = 2) -> dict[str, Any]:
        return {"sum": a + b, "thread": threading.current_thread() is threading.main_thread()}

    await process.start()
    assert (await process.run("async", {"a": 1})).result == {"sum": 3, "thread": True}
    assert (await process.run("plain", {"a": 1, "b": 5})).result == {"sum": 6, "thread": False}


async def test_a_plain_function_may_hand_back_an_awaitable(process: Process) -> None:
    async def inner() -> str:
        return "awaited"

    @process.app.task("job")
    def job(ctx: Context) -> Any:
        return inner()

    await process.start()
    assert (await process.run("job")).result == "awaited"


class Size(BaseModel):
    width: int


@dataclass
class Crop:
    left: int


async def test_arguments_arrive_as_the_functions_types(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context, day: date, size: Size, crop: Crop) -> str:
        return f"{day.year} {size.width} {crop.left} {type(size).__name__}"

    await process.start()
    run = await process.run("job", {"day": "2026-01-31", "size": {"width": 3}, "crop": {"left": 4}})
    assert run.result == "2026 3 4 Size"


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_context_works_in_the_loop_and_in_a_thread(process: Process, kind: str) -> None:
    @process.app.task("async")
    async def on_loop(ctx: Context) -> list[Any]:
        await ctx.log("hello", n=1)
        await ctx.progress(0.25, "a quarter")
        await ctx.checkpoint({"page": 1})
        return [ctx.run_id, ctx.attempt, ctx.idempotency_key == ctx.run_id, ctx.saved, ctx.cancelled]

    @process.app.task("plain")
    def in_thread(ctx: Context) -> list[Any]:
        ctx.log("hello", n=1)
        ctx.progress(0.25, "a quarter")
        ctx.checkpoint({"page": 1})
        return [ctx.run_id, ctx.attempt, ctx.idempotency_key == ctx.run_id, ctx.saved, ctx.cancelled]

    await process.start()
    run = await process.run(kind)
    assert run.result == [run.id, 1, True, None, False]
    assert (run.progress, run.progress_note) == (0.25, "a quarter")
    events = await process.events(run.id)
    assert [event.type for event in events] == ["queued", "worker_picked_up", "log", "checkpoint", "done"]
    assert events[2].data == {"message": "hello", "fields": {"n": 1}}


async def test_awaiting_a_call_in_a_thread_does_no_harm(process: Process) -> None:
    @process.app.task("job")
    def job(ctx: Context) -> str:
        async def speak() -> None:
            await ctx.log("from a loop of the thread's own")

        asyncio.run(speak())
        return "ok"

    await process.start()
    run = await process.run("job")
    assert run.result == "ok"
    assert "log" in await process.types(run.id)


async def test_the_last_progress_is_not_lost(process: Process) -> None:
    """It comes within half a second of the one before, so it waits to be stored, and then the run ends."""

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await ctx.progress(0.0, "begun")
        for step in range(1, 11):
            await ctx.progress(step / 10, f"step {step}")

    await process.start()
    run = await process.run("job")
    assert (run.progress, run.progress_note) == (1.0, "step 10")


async def test_progress_is_stored_while_the_run_continues(process: Process) -> None:
    go_on = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await ctx.progress(0.1)
        await ctx.progress(0.2)
        await go_on.wait()

    await process.start()
    accepted = await process.app.enqueue("job")

    async def has_second_value() -> bool:
        return (await process.app.get(accepted.run_id)).progress == 0.2

    await eventually(has_second_value, "the second value of progress")
    go_on.set()
    await process.end(accepted.run_id)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
async def test_progress_out_of_bounds_is_the_tasks_error(process: Process, fraction: float) -> None:
    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context) -> None:
        await ctx.progress(fraction)

    await process.start()
    run = await process.run("job")
    assert run.error is not None
    assert "must be between 0 and 1" in run.error["message"]


async def test_progress_as_a_count_names_the_fraction(process: Process) -> None:
    """`progress(1, 3)` is the habit of other libraries; the error says what to pass instead."""

    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context) -> None:
        count: Any = 3
        await ctx.progress(1, count)

    await process.start()
    run = await process.run("job")
    assert run.error is not None
    assert "the note must be a string" in run.error["message"]
    assert "n / m" in run.error["message"]


async def test_the_next_attempt_has_the_checkpoint(process: Process) -> None:
    seen: list[Any] = []

    @process.app.task("job")
    async def job(ctx: Context) -> str:
        seen.append((ctx.attempt, ctx.saved))
        if ctx.attempt == 1:
            await ctx.checkpoint({"page": 1})
            await ctx.checkpoint({"page": 2})
            raise Retry
        return "done"

    await process.start()
    run = await process.run("job")
    assert run.result == "done"
    assert seen == [(1, None), (2, {"page": 2})]


@pytest.mark.parametrize("after_seconds", [0.0, 0.05])
async def test_retry_counts_no_failure(process: Process, after_seconds: float) -> None:
    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context) -> int:
        if ctx.attempt < 4:
            raise Retry(after_seconds=after_seconds, reason="the bakery is closed")
        return ctx.attempt

    await process.start()
    run = await process.run("job")
    assert (run.status, run.result, run.failures, run.attempt) == (Status.COMPLETED, 4, 0, 4)
    events = await process.events(run.id)
    later = [event for event in events if event.type == "retry_later"]
    assert [event.data["error"]["message"] for event in later] == ["the bakery is closed"] * 3


@pytest.mark.parametrize("plain", [False, True])
async def test_fail_ends_the_run_without_more_attempts(process: Process, plain: bool) -> None:
    @process.app.task("async", max_attempts=5)
    async def on_loop(ctx: Context) -> None:
        raise Fail("no such customer")

    @process.app.task("plain", max_attempts=5)
    def in_thread(ctx: Context) -> None:
        raise Fail("no such customer")

    await process.start()
    run = await process.run("plain" if plain else "async")
    assert (run.status, run.attempt) == (Status.FAILED, 1)
    assert run.error is not None
    assert (run.error["type"], run.error["message"]) == ("Fail", "no such customer")


async def test_a_failure_backs_off_and_ends_in_a_dead_letter(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def quick(failures: int, jitter: float) -> float:
        waits.append(failures)
        return 0.01

    monkeypatch.setattr("runlane.worker.execution.backoff_seconds", quick)

    @process.app.task("job", max_attempts=3)
    async def job(ctx: Context, path: str) -> None:
        raise ValueError(f"attempt {ctx.attempt} of {path}")

    await process.start()
    run = await process.run("job", {"path": "a.png"})
    assert (run.status, run.attempt, run.failures) == (Status.FAILED, 3, 3)
    assert waits == [1, 2]
    letter = await read_letter(await process.app.database(), run.id)
    assert letter is not None
    assert letter.input == {"path": "a.png"}
    for position, attempt in enumerate(letter.attempts, start=1):
        assert attempt.error is not None
        assert attempt.error["type"] == "ValueError"
        assert attempt.error["message"] == f"attempt {position} of a.png"
        assert "Traceback" in attempt.error["traceback"]
        assert "raise ValueError" in attempt.error["traceback"]
    assert (await process.types(run.id)).count("attempt_failed") == 3
    await process.app.retry(run.id)
    assert (await process.end(run.id)).attempt == 6


@pytest.mark.parametrize("plain", [False, True])
async def test_a_time_out_is_a_failure(process: Process, plain: bool) -> None:
    released = threading.Event()

    @process.app.task("async", max_attempts=1, timeout_seconds=0.1)
    async def on_loop(ctx: Context) -> None:
        await asyncio.sleep(600)

    @process.app.task("plain", max_attempts=1, timeout_seconds=0.1)
    def in_thread(ctx: Context) -> None:
        while True:
            released.wait(0.01)
            ctx.log("tick")

    await process.start()
    run = await process.run("plain" if plain else "async")
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"] == "TimeoutError"
    assert "took longer than its 0.1 s" in run.error["message"]


@pytest.mark.settings(max_result_bytes=2048)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (object(), "The result cannot be stored: "),
        ({("a", "b"): 1}, "The result cannot be stored: "),
        ("x" * 3000, "The result has 3002 bytes as JSON; at most 2048 are allowed (RUNLANE_MAX_RESULT_BYTES)"),
        ("ü" * 1500, "The result has 3002 bytes as JSON"),
    ],
    ids=["no json", "tuple as a key", "too large", "too large in bytes"],
)
async def test_a_result_that_cannot_be_stored_ends_the_run(process: Process, value: Any, expected: str) -> None:
    @process.app.task("job", max_attempts=5)
    async def job(ctx: Context) -> Any:
        return value

    await process.start()
    run = await process.run("job")
    assert (run.status, run.attempt) == (Status.FAILED, 1)
    assert run.error is not None
    assert expected in run.error["message"]


@pytest.mark.settings(max_result_bytes=2048)
async def test_a_checkpoint_that_is_too_large_ends_the_run(process: Process) -> None:
    @process.app.task("job", max_attempts=5)
    async def job(ctx: Context) -> None:
        await ctx.checkpoint("ü" * 1500)

    await process.start()
    run = await process.run("job")
    assert (run.status, run.attempt) == (Status.FAILED, 1)
    assert run.error is not None
    assert "The checkpoint has 3002 bytes as JSON" in run.error["message"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_text_that_no_database_takes_is_repaired(process: Process) -> None:
    bad = "nul \x00 half \ud800 end"

    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context, how: str) -> Any:
        await ctx.log(bad, **{"field \ud800": bad})
        await ctx.progress(0.5, bad)
        await ctx.checkpoint({bad: bad})
        match how:
            case "raise":
                raise ValueError(bad)
            case "unprintable":
                raise Unprintable
            case "retry":
                raise Retry(0, bad) if ctx.attempt == 1 else Fail(bad)
            case _:
                return {"text": bad, bad: [bad]}

    await process.start()
    run = await process.run("job", {"how": "return"})
    repaired = "nul \ufffd half \ufffd end"
    assert run.result == {"text": repaired, repaired: [repaired]}
    assert run.progress_note == repaired
    for how in ("raise", "unprintable", "retry"):
        run = await process.run("job", {"how": how})
        assert run.status is Status.FAILED
        assert run.error is not None
        if how != "unprintable":
            assert run.error["message"] == repaired


@pytest.mark.parametrize("key", ["a\x00b", "\ud800", "", "x" * 513])
async def test_keys_that_cannot_be_stored_are_refused(process: Process, key: str) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    for name in ("ordering_key", "idempotency_key"):
        with pytest.raises(InvalidRequest, match=r"The (ordering|idempotency) key"):
            await process.app.enqueue("job", **{name: key})  # pyright: ignore[reportArgumentType]
    store = await process.store()
    assert await store.count("runs") == 0


async def test_huge_messages_and_tracebacks_are_shortened(process: Process) -> None:
    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context) -> None:
        await ctx.log("x" * 1_000_000, short=1, long=["z" * 1000] * 1000)
        raise ValueError("y" * 1_000_000)

    await process.start()
    run = await process.run("job")
    assert run.error is not None
    assert len(run.error["message"]) <= 8 * 1024
    assert len(run.error["traceback"]) <= 33 * 1024
    log = next(event for event in await process.events(run.id) if event.type == "log")
    assert len(log.data["message"]) == 64 * 1024
    assert log.data["fields"]["short"] == 1
    assert 20_000 < len(log.data["fields"]["long"]) < 64 * 1024


async def test_two_hundred_runs_at_once(process: Process) -> None:
    together = 0
    most = 0

    @process.app.task("job")
    async def job(ctx: Context, n: int) -> int:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await ctx.log("n", n=n)
        await asyncio.sleep(0)
        together -= 1
        return n

    await process.start(concurrency=50)
    accepted = await process.app.enqueue_many([("job", {"n": n}) for n in range(200)])
    results = [(await process.end(item.run_id)).result for item in accepted]
    assert results == list(range(200))
    assert most <= 50


async def test_context_variables_do_not_leak_between_runs(process: Process) -> None:
    @process.app.task("async")
    async def on_loop(ctx: Context) -> int:
        before = number.get()
        number.set(before + 1)
        return before

    @process.app.task("plain")
    def in_thread(ctx: Context) -> int:
        before = number.get()
        number.set(before + 1)
        return before

    await process.start()
    for name in ("async", "plain"):
        assert [(await process.run(name)).result for _ in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RunCancelled, BaseException])
async def test_no_exception_of_a_task_ends_the_worker(
    process: Process, error: type[BaseException], plain: bool
) -> None:
    @process.app.task("async", max_attempts=1)
    async def on_loop(ctx: Context) -> None:
        raise error("from the task")

    @process.app.task("plain", max_attempts=1)
    def in_thread(ctx: Context) -> None:
        raise error("from the task")

    @process.app.task("fine")
    async def fine(ctx: Context) -> str:
        return "fine"

    await process.start()
    run = await process.run("plain" if plain else "async")
    assert run.status is Status.FAILED
    assert run.error is not None
    assert error.__name__ in run.error["type"] + run.error["message"]
    assert (await process.run("fine")).result == "fine"


async def test_a_task_that_cancels_itself_has_failed(process: Process) -> None:
    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context) -> None:
        raise asyncio.CancelledError

    await process.start()
    run = await process.run("job")
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "cancelled from inside" in run.error["message"]


async def test_input_that_no_longer_fits_the_code_fails_the_run(process: Process) -> None:
    """The function changed between the accept and the execution."""

    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context, a: int) -> None: ...

    accepted = await process.app.enqueue("job", {"a": 1})

    async def newer(ctx: Context, b: str) -> None: ...

    process.app._tasks["job"] = make_task(newer, "job", max_attempts=1)
    await process.start()
    run = await process.end(accepted.run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"] == "ValidationError"


async def test_attempts_have_their_worker_and_their_times(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry

    worker = await process.start()
    run = await process.run("job")
    attempts = await read_attempts(await process.app.database(), run.id)
    assert [attempt["outcome"] for attempt in attempts] == ["retry_later", "completed"]
    assert {attempt["worker_id"] for attempt in attempts} == {worker.worker_id}
    assert all(attempt["started_at_us"] <= attempt["ended_at_us"] for attempt in attempts)
