"""Questions in the terminal: what is prompted for, what is refused, and what the answer becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runlane.cli.question_form import ask, choose_question, describe_question, parse_answer, parse_fields
from runlane.domain.wait import Question
from runlane.errors import InvalidInput, InvalidRequest


def question(*fields: dict[str, Any], path: str = "ask", **more: Any) -> Question:
    given: dict[str, Any] = {
        "run_id": "run_1", "target": "orchestration:o", "tenant": "default", "path": path, "step_id": "ask",
        "kind": "human", "name": "Ask", "prompt": "Publish?", "fields": fields, "context": None, "opened_at_us": 1,
        "due_at_us": None, "answered_at_us": None, "answered_by": None,
    }  # fmt: skip
    return Question(**given | more)


def typed(*lines: str) -> Callable[[str], str]:
    waiting = list(lines)

    def read(prompt: str) -> str:
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return read


def answered(asked: Question, *lines: str) -> tuple[dict[str, Any], str]:
    written: list[str] = []
    return ask(asked, typed(*lines), written.append), "\n".join(written)


def test_every_type_is_prompted_for_until_it_is_valid() -> None:
    asked = question(
        {"name": "decision", "type": "select", "options": ["approve", "reject"], "required": True},
        {"name": "count", "type": "number", "label": "How many"},
        {"name": "loud", "type": "boolean", "default": True},
        {"name": "day", "type": "date"},
        {"name": "mail", "type": "email"},
        {"name": "tags", "type": "multiselect", "options": ["a", "b", "c"]},
        {"name": "notes", "type": "textarea"},
        {"name": "title", "type": "text", "default": "none"},
    )
    answer, written = answered(
        asked, "maybe", "", "2", "many", "3", "", "tomorrow", "2026-01-31", "x", "a@b.example", "1, c", "one",
        "two", "", "",
    )  # fmt: skip
    assert answer == {
        "decision": "reject", "count": 3, "loud": True, "day": "2026-01-31", "mail": "a@b.example", "tags": ["a", "c"],
        "notes": "one\ntwo", "title": "none",
    }  # fmt: skip
    assert '"decision" must be one of "approve", "reject", not "maybe"' in written
    assert '"decision" is required' in written
    assert "  1. approve" in written
    assert '"count" must be a number' in written


def test_a_question_without_fields_takes_a_string() -> None:
    answer, written = answered(question(context="The draft"), "looks good")
    assert answer == {"response": "looks good"}
    assert "context: The draft" in written


def test_an_option_that_is_a_number_is_meant_as_itself() -> None:
    asked = question({"name": "size", "type": "select", "options": ["3", "2", "1"]})
    assert answered(asked, "1")[0] == {"size": "1"}


def test_a_closed_input_ends_the_question() -> None:
    with pytest.raises(EOFError):
        answered(question({"name": "x"}))


def test_in_a_pipe_it_explains_how_to_answer() -> None:
    asked = question({"name": "decision", "type": "select", "options": ["approve", "reject"], "required": True})
    assert describe_question(asked, several=True) == [
        "ask asks: Publish?",
        "  decision: select, one of approve, reject, required",
        "  answer: runlane runs resume run_1 --field decision=approve --step ask",
    ]
    assert describe_question(question())[-1] == "  answer: runlane runs resume run_1 --answer TEXT"
    called = replace(asked, context={"tool_name": "pay", "arguments": {"cents": 7}})
    assert describe_question(called)[:2] == [
        "ask asks: Publish?",
        '  context: {"tool_name":"pay","arguments":{"cents":7}}',
    ]


def test_answers_on_the_command_line() -> None:
    assert parse_fields(["a=1", "b=x=y", "c=1", "c=2"]) == {"a": "1", "b": "x=y", "c": ["1", "2"]}
    for wrong in ("a", "=1"):
        with pytest.raises(InvalidRequest, match="Form: --field"):
            parse_fields([wrong])
    assert parse_answer('{"a": 1}') == {"a": 1}
    assert parse_answer("yes, do") == "yes, do"
    assert parse_answer('"quoted"') == "quoted"
    assert parse_answer("5") == "5"
    with pytest.raises(InvalidInput, match="is not JSON"):
        parse_answer("{broken")


def test_the_one_open_question_is_asked() -> None:
    left, right = question(path="s/0/ask"), question(path="s/1/ask")
    over = question(path="s/2/ask", answered_at_us=5)
    assert choose_question([left, over], None) is left
    assert choose_question([left, right], None) is None
    assert choose_question([left, right], "s/1/ask") is right
    assert choose_question([left, right], "ask") is None


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["approve"], {"decision": "approve"}),
        (["edit", '{"n": 1}', ""], {"decision": "edit", "arguments": '{"n": 1}'}),
        (["deny", "too much"], {"decision": "deny", "reason": "too much"}),
    ],
)
def test_fields_that_a_decision_does_not_use_are_not_prompted_for(lines: list[str], answer: dict[str, Any]) -> None:
    fields = (
        {"name": "decision", "type": "select", "options": ["approve", "edit", "deny"], "required": True},
        {"name": "arguments", "type": "textarea"},
        {"name": "reason", "type": "text"},
    )
    assert answered(question(*fields, path="ask!0/approve/0/call_0"), *lines)[0] == answer
    # A custom form is prompted for as it is written.
    with pytest.raises(EOFError):
        answered(question(*fields), *lines)
