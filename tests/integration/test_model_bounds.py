"""What a run reports about the bounds that it meets: limits of a provider, caps, unknown prices."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic import SecretStr

from runlane import Status
from runlane.definitions.schema.definition import Agent, Tool
from runlane.domain.rate_limit import LimitChange
from runlane.rate_limits.usage import read_occupancy
from runlane.settings import CompatibleProvider, Settings
from runlane.store.orchestration.calls import read_totals
from runlane.store.rate_limits.limits import set_limits
from runlane.store.webhooks.deliveries import list_deliveries, read_delivery
from runlane.testing import FakeAnswer, FakeCall, FakeServer
from tests.contract.test_webhooks import endpoint
from tests.harness import Store, eventually
from tests.integration.process import Process
from tests.integration.test_agents import ADD, STEP, events_of, is_paused, paused
from tests.integration.test_orchestrations import flow, sync


@pytest.mark.settings(openai_api_key="any")
async def test_every_run_that_waits_for_a_provider_reports_it_while_it_waits(process: Process) -> None:
    await process.start()
    await set_limits(await process.app.database(), "openai", LimitChange(in_flight=0), actor="test")
    await sync(process, Agent.model_validate({"id": "asker", "model": "openai:gpt-5-mini"}))
    run_ids: list[str] = []

    async def all_say_so() -> bool:
        return all(["waiting" in await process.types(run_id) for run_id in run_ids])

    # The first call is slow, since it loads the provider; later ones get the reason at once while it waits.
    for count, seconds in ((1, 30), (7, 8)):
        run_ids += [(await process.app.ask("asker", "hello")).run_id for _ in range(count)]
        await eventually(all_say_so, "a reason in every run", seconds=seconds)
    assert {(await process.app.get(run_id)).status for run_id in run_ids} == {Status.RUNNING}


async def test_the_limit_of_a_custom_provider_is_enforced_under_its_own_name(settings: Settings) -> None:
    """Two providers at one address: the limit belongs to the name and not to the address or the wire format."""
    async with FakeServer(["Hello."]) as fake:
        custom = CompatibleProvider(base_url=f"{fake.url}/v1")
        process = Process(settings.model_copy(update={"providers": {"acme": custom, "beta": custom}}))
        try:
            await process.start()
            database = await process.app.database()
            await set_limits(database, "acme", LimitChange(in_flight=0), actor="test")
            agents = [{"id": name, "model": f"{name}:large"} for name in ("acme", "beta")]
            await sync(process, *(Agent.model_validate(agent) for agent in agents))
            limited = (await process.app.ask("acme", "hello")).run_id

            async def reported() -> bool:
                return bool({"waiting", "done"} & {*await process.types(limited)})

            await eventually(reported, "the run to report that it waits")
            assert "waiting" in await process.types(limited)
            assert (await process.end((await process.app.ask("beta", "hello")).run_id)).result == "Hello."
            assert len(fake.meter.log) == 1
            await set_limits(database, "acme", LimitChange(in_flight=1), actor="test")
            assert (await process.end(limited)).result == "Hello."
            used = {item.credential: item.limits.in_flight for item in await read_occupancy(database)}
            assert (used["acme"], used.get("beta")) == (1, None)
        finally:
            await process.stop()


def spender(*costs: float | None, **fields: Any) -> Agent:
    """An agent that uses a tool until its last answer; what each answer costs."""
    uses = [{"tool": "add", "arguments": {"a": 1, "b": 1}, "tokens": 10, "cost_usd": cost} for cost in costs[:-1]]
    last = {"say": "done", "tokens": 10, "cost_usd": costs[-1]}
    return Agent.model_validate(
        {"id": "helper", "model": "scripted", "tools": ["add"], "answers": [*uses, last], **fields}
    )


async def test_the_spending_of_a_running_step_is_in_the_totals(process: Process) -> None:
    await process.start()
    step = {**STEP, "max_cost_usd": 1.0}
    run_id = await paused(process, flow(step, on_cap="ask"), spender(2.0, 2.0), Tool.model_validate(ADD))
    database = await process.app.database()
    assert await read_totals(database, run_id) == (2.0, 10)
    await process.app.resume(run_id, {"decision": "allow"})
    assert (await process.end(run_id)).result == "done"
    assert await read_totals(database, run_id) == (4.0, 20)


@pytest.mark.parametrize("amount", [{}, {"amount_usd": 0.5}])
async def test_an_allowed_amount_counts_from_what_was_spent(process: Process, amount: dict[str, float]) -> None:
    """An answer that was far above the cap must not ask the same question again and again."""
    await process.start()
    orchestration = flow(STEP, max_total_cost_usd=1.0, on_cap="ask")
    run_id = await paused(process, orchestration, spender(10.0, 10.0, 1.0), Tool.model_validate(ADD))
    for spent in (10.0, 20.0):
        await eventually(lambda: is_paused(process, run_id), "the run to ask")
        assert (await read_totals(await process.app.database(), run_id))[0] == spent
        await process.app.resume(run_id, {"decision": "allow", **amount})
    assert (await process.end(run_id)).result == "done"
    assert len(await events_of(process, run_id, "human_input_required")) == 2


async def test_the_budget_of_a_run_is_reported_before_it_is_spent_and_when_it_is(process: Process) -> None:
    await process.start()
    database = await process.app.database()
    await endpoint(Store(process.settings, database), types=["budget.warning", "budget.reached"])
    orchestration = flow(STEP, max_total_cost_usd=1.0, on_cap="ask")
    run_id = await paused(process, orchestration, spender(0.5, 0.35, 0.2, 0.1), Tool.model_validate(ADD))
    found = [json.loads((await read_delivery(database, item.id)).body) for item in await list_deliveries(database)]
    assert [(item["type"], item["data"]["spent_usd"]) for item in reversed(found)] == [
        ("budget.warning", pytest.approx(0.85)),
        ("budget.reached", pytest.approx(1.05)),
    ]
    assert {item["data"]["run_id"] for item in found} == {run_id}
    await process.app.resume(run_id, {"decision": "allow"})
    assert (await process.end(run_id)).result == "done"


async def test_an_unknown_cost_is_not_zero(process: Process) -> None:
    await process.start()
    database = await process.app.database()
    await sync(process, spender(None), Tool.model_validate(ADD))
    asked = await process.end((await process.app.ask("helper", "go")).run_id)
    assert await read_totals(database, asked.id) == (None, 10)
    await sync(process, flow({"id": "say", "type": "print", "print_content": "hi"}))
    printed = await process.end((await process.app.orchestrate("flow")).run_id)
    assert await read_totals(database, printed.id) == (0.0, 0)


@pytest.fixture
async def unpriced(settings: Settings) -> AsyncGenerator[Process]:
    """A process whose provider has models without a known price."""
    async with FakeServer([FakeAnswer(calls=[FakeCall(name="add", arguments={"a": 1, "b": 1})]), "done"]) as fake:
        given = {"openai_base_url": f"{fake.url}/v1", "openai_api_key": SecretStr("any")}
        process = Process(settings.model_copy(update=given))
        try:
            await process.start()
            yield process
        finally:
            await process.stop()


def unknown(**fields: Any) -> Agent:
    return Agent.model_validate({"id": "helper", "model": "openai:without-price", "tools": ["add"], **fields})


async def test_a_cap_that_cannot_be_checked_is_reported_once(unpriced: Process) -> None:
    steps = [{**STEP, "id": name, "output_key": name} for name in ("one", "two")]
    approved = Tool.model_validate({**ADD, "requires_approval": True})
    capped = unknown(max_cost_usd_per_day=5.0)
    run_id = await paused(unpriced, flow(*steps, max_total_cost_usd=1.0), capped, approved)
    for number in (1, 2):

        async def has_question(number: int = number) -> bool:
            asked = await events_of(unpriced, run_id, "human_input_required")
            return len(asked) == number and await is_paused(unpriced, run_id)

        await eventually(has_question, "a question")
        await unpriced.app.resume(run_id, {"decision": "approve"})
    assert (await unpriced.end(run_id)).result == "done"
    (warning,) = await events_of(unpriced, run_id, "step_warning")
    assert warning["code"] == "price_unknown"
    assert "openai:without-price is not known" in warning["message"]
    assert 'the cap of this run and the agent "helper".' in warning["message"]


async def test_without_a_cap_an_unknown_price_is_not_a_warning(unpriced: Process) -> None:
    await sync(unpriced, unknown(), Tool.model_validate(ADD))
    ended = await unpriced.end((await unpriced.app.ask("helper", "go")).run_id)
    assert ended.result == "done"
    assert await events_of(unpriced, ended.id, "step_warning") == []
