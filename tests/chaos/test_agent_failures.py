"""Providers that fail, in whole runs: retried, replaced by the next model, or ended with a code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runlane import Run, Status
from runlane.testing.fake_provider import FakeAnswer, FakeFault, FakeProvider
from tests.chaos.agents import define, environment, start
from tests.chaos.cluster import Cluster, MakeCluster

STEP = {"id": "ask", "type": "agent", "agent_id": "helper", "prompt_template": "Do it.", "output_key": "ask"}


pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def first() -> Iterator[FakeProvider]:
    with FakeProvider(["From the first."]) as provider:
        yield provider


@pytest.fixture
def second() -> Iterator[FakeProvider]:
    with FakeProvider(["From the second."]) as provider:
        yield provider


@pytest.fixture
async def cluster(make_cluster: MakeCluster, first: FakeProvider, second: FakeProvider) -> Cluster:
    fallback = {"OPENAI_BASE_URL": second.openai_url, "OPENAI_API_KEY": "sk-of-the-second"}
    cluster = await make_cluster("sqlite", **environment(first, **fallback))
    cluster.start_worker()
    return cluster


def fails(provider: FakeProvider, text: str = "From the first.", **fault: Any) -> None:
    provider.control(answers=[FakeAnswer(text=text, fault=FakeFault(**fault))])


async def outcome(cluster: Cluster, *fallbacks: str) -> tuple[Run, list[dict[str, Any]]]:
    """Return how a run ended, and what it warned of."""
    await define(cluster, [STEP], agent={"fallback_models": list(fallbacks)})
    (run_id,) = await start(cluster)
    run = await cluster.app.wait(run_id, 90)
    events = await cluster.app.events(run_id)
    assert sum(event.type == "model_response" for event in events) == (run.status is Status.COMPLETED)
    return run, [event.data for event in events if event.type == "step_warning"]


async def test_a_retryable_failure_is_retried(cluster: Cluster, first: FakeProvider) -> None:
    fails(first, status=500, times=2)
    run, warnings = await outcome(cluster)
    assert (run.status, run.result) == (Status.COMPLETED, "From the first.")
    assert [warning["code"] for warning in warnings] == ["model_error", "model_error"]
    assert all("Retry in" in warning["message"] for warning in warnings)
    assert first.stats()["outcomes"] == {"500": 2, "200": 1}


async def test_an_answer_that_breaks_off_is_requested_again(cluster: Cluster, first: FakeProvider) -> None:
    fails(first, text="A long answer that breaks off in the middle.", kind="break", times=1)
    run, warnings = await outcome(cluster)
    assert (run.status, run.result) == (Status.COMPLETED, "A long answer that breaks off in the middle.")
    assert [warning["code"] for warning in warnings] == ["model_unreachable"]


async def test_a_refused_key_leads_to_the_next_model_at_once(
    cluster: Cluster, first: FakeProvider, second: FakeProvider
) -> None:
    fails(first, status=401)
    run, warnings = await outcome(cluster, "openai-chat:gpt-test")
    assert (run.status, run.result) == (Status.COMPLETED, "From the second.")
    assert [warning["code"] for warning in warnings] == ["not_authorized"]
    assert "calling openai-chat:gpt-test" in warnings[0]["message"]
    assert (first.stats()["calls"], second.stats()["calls"]) == (1, 1)


async def test_where_all_fail_the_step_fails_with_the_code_of_the_last(
    cluster: Cluster, first: FakeProvider, second: FakeProvider
) -> None:
    fails(first, status=500)
    fails(second, status=401)
    run, warnings = await outcome(cluster, "openai-chat:gpt-test")
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "not_authorized")
    assert [warning["code"] for warning in warnings] == ["model_error"] * 4
    assert (first.stats()["calls"], second.stats()["calls"]) == (4, 1)


async def test_a_request_that_is_too_long_is_not_repeated(cluster: Cluster, first: FakeProvider) -> None:
    fails(first, status=400, code="context_length_exceeded", message="More than 10 tokens.")
    run, warnings = await outcome(cluster)
    assert (run.status, run.error and run.error["type"]) == (Status.FAILED, "context_too_long")
    assert (warnings, first.stats()["calls"]) == ([], 1)
