"""Runs that hold much: they wait for each other, release their slot meanwhile, and do not affect other tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import Context, Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.definitions.schema.definition import Orchestration
from runlane.orchestration import memory_budget
from tests.harness import eventually
from tests.integration.process import Process

# The state has the message twice: two runs of a tenant fit into its half megabyte, a third one does not.
MESSAGE = "x" * 110_000
FLOW: dict[str, Any] = {
    "id": "flow",
    "steps": [
        {"id": "work", "type": "task", "task": "work", "next_step_id": "line"},
        {"id": "line", "type": "print", "print_content": "{{user_input}}"},
    ],
}


async def sync(process: Process, tenant: str, *bodies: dict[str, Any]) -> None:
    found = [Orchestration.model_validate(body).model_dump(mode="json", exclude_unset=True) for body in bodies]
    await sync_definitions(await process.app.database(), tenant, parse_bodies({"orchestrations": found}), actor="test")


@pytest.mark.settings(worker_text_bytes=1024 * 1024)
async def test_a_run_without_room_waits_outside_of_the_worker(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(memory_budget, "_RETRY_SECONDS", (0.2, 0.3))
    go_on = asyncio.Event()

    @process.app.task("work")
    async def work(ctx: Context) -> str:
        await go_on.wait()
        return "worked"

    await process.start()
    await sync(process, "default", FLOW)
    holding = [await process.app.orchestrate("flow", MESSAGE) for _ in range(2)]
    for accepted in holding:
        await eventually(lambda run_id=accepted.run_id: _started(process, run_id))
    third = await process.app.orchestrate("flow", MESSAGE)
    await eventually(lambda: _paused_twice(process, third.run_id))
    assert await _started(process, third.run_id) is False
    go_on.set()
    for accepted in (*holding, third):
        run = await process.end(accepted.run_id)
        assert (run.status, run.result, run.failures, run.losses) == (Status.COMPLETED, MESSAGE, 0, 0)


async def _started(process: Process, run_id: str) -> bool:
    return "step_start" in await process.types(run_id)


async def _paused_twice(process: Process, run_id: str) -> bool:
    return (await process.types(run_id)).count("paused") >= 2


@pytest.mark.settings(worker_text_bytes=1024 * 1024)
async def test_a_run_that_holds_more_than_a_tenant_may_fails(process: Process) -> None:
    await process.start()
    await sync(process, "default", {**FLOW, "steps": [FLOW["steps"][1]]})
    run = await process.end((await process.app.orchestrate("flow", "x" * 300_000)).run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"] == "run_too_large"
    assert "RUNLANE_WORKER_TEXT_BYTES" in run.error["message"]


@pytest.mark.settings(max_run_bytes=4 * 1024 * 1024)
async def test_a_loop_that_fills_a_key_again_and_again_is_bounded(process: Process) -> None:
    await process.start()
    line = {"id": "line", "type": "print", "print_content": "{{user_input}}", "output_key": "line"}
    rounds = {"id": "rounds", "type": "loop", "loop_step_ids": ["line"], "loop_count": 10_000}
    for collect, code in ((True, "state_too_large"), (False, "run_too_large")):
        await sync(
            process,
            "default",
            {
                "id": "flow",
                "max_total_turns": 10_000,
                "max_state_bytes": 1024 * 1024,
                "steps": [{**rounds, "collect": collect}, line],
            },
        )
        run = await process.end((await process.app.orchestrate("flow", MESSAGE)).run_id)
        assert run.error is not None
        assert run.error["type"] == code


async def test_a_takeover_reads_no_more_than_what_came_after_a_snapshot(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.orchestration.snapshots.SNAPSHOT_BYTES", 500_000)
    await process.start()
    line = {"id": "line", "type": "print", "print_content": "{{user_input}}"}
    rounds = {"id": "rounds", "type": "loop", "loop_step_ids": ["line"], "loop_count": 20, "collect": False}
    await sync(process, "default", {"id": "flow", "steps": [rounds, line]})
    accepted = await process.app.orchestrate("flow", MESSAGE)
    assert (await process.end(accepted.run_id)).status is Status.COMPLETED
    store = await process.store()
    (snapshot,) = await store.sql("select no from run_steps where path = '_cursor'")
    assert snapshot["no"] >= 15
