"""Agents in whole runs: what they ask and call, what is kept of it, and when a person has to decide."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Context, Status, WrongState
from runlane.definitions.schema.definition import Agent, Orchestration, Tool
from runlane.domain.text import dump_json, load_json
from runlane.errors import InvalidInput, Retry
from runlane.store.orchestration.calls import read_calls, read_totals
from runlane.store.orchestration.inbox import InboxFilter, read_inbox
from runlane.store.orchestration.waits import read_waits
from tests.harness import eventually
from tests.integration.process import Process
from tests.integration.test_orchestrations import flow, run, sync

STEP = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "work"}
ADD = {
    "name": "add",
    "tool_type": "python",
    "code": "result = args['a'] + args['b']",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}


def helper(*answers: Any, **more: Any) -> Agent:
    return Agent.model_validate(
        {"id": "helper", "model": "scripted", "tools": ["add"], "answers": list(answers), **more}
    )


def tool(**more: Any) -> Tool:
    return Tool.model_validate({**ADD, **more})


def call(**arguments: Any) -> dict[str, Any]:
    return {"tool": "add", "arguments": arguments}


async def paused(process: Process, *definitions: Any) -> str:
    """Return the id of a run that waits for a person."""
    await sync(process, *definitions)
    run_id = (await process.app.orchestrate("flow", "go")).run_id
    await eventually(lambda: is_paused(process, run_id), "the run to pause")
    return run_id


async def is_paused(process: Process, run_id: str) -> bool:
    return (await process.app.get(run_id)).status is Status.PAUSED


async def events_of(process: Process, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in await process.app.events(run_id) if event.type == kind]


async def test_every_answer_and_result_is_kept_under_its_name(process: Process) -> None:
    """These names are stored data: the next release continues a run that this one began."""
    await process.start()
    answers = [{"calls": [call(a=1, b=2), call(a=3, b=4)], "cost_usd": 0.5, "tokens": 3}, {"say": "3 and 7"}]
    ended = await run(process, flow(STEP), helper(*answers), tool(effect="once"))
    assert ended.result == "3 and 7"
    calls = await read_calls(await process.app.database(), ended.id)
    assert sorted((row.path, row.key, row.kind.value) for row in calls) == [
        ("work", "0/begun/0/call_0/1", "begun"),
        ("work", "0/begun/0/call_0_1/1", "begun"),
        ("work", "0/model/0", "model"),
        ("work", "0/model/1", "model"),
        ("work", "0/tool/0/call_0", "tool"),
        ("work", "0/tool/0/call_0_1", "tool"),
    ]
    first = next(row for row in calls if row.key == "0/model/0")
    assert (first.model, first.agent, first.cost_usd, first.tokens_out) == ("scripted", "helper", 0.5, 3)
    responses = await events_of(process, ended.id, "model_response")
    assert [(data["answer"], data["turn"], len(data["tool_calls"])) for data in responses] == [
        ("0/model/0", 1, 2),
        ("0/model/1", 2, 0),
    ]


async def test_an_answer_can_have_to_fit_a_schema(process: Process) -> None:
    await process.start()
    schema = {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}
    answers = [
        "seven",
        {"tool": "final_answer", "arguments": {"sum": "seven"}},
        {"tool": "final_answer", "arguments": {"sum": 7}},
    ]
    ended = await run(process, flow(STEP), helper(*answers, output_schema=schema, tools=[]))
    assert ended.result == {"sum": 7}
    asked = flow({"id": "ask", "type": "llm", "model": "scripted:it", "output_schema": schema}, answers={"it": answers})
    assert (await run(process, asked)).result == {"sum": 7}
    never = flow({"id": "ask", "type": "llm", "model": "scripted:it", "output_schema": schema}, answers={"it": ["x"]})
    assert (await run(process, never)).error["type"] == "bad_answer"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"decision": "approve"}, {"value": 3, "failed": False}),
        ({"decision": "edit", "arguments": {"a": 10, "b": 20}}, {"value": 30, "failed": False}),
        (
            {"decision": "deny", "reason": "too dear"},
            {"value": "A person did not allow this call: too dear", "failed": True},
        ),
    ],
)
async def test_a_person_approves_edits_or_denies_a_call(
    process: Process, answer: dict[str, Any], result: dict[str, Any]
) -> None:
    await process.start()
    run_id = await paused(process, flow(STEP), helper(call(a=1, b=2), "done"), tool(requires_approval=True))
    (wait,), _ = await read_inbox(await process.app.database(), InboxFilter("default"))
    assert wait.request["context"] == {"tool_name": "add", "call_id": "call_0", "arguments": {"a": 1, "b": 2}}
    with pytest.raises(InvalidInput):
        await process.app.resume(run_id, {"decision": "perhaps"})
    await process.app.resume(run_id, answer)
    ended = await process.app.wait(run_id, timeout=30)
    assert (ended.status, ended.result) == (Status.COMPLETED, "done")
    calls = await read_calls(await process.app.database(), run_id)
    kept = next(row for row in calls if row.key == "0/tool/0/call_0")
    assert kept.payload == dump_json(result)
    # The model was asked once for each of its answers, though the step was performed twice.
    assert len(await events_of(process, run_id, "model_response")) == 2
    with pytest.raises(WrongState):
        await process.app.resume(run_id, answer)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"a": 10}, '"arguments" does not match the tool: "b" is missing in the arguments.'),
        ('{"a": 10', '"arguments" must be a JSON object.'),
        ("[1, 2]", '"arguments" must be a JSON object.'),
        (None, '"arguments" is required to edit the call. Give all arguments as a JSON object.'),
    ],
)
async def test_invalid_edited_arguments_are_refused_and_the_run_keeps_waiting(
    process: Process, arguments: Any, why: str
) -> None:
    await process.start()
    run_id = await paused(process, flow(STEP), helper(call(a=1, b=2), "done"), tool(requires_approval=True))
    with pytest.raises(InvalidInput) as refused:
        await process.app.resume(run_id, {"decision": "edit", "arguments": arguments})
    assert (str(refused.value), dict(refused.value.fields)) == (why, {"arguments": why})
    assert await is_paused(process, run_id)
    await process.app.resume(run_id, {"decision": "edit", "arguments": {"a": 10, "b": 20}})
    assert (await process.app.wait(run_id, timeout=30)).result == "done"
    assert [data["preview"] for data in await events_of(process, run_id, "tool_result")] == ["30"]


async def test_arguments_that_were_changed_are_not_approved_as_they_were(process: Process) -> None:
    """A person who writes other arguments and chooses approve does not approve those that were shown."""
    await process.start()
    run_id = await paused(process, flow(STEP), helper(call(a=1, b=2), "done"), tool(requires_approval=True))
    for decision in ("approve", "deny"):
        with pytest.raises(InvalidInput, match='"arguments" can be changed only with the decision "edit"'):
            await process.app.resume(run_id, {"decision": decision, "arguments": {"a": 1, "b": 3}})
    assert await is_paused(process, run_id)
    await process.app.resume(run_id, {"decision": "approve", "arguments": '{"b": 2, "a": 1}'})
    assert (await process.app.wait(run_id, timeout=30)).result == "done"
    assert [data["preview"] for data in await events_of(process, run_id, "tool_result")] == ["3"]


async def test_no_event_has_a_name_twice(process: Process) -> None:
    """Events are written behind what all of them have; some readers refuse an object with two of a name."""
    await process.start()
    run_id = await paused(process, flow(STEP), helper(call(a=1, b=2), "done"), tool(requires_approval=True))
    await process.app.resume(run_id, {"decision": "approve"})
    await process.app.wait(run_id, timeout=30)
    events = await process.app.events(run_id)
    assert {"orchestration_start", "human_input_required", "orchestration_complete"} <= {event.type for event in events}
    common = {"type", "seq", "run_id", "attempt", "at"}
    assert {event.type: common & event.data.keys() for event in events if common & event.data.keys()} == {}


async def test_calls_without_a_question_continue_beside_one_that_waits_for_a_person(process: Process) -> None:
    await process.start()
    free = {**ADD, "name": "free"}
    both = {"calls": [call(a=1, b=1), {"tool": "free", "arguments": {"a": 2, "b": 2}}, call(a=3, b=3)]}
    run_id = await paused(
        process,
        flow(STEP),
        helper(both, "done", tools=["add", "free"]),
        tool(effect="ask"),
        Tool.model_validate(free),
    )
    database = await process.app.database()
    assert "0/tool/0/call_0_1" in {row.key for row in await read_calls(database, run_id)}
    first, second = sorted(await read_waits(database, run_id), key=lambda wait: wait.path)
    await process.app.resume(run_id, {"decision": "approve"}, step=second.path)

    async def used() -> bool:
        return "0/tool/0/call_0_2" in {row.key for row in await read_calls(database, run_id)}

    await eventually(used, "the second call to be made")
    await eventually(lambda: is_paused(process, run_id), "the run to pause again")
    await process.app.resume(run_id, {"decision": "approve"}, step=first.path)
    ended = await process.app.wait(run_id, timeout=30)
    assert ended.result == "done"
    results = [row for row in await read_calls(database, run_id) if row.kind.value == "tool"]
    assert sorted(row.key for row in results) == ["0/tool/0/call_0", "0/tool/0/call_0_1", "0/tool/0/call_0_2"]


async def test_a_person_decides_when_the_outcome_of_a_call_is_unknown(process: Process) -> None:
    calls: list[str] = []

    @process.app.task("pay", max_attempts=1)
    async def pay(ctx: Context, amount: int) -> str:
        calls.append(ctx.idempotency_key)
        if len(calls) < 3:
            raise Retry(reason="The line went dead.")
        return f"paid {amount}"

    await process.start()
    definition = {"name": "charge", "tool_type": "task", "task": "pay", "effect": "once"}
    tool_call = {"tool": "charge", "arguments": {"amount": 7}}
    run_id = await paused(
        process, flow(STEP), helper(tool_call, "done", tools=["charge"]), Tool.model_validate(definition)
    )
    assert len(calls) == 1
    (wait,), _ = await read_inbox(await process.app.database(), InboxFilter("default"))
    assert wait.request["context"] == {
        "tool_name": "charge",
        "call_id": "call_0",
        "arguments": {"amount": 7},
        "idempotency_key": calls[0],
        "error": 'task_error: The task "pay" failed: Retry: The line went dead.',
    }
    await process.app.resume(run_id, {"decision": "call_again"})
    await eventually(lambda: len(calls) == 2, "the call to be made again")
    await eventually(lambda: is_paused(process, run_id), "the run to ask again")
    await process.app.resume(run_id, {"decision": "done", "result": '"paid by hand"'})
    ended = await process.app.wait(run_id, timeout=30)
    assert ended.status is Status.COMPLETED
    assert calls == [calls[0]] * 2
    results = [
        row.payload for row in await read_calls(await process.app.database(), run_id) if row.kind.value == "tool"
    ]
    assert results == ['{"value":"paid by hand","failed":false}']


async def test_a_retry_of_a_step_continues_with_the_call_that_failed(process: Process) -> None:
    await process.start()
    answers = [{**call(a=1, b=2), "cost_usd": 1.0}, {"fail": {"message": "busy"}}, {"say": "three", "cost_usd": 1.0}]
    step = {**STEP, "retry": {"attempts": 2, "backoff_seconds": 0}}
    ended = await run(process, flow(step), helper(*answers), tool())
    assert ended.result == "three"
    assert len(await events_of(process, ended.id, "tool_execution")) == 1
    complete = (await events_of(process, ended.id, "step_complete"))[0]
    assert complete["cost_usd"] == 1.0
    assert (await read_totals(await process.app.database(), ended.id))[0] == 2.0


async def test_a_long_wait_before_a_try_holds_no_worker(process: Process) -> None:
    await process.start()
    step = {**STEP, "retry": {"attempts": 2, "backoff_seconds": 3600, "max_backoff_seconds": 3600}}
    run_id = await paused(process, flow(step), helper({"fail": {"message": "busy"}}, tools=[]))
    (wait,) = await read_waits(await process.app.database(), run_id)
    assert (wait.kind, wait.name) == ("time", "retry")
    assert wait.due_in_us is not None
    assert wait.due_in_us > 3500e6


async def test_an_agent_hands_tasks_to_another(process: Process) -> None:
    await process.start()
    adder = Agent.model_validate(
        {"id": "adder", "model": "scripted", "tools": ["add"], "answers": [call(a=2, b=3), "five"]}
    )
    as_tool = Tool.model_validate({"name": "calculator", "tool_type": "agent", "agent_id": "adder"})
    boss = helper(
        {
            "calls": [
                {"tool": "ask_adder", "arguments": {"task": "2+3"}},
                {"tool": "calculator", "arguments": {"task": "2+3"}},
            ]
        },
        "It is five.",
        tools=["calculator"],
        delegate_agent_ids=["adder"],
    )
    ended = await run(process, flow(STEP), boss, adder, as_tool, tool())
    assert ended.result == "It is five."
    rows = await read_calls(await process.app.database(), ended.id)
    assert {row.key for row in rows if row.agent == "adder"} == {
        "0/inside/0/call_0/model/0",
        "0/inside/0/call_0/model/1",
        "0/inside/0/call_0_1/model/0",
        "0/inside/0/call_0_1/model/1",
    }
    assert {row.payload for row in rows if row.key in ("0/tool/0/call_0", "0/tool/0/call_0_1")} == {
        '{"value":"five","failed":false}'
    }


async def test_an_orchestration_is_a_tool_and_a_run_of_its_own(process: Process) -> None:
    await process.start()
    inner = Orchestration.model_validate(
        {
            "id": "inner",
            "steps": [{"id": "s", "type": "print", "print_content": "Hello {state.user_input}, {state.n}"}],
            "state_schema": {"n": {"type": "number"}},
        }
    )
    as_tool = Tool.model_validate({"name": "greeter", "tool_type": "orchestration", "orchestration_id": "inner"})
    tool_call = {"tool": "greeter", "arguments": {"message": "Ada", "input": {"n": 7}}}
    ended = await run(process, flow(STEP), helper(tool_call, "done", tools=["greeter"]), as_tool, inner)
    assert ended.result == "done"
    rows = await read_calls(await process.app.database(), ended.id)
    assert [row.payload for row in rows if row.kind.value == "tool"] == ['{"value":"Hello Ada, 7","failed":false}']
    plans = await (await process.store()).sql("select plan from run_inputs where run_id <> :id", id=ended.id)
    assert [load_json(row["plan"])["parent"] for row in plans] == [{"run_id": ended.id, "path": "work#0/0/call_0"}]


async def test_an_agent_may_work_without_tools_that_are_missing(process: Process) -> None:
    await process.start()
    answers = [call(a=1, b=2), "3"]
    agent = helper(*answers, tools=["add", "gone"], on_missing_tools="skip")
    ended = await run(process, flow(STEP), agent, tool())
    assert (ended.status, ended.result) == (Status.COMPLETED, "3")
    (warning,) = await events_of(process, ended.id, "step_warning")
    assert (warning["code"], warning["orch_step_id"]) == ("unknown_tool", "work")
    assert warning["message"] == 'No tool "gone" exists in this run; the agent "helper" continues without it.'
