"""Tools in whole runs: what holds for a call of every type, and what the model gets when it is unavailable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import Context, Run, Status
from runlane.definitions.schema.definition import Agent, Tool
from tests.integration.http_server import Request, Writer, plain, serving
from tests.integration.process import Process
from tests.integration.test_agents import STEP, events_of
from tests.integration.test_orchestrations import flow, run


async def called(process: Process, definition: dict[str, Any], *more: Any, step: dict[str, Any] = STEP) -> Run:
    """Run an agent that calls one tool without arguments, and ends whatever the result is."""
    agent = Agent.model_validate(
        {
            "id": "helper",
            "model": "scripted",
            "tools": [definition["name"]],
            "answers": [{"tool": definition["name"], "arguments": {}}, "done"],
        }
    )
    return await run(process, flow(step), agent, Tool.model_validate(definition), *more)


async def only_result(process: Process, ended: Run) -> dict[str, Any]:
    assert (ended.status, ended.result) == (Status.COMPLETED, "done"), ended.error
    (result,) = await events_of(process, ended.id, "tool_result")
    return result


@pytest.fixture
def long_text(process: Process) -> None:
    @process.app.task("long_text")
    async def long_text(ctx: Context) -> str:
        return "x" * 101


@pytest.mark.usefixtures("long_text")
@pytest.mark.parametrize(
    "calls",
    [{"tool_type": "python", "code": "result = 'x' * 101"}, {"tool_type": "task", "task": "long_text"}],
    ids=["python", "task"],
)
async def test_a_result_above_max_output_bytes_is_an_error(process: Process, calls: dict[str, Any]) -> None:
    await process.start()
    result = await only_result(process, await called(process, {"name": "long", **calls, "max_output_bytes": 100}))
    assert result["failed"]
    assert result["preview"] == (
        'tool_output: The tool "long" was called, but its result has 101 bytes; at most 100 are allowed '
        "(max_output_bytes). Request less data."
    )


async def test_a_result_is_cut_to_the_output_schema_and_must_fit_it(process: Process) -> None:
    await process.start()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    script = {"name": "it", "tool_type": "python", "output_schema": schema}
    ended = await called(process, {**script, "code": "result = {'a': 1, 'b': 2}"})
    assert (await only_result(process, ended))["preview"] == '{"a":1}'
    ended = await called(process, {**script, "code": "result = {'a': 'one'}"})
    assert (await only_result(process, ended))["preview"] == (
        'tool_output: The result of the tool "it" does not match its schema: "a" must be integer, not string.'
    )


async def test_a_task_that_takes_longer_than_the_tool_allows_is_stopped(process: Process) -> None:
    stopped = asyncio.Event()

    @process.app.task("forever")
    async def forever(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await process.start()
    definition = {"name": "slow", "tool_type": "task", "task": "forever", "timeout_seconds": 0.5}
    ended = await called(process, definition)
    result = await only_result(process, ended)
    assert result["failed"]
    assert result["preview"] == 'tool_timeout: The tool "slow" did not answer within its timeout_seconds (0.5).'
    assert stopped.is_set()


async def test_a_failure_that_outlasts_the_retries_is_returned_to_the_model(process: Process) -> None:
    calls: list[str] = []

    @process.app.task("broken")
    async def broken(ctx: Context) -> None:
        calls.append(ctx.idempotency_key)
        raise ConnectionError("no route to the shop")

    await process.start()
    definition = {"name": "shop", "tool_type": "task", "task": "broken"}
    result = await only_result(process, await called(process, definition))
    assert result["preview"] == 'task_error: The task "broken" failed: ConnectionError: no route to the shop'
    assert calls == [calls[0]] * 3


@pytest.mark.settings(outbound_allow="127.0.0.1")
async def test_a_rate_limited_web_service_is_called_again_without_a_person(process: Process) -> None:
    """It has turned the call away, so that there is nothing to ask, also for a tool that must act once."""
    keys: list[str] = []

    async def answer(request: Request, writer: Writer) -> None:
        keys.append(request.headers["idempotency-key"])
        busy = len(keys) == 1
        await plain(b"paid", "429 Slow" if busy else "200 OK", {"retry-after": "0"})(request, writer)

    await process.start()
    async with serving(answer) as server:
        web = {"tool_type": "http", "method": "POST", "url": server.url("/pay")}
        definition = {"name": "pay", **web, "effect": "once"}
        result = await only_result(process, await called(process, definition))
    assert (result["preview"], keys) == ("paid", [keys[0]] * 2)


async def test_a_step_with_retries_repeats_the_call_before_the_model_gets_the_failure(process: Process) -> None:
    calls: list[str] = []

    @process.app.task("broken")
    async def broken(ctx: Context) -> str:
        calls.append(ctx.idempotency_key)
        if len(calls) < 5:
            raise ConnectionError("no route to the shop")
        return "open"

    await process.start()
    definition = {"name": "shop", "tool_type": "task", "task": "broken"}
    step: dict[str, Any] = {**STEP, "retry": {"attempts": 2, "backoff_seconds": 0}}
    ended = await called(process, definition, step=step)
    assert (await only_result(process, ended))["preview"] == "open"
    assert len(calls) == 5
    assert len(await events_of(process, ended.id, "model_response")) == 2
    calls.clear()
    never = {**step, "retry": {**step["retry"], "on": ["timeout"]}}
    assert (await only_result(process, await called(process, definition, step=never)))["failed"]
    assert len(calls) == 3


async def test_a_tool_step_still_fails_as_retryable(process: Process) -> None:
    @process.app.task("broken")
    async def broken(ctx: Context) -> None:
        raise ConnectionError("no route to the shop")

    await process.start()
    inner: dict[str, Any] = {"id": "call", "type": "tool", "forced_tool": "shop", "arguments": {}}
    around: dict[str, Any] = {
        "id": "rounds", "type": "loop", "loop_count": 1, "loop_step_ids": ["call"],
        "retry": {"attempts": 2, "backoff_seconds": 0},
    }  # fmt: skip
    shop = Tool.model_validate({"name": "shop", "tool_type": "task", "task": "broken"})
    ended = await run(process, flow({**around, "next_step_id": None}, inner), shop)
    assert ended.error["type"] == "task_error"
    assert len(await events_of(process, ended.id, "step_retry")) == 1


async def test_refused_calls_are_reported_with_the_reason(process: Process) -> None:
    await process.start()
    script = {"name": "it", "tool_type": "python", "code": "result = 1", "input_schema": {"required": ["a"]}}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "additionalProperties": False}
    agent = Agent.model_validate(
        {
            "id": "helper",
            "model": "scripted",
            "tools": ["it"],
            "output_schema": schema,
            "answers": [
                {"calls": [{"tool": "it", "arguments": {}}, {"tool": "at", "arguments": {}}]},
                {"tool": "final_answer", "arguments": {"ok": "yes"}},
                {"tool": "final_answer", "arguments": {"__invalid_json__": "{"}},
                {"tool": "final_answer", "arguments": {"ok": True}},
            ],
        }
    )
    ended = await run(process, flow(STEP), agent, Tool.model_validate(script))
    assert ended.result == {"ok": True}
    results = [(data["tool_name"], data["preview"]) for data in await events_of(process, ended.id, "tool_result")]
    assert results == [
        ("it", 'The tool it was not called: "a" is missing in the arguments.'),
        ("at", "No tool 'at' exists. Tools: it."),
        (
            "final_answer",
            'The answer is not valid: "ok" must be boolean, not string. Call final_answer with a valid one.',
        ),
        ("final_answer", "The answer is not valid: it is not JSON. Call final_answer with a valid one."),
    ]


async def test_agents_do_not_hand_tasks_on_in_a_circle(process: Process) -> None:
    await process.start()
    asks_back = {"tool": "ask_helper", "arguments": {"task": "You do it."}}
    other = Agent.model_validate(
        {"id": "other", "model": "scripted", "delegate_agent_ids": ["helper"], "answers": [asks_back, "Then I do."]}
    )
    first = Agent.model_validate(
        {
            "id": "helper",
            "model": "scripted",
            "delegate_agent_ids": ["other"],
            "answers": [{"tool": "ask_other", "arguments": {"task": "Do it."}}, "done"],
        }
    )
    ended = await run(process, flow(STEP), first, other)
    assert ended.result == "done"
    results = [(data["tool_name"], data["preview"]) for data in await events_of(process, ended.id, "tool_result")]
    assert results == [
        ("ask_helper", 'circle: The agent "helper" waits for this task: helper -> other -> helper.'),
        ("ask_other", "Then I do."),
    ]
