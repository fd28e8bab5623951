"""Caps on what models cost, under a fan-out and over real processes: exceeded by the calls in flight and by no more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from runlane import Status
from runlane.orchestration.attempt import DRAIN_SECONDS
from runlane.store.orchestration.calls import read_totals
from runlane.testing.crash_points import CrashPoint
from runlane.testing.fake_provider import FakeProvider
from tests.chaos.agents import (
    CREDENTIAL,
    MODEL,
    PRICE_USD,
    TOKENS_IN,
    TOKENS_OUT,
    answers_given,
    cli_json,
    define,
    environment,
    fan_out,
    has_status,
    priced,
    start,
)
from tests.chaos.cluster import Cluster, MakeCluster, eventually

WAYS = 20
AT_ONCE = 3
CAPPED_CALLS = 7
CAP = CAPPED_CALLS * PRICE_USD


pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider([priced(delay_seconds=0.2)]) as provider:
        yield provider


@pytest.fixture
async def capped(make_cluster: MakeCluster, provider: FakeProvider) -> Cluster:
    """A cluster that makes AT_ONCE calls at once."""
    cluster = await make_cluster(**environment(provider))
    await cli_json(cluster, "limits", "set", CREDENTIAL, "--in-flight", str(AT_ONCE))
    return cluster


async def spent(cluster: Cluster) -> float:
    rows = await cluster.rows("select cost_usd from run_calls where cost_usd is not null")
    return sum(row["cost_usd"] for row in rows)


async def check_bill(cluster: Cluster, provider: FakeProvider) -> None:
    """Check that what is charged is what the provider counted."""
    calls = answers_given(provider)
    assert await spent(cluster) == pytest.approx(calls * PRICE_USD)
    (used,) = await cli_json(cluster, "usage", "--group", "model")
    assert (used["key"], used["calls"], used["unpriced_calls"]) == (MODEL, calls, 0)
    assert (used["tokens_in"], used["tokens_out"]) == (calls * TOKENS_IN, calls * TOKENS_OUT)
    assert used["cost_usd"] == pytest.approx(calls * PRICE_USD)


async def questions(cluster: Cluster) -> list[dict[str, Any]]:
    return await cli_json(cluster, "inbox")


async def test_a_capped_run_fails_after_the_calls_under_way(capped: Cluster, provider: FakeProvider) -> None:
    await define(capped, fan_out(WAYS), max_total_cost_usd=CAP)
    await capped.start_workers(1)
    (run_id,) = await start(capped)
    run = await capped.app.wait(run_id, 60)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "cost_limit")
    assert CAPPED_CALLS <= provider.stats()["calls"] <= CAPPED_CALLS + AT_ONCE - 1
    assert CAP <= await spent(capped) <= CAP + (AT_ONCE - 1) * PRICE_USD + 1e-9
    await check_bill(capped, provider)


async def test_calls_in_flight_when_a_cap_fails_the_run_are_counted(
    make_cluster: MakeCluster, provider: FakeProvider
) -> None:
    """Neighbours of the branch that fails have sent their requests, and the provider charges for them."""
    quick = [priced(delay_seconds=1.5, when=f"Task {number}") for number in range(2, 2 + CAPPED_CALLS)]
    provider.control(answers=[*quick, priced(delay_seconds=6)])
    cluster = await make_cluster(**environment(provider))
    await cli_json(cluster, "limits", "set", CREDENTIAL, "--in-flight", "12")
    await define(cluster, fan_out(WAYS), max_total_cost_usd=CAP)
    await cluster.start_workers(1)
    (run_id,) = await start(cluster)
    run = await cluster.app.wait(run_id, 60)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "cost_limit")
    stats = provider.stats()
    assert CAPPED_CALLS + 3 < stats["calls"] < WAYS, "several were in flight, and none began after them"
    assert stats["outcomes"] == {"200": stats["calls"]}
    await check_bill(cluster, provider)
    assert (await read_totals(await cluster.app.database(), run_id))[0] == pytest.approx(stats["calls"] * PRICE_USD)
    assert len(await cluster.events("model_response")) == stats["calls"]
    await cluster.check_story()


async def test_an_answer_after_the_timeout_of_its_step_is_counted(
    make_cluster: MakeCluster, provider: FakeProvider
) -> None:
    cluster = await make_cluster(**environment(provider))
    ask = {"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "ask"}
    await define(cluster, [ask])
    await cluster.start_workers(1)
    # The first call of all loads the provider's package, which may take longer than a step that times out.
    (first,) = await start(cluster)
    assert (await cluster.app.wait(first, 60)).status is Status.COMPLETED
    provider.control(answers=[priced(delay_seconds=6)])
    await define(cluster, [ask | {"timeout_seconds": 2.5, "retry": {"attempts": 2, "backoff_seconds": 0.01}}])
    (run_id,) = await start(cluster)
    run = await cluster.app.wait(run_id, 60)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "timeout")
    assert provider.stats()["outcomes"] == {"200": 3}
    await check_bill(cluster, provider)
    rows = await cluster.rows(f"select key from run_calls where run_id = '{run_id}' order by key")
    assert [row["key"] for row in rows] == ["0/model/0", "late/1.1/0/model/0"]
    assert (await read_totals(await cluster.app.database(), run_id))[0] == pytest.approx(2 * PRICE_USD)
    await cluster.check_story()
    # A retry uses the answer that came too late, and costs nothing more.
    await cluster.app.retry(run_id)
    assert (await cluster.app.wait(run_id, 60)).status is Status.COMPLETED
    assert provider.stats()["calls"] == 3


async def test_calls_in_flight_when_a_person_cancels_are_cut_off_at_once(
    make_cluster: MakeCluster, provider: FakeProvider
) -> None:
    provider.control(answers=[priced(delay_seconds=300)])
    cluster = await make_cluster(**environment(provider))
    await define(cluster, fan_out(3))
    await cluster.start_workers(1)
    (run_id,) = await start(cluster)

    async def asked() -> bool:
        return provider.stats()["in_flight"] == 3

    await eventually(asked, "three calls in flight")
    await cluster.app.cancel(run_id)
    assert (await cluster.app.wait(run_id, DRAIN_SECONDS)).status is Status.CANCELLED

    async def gone() -> bool:
        return provider.stats()["outcomes"] == {"hung up": 3}

    await eventually(gone, "three calls cut off")
    assert await cluster.rows("select key from run_calls") == []


async def test_a_capped_run_does_not_forget_what_it_spent_when_its_worker_dies(
    make_cluster: MakeCluster, provider: FakeProvider
) -> None:
    """Every branch has spent, none has ended, and the next worker begins with one more call."""
    provider.control(answers=[priced("no JSON", delay_seconds=3), priced('{"n": 1}', delay_seconds=3)])
    cluster = await make_cluster(**environment(provider))
    await cli_json(cluster, "limits", "set", CREDENTIAL, "--no-limit", "in_flight")
    loop, ask = fan_out(WAYS)
    # For a model without a key nothing has to be looked up, so its call would come before the other branches begin.
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ask = {"id": "ask", "type": "llm", "model": "open:big", "output_schema": schema, "output_key": "ask"}
    await define(cluster, [loop, ask], max_total_cost_usd=CAP, on_cap="ask")
    (run_id,) = await start(cluster)
    victim = cluster.start_worker(crash=CrashPoint("journal.kept", WAYS))
    assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    assert await spent(cluster) >= CAP
    calls = provider.stats()["calls"]
    cluster.start_worker()
    await one_question(cluster, run_id)
    assert provider.stats()["calls"] == calls
    (used,) = await cli_json(cluster, "usage", "--group", "model")
    assert used["cost_usd"] == pytest.approx(await spent(cluster))


async def test_a_killed_and_restarted_worker_does_not_pass_the_cap(capped: Cluster, provider: FakeProvider) -> None:
    await define(capped, fan_out(WAYS), max_total_cost_usd=CAP)
    (run_id,) = await start(capped)
    (victim,) = await capped.start_workers(1)

    async def some() -> bool:
        return await spent(capped) >= 3.5 * PRICE_USD

    await eventually(some, "a few answers", every=0.01)
    victim.kill()
    await capped.start_workers(1)
    run = await capped.app.wait(run_id, 90)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "cost_limit")
    # What was in flight when the worker died is asked for again.
    assert answers_given(provider) <= CAPPED_CALLS + AT_ONCE - 1 + AT_ONCE
    assert await spent(capped) <= CAP + (AT_ONCE - 1) * PRICE_USD + 1e-9


async def one_question(cluster: Cluster, run_id: str) -> dict[str, Any]:
    await has_status(cluster, run_id, Status.PAUSED)
    (question,) = await questions(cluster)
    assert question["run_id"] == run_id
    return question


@pytest.mark.parametrize("whose", ["run", "agent", "tenant"])
async def test_a_person_is_asked_once_for_the_whole_run(whose: str, capped: Cluster, provider: FakeProvider) -> None:
    agent: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if whose == "run":
        fields = {"max_total_cost_usd": CAP, "on_cap": "ask"}
    elif whose == "agent":
        agent = {"max_cost_usd_per_day": CAP, "on_cap": "ask"}
    else:
        await cli_json(capped, "tenants", "set", "default", "--max-cost-per-day", str(CAP), "--on-cap", "ask")
    await define(capped, fan_out(WAYS), agent=agent, **fields)
    await capped.start_workers(2)
    (run_id,) = await start(capped)
    question = await one_question(capped, run_id)
    assert f"of at most ${CAP}" in question["prompt"]
    calls = provider.stats()["calls"]
    assert CAPPED_CALLS <= calls <= CAPPED_CALLS + AT_ONCE - 1
    await capped.app.resume(run_id, {"decision": "allow", "amount_usd": 3 * PRICE_USD}, step=question["path"])

    async def asked_again() -> bool:
        return len(await capped.events("human_input_required")) == 2

    await eventually(asked_again, "another question")
    question = await one_question(capped, run_id)
    assert calls + 3 <= provider.stats()["calls"] <= calls + 3 + AT_ONCE - 1
    await capped.app.resume(run_id, {"decision": "allow", "amount_usd": 1}, step=question["path"])
    run = await capped.app.wait(run_id, 60)
    assert run.status is Status.COMPLETED, run.error
    assert provider.stats()["calls"] == WAYS
    await check_bill(capped, provider)
    assert await questions(capped) == []
    await capped.check_story()


async def test_a_person_can_stop_the_run(capped: Cluster, provider: FakeProvider) -> None:
    await define(capped, fan_out(WAYS), max_total_cost_usd=CAP, on_cap="ask")
    await capped.start_workers(1)
    (run_id,) = await start(capped)
    question = await one_question(capped, run_id)
    calls = provider.stats()["calls"]
    await capped.app.resume(run_id, {"decision": "stop"}, step=question["path"])
    run = await capped.app.wait(run_id, 60)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "cost_limit")
    assert provider.stats()["calls"] == calls
    await check_bill(capped, provider)


@pytest.mark.parametrize("whose", ["agent", "tenant"])
async def test_a_cap_of_the_day_holds_for_all_runs_and_workers(
    whose: str, capped: Cluster, provider: FakeProvider
) -> None:
    agent = {"max_cost_usd_per_day": CAP} if whose == "agent" else {}
    if whose == "tenant":
        await cli_json(capped, "tenants", "set", "default", "--max-cost-per-day", str(CAP))
    await define(capped, fan_out(WAYS), agent=agent)
    run_ids = await start(capped, 3)
    await capped.start_workers(3, concurrency=1)
    runs = [await capped.app.wait(run_id, 60) for run_id in run_ids]
    assert [run.error and run.error["type"] for run in runs] == ["cost_limit"] * 3
    assert await spent(capped) <= CAP + (AT_ONCE - 1) * PRICE_USD + 1e-9
    assert provider.stats()["calls"] <= CAPPED_CALLS + AT_ONCE - 1
