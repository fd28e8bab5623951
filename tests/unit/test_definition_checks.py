"""Checks of an orchestration: the route through its steps, branches, loops, fields, code and placeholders."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from runlane.definitions.loader import LoadedDefinitions, check_loaded, parse_bodies


def load(tasks: Collection[str] | None = None, **bodies: list[Any]) -> LoadedDefinitions:
    parsed = parse_bodies(bodies)
    assert parsed.errors == [], [str(problem) for problem in parsed.errors]
    return check_loaded(parsed, (), tasks=tasks)


def errors(loaded: LoadedDefinitions) -> list[str]:
    return [str(problem) for problem in loaded.errors]


def warnings(loaded: LoadedDefinitions) -> list[str]:
    return [str(problem) for problem in loaded.warnings]


def flow(*steps: dict[str, Any], **fields: Any) -> LoadedDefinitions:
    return load(orchestrations=[{"id": "o", "steps": list(steps), **fields}])


def step(name: str, kind: str = "print", **fields: Any) -> dict[str, Any]:
    least: dict[str, Any] = {"print_content": "x"} if kind == "print" else {}
    return {"id": name, "type": kind, **least, **fields}


def only(message: list[str]) -> str:
    assert len(message) == 1, message
    return message[0]


def test_a_good_orchestration_has_no_problems() -> None:
    loaded = load(
        orchestrations=[
            {
                "id": "o",
                "entry_step_id": "research",
                "state_schema": {"tone": {"type": "string", "default": "dry"}},
                "steps": [
                    step("research", "agent", agent_id="a", output_key="facts", next_step_id="fan"),
                    step("fan", "parallel", parallel_branches=[["draft"], ["title", "shorten"]], next_step_id="join"),
                    step(
                        "draft", "llm", prompt_template="{state.facts} {{tone}}", output_key="text", next_step_id="join"
                    ),
                    step("title", "llm", prompt_template="{{user_input}}", output_key="title"),
                    step("shorten", "transform", transform_code="result = state['title'][:10]", output_key="short"),
                    step("join", "merge", input_keys=["text", "short"], output_key="all", next_step_id="judge"),
                    step(
                        "judge",
                        "evaluator",
                        route_map={"good": "ask", "bad": "fan", "stop": None},
                        fallback_route="stop",
                    ),
                    step(
                        "ask",
                        "human",
                        human_prompt="{{all}}",
                        human_fields=[{"name": "note"}],
                        next_step_id="each",
                        expires_after_seconds=60,
                        on_expiry="finish",
                    ),
                    step(
                        "each",
                        "loop",
                        for_each="state.human_response",
                        loop_step_ids=["one", "check"],
                        next_step_id="finish",
                    ),
                    step("one", print_content="{{item.name}} {{index}}"),
                    step(
                        "check",
                        "if_else",
                        if_condition="state.index > 3",
                        if_true_step_id="finish",
                        if_false_step_id="one",
                    ),
                    step(
                        "finish", "tool", forced_tool="files__write", arguments={"text": ["{{all}}"]}, on_error="sorry"
                    ),
                    step("sorry", print_content="{{error.message}} {{human_response.note}}", next_step_id="end"),
                    step("end", "end"),
                ],
            }
        ],
        agents=[
            {"id": "a", "tools": ["search", "files__read"], "delegate_agent_ids": ["b"]},
            {"id": "b", "tools": ["all"]},
        ],
        tools=[{"name": "search", "url": "https://example.com"}],
        mcp_servers=[{"name": "files", "url": "https://example.com"}],
    )
    assert list(loaded.problems) == []


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (step("a", next_step_id="bb"), "next_step_id"),
        (step("a", on_error="bb"), "on_error"),
        (step("a", "evaluator", route_map={"yes": "bb"}), "route_map.yes"),
        (step("a", "parallel", parallel_branches=[["b"], ["b", "bb"]]), "parallel_branches[1][1]"),
        (step("a", "loop", loop_count=2, loop_step_ids=["bb"]), "loop_step_ids[0]"),
        (step("a", "if_else", if_condition="1", if_true_step_id="bb"), "if_true_step_id"),
        (step("a", "if_else", if_condition="1", if_false_step_id="bb"), "if_false_step_id"),
        (step("a", "switch", switch_expression="1", switch_cases={"1": "bb"}), "switch_cases.1"),
        (step("a", "switch", switch_expression="1", switch_cases={"1": None}, switch_default_step_id="bb"),
         "switch_default_step_id"),
        (step("a", "human", on_expiry="bb", expires_after_seconds=5), "on_expiry"),
        (step("a", "wait", event="e", on_expiry="bb", expires_after_seconds=5), "on_expiry"),
    ],
)  # fmt: skip
def test_a_link_to_a_missing_step_is_reported(bad: dict[str, Any], field: str) -> None:
    message = only(errors(flow(bad, step("bbb", next_step_id="b"), step("b"))))
    assert message == (
        f'orchestration "o", step "a", field {field}: '
        'The step "bb" does not exist (did you mean "bbb"?). Steps: a, bbb, b.'
    )


def test_the_entry_must_be_a_step() -> None:
    assert 'field entry_step_id: The step "x" does not exist' in only(errors(flow(step("a"), entry_step_id="x")))


def test_step_ids_are_taken_once() -> None:
    message = only(errors(flow(step("a"), step("a", print_content="other"))))
    assert 'step "a", field id: Step number 2 has the id of another step' in message


def test_an_unreachable_step_is_a_warning() -> None:
    loaded = flow(step("a", next_step_id="c"), step("b", next_step_id="c"), step("c"))
    assert errors(loaded) == []
    assert 'step "b": The step cannot be reached from "a"' in only(warnings(loaded))
    assert warnings(flow(step("a"), step("b", next_step_id="a"), entry_step_id="b")) == []


def test_an_error_does_not_lead_to_the_same_step() -> None:
    assert "The step leads to itself. Use retry" in only(errors(flow(step("a", on_error="a"))))


def test_evaluators_fall_back_to_a_route_that_they_have() -> None:
    message = errors(flow(step("a", "evaluator", route_map={"good": None, "bad": None}, fallback_route="god")))
    assert 'field fallback_route: The route "god" does not exist (did you mean "good"?). Routes: good, bad.' in only(
        message
    )
    loaded = flow(step("a", "evaluator", route_map={"good": None}, route_descriptions={"bad": "x"}))
    assert 'field route_descriptions.bad: The route "bad" does not exist' in only(warnings(loaded))


def fan(*steps: dict[str, Any], branches: list[list[str]], join: str | None = "join") -> LoadedDefinitions:
    return flow(step("fan", "parallel", parallel_branches=branches, next_step_id=join), *steps)


def test_a_branch_that_never_reaches_the_join_is_reported() -> None:
    loaded = fan(
        step("a", next_step_id="b"), step("b", next_step_id="a"), step("join"), branches=[["a"]]
    )  # fmt: skip
    assert 'No path of this branch leads to the join "join"' in only(errors(loaded))
    loaded = fan(step("a", next_step_id="b"), step("b", "end"), step("join"), branches=[["a"]])
    assert 'field parallel_branches[0]: No path of this branch leads to the join "join"' in only(errors(loaded))


@pytest.mark.parametrize(
    "steps",
    [
        [step("a", next_step_id="join")],
        [step("a")],
        [step("a", next_step_id="b"), step("b", next_step_id="join")],
        [step("a", "evaluator", route_map={"again": "a", "done": "join"})],
        [step("a", "if_else", if_condition="1", if_true_step_id="stop", if_false_step_id="join"), step("stop", "end")],
        [step("a", "evaluator", route_map={"again": "a", "done": None})],
    ],
)
def test_branches_that_can_end(steps: list[dict[str, Any]]) -> None:
    assert errors(fan(*steps, step("join"), branches=[["a"]])) == []


def test_a_branch_that_leaves_its_parallel_step_is_reported() -> None:
    loaded = fan(
        step("a", next_step_id="late"), step("b", next_step_id="join"), step("join", next_step_id="late"), step("late"),
        branches=[["a"], ["b"]],
    )  # fmt: skip
    message = only(errors(loaded))
    assert 'parallel_branches[0]: The branch leaves the parallel step: it leads to "late", which comes after' in message


def test_a_route_back_from_after_the_join_into_a_branch_is_allowed() -> None:
    loaded = fan(
        step("a", next_step_id="b"), step("b", next_step_id="join"),
        step("join", "evaluator", route_map={"again": "b", "restart": "fan", "done": None}),
        branches=[["a"]],
    )  # fmt: skip
    assert errors(loaded) == []


@pytest.mark.parametrize(
    ("branches", "expected"),
    [
        ([["a"], []], "parallel_branches[1]: The branch is empty"),
        ([["a", "join"]], '"join" is the join of the branches'),
        ([["a", "a"]], "A step is listed twice"),
        ([["a"], ["fan"]], "The step leads to itself"),
        ([["back"]], 'The branch leads back to "fan"'),
    ],
)
def test_branches_that_make_no_sense(branches: list[list[str]], expected: str) -> None:
    loaded = fan(step("a", next_step_id="join"), step("back", next_step_id="fan"), step("join"), branches=branches)
    assert any(expected in message for message in errors(loaded)), errors(loaded)


def test_branches_that_meet_without_a_join_are_a_warning() -> None:
    loaded = fan(
        step("a", next_step_id="m"), step("b", next_step_id="m"), step("m", "merge"), branches=[["a"], ["b"]], join=None
    )
    assert errors(loaded) == []
    assert 'field next_step_id: Several branches lead to "m"' in only(warnings(loaded))


def test_a_loop_has_a_body_of_its_own() -> None:
    def body(**fields: Any) -> LoadedDefinitions:
        return flow(
            step("l", "loop", loop_count=2, loop_step_ids=["a", "b"], next_step_id="after"),
            step("a", "if_else", if_condition="1", if_false_step_id="far", on_error="far"),
            step("b", next_step_id="a"),
            step("after", "if_else", if_condition="1", **fields),
            step("far"),
        )

    for target in ("l", "far", None):
        assert list(body(if_true_step_id=target).problems) == []
    message = only(warnings(body(if_true_step_id="b")))
    assert (
        'step "after", field if_true_step_id: "b" is in the body of the loop "l", and this link bypasses the loop'
        in message
    )
    messages = errors(flow(step("l", "loop", loop_count=2, loop_step_ids=["a", "a", "l"], next_step_id="a"), step("a")))
    assert len(messages) == 3
    assert "The step leads to itself." in messages[0]
    assert "List each step of the body once" in messages[1]
    assert "The next step must be outside" in messages[2]


@pytest.mark.parametrize(
    ("human", "expected"),
    [
        ([{"name": "a"}, {"name": "a"}], 'human_fields[1]: Another field has the name "a"'),
        ([{"name": "a", "type": "select", "options": ["x"], "default": "y"}], "The default 'y' is not a valid value"),
        ([{"name": "a", "type": "multiselect", "options": ["x"], "default": "x"}], "is not a valid value"),
        ([{"name": "a", "type": "number", "default": "3"}], "is not a valid value"),
        ([{"name": "a", "type": "number", "default": True}], "is not a valid value"),
        ([{"name": "a", "type": "boolean", "default": "yes"}], "is not a valid value"),
        ([{"name": "a", "type": "date", "default": "soon"}], "is not a valid value"),
        ([{"name": "a", "type": "email", "default": "me"}], "is not a valid value"),
        ([{"name": "a", "default": 3}], "is not a valid value"),
    ],
)
def test_human_fields_make_sense(human: list[dict[str, Any]], expected: str) -> None:
    assert expected in only(errors(flow(step("h", "human", human_fields=human))))


def test_human_fields_with_defaults_that_fit() -> None:
    fields = [
        {"name": "a", "type": "select", "options": "x,y", "default": "y"},
        {"name": "b", "type": "multiselect", "options": ["x", "y"], "default": ["x"]},
        {"name": "c", "type": "number", "default": 1.5},
        {"name": "d", "type": "boolean", "default": False},
        {"name": "e", "type": "date", "default": "2026-01-31"},
        {"name": "f", "type": "email", "default": "a@example.com"},
        {"name": "g", "type": "textarea", "default": ""},
    ]
    assert errors(flow(step("h", "human", human_fields=fields))) == []


def test_fields_without_effect_are_a_warning() -> None:
    loaded = flow(
        step("h", "human", on_expiry="w", next_step_id="w"),
        step("w", "wait", seconds=1, expires_after_seconds=5, next_step_id="e"),
        step("e", "end", next_step_id="h"),
    )
    assert [message.split(":")[0] for message in warnings(loaded)] == [
        'orchestration "o", step "h", field on_expiry',
        'orchestration "o", step "w", field expires_after_seconds',
        'orchestration "o", step "e", field next_step_id',
    ]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (step("a", "if_else", if_condition="state.x >"), "field if_condition: At its end: invalid syntax"),
        (step("a", "if_else", if_condition="{{x}} > 1"), "An expression cannot contain placeholders."),
        (step("a", "switch", switch_expression="x = 1", switch_cases={"1": None}), "field switch_expression: Column"),
        (step("a", "loop", while_condition="(", loop_step_ids=["b"]), "field while_condition: Column 1: '(' was never"),
        (step("a", "loop", for_each="import os", loop_step_ids=["b"]), "field for_each: Column"),
        (step("a", "transform", transform_code="x = 1\nresult ="), "field transform_code: Line 2, column 9: "),
        (step("a", "transform", transform_code="x" + "(" * 300 + ")" * 300), "field transform_code: "),
        (step("a", "if_else", if_condition="-" * 3999 + "1"), "field if_condition: "),
    ],
)  # fmt: skip
def test_code_that_cannot_be_parsed_is_reported(bad: dict[str, Any], expected: str) -> None:
    assert any(expected in message for message in errors(flow(bad, step("b"))))


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (step("a", print_content="{state.tone}"), "print_content"),
        (step("a", print_content="{{tone.deep}}"), "print_content"),
        (step("a", "llm", prompt_template="{{tone}}"), "prompt_template"),
        (step("a", "evaluator", route_map={"x": None}, evaluator_prompt="{{tone}}"), "evaluator_prompt"),
        (step("a", "human", human_prompt="{{tone}}"), "human_prompt"),
        (step("a", "task", task="t", arguments={"x": [{"y": "{{tone}}"}]}), "arguments"),
        (step("a", "wait", until="{{tone}}"), "until"),
        (step("a", input_keys=["tone"]), "input_keys"),
    ],
)
def test_a_placeholder_that_nothing_fills_is_reported(bad: dict[str, Any], field: str) -> None:
    message = only(errors(flow(bad, step("b", output_key="tune"))))
    assert f'step "a", field {field}: ' in message
    assert '(did you mean "tune"?)' in message
    assert 'or declare "tone" in state_schema' in message
    assert errors(flow(bad, step("b", output_key="tone"))) == []
    assert errors(flow(bad, state_schema={"tone": {}})) == []


def test_an_invalid_placeholder_is_reported() -> None:
    assert "is not a valid placeholder" in only(errors(flow(step("a", print_content="{state.items[0]}"))))


def test_keys_that_a_parent_passes_are_known_in_the_child() -> None:
    parent = {
        "id": "p",
        "steps": [step("call", "orchestration", orchestration_id="c", input={"tone": "{{user_input}}"})],
    }
    child = {"id": "c", "steps": [step("say", print_content="{{tone}}")]}
    assert errors(load(orchestrations=[parent, child])) == []
    fields = {"input_keys": ["tone"], "next_step_id": "make"}
    make = step("make", output_key="tone")
    parent = {"id": "p", "steps": [step("call", "orchestration", orchestration_id="c", **fields), make]}
    assert errors(load(orchestrations=[parent, child])) == []
    parent = {"id": "p", "steps": [step("call", "agent", agent_id="a", **fields), make]}
    agents = [{"id": "a", "type": "orchestrator", "orchestration_id": "c"}]
    assert errors(load(orchestrations=[parent, child], agents=agents)) == []
    assert "never has a value" in only(errors(load(orchestrations=[child])))


def test_error_and_item_are_known_only_where_something_gives_them() -> None:
    assert "never has a value" in only(errors(flow(step("a", print_content="{{error}}"))))
    assert "never has a value" in only(errors(flow(step("a", print_content="{{item}}"))))
    assert "never has a value" in only(errors(flow(step("a", print_content="{{human_response}}"))))


def test_a_graph_that_is_too_large_to_look_at_is_refused() -> None:
    fans = [step(f"f{number}", "parallel", parallel_branches=[["end"]] * 100) for number in range(11)]
    assert "1100 branches" in errors(flow(*fans, step("end", "end")))[0]
