"""Steps that call a model: what it gets, how its answers are used, and that nonsense is never an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from runlane.definitions.schema.definition import Agent, Tool
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import Done, Failed
from runlane.llm.models import ModelContext, ModelReply, ModelRequest
from runlane.steps.context import visits_before
from runlane.steps.dispatch import PreviousStep, perform_step
from runlane.tools.caller import ToolFailed
from tests.unit.step_bench import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.services.sandbox.close()


def listen(bench: Bench) -> list[ModelRequest]:
    """Register the model `recorded:`, which keeps its requests and answers as scripted:it would."""
    requests: list[ModelRequest] = []

    class Recorder:
        async def credential(self) -> str:
            return ""

        def __init__(self, scene: ModelContext) -> None:
            self._scene = scene

        async def answer(self, request: ModelRequest, delta: Any = None) -> ModelReply:
            requests.append(request)
            _, model = bench.services.models.find("scripted:it", self._scene)
            return await model.answer(request, delta)

    def make(_name: str, scene: ModelContext) -> Recorder:
        return Recorder(scene)

    bench.services.models.register("recorded", make)
    return requests


LLM = {"type": "llm", "model": "scripted"}


async def test_an_llm_step_returns_the_answer_of_the_model(bench: Bench) -> None:
    answers = {"it": [{"say": "A poem.", "tokens": 7, "cost_usd": 0.5}]}
    assert await bench.done(LLM, {"user_input": "hi"}, answers=answers) == Done("A poem.", None, 0.5, 7)
    assert bench.emitted("final") == [{"response": "A poem."}]
    assert len(bench.emitted("model_request")) == 1
    assert "".join(bench.deltas) == "A poem."


async def test_llm_that_fails_fails_the_step(bench: Bench) -> None:
    for retryable in (True, False):
        answers = {"it": [{"fail": {"code": "overloaded", "message": "Busy.", "retryable": retryable}}]}
        assert await bench.failed(LLM, answers=answers) == Failed("overloaded", "Busy.", retryable)
    assert not bench.emitted("final")
    assert (await bench.failed({"type": "llm", "model": "nope"})).code == "unknown_model"


async def test_what_an_llm_step_sends_to_the_model(bench: Bench) -> None:
    requests = listen(bench)
    step = {"type": "llm", "model": "recorded", "prompt_template": "Write about {state.topic}."}
    await bench.done(step, {"topic": "tea", "user_input": "hi"}, answers={"it": ["x"]})
    assert requests[-1].prompt == "Write about tea."
    await bench.done({"type": "llm", "model": "recorded"}, {"user_input": "hi"}, answers={"it": ["x"]})
    assert requests[-1].prompt == "hi"
    assert requests[-1].key == "it#0"
    failed = await bench.failed({**step, "prompt_template": "{state.gone}"}, answers={"it": ["x"]})
    assert failed.code == "unknown_placeholder"


async def test_values_answers_and_history_stand_before_the_task(bench: Bench) -> None:
    requests = listen(bench)
    bench.have(history=(PreviousStep("plan", "The plan", {"steps": 3}), PreviousStep("x", "x", None)))
    others = [
        {"id": "h1", "type": "human", "output_key": "approval"},
        {"id": "h2", "type": "human"},
        {"id": "h3", "type": "human", "output_key": "given"},
    ]
    state = {
        "user_input": "the message",
        "long": "y" * 6000,
        "data": {"a": [1]},
        "hidden": "not sent",
        "given": {"ok": 1},
        "approval": {"ok": True},
        "human_response": {"note": "fine"},
    }
    step: dict[str, Any] = {"type": "llm", "model": "recorded", "input_keys": ["data", "long", "absent", "given"]}
    await bench.done(step, state, others=others, answers={"it": ["x"]})
    prompt = requests[-1].prompt
    assert '## data\n{"a":[1]}' in prompt
    assert f"## long\n{'y' * 5000}\n[abridged: 5000 of 6000 characters]" in prompt
    assert '## approval\n{"ok":true}' in prompt
    assert '## human_response\n{"note":"fine"}' in prompt
    assert prompt.count("## given") == 1
    assert prompt.endswith("# Task\n\nthe message")
    assert "not sent" not in prompt
    assert "The plan" not in prompt
    step["include_full_history"] = True
    await bench.done(step, state, others=others, answers={"it": ["x"]})
    assert '## The plan (plan)\n{"steps":3}' in requests[-1].prompt


@pytest.mark.parametrize(
    ("path", "tries", "number"),
    [
        ("it", 0, 0),
        ("it", 2, 2),
        ("it~3", 0, 2),
        ("loop/4/it", 0, 3),
        ("loop/4/it~2", 1, 5),
        ("fan/1/it", 0, 0),
        ("loop~2/1/it", 0, 5),
        ("loop/3/fan/1/it", 0, 2),
        ("while/7/loop/2/it", 0, 31),
        ("loop/2/sub/>it", 0, 0),
        ("sub/>loop/2/it", 0, 1),
    ],
)
def test_the_number_of_a_call_follows_from_its_path(bench: Bench, path: str, tries: int, number: int) -> None:
    others = [
        {"id": "loop", "type": "loop", "loop_step_ids": ["it"], "loop_count": 5},
        {"id": "while", "type": "loop", "loop_step_ids": ["it"], "while_condition": "True"},
        {"id": "fan", "type": "parallel", "parallel_branches": [["it"]]},
    ]
    assert visits_before(bench.pending(LLM, others=others, path=path)) + tries == number


async def test_a_later_visit_has_a_later_answer_and_the_same_visit_the_same(bench: Bench) -> None:
    answers = {"it": ["first", "second", "third"]}
    for path, tries, text in (("it", 0, "first"), ("it~2", 0, "second"), ("it~2", 0, "second"), ("it~2", 1, "third")):
        assert (await bench.done(LLM, answers=answers, path=path, tries=tries)).output == text


DOUBLE = {
    "name": "double",
    "tool_type": "python",
    "code": "result = {'doubled': args.n * 2}",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}
WEB = {"name": "web", "url": "https://example.org/{q}", "timeout_seconds": 0.1}
AGENT = {"type": "agent", "agent_id": "helper", "model": "scripted:it"}


def helper(**more: Any) -> dict[str, Any]:
    return {"id": "helper", "system_prompt": "Be brief.", "tools": ["double"], **more}


async def test_agent_answers_after_its_tools(bench: Bench) -> None:
    requests = listen(bench)
    bench.have(agents=[helper()], tools=[DOUBLE])
    answers = {
        "it": [
            {"say": "let me see", "tool": "double", "arguments": {"n": 21}, "tokens": 3, "cost_usd": 0.25},
            {"say": "It is 42.", "tokens": 4, "cost_usd": 0.5},
        ]
    }
    done = await bench.done({**AGENT, "model": "recorded"}, {"user_input": "21 twice?"}, answers=answers)
    assert done == Done("It is 42.", None, 0.75, 7)
    first, second = requests
    assert first.instructions == second.instructions == "Be brief."
    assert [offer.name for offer in first.offers] == ["double"]
    assert first.prompt == "21 twice?"
    assert second.prompt == '{"doubled":42}'
    assert [message.role for message in second.messages] == ["user", "assistant", "tool"]
    assert (first.key, second.key) == ("it#0", "it#1")
    assert bench.emitted("tool_execution") == [{"tool_name": "double", "call_id": "call_0", "args": {"n": 21}}]
    assert bench.emitted("tool_result") == [{"tool_name": "double", "call_id": "call_0", "preview": '{"doubled":42}'}]
    assert bench.emitted("final") == [{"response": "It is 42."}]


async def test_agent_gets_errors_for_unknown_tools_and_arguments(bench: Bench) -> None:
    requests = listen(bench)
    bench.have(agents=[helper()], tools=[DOUBLE, {**DOUBLE, "name": "other"}])
    answers = {
        "it": [
            {"tool": "other", "arguments": {"n": 1}},
            {"tool": "double", "arguments": {"n": "many"}},
            {"tool": "double"},
            "done",
        ]
    }
    assert (await bench.done({**AGENT, "model": "recorded"}, answers=answers)).output == "done"
    assert [request.prompt for request in requests[1:]] == [
        "No tool 'other' exists. Tools: double.",
        'The tool double was not called: "n" must be integer, not string.',
        'The tool double was not called: "n" is missing in the arguments.',
    ]
    assert not bench.emitted("tool_execution")


@pytest.mark.parametrize(
    ("tools", "allowed", "offered"),
    [
        (["double", "ship"], None, ["double", "ship"]),
        (["double", "ship"], ["ship", "web"], ["ship"]),
        (["all"], None, ["count", "double", "ship", "web"]),
        (["all"], ["web"], ["web"]),
        ([], ["web"], []),
    ],
)
async def test_a_step_narrows_the_tools_of_its_agent(
    bench: Bench, tools: list[str], allowed: list[str] | None, offered: list[str]
) -> None:
    requests = listen(bench)
    bench.have(agents=[helper(tools=tools)], tools=[DOUBLE, WEB])
    await bench.done({**AGENT, "model": "recorded", "allowed_tools": allowed}, answers={"it": ["x"]})
    assert [offer.name for offer in requests[0].offers] == offered


async def test_a_task_is_offered_with_the_schema_of_its_function(bench: Bench) -> None:
    requests = listen(bench)
    own = {"description": "Own.", "input_schema": {"minProperties": 1}}
    tools = [
        {"name": "bare", "tool_type": "task", "task": "count"},
        {"name": "described", "tool_type": "task", "task": "count", **own},
    ]
    bench.have(agents=[helper(tools=["count", "bare", "described", "ship"])], tools=tools)
    await bench.done(
        {**AGENT, "model": "recorded"}, answers={"it": [{"tool": "count", "arguments": {"txt": "a"}}, "x"]}
    )
    count, bare, described, ship = requests[0].offers
    assert count.description == bare.description == "Count the words of a string, up to a number."
    assert count.input_schema == bare.input_schema
    assert count.input_schema["properties"] == {"text": {"type": "string"}, "most": {"type": "integer", "default": 10}}
    assert (count.input_schema["required"], count.input_schema["additionalProperties"]) == (["text"], False)
    assert (described.description, described.input_schema) == ("Own.", {"minProperties": 1})
    assert (ship.description, ship.input_schema["additionalProperties"]) == ("Send it.", True)
    # And it is checked before the call.
    assert "was not called" in requests[1].prompt
    assert "txt" in requests[1].prompt
    assert bench.task_calls == []


async def test_agent_stops_at_its_turns_and_calls_nothing_in_the_last(bench: Bench) -> None:
    bench.have(agents=[helper(max_turns=3)], tools=[DOUBLE])
    answers = {"it": [{"tool": "double", "arguments": {"n": 1}, "cost_usd": 0.5, "tokens": 2}]}
    failed = await bench.failed(AGENT, answers=answers)
    assert (failed.code, failed.cost_usd, failed.tokens) == ("turn_limit", 1.5, 6)
    assert len(bench.emitted("tool_execution")) == 2
    failed = await bench.failed({**AGENT, "max_turns": 1}, answers=answers)
    assert (failed.code, failed.cost_usd) == ("turn_limit", 0.5)
    assert len(bench.emitted("tool_execution")) == 2


async def test_agent_stops_when_the_budget_is_spent(bench: Bench) -> None:
    asked: list[Any] = []

    async def check(agent: Agent | None, step_cap: float | None) -> None:
        asked.append((agent and agent.id, step_cap))
        if (bench.own["journal"].cost_usd or 0.0) >= 0.75:
            raise StepFailed("cost_limit", "Enough.")

    bench.have(agents=[helper()], tools=[DOUBLE], check_budget=check)
    answers = {"it": [{"tool": "double", "arguments": {"n": 1}, "cost_usd": 0.5}]}
    failed = await bench.failed({**AGENT, "max_cost_usd": 3}, answers=answers)
    assert (failed.code, failed.cost_usd) == ("cost_limit", 1.0)
    assert asked == [("helper", 3.0)] * 3


async def test_agent_gets_the_error_of_a_tool_that_fails_for_good(bench: Bench) -> None:
    requests = listen(bench)
    bench.have(agents=[helper()], tools=[{**DOUBLE, "code": "result = 1 / 0"}])
    answers = {"it": [{"tool": "double", "arguments": {"n": 1}}, "no luck"]}
    assert (await bench.done({**AGENT, "model": "recorded"}, answers=answers)).output == "no luck"
    assert requests[1].messages[-1].failed
    assert requests[1].prompt.startswith("expression_error: ")
    assert bench.emitted("tool_result")[0]["failed"] is True


async def test_agent_gets_the_error_of_an_unavailable_tool_unless_its_step_retries(bench: Bench) -> None:
    calls: list[str] = []

    async def away(tool: Tool, arguments: Mapping[str, Any], key: str) -> Any:
        calls.append(key)
        raise ToolFailed("outbound_unreachable", "No answer.", retryable=True)

    bench.have(agents=[helper(tools=["web"])], tools=[WEB], callers={"http": away})
    call = {"tool": "web", "arguments": {"q": "tea"}, "cost_usd": 0.5}
    assert (await bench.done(AGENT, answers={"it": [call, "I cannot."]})).output == "I cannot."
    assert calls == ["run_1/it#0/0/call_0"] * 2
    assert bench.emitted("tool_result")[0]["preview"] == "outbound_unreachable: No answer."
    failed = await bench.failed({**AGENT, "retry": {}}, answers={"it": [call, "never"]})
    assert (failed.code, failed.retryable, failed.cost_usd) == ("outbound_unreachable", True, 0.5)


async def test_agent_whose_model_fails_fails(bench: Bench) -> None:
    call = {"tool": "double", "arguments": {"n": 1}, "cost_usd": 0.5}
    bench.have(agents=[helper()], tools=[DOUBLE])
    failed = await bench.failed(AGENT, answers={"it": [call, {"fail": {"message": "away"}}]})
    assert (failed.code, failed.message, failed.retryable, failed.cost_usd) == ("model_error", "away", True, 0.5)
    assert not bench.emitted("final")


async def test_agents_and_tools_that_do_not_exist(bench: Bench) -> None:
    bench.have(agents=[helper(), {"id": "orch", "type": "orchestrator", "orchestration_id": "o"}])
    assert (await bench.failed({**AGENT, "agent_id": "helpr"})).code == "unknown_agent"
    assert (await bench.failed({**AGENT, "agent_id": "orch"})).code == "orchestrator_agent"
    failed = await bench.failed(AGENT, answers={"it": ["x"]})
    assert failed.code == "unknown_tool"
    assert '"double"' in failed.message


async def test_agent_calls_a_task_with_a_stable_key(bench: Bench) -> None:
    bench.have(agents=[helper(tools=["ship"])])
    bench.task_result = "sent"
    answers = {"it": [{"tool": "ship", "arguments": {"to": "Ann"}}, "done"]}
    assert (await bench.done(AGENT, answers=answers, path="it~1")).output == "done"
    assert bench.task_calls == [("ship", {"to": "Ann"}, "it~1#0/0/call_0")]


FORCED = {"type": "tool", "forced_tool": "double", "model": "scripted:it"}


async def test_tool_with_arguments_calls_no_model(bench: Bench) -> None:
    bench.have(tools=[DOUBLE])
    step = {"type": "tool", "forced_tool": "double", "arguments": {"n": "{state.n}"}}
    assert await bench.done(step, {"n": 4}) == Done({"doubled": 8})
    assert not bench.emitted("model_request")
    assert bench.emitted("tool_execution") == [{"tool_name": "double", "call_id": "0", "args": {"n": 4}}]
    assert bench.emitted("final") == [{"response": {"doubled": 8}}]
    assert (await bench.failed(step, {"n": "four"})).code == "bad_arguments"
    assert (await bench.failed({**step, "forced_tool": "doubel"}, {"n": 4})).code == "unknown_tool"


@pytest.mark.parametrize(
    "answer",
    [
        '{"n": 5}',
        'Sure:\n```json\n{"n": 5}\n```',
        '{"tool": "double", "arguments": {"n": 5}}',
        {"tool": "double", "arguments": {"n": 5}},
    ],
)
async def test_tool_without_arguments_has_them_written(bench: Bench, answer: Any) -> None:
    bench.have(tools=[DOUBLE])
    assert (await bench.done(FORCED, {"user_input": "five"}, answers={"it": [answer]})).output == {"doubled": 10}


async def test_only_the_forced_tool_is_called(bench: Bench) -> None:
    requests = listen(bench)
    bench.have(tools=[DOUBLE, {**DOUBLE, "name": "other"}])
    answers = {
        "it": [
            {"tool": "other", "arguments": {"n": 5}},
            '{"tool": "other", "arguments": {"n": 5}}',
            '{"n": 5}',
        ]
    }
    assert (await bench.done({**FORCED, "model": "recorded"}, answers=answers)).output == {"doubled": 10}
    assert [event["tool_name"] for event in bench.emitted("tool_execution")] == ["double"]
    assert "only the tool double can be called" in requests[1].prompt
    assert "only the tool double can be called" in requests[2].prompt


async def test_arguments_that_never_fit_fail_the_step_and_call_nothing(bench: Bench) -> None:
    bench.have(tools=[DOUBLE])
    for nonsense in ("I cannot do that.", "[5]", '{"n": "x"}', "{}", "5"):
        failed = await bench.failed(FORCED, answers={"it": [{"say": nonsense, "cost_usd": 1}]})
        assert (failed.code, failed.cost_usd) == ("bad_arguments", 3)
    assert (await bench.failed({**FORCED, "max_turns": 1}, answers={"it": ["x", '{"n": 1}']})).code == "bad_arguments"
    assert not bench.emitted("tool_execution")


async def test_a_tool_of_an_unsupported_type_is_an_error(bench: Bench) -> None:
    bench.have(tools=[WEB])
    step = {"type": "tool", "forced_tool": "web", "arguments": {"q": "tea"}}
    failed = await bench.failed(step)
    assert (failed.code, failed.retryable) == ("unsupported_tool", False)
    calls: list[Any] = []

    async def call(tool: Tool, arguments: Mapping[str, Any], key: str) -> Any:
        calls.append((tool.name, dict(arguments), key))
        if arguments["q"] == "slow":
            await asyncio.sleep(3600)
        if arguments["q"] == "away":
            raise TimeoutError("of its own")
        return {"status": 200}

    bench.have(callers={"http": call})
    assert (await bench.done(step)).output == {"status": 200}
    assert calls == [("web", {"q": "tea"}, "run_1/it#0/0")]
    failed = await bench.failed({**step, "arguments": {"q": "slow"}})
    assert (failed.code, failed.retryable) == ("tool_timeout", True)
    assert (await bench.failed({**step, "arguments": {"q": "away"}})).code == "step_error"


async def test_a_task_as_a_forced_tool(bench: Bench) -> None:
    bench.task_result = [1]
    step = {"type": "tool", "forced_tool": "ship", "arguments": {"to": "{{who}}"}}
    assert (await bench.done(step, {"who": "Ann"})).output == [1]
    assert bench.task_calls == [("ship", {"to": "Ann"}, "it#0/0")]


async def test_a_long_result_has_a_short_preview(bench: Bench) -> None:
    bench.task_result = "x" * 9000
    step: dict[str, Any] = {"type": "tool", "forced_tool": "ship", "arguments": {}}
    assert (await bench.done(step)).output == "x" * 9000
    assert len(bench.emitted("tool_result")[0]["preview"]) == 500


JUDGE = {
    "type": "evaluator",
    "model": "scripted:it",
    "route_map": {"accept": "it", "Try Again": "it", "stop": None},
    "route_descriptions": {"accept": "it is good"},
    "evaluator_prompt": "Judge {state.draft}.",
}
DRAFT = {"draft": "the draft"}


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("accept", "accept"),
        (" accept \n", "accept"),
        ('"accept"', "accept"),
        ("**Accept.**", "accept"),
        ("try again", "Try Again"),
        ("route_stop", "stop"),
        ('{"tool": "route_Try Again", "arguments": {"reasoning": "weak"}}', "Try Again"),
        ('```json\n{"tool": "route_stop"}\n```', "stop"),
        ({"tool": "route_accept", "arguments": {"reasoning": "good"}}, "accept"),
        ({"tool": "accept"}, "accept"),
    ],
)
async def test_evaluator_takes_the_label_that_is_named(bench: Bench, answer: Any, label: str) -> None:
    assert await bench.done(JUDGE, DRAFT, answers={"it": [answer]}) == Done(label, route=label)
    assert len(bench.emitted("model_request")) == 1


async def test_evaluator_sends_the_routes_and_what_was_wrong(bench: Bench) -> None:
    requests = listen(bench)
    answers = {"it": ["I would accept it, or try again.", "", {"tool": "route_accept"}]}
    assert (await bench.done({**JUDGE, "model": "recorded"}, DRAFT, answers=answers)).route == "accept"
    assert requests[0].prompt.startswith("Judge the draft.")
    assert "- accept: it is good\n- Try Again\n- stop" in requests[0].prompt
    assert [offer.name for offer in requests[0].offers] == ["route_accept", "route_Try Again", "route_stop"]
    assert requests[1].prompt.startswith("'I would accept it, or try again.' is not one of the labels")


async def test_evaluator_gives_its_reasons(bench: Bench) -> None:
    answer = {"tool": "route_accept", "arguments": {"reasoning": "good"}}
    await bench.done(JUDGE, DRAFT, answers={"it": [answer]})
    assert bench.emitted("llm_reasoning") == [{"reasoning": "good", "turn": 1}]


@pytest.mark.parametrize(
    "nonsense",
    ["", "maybe", "accept or stop", "acceptance", "route_", '{"tool": "merge"}', "{}", "null", "acc", "[accept, stop]"],
)
async def test_evaluator_never_takes_nonsense_for_a_route(bench: Bench, nonsense: str) -> None:
    answers = {"it": [{"say": nonsense, "cost_usd": 1.0}]}
    failed = await bench.failed(JUDGE, DRAFT, answers=answers)
    assert (failed.code, failed.cost_usd, failed.retryable) == ("no_route", 3.0, False)
    done = await bench.done({**JUDGE, "fallback_route": "stop", "max_turns": 2}, DRAFT, answers=answers)
    assert done == Done("stop", "stop", 2.0, 0)
    assert len(bench.emitted("step_warning")) == 1


async def test_evaluator_whose_capitals_fit_two_labels_is_called_again(bench: Bench) -> None:
    step = {**JUDGE, "route_map": {"Go": "it", "GO": "it"}}
    assert (await bench.failed(step, DRAFT, answers={"it": ["go"]})).code == "no_route"
    assert (await bench.done(step, DRAFT, answers={"it": ["GO"]})).route == "GO"


async def test_evaluator_whose_model_fails_takes_no_fallback(bench: Bench) -> None:
    step = {**JUDGE, "fallback_route": "stop"}
    failed = await bench.failed(step, DRAFT, answers={"it": ["nonsense", {"fail": {"code": "overloaded"}}]})
    assert failed.code == "overloaded"


async def test_cancelling_a_step_cancels_its_model_call(bench: Bench) -> None:
    asked = asyncio.Event()

    async def emit(_type: str, _data: Mapping[str, Any]) -> None:
        asked.set()

    bench.have(emit_event=emit)
    pending = bench.pending(LLM, answers={"it": [{"say": "late", "piece_delay_seconds": 60}]})
    task = asyncio.create_task(perform_step(bench.context(pending)))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
