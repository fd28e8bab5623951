"""What a run says of the bounds that it meets: limits of a provider, caps, prices that nobody knows."""

from __future__ import annotations

import pytest

from runlane import Status
from runlane.model.definition import Agent
from runlane.model.provider import LimitChange
from runlane.store.provider_limits import set_limits
from tests.harness import eventually
from tests.integration.process import Process
from tests.integration.test_orchestrations import sync


@pytest.mark.settings(openai_api_key="any")
async def test_every_run_that_waits_for_a_provider_says_so_while_it_waits(process: Process) -> None:
    await process.start()
    await set_limits(await process.app.database(), "openai", LimitChange(in_flight=0), actor="test")
    await sync(process, Agent.model_validate({"id": "asker", "model": "openai:gpt-5-mini"}))
    run_ids: list[str] = []

    async def all_say_so() -> bool:
        return all(["waiting" in await process.types(run_id) for run_id in run_ids])

    # The first one is slow to ask; those who come while it waits hear the reason at once.
    for count in (1, 7):
        run_ids += [(await process.app.ask("asker", "hello")).run_id for _ in range(count)]
        await eventually(all_say_so, "a reason in every run", seconds=8)
    assert {(await process.app.get(run_id)).status for run_id in run_ids} == {Status.RUNNING}
