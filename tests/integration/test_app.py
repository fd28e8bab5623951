"""The App as a caller uses it: bad requests lose nothing, connections come and go with loops."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from runlane import (
    App,
    ConfigurationError,
    Conflict,
    Context,
    DuplicateTask,
    Event,
    InputTooLarge,
    InvalidInput,
    InvalidRequest,
    RunlaneError,
    RunNotFound,
    Settings,
    Status,
    Unavailable,
    UnknownTask,
)
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.errors import InvalidDefinitions
from runlane.operators import run_reader
from runlane.store.orchestration.fork import read_source
from runlane.store.sql.database import open_database
from runlane.store.sql.sqlite import SqliteDatabase
from tests.harness import Store, completed, entry_of, settings_for
from tests.integration.process import Process

BAD: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    ("jbo", {}, {}, UnknownTask, 'No task "jbo" is registered (did you mean "job"?)'),
    ("job", {"a": "x"}, {}, InvalidInput, "a: input should be a valid integer"),
    ("job", {"a": "x" * 5000}, {}, InputTooLarge, "RUNLANE_MAX_INPUT_BYTES"),
    ("job", {"a": {1, 2}}, {}, InvalidInput, "is not JSON"),
    ("job", {"a": 1}, {"priority": 101}, InvalidRequest, "priority=101 must be between -100 and 100"),
    ("job", {"a": 1}, {"priority": -101}, InvalidRequest, "priority=-101 must be between -100 and 100"),
    ("job", {"a": 1}, {"priority": True}, InvalidRequest, "priority=True must be a whole number"),
    ("job", {"a": 1}, {"priority": 1.5}, InvalidRequest, "priority=1.5 must be a whole number"),
    ("job", {"a": 1}, {"delay_seconds": -1}, InvalidRequest, "delay_seconds=-1 must be between 0 and"),
    ("job", {"a": 1}, {"delay_seconds": float("nan")}, InvalidRequest, "delay_seconds=nan"),
    ("job", {"a": 1}, {"delay_seconds": 1e12}, InvalidRequest, "(a year)"),
    ("job", {"a": 1}, {"on_dead": "maybe"}, InvalidRequest, 'must be "skip" or "block"'),
    ("job", {"a": 1}, {"ordering_key": ""}, InvalidRequest, "The ordering key is empty"),
]


@pytest.mark.settings(max_input_bytes=2048)
@pytest.mark.parametrize(("name", "arguments", "options", "error", "expected"), BAD)
async def test_a_bad_request_is_refused_and_loses_nothing(
    process: Process, name: str, arguments: Any, options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    @process.app.task("job")
    async def job(ctx: Context, a: int) -> None: ...

    good = await process.app.enqueue("job", {"a": 1})
    with pytest.raises(error) as caught:
        await process.app.enqueue(name, arguments, **options)
    assert expected in str(caught.value)
    if name == "job":
        with pytest.raises(error):
            await process.app.enqueue_many([("job", {"a": 1}), (name, arguments)], **options)
    store = await process.store()
    assert await store.count("runs") == 1
    assert await store.status(good.run_id) is Status.QUEUED


async def test_nothing_and_many(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context, n: int) -> None: ...

    assert await process.app.enqueue_many([]) == []
    accepted = await process.app.enqueue_many([("job", {"n": n}) for n in range(2_500)], priority=3)
    ids = [item.run_id for item in accepted]
    assert ids == sorted(ids)
    store = await process.store()
    assert await store.count("runs") == 2_500
    assert {row["priority"] for row in await store.sql("select distinct priority from runs")} == {3}


async def test_operators_verbs(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    app = process.app
    held = (await app.enqueue("job", hold=True)).run_id
    assert await app.set_priority(held, 5) is Status.AWAITING_APPROVAL
    with pytest.raises(InvalidRequest):
        await app.set_priority(held, 500)
    assert await app.approve(held) is Status.QUEUED
    assert await app.cancel(held) is Status.CANCELLED
    assert (await app.wait(held)).status is Status.CANCELLED
    for verb in (app.get, app.cancel, app.approve, app.retry, app.release, app.wait, app.events):
        with pytest.raises(RunNotFound):
            await verb("run_unknown")


async def test_release_unblocks_an_ordering_key(process: Process) -> None:
    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context, fail: bool) -> str:
        if fail:
            raise ValueError("no")
        return "ok"

    await process.start()
    first = await process.app.enqueue("job", {"fail": True}, ordering_key="k", on_dead="block")
    second = await process.app.enqueue("job", {"fail": False}, ordering_key="k")
    await process.end(first.run_id)
    assert (await process.app.get(second.run_id)).status is Status.BLOCKED
    await process.app.release(first.run_id)
    assert (await process.end(second.run_id)).result == "ok"


async def test_waiting_ends_with_its_timeout(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    accepted = await process.app.enqueue("job")
    with pytest.raises(TimeoutError):
        await process.app.wait(accepted.run_id, timeout=0.01)


def test_an_app_serves_one_loop_after_another(settings: Settings) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

    async def use(*, close: bool) -> list[str]:
        # Many at once, so that they meet at the connection.
        accepted = await asyncio.gather(*(app.enqueue("job") for _ in range(5)))
        if close:
            await app.close()
            await app.close()
        return [item.run_id for item in accepted]

    ids = asyncio.run(use(close=True)) + asyncio.run(use(close=True)) + asyncio.run(use(close=True))
    assert len(set(ids)) == 15


async def test_an_app_may_be_closed_and_used_again(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    await process.app.enqueue("job")
    await process.app.close()
    await process.app.enqueue("job")
    store = await process.store()
    assert await store.count("runs") == 2


async def test_a_closed_database_raises_an_error_that_names_the_cause(settings: Settings) -> None:
    database = await open_database(settings)
    store = Store(settings, database)
    await database.close()
    await database.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.count("runs")


async def test_a_transaction_that_waits_for_something_else_is_refused_on_sqlite(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url)
    assert settings.sqlite_path is not None
    database = await SqliteDatabase.open(settings.sqlite_path, 1)
    try:
        with pytest.raises(RuntimeError, match="awaited something other than its session"):
            await database.transact(lambda session: asyncio.sleep(0))
        with pytest.raises(AssertionError):
            await database.was_committed("mark")
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("postgresql://app:hunter2@127.0.0.1:1/shop", Unavailable, "cannot be reached"),
        ("postgresql://app:hunter2@no-such-host.invalid/shop", Unavailable, "cannot be reached"),
    ],
)
async def test_an_unreachable_database_is_reported_without_its_password(
    url: str, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error) as caught:
        await App(settings_for(url, database_timeout_seconds=5)).connect()
    assert expected in str(caught.value)
    assert "RUNLANE_DATABASE_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_database_that_does_not_exist_is_a_configuration_error(postgres_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rejected the connection.*Check RUNLANE_DATABASE_URL"):
        await App(settings_for(f"{postgres_url}_not_there")).connect()


async def test_definitions_are_brought_all_or_none(process: Process, tmp_path: Path) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> str:
        return "done"

    await process.start()
    uses_job = {"id": "helper", "model": "scripted", "tools": ["job"], "answers": [{"tool": "job"}, "It is done."]}
    report = await process.app.sync({"agents": [uses_job]})
    assert [(item["id"], item["change"]) for item in report["items"]] == [("helper", "added")]
    assert (await process.end((await process.app.ask("helper", "go")).run_id)).result == "It is done."
    with pytest.raises(RunlaneError, match="jbo"):
        await process.app.sync({"agents": [{**uses_job, "system_prompt": "new"}, {"id": "other", "tools": ["jbo"]}]})
    with pytest.raises(InvalidRequest, match='"agent" is not a kind of definitions'):
        await process.app.sync({"agent": [uses_job]})
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "new.json").write_text('{"id": "new", "model": "scripted", "answers": ["New."]}')
    report = await process.app.sync(tmp_path, remove_missing=True)
    assert [(item["id"], item["change"]) for item in report["items"]] == [("new", "added")], (
        "a folder has its own source"
    )
    with pytest.raises(Conflict, match=r"agent:new \(source"):
        await process.app.sync({"agents": [{"id": "new", "model": "scripted"}]})
    report = await process.app.sync(tmp_path, remove_missing=True, source="default", take_over=True)
    assert [(item["id"], item["change"]) for item in report["items"]] == [("new", "unchanged"), ("helper", "removed")]


async def _max_losses(process: Process, run_id: str) -> int:
    row = await read_source(await process.app.database(), run_id)
    assert row is not None
    return row["max_losses"]


@pytest.mark.settings(max_losses=5)
async def test_the_operator_bounds_how_many_workers_a_run_may_lose(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(ctx: Context) -> None:
        """Do nothing."""

    for name, asked in (("default", None), ("few", 2), ("many", 500)):
        process.app.task(name, max_losses=asked)(work)
    found = {name: (await process.app.enqueue(name)).run_id for name in ("default", "few", "many")}
    assert {name: await _max_losses(process, run_id) for name, run_id in found.items()} == {
        "default": 5, "few": 2, "many": 5,
    }  # fmt: skip
    log = CapturingLogger()
    monkeypatch.setattr("runlane.worker_factory.log", log)
    await process.app.worker()
    (call,) = log.calls
    assert (call.method_name, call.args) == ("warning", ("max_losses_capped",))
    assert (call.kwargs["task"], call.kwargs["asked"], call.kwargs["used"]) == ("many", 500, 5)


@pytest.mark.settings(max_losses=5)
async def test_a_definition_cannot_ask_for_more_losses_than_the_operator_allows(process: Process) -> None:
    steps = [{"id": "s", "type": "print", "print_content": "x"}]
    bodies = {"orchestrations": [{"id": "greedy", "steps": steps, "max_losses": 500}]}
    with pytest.raises(InvalidDefinitions) as caught:
        await process.app.sync(bodies)
    (_, message) = caught.value.problems[0]
    assert message == (
        "max_losses=500 is more than this installation allows (5). Lower it, or ask an operator to raise "
        "RUNLANE_MAX_LOSSES."
    )
    # One that was stored under a higher bound is held to the present one.
    await sync_definitions(await process.app.database(), "default", parse_bodies(bodies), actor="test")
    assert await _max_losses(process, (await process.app.orchestrate("greedy")).run_id) == 5
    modest = {"orchestrations": [{"id": "modest", "steps": steps, "max_losses": 2}, {"id": "plain", "steps": steps}]}
    await process.app.sync(modest)
    assert await _max_losses(process, (await process.app.orchestrate("modest")).run_id) == 2
    assert await _max_losses(process, (await process.app.orchestrate("plain")).run_id) == 5


async def test_a_wait_that_times_out_reports_the_state_of_the_run(process: Process) -> None:
    @process.app.task("job", lane="night")
    async def job(ctx: Context) -> None: ...

    waiting = (await process.app.enqueue("job")).run_id
    held = (await process.app.enqueue("job", hold=True)).run_id
    waits = (process.app.wait(run_id, timeout=2) for run_id in (waiting, held))
    of_waiting, of_held = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(of_waiting, TimeoutError)
    assert str(of_waiting) == (
        f'Run {waiting} (job) has not ended after 2 s: its status is "queued" in attempt 0 on lane night. '
        "Check that a worker serves its lane and has its task."
    )
    assert isinstance(of_held, TimeoutError)
    assert "awaiting_approval" in str(of_held)
    assert str(of_held).endswith("Approve it with app.approve().")


def test_a_task_is_called_like_its_function_unless_it_has_a_name() -> None:
    app = App()

    @app.task
    async def bare(ctx: Context, number: int) -> int:
        return number

    @app.task()
    def empty(ctx: Context) -> None: ...

    @app.task(lane="night", max_attempts=7)
    def options(ctx: Context) -> None: ...

    assert list(app.tasks) == ["bare", "empty", "options"]
    assert app.tasks["bare"].function is bare
    assert (app.tasks["options"].lane, app.tasks["options"].max_attempts) == ("night", 7)
    with pytest.raises(DuplicateTask, match="bare"):
        app.task(bare)


@pytest.mark.parametrize("wrong", [5, Context, partial(print, 1)])
def test_only_a_function_can_be_a_task(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a function, so it cannot be a task"):
        App().task(wrong)


async def test_a_stream_has_every_event_of_a_run_with_several_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "_PAGE", 2)
    run_id = await store.add()
    claimed = await store.claim_one()
    await store.record(
        entry_of(claimed, completed(), events=[("log", f'{{"message":"{number}"}}') for number in "abc"])
    )
    async with App(store.settings) as app:
        seen = [event.seq async for event in app.stream(run_id) if isinstance(event, Event)]
    assert seen == list(range(1, (await store.get(run_id)).last_seq + 1))
    assert len(seen) > 4
