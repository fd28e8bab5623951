"""The client against real servers: started, killed, restarted and replaced while it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from runlane import Client, Event, InvalidInput, LiveEvent, RunNotFound, Status, UnknownTask, WrongState
from runlane.client import RetryPolicy
from runlane.version import VERSION
from tests.server_process import ServerProcess, serving, write_tasks

PATIENT = RetryPolicy(first_seconds=0.05, longest_seconds=0.5, give_up_seconds=120)

GUARD = """
from pathlib import Path

@app.task("guard")
async def guard(ctx: Context, count: int) -> int:
    for number in range((ctx.saved or 0) + 1, count + 1):
        while number > 20 and not Path("relief").exists():
            await asyncio.sleep(0.02)  # until the test, in another process, makes the file
        await ctx.log(f"line {number}")
        await ctx.checkpoint(number)
    return count
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, write_tasks(folder), "dev", "tasks:app") as server:
        yield server


def numbers(events: list[Event | LiveEvent]) -> list[int]:
    return [event.seq for event in events if isinstance(event, Event)]


async def test_the_server_describes_itself_and_its_records(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        info, identity = await client.server_info(), await client.identity()
        assert (info["version"], info["sign_in_required"]) == (VERSION, False)
        assert (identity["tenant"], identity["role"]) == ("default", "platform_admin")
        assert "talk" in [task["name"] for task in await client.tasks()]
        accepted = await client.enqueue("talk", {"count": 2})
        await client.wait(accepted.run_id, timeout=30)
        assert await client.value(accepted.run_id, "result") == 2
        assert [(hit.kind, hit.id) for hit in await client.search(accepted.run_id)] == [("run", accepted.run_id)]
        assert (await client.admin.lane("default")).name == "default"
        worker = (await client.workers())[0]
        assert (await client.admin.worker(worker.id))["worker"]["worker_id"] == worker.id


async def test_the_life_of_a_run(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        accepted = await client.enqueue("talk", {"count": 5}, ordering_key="k", priority=3, hold=True)
        events: list[Event | LiveEvent] = []
        async for event in client.stream(accepted.run_id):
            # The run begins once it is followed, because late readers miss the live progress.
            if not events:
                await client.approve(accepted.run_id)
            events.append(event)
        run = await client.wait(accepted.run_id, timeout=30)
        assert (run.status, run.result, run.priority, run.ordering_key) == (Status.COMPLETED, 5, 3, "k")
        assert numbers(events) == list(range(1, run.last_seq + 1))
        assert events[-1].type == "done"
        assert [event for event in events if isinstance(event, Event)] == list(await client.events(run.id))
        live = [event for event in events if isinstance(event, LiveEvent)]
        assert live
        assert {(event.type, event.attempt) for event in live} == {("progress", 1)}
        assert [line.message async for line in client.log_lines(run.id, event="log")] == [
            f"line {number}" for number in range(1, 6)
        ]
        assert [attempt.outcome for attempt in await client.attempts(run.id)] == ["completed"]
        assert [step.output for step in await client.steps(run.id)] == [5]
        assert await client.get(run.id) == run
        assert [found.id async for found in client.list(ordering_key="k", page=1)] == [run.id]


async def test_hold_approve_cancel_and_priority(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        held = await client.enqueue("talk", {"count": 1}, hold=True)
        assert held.status is Status.AWAITING_APPROVAL
        assert await client.set_priority(held.run_id, 7) is Status.AWAITING_APPROVAL
        with pytest.raises(TimeoutError):
            await client.wait(held.run_id, timeout=0.05)
        assert await client.approve(held.run_id) is Status.QUEUED
        assert (await client.wait(held.run_id, timeout=30)).status is Status.COMPLETED
        with pytest.raises(WrongState):
            await client.approve(held.run_id)
        later = await client.enqueue("talk", {"count": 1}, delay_seconds=3600)
        assert await client.cancel(later.run_id) is Status.CANCELLED
        dead = await client.enqueue("refuse")
        assert (await client.wait(dead.run_id, timeout=30)).status is Status.FAILED
        assert await client.retry(dead.run_id) is Status.QUEUED


async def test_a_stream_of_a_retried_run_has_both_lives(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        run_id = (await client.enqueue("refuse")).run_id
        await client.wait(run_id, timeout=30)
        await client.retry(run_id)
        events = [event async for event in client.stream(run_id)]
        assert [event.type for event in events].count("done") == 2
        assert numbers(events) == list(range(1, len(events) + 1))


async def test_one_key_starts_one_run(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        first, second = [await client.enqueue("talk", {"count": 1}, idempotency_key="once") for _ in range(2)]
        assert first.run_id == second.run_id
        assert (first.replayed, second.replayed) == (False, True)
        batches = [await client.enqueue_many([("talk", {"count": 1})] * 3, idempotency_key="batch") for _ in range(2)]
        assert [run.run_id for run in batches[0]] == [run.run_id for run in batches[1]]
        assert len({run.run_id for run in batches[0]}) == 3


async def test_refusals_and_the_state_of_the_server(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        with pytest.raises(UnknownTask, match="talk"):
            await client.enqueue("tlak")
        with pytest.raises(InvalidInput, match="count"):
            await client.enqueue("talk")
        for call in (client.get("run_x"), client.cancel("run_x"), client.logs("run_x")):
            with pytest.raises(RunNotFound):
                await call
        with pytest.raises(RunNotFound):
            await anext(client.stream("run_x"))
        assert (await client.health()).ready
        assert [lane.name for lane in await client.lanes()] == ["default"]
        (worker,) = await client.workers()
        assert worker.status == "online"


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_followers_of_a_server_that_dies_and_comes_back(tmp_path: Path, end: str) -> None:
    """API and worker are one process here: after a kill its runs continue in a new attempt; a stop lets them end."""
    variables = write_tasks(tmp_path)
    with (tmp_path / "tasks.py").open("a") as tasks:
        tasks.write(GUARD)
    count = 40
    with serving(tmp_path, variables, "dev", "tasks:app") as first:
        async with Client(first.url, retry_policy=PATIENT) as client:
            runs = await client.enqueue_many([("guard", {"count": count})] * 3)
            seen: dict[str, list[Event | LiveEvent]] = {run.run_id: [] for run in runs}
            enough = asyncio.Event()

            async def read(run_id: str) -> None:
                async for event in client.stream(run_id):
                    seen[run_id].append(event)
                    if len(numbers(seen[run_id])) > 10:
                        enough.set()

            reading = [asyncio.create_task(read(run_id)) for run_id in seen]
            await asyncio.wait_for(enough.wait(), 60)
            ending = asyncio.create_task(asyncio.to_thread(first.kill if end == "kill" else first.stop))
            if end == "kill":
                await ending
            (tmp_path / "relief").touch()
            await ending
            with serving(tmp_path, variables, "dev", "tasks:app", port=first.port):
                await asyncio.wait_for(asyncio.gather(*reading), 120)
                for run_id, events in seen.items():
                    stored = await client.events(run_id)
                    assert [event for event in events if isinstance(event, Event)] == list(stored)
                    assert numbers(events) == list(range(1, stored[-1].seq + 1))
                    assert (max(event.attempt for event in events) > 1) == (end == "kill")
                    assert (await client.get(run_id)).result == count
