"""The command line rounds costs for people: sums of prices have digits that mean nothing."""

from __future__ import annotations

import asyncio

import pytest

from runlane.definitions.schema.definition import Tool
from tests.acceptance.test_access_cli import environment, json_of, run
from tests.harness import settings_for
from tests.integration.process import Process
from tests.integration.test_agents import ADD, STEP
from tests.integration.test_model_bounds import spender
from tests.integration.test_orchestrations import flow, sync

__all__ = ["environment"]

EXACT = 0.1 + 0.2


async def test_costs_are_rounded_wherever_they_are_printed(environment: dict[str, str]) -> None:
    process = Process(settings_for(environment["RUNLANE_DATABASE_URL"]))
    try:
        await process.start()
        await sync(process, spender(0.1, 0.2), Tool.model_validate(ADD), flow(STEP))
        run_id = (await process.end((await process.app.orchestrate("flow")).run_id)).id
    finally:
        await process.stop()
    assert str(EXACT) == "0.30000000000000004"
    for command, rounded in (
        (("runs", "steps", run_id), "\t$0.3000\t"),
        (("runs", "show", run_id), "  $0.3000  "),
        (("runs", "tail", run_id), "$0.3000"),
        (("usage",), "\t0.300000\t"),
        (("usage", "--group", "run"), "\t0.300000\t"),
    ):
        done = await asyncio.to_thread(run, environment, *command)
        assert done.returncode == 0, done.stderr
        printed = [line for line in done.stdout.splitlines() if '"cost_usd"' not in line]
        assert any(rounded in line for line in printed), done.stdout
        assert not any("0.30000000" in line for line in printed), done.stdout
    # Programs get the value as it is.
    (step,) = await asyncio.to_thread(json_of, environment, "runs", "steps", run_id)
    assert step["cost_usd"] == pytest.approx(EXACT)
