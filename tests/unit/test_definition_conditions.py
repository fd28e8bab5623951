"""Conditions and scripts are checked like placeholders: unknown keys, misspelt fields of forms, impossible options."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.loader import LoadedDefinitions, check_loaded, parse_bodies

ASK: dict[str, Any] = {
    "id": "ask",
    "type": "human",
    "human_prompt": "Publish?",
    "human_fields": [
        {"name": "decision", "type": "select", "options": ["approve", "reject"]},
        {"name": "tags", "type": "multiselect", "options": ["urgent", "long"]},
        {"name": "paid", "type": "boolean"},
        {"name": "notes", "type": "textarea"},
    ],
    "output_key": "approval",
    "next_step_id": "choose",
}


def check(*steps: dict[str, Any], **fields: Any) -> LoadedDefinitions:
    parsed = parse_bodies({"orchestrations": [{"id": "o", "steps": list(steps), **fields}]})
    assert parsed.errors == [], [str(problem) for problem in parsed.errors]
    return check_loaded(parsed, ())


def condition(text: str, **fields: Any) -> LoadedDefinitions:
    return check(ASK, {"id": "choose", "type": "if_else", "if_condition": text}, **fields)


def script(code: str, **fields: Any) -> LoadedDefinitions:
    return check(ASK, {"id": "choose", "type": "transform", "transform_code": code}, **fields)


def messages(loaded: LoadedDefinitions) -> list[str]:
    return [f"{problem.severity}: {problem}" for problem in loaded.problems]


def only(loaded: LoadedDefinitions) -> str:
    found = messages(loaded)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"type": "if_else", "if_condition": "state.aproval == 'yes'"}, "if_condition"),
        ({"type": "if_else", "if_condition": "state['aproval'] == 'yes'"}, "if_condition"),
        ({"type": "if_else", "if_condition": "(state.aproval or {}).get('decision')"}, "if_condition"),
        ({"type": "transform", "transform_code": "result = f'{state.aproval}'"}, "transform_code"),
        ({"type": "switch", "switch_expression": "state.aproval", "switch_cases": {"a": None}}, "switch_expression"),
        ({"type": "loop", "while_condition": "state.aproval", "loop_step_ids": ["body"]}, "while_condition"),
        ({"type": "loop", "for_each": "state.aproval", "loop_step_ids": ["body"]}, "for_each"),
        ({"type": "transform", "transform_code": "result = state.aproval"}, "transform_code"),
    ],
)
def test_an_unknown_key_is_an_error(step: dict[str, Any], field: str) -> None:
    body = {"id": "body", "type": "print", "print_content": "x"}
    steps = [ASK, {"id": "choose", **step}, *([body] if step["type"] == "loop" else [])]
    found = only(check(*steps))
    assert found.startswith(f'error: orchestration "o", step "choose", field {field}: ')
    assert '"state.aproval" is never set (did you mean "approval"?)' in found
    assert 'declare "aproval" in state_schema' in found


def test_the_line_of_a_script_is_named() -> None:
    assert 'Line 2: "state.facts" is never set.' in only(script("x = 1\nresult = state.facts"))


@pytest.mark.parametrize(
    "text",
    [
        "state.user_input == 'x' and state.user_query",
        "state.approval and state.human_response",
        "state.get('anything') == 1",
        "'anything' in state and state.anything > 1",
        "'anything' not in state or state['anything'] > 1",
        "len(state) > 3",
        "any(value for value in state.values())",
        "state['part_' + state.user_input]",
        "[state.a for state in [{'a': 1}]]",
        "(lambda state: state.a)({'a': 1})",
        "eval('state.a')",
        "state.tone == 'dry'",
        "state.approval.get('anything')",
        "state.approval.notes.strip().lower() == 'no'",
        "'anything' in state.approval and state.approval.anything",
        "state.approval[state.user_input]",
        "state.approval.decision == 'approve'",
        "state.approval.decision in ('approve', 'reject')",
        "state.approval.decision == None or state.approval.decision == ''",
        "state.approval.decision.upper() == 'APPROVE'",
        "state.approval.decision == state.tone",
        "'urgent' in state.approval.tags",
        "state.approval.paid == True",
        "state.approval.notes == 'anything'",
    ],
)
def test_keys_that_may_exist_are_not_reported(text: str) -> None:
    assert messages(condition(text, state_schema={"tone": {"type": "string"}})) == []


@pytest.mark.parametrize(
    "code",
    [
        "state.total = 3\nresult = state.total",
        "state['total'] = 3\nresult = state.total",
        "state.update({'total': 3})\nresult = state.total",
        "state.setdefault('total', 3)\nresult = state.total",
        "def fill(s):\n    s['total'] = 3\nfill(state)\nresult = state.total",
        "copy = state\ncopy['total'] = 3\nresult = state.total",
        "try:\n    result = state['total']\nexcept KeyError:\n    result = None",
        "state.approval['extra'] = 1\nresult = state.approval.extra",
        "state.approval = {'extra': 1}\nresult = state.approval.extra",
    ],
)
def test_keys_that_a_script_may_set_are_not_reported(code: str) -> None:
    assert messages(script(code)) == []


def test_items_of_a_loop_and_errors_of_steps_are_known() -> None:
    loaded = check(
        {"id": "first", "type": "print", "print_content": "x", "on_error": "sorry", "next_step_id": "each"},
        {"id": "each", "type": "loop", "for_each": "[1, 2]", "loop_step_ids": ["one"], "next_step_id": "sorry"},
        {"id": "one", "type": "transform", "transform_code": "result = state.item * state.index", "output_key": "n"},
        {"id": "sorry", "type": "if_else", "if_condition": "state.error and state.error.code == 'timeout'"},
    )
    assert messages(loaded) == []


def test_keys_that_other_orchestrations_and_tools_pass_are_known() -> None:
    inner = {"id": "inner", "steps": [{"id": "s", "type": "if_else", "if_condition": "state.tone and state.size"}]}
    outer = {
        "id": "outer",
        "steps": [{"id": "s", "type": "orchestration", "orchestration_id": "inner", "input": {"tone": "dry"}}],
    }
    tool = {
        "name": "start",
        "tool_type": "orchestration",
        "orchestration_id": "inner",
        "inputSchema": {
            "type": "object",
            "properties": {"message": {}, "input": {"type": "object", "properties": {"size": {"type": "number"}}}},
        },
    }
    parsed = parse_bodies({"orchestrations": [inner, outer], "tools": [tool]})
    assert messages(check_loaded(parsed, ())) == []
    (alone,) = check_loaded(parse_bodies({"orchestrations": [inner, outer]}), ()).errors
    assert '"state.size" is never set' in alone.message


@pytest.mark.parametrize(
    "text",
    [
        "state.approval.decison == 'approve'",
        "state['approval']['decison'] == 'approve'",
        "state.human_response.decison == 'approve'",
    ],
)
def test_a_misspelt_field_of_a_form_is_an_error(text: str) -> None:
    found = only(condition(text))
    assert found.startswith('error: orchestration "o", step "choose", field if_condition: ')
    assert 'has no field "decison" (did you mean "decision"?)' in found
    assert 'step "ask"' in found
    assert "Fields: decision, tags, paid, notes." in found


def test_a_misspelt_field_in_a_placeholder_is_an_error() -> None:
    loaded = check(ASK, {"id": "choose", "type": "print", "print_content": "{state.approval.decison}"})
    assert 'field print_content: The form of step "ask" has no field "decison" (did you mean' in only(loaded)


def test_a_question_without_fields_has_a_response() -> None:
    ask = {"id": "ask", "type": "human", "human_prompt": "?", "output_key": "said", "next_step_id": "choose"}
    good = {"id": "choose", "type": "if_else", "if_condition": "state.said.response == 'anything'"}
    assert messages(check(ask, good)) == []
    bad = {"id": "choose", "type": "if_else", "if_condition": "state.said.answer == 'anything'"}
    assert 'has no field "answer". Fields: response.' in only(check(ask, bad))


def test_fields_are_known_only_where_nothing_else_writes_the_key() -> None:
    other = {"id": "guess", "type": "llm", "prompt_template": "?", "output_key": "approval", "next_step_id": "ask"}
    wrong = {"id": "choose", "type": "if_else", "if_condition": "state.approval.score > 3"}
    assert messages(check(other, ASK, wrong)) == []
    # The run's input may hold another object under a declared key, which a check cannot know.
    declared = check(ASK, wrong, state_schema={"approval": {"type": "object"}})
    assert only(declared).startswith("warning: ")
    default = check(ASK, wrong, state_schema={"approval": {"type": "object", "default": {"score": 1}}})
    assert messages(default) == []


def test_two_forms_under_one_key_have_the_fields_of_both() -> None:
    second = {**ASK, "id": "again", "human_fields": [{"name": "score", "type": "number"}]}
    good = {"id": "choose", "type": "if_else", "if_condition": "state.approval.score > 3"}
    ask = {**ASK, "next_step_id": "again"}
    assert messages(check(ask, second, good)) == []
    bad = {"id": "choose", "type": "if_else", "if_condition": "state.approval.scor > 3"}
    assert 'The forms of steps "ask", "again" have no field "scor"' in only(check(ask, second, bad))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state.approval.decision == 'aprove'", '"aprove" is not an option of the field "decision" (did you mean'),
        ("'aprove' != state.approval.decision", '"aprove" is not an option'),
        ("state.approval.decision in ('aprove', 'yes')", '"aprove" is not an option'),
        ("'urgnt' in state.approval.tags", '"urgnt" is not an option of the field "tags" (did you mean "urgent"?)'),
        ("state.approval.paid == 'yes'", 'The field "paid" is a boolean'),
    ],
)
def test_a_comparison_with_a_missing_option_is_an_error(text: str, expected: str) -> None:
    found = messages(condition(text))[0]
    assert found.startswith('error: orchestration "o", step "choose", field if_condition: ')
    assert expected in found


def test_a_case_for_a_missing_option_is_a_warning() -> None:
    switch = {
        "id": "choose",
        "type": "switch",
        "switch_expression": "state.approval.decision",
        "switch_cases": {"approve": None, "rejct": None},
    }
    found = only(check(ASK, switch))
    assert found.startswith('warning: orchestration "o", step "choose", field switch_cases.rejct: ')
    assert '(did you mean "reject"?)' in found
    by_truth = {**switch, "switch_expression": "state.approval.paid", "switch_cases": {"true": None, "false": None}}
    assert messages(check(ASK, by_truth)) == []


def test_code_that_cannot_be_parsed_is_reported_once() -> None:
    assert len(messages(condition("state.approval ==="))) == 1
    assert len(messages(condition("(" * 1500 + "state.x" + ")" * 1500))) == 1
