"""Scripted models: a long delay holds no worker slot, and an operator can turn them off."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.loader import parse_bodies
from runlane.errors import InvalidDefinitions
from tests.harness import eventually
from tests.integration.process import Process

SETTING = "RUNLANE_SCRIPTED_MODELS"


def flow(name: str, *answers: Any, **step: Any) -> dict[str, Any]:
    """An orchestration with one step that asks a scripted model."""
    ask = {"id": "ask", "type": "llm", "model": "scripted", "prompt_template": "?", **step}
    return {"id": name, "steps": [ask], "answers": {"ask": list(answers)}}


async def bring(process: Process, *bodies: dict[str, Any], **kinds: list[dict[str, Any]]) -> None:
    loaded = parse_bodies({"orchestrations": list(bodies), **kinds})
    await sync_definitions(await process.app.database(), "default", loaded, actor="test")


async def paused(process: Process, run_id: str) -> None:
    async def there() -> bool:
        return (await process.app.get(run_id)).status is Status.PAUSED

    await eventually(there, f"run {run_id} to be paused")


async def model_calls(process: Process, run_id: str) -> int:
    rows = await (await process.store()).sql(
        f"select count(*) as n from run_calls where run_id = '{run_id}' and kind = 'model'"
    )
    return rows[0]["n"]


async def test_another_run_completes_while_a_scripted_answer_is_delayed(process: Process) -> None:
    await process.start(concurrency=1)
    await bring(process, flow("slow", {"say": "late", "delay_seconds": 6}), flow("quick", "soon"))
    slow = await process.app.orchestrate("slow", "m")
    await paused(process, slow.run_id)
    quick = await process.end((await process.app.orchestrate("quick", "m")).run_id)
    assert (quick.status, quick.result) == (Status.COMPLETED, "soon")
    assert (await process.app.get(slow.run_id)).status is Status.PAUSED
    ended = await process.end(slow.run_id)
    assert (ended.status, ended.result, ended.failures, ended.losses) == (Status.COMPLETED, "late", 0, 0)
    assert await model_calls(process, slow.run_id) == 1
    types = await process.types(slow.run_id)
    assert [types.count(name) for name in ("paused", "model_request", "model_response")] == [1, 1, 1]
    at = {event.type: event.at_us for event in await process.events(slow.run_id)}
    assert at["model_response"] - at["model_request"] >= 6_000_000


async def test_every_answer_of_an_agent_has_its_own_delay(process: Process) -> None:
    await process.start(concurrency=1)
    answers = [
        {"tool": "add", "delay_seconds": 1.2},
        {"say": "three", "delay_seconds": 1.2},
    ]
    agent = {"id": "helper", "model": "scripted", "tools": ["add"], "answers": answers}
    add = {"name": "add", "tool_type": "python", "code": "result = 3"}
    ask = {"id": "ask", "type": "agent", "agent_id": "helper", "prompt_template": "?"}
    await bring(process, {"id": "flow", "steps": [ask]}, agents=[agent], tools=[add])
    run = await process.end((await process.app.orchestrate("flow", "m")).run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "three")
    types = await process.types(run.id)
    assert [types.count(name) for name in ("paused", "model_response", "tool_result")] == [2, 2, 1]


async def test_delays_of_parallel_branches_and_of_a_fallback_model_pass_once_each(process: Process) -> None:
    await process.start(concurrency=1)
    ask = {"type": "llm", "prompt_template": "?"}
    steps = [
        {"id": "split", "type": "parallel", "parallel_branches": [["a"], ["b"]], "next_step_id": "join"},
        {**ask, "id": "a", "model": "scripted:away", "fallback_models": ["scripted:there"], "output_key": "a"},
        {**ask, "id": "b", "model": "scripted:other", "output_key": "b"},
        {"id": "join", "type": "print", "print_content": "{{a}} {{b}}"},
    ]
    answers = {
        "away": [{"fail": {"retryable": False}, "delay_seconds": 1.2}],
        "there": [{"say": "first", "delay_seconds": 1.4}],
        "other": [{"say": "second", "delay_seconds": 1.6}],
    }
    await bring(process, {"id": "flow", "steps": steps, "answers": answers})
    run = await process.end((await process.app.orchestrate("flow", "m")).run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "first second")
    assert await model_calls(process, run.id) == 2


async def test_a_delay_longer_than_the_timeout_of_the_step_fails_each_try(process: Process) -> None:
    await process.start(concurrency=1)
    retry = {"attempts": 2, "backoff_seconds": 0.01}
    await bring(process, flow("slow", {"say": "x", "delay_seconds": 3600}, timeout_seconds=1.2, retry=retry))
    run = await process.end((await process.app.orchestrate("slow", "m")).run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert (run.error["type"], run.error["message"]) == ("timeout", "The step took longer than its 1.2 s.")
    assert (await process.types(run.id)).count("paused") == 2
    assert await model_calls(process, run.id) == 0


async def test_a_run_is_cancelled_while_its_answer_is_delayed(process: Process) -> None:
    await process.start(concurrency=1)
    await bring(process, flow("slow", {"say": "x", "delay_seconds": 200}))
    accepted = await process.app.orchestrate("slow", "m")
    await paused(process, accepted.run_id)
    await process.app.cancel(accepted.run_id)
    assert (await process.end(accepted.run_id)).status is Status.CANCELLED


@pytest.mark.settings(scripted_models=False)
async def test_a_stored_definition_with_a_scripted_model_fails_its_run_if_they_are_turned_off(process: Process) -> None:
    await process.start(concurrency=1)
    await bring(process, flow("scripted", "x"))
    run = await process.end((await process.app.orchestrate("scripted", "m")).run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"] == "unknown_model"
    assert run.error["message"] == (
        'The model "scripted" cannot be used: models called "scripted" are disabled. Choose another model, or '
        f"ask an operator to set {SETTING}=true on the workers."
    )


@pytest.mark.settings(scripted_models=False)
@pytest.mark.parametrize(
    "bodies",
    [
        {"orchestrations": [flow("f", "x")]},
        {"orchestrations": [flow("f", "x", model="openai:gpt-5", fallback_models=["scripted:ask"])]},
        {"agents": [{"id": "a", "model": "scripted", "answers": ["x"]}]},
        {"agents": [{"id": "a", "provider": "scripted", "model": "s", "answers": ["x"]}]},
    ],
)
async def test_sync_refuses_scripted_models_if_they_are_turned_off(
    process: Process, bodies: dict[str, list[dict[str, Any]]]
) -> None:
    database, environment = await process.app.database(), environment_of(process.settings)
    with pytest.raises(InvalidDefinitions, match=SETTING):
        await sync_definitions(database, "default", parse_bodies(bodies), actor="test", environment=environment)


@pytest.mark.settings(scripted_models=False)
async def test_an_import_takes_scripted_models_with_a_warning_if_they_are_turned_off(process: Process) -> None:
    report = await sync_definitions(
        await process.app.database(),
        "default",
        parse_bodies({"orchestrations": [flow("f", "x")]}),
        actor="test",
        origin="import",
        tolerant=True,
        environment=environment_of(process.settings),
    )
    assert [outcome.id for outcome in report.outcomes] == ["f"]
    assert any(SETTING in warning.message for warning in report.warnings)
