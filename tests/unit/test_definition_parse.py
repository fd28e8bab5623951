"""Parsing of definitions: each mistake is reported with its location, and with what was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.files import DefinitionSource
from runlane.definitions.loader import LoadedDefinitions, parse_bodies, parse_items
from runlane.definitions.parser import STEP_TYPES
from runlane.definitions.problem import Problems
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.versions import address, canonical, restore

# The least that each step type needs.
LEAST: dict[str, dict[str, Any]] = {
    "llm": {},
    "agent": {"agent_id": "writer"},
    "tool": {"forced_tool": "search"},
    "evaluator": {"route_map": {"yes": None}},
    "parallel": {"parallel_branches": [["a"]]},
    "merge": {},
    "loop": {"loop_step_ids": ["a"], "loop_count": 2},
    "human": {},
    "transform": {"transform_code": "result = 1"},
    "extract_json": {},
    "if_else": {"if_condition": "True"},
    "switch": {"switch_expression": "1", "switch_cases": {"1": None}},
    "print": {"print_content": "hello"},
    "end": {},
    "orchestration": {"orchestration_id": "other"},
    "task": {"task": "send"},
    "wait": {"seconds": 1},
}


def parse(*steps: dict[str, Any], **fields: Any) -> LoadedDefinitions:
    return parse_bodies({"orchestrations": [{"id": "o", "steps": list(steps), **fields}]})


def step(kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": "s", "type": kind, **LEAST[kind], **fields}


def only(loaded: LoadedDefinitions) -> str:
    assert len(loaded.errors) == 1, [str(problem) for problem in loaded.problems]
    return str(loaded.errors[0])


def test_every_step_type_has_its_least() -> None:
    assert set(LEAST) == set(STEP_TYPES)


@pytest.mark.parametrize("kind", LEAST)
def test_every_step_type_is_parsed(kind: str) -> None:
    loaded = parse(step(kind))
    assert list(loaded.problems) == []
    found = loaded.definitions[0].definition
    assert isinstance(found, Orchestration)
    assert found.steps[0].type == kind


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"type": "end"},
         ('orchestration "o", step "number 1", field id: This field is missing. '
          "Its meaning: Unique within the orchestration.")),
        ({"id": "s"}, 'orchestration "o", step "s", field type: The type is missing. Types: llm, agent,'),
        ({"id": "s", "type": "agnt"},
         "'agnt' is not a step type (did you mean \"agent\"?). Types: llm, agent, "),
        ({"id": "s", "type": 7}, "7 is not a step type. Types: llm, agent, "),
        ({"id": "s", "type": "agent"}, 'step "s", field agent_id: This field is missing. Its meaning: The agent.'),
        (step("end", nxt_step_id="x"),
         'field nxt_step_id: Unknown field (did you mean "next_step_id"?). Fields: id, name, next_step_id, '),
        (step("end", id="a/b"),
         ("field id: 'a/b' is not a valid id: "
          "it must have 1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-', and begin with a letter or digit.")),
        (step("print", output_key="a-b"),
         ("field output_key: 'a-b' is not a valid key: "
          "it must have 1 to 128 of A-Z, a-z, 0-9 and '_', and begin with a letter or '_'.")),
        (step("print", timeout_seconds=0), "field timeout_seconds: Input should be greater than 0; it is 0."),
        (step("print", timeout_seconds="soon"),
         "field timeout_seconds: Input should be a valid number, unable to parse string as a number; it is 'soon'."),
        (step("print", input_keys=["a b"]),
         ("field input_keys[0]: 'a b' is not a valid key: "
          "it must have 1 to 128 of A-Z, a-z, 0-9 and '_', and begin with a letter or '_'.")),
        (step("merge", merge_strategy="lst"), "'lst' is not one of list, concat, dict (did you mean \"list\"?)."),
        (step("print", human_prompt="hi"),
         "field human_prompt: A step of type print does not have this field; it belongs to human. Remove it."),
        (step("llm", cache_responses_enabled=True), "This field of another tool is not supported. Remove it."),
        (step("loop", while_condition="x"), "Give exactly one of loop_count, while_condition and for_each."),
        (step("wait", event="e"), "Give exactly one of seconds, until and event."),
        (step("human", human_fields=[{"name": "a", "type": "select"}]),
         'field human_fields[0]: A field of type "select" needs options.'),
        (step("human", human_fields=[{"label": "x"}]), "field human_fields[0].name: This field is missing."),
        (step("human", human_fields=[{"name": "a", "lable": "x"}]),
         ("field human_fields[0].lable: "
          'Unknown field (did you mean "label"?). Fields: name, type, label, options, required, default.')),
        (step("human", human_fields=["a"]), "field human_fields[0]: Input should be a valid dictionary"),
        (step("human", human_fields=[{"name": "a", "key": "b"}]),
         'field human_fields[0].name: "key" is the same field with another value. Keep one of them.'),
        (step("print", retry={"atempts": 3}),
         ('field retry.atempts: Unknown field (did you mean "attempts"?). '
          "Fields: attempts, backoff_seconds, max_backoff_seconds, on.")),
        (step("print", retry={"attempts": 0}),
         "field retry.attempts: Input should be greater than or equal to 1; it is 0."),
        (step("evaluator", route_map={}), "field route_map: Dictionary should have at least 1 item"),
        (step("print", print_content="x" * 100_001), "String should have at most 100000 characters"),
        ("print", "field steps[0]: A step must be an object."),
    ],
)  # fmt: skip
def test_mistakes_in_steps_are_reported_with_their_location(body: Any, expected: str) -> None:
    message = only(parse(body))
    assert expected in message
    assert len(message) < 800


@pytest.mark.parametrize(
    ("folder", "body", "expected"),
    [
        ("orchestrations", {"id": "o"}, 'orchestration "o", field steps: This field is missing.'),
        ("orchestrations", {"id": "o", "steps": []}, "field steps: List should have at least 1 item"),
        ("orchestrations", {"id": "o", "steps": [step("end")], "stteps": 1},
         'field stteps: Unknown field (did you mean "steps"?). Fields: id, name, description, steps, '),
        ("orchestrations", {"id": "o", "steps": {}}, "field steps: Input should be a valid list"),
        ("orchestrations", {"id": "o", "steps": [step("end")], "state_schema": {"a": {"type": "str"}}},
         ("field state_schema.a.type: 'str' is not one of any, string, number, integer, boolean, list, object "
          '(did you mean "string"?).')),
        ("orchestrations", {"id": "o", "steps": [step("end")], "state_schema": {"a": {"typ": "string"}}},
         'field state_schema.a.typ: Unknown field (did you mean "type"?). Fields: type, default, description.'),
        ("orchestrations", {"id": "o", "steps": [step("end")], "state_schema": {"a-b": {}}},
         "'a-b' is not a valid key: it must have 1 to 128 of A-Z, a-z, 0-9 and '_', and begin with a letter or '_'."),
        ("orchestrations", {"steps": [step("end")]}, "orchestration, field id: This field is missing."),
        ("agents", {"id": "a", "type": "orchestrator"},
         'agent "a": orchestration_id is required for agents of type "orchestrator", and only for these.'),
        ("agents", {"id": "a", "tool": []},
         'agent "a", field tool: Unknown field (did you mean "tools"?). Fields: id, name, '),
        ("tools", {"name": "t"}, 'tool "t": A tool of type http needs a url.'),
        ("tools", {"name": "t", "tool_type": "python"}, "A tool of type python needs code."),
        ("mcp_servers", {"name": "m"}, 'MCP server "m": A server of type remote needs a url.'),
        ("mcp_servers", {"name": "m", "server_type": "stdio"}, "A server of type stdio needs a command."),
    ],
)  # fmt: skip
def test_mistakes_in_definitions_are_reported_with_their_location(folder: str, body: Any, expected: str) -> None:
    assert expected in only(parse_bodies({folder: [body]}))


def test_all_mistakes_of_a_definition_are_reported() -> None:
    loaded = parse(step("end", id="!"), step("llm", nam="x"), {"id": "c", "type": "nope"}, nme="x")
    assert len(loaded.errors) == 4
    assert list(loaded.definitions) == []


def test_empty_fields_of_other_step_types_are_left_out_with_a_warning() -> None:
    exported: dict[str, Any] = {
        "agent_id": None, "prompt_template": "", "model": "", "input_keys": [], "output_key": None, "max_turns": 15,
        "allowed_tools": None, "next_step_id": "", "route_map": {}, "human_fields": [], "parallel_branches": [],
        "loop_count": 3, "loop_step_ids": [], "merge_strategy": "list", "cache_tools_enabled": True,
        "cache_response_threshold": 0.95, "human_timeout_seconds": 3600, "position_x": 10.5,
    }  # fmt: skip
    loaded = parse({**exported, **step("print")})
    assert loaded.errors == []
    (message,) = [str(problem) for problem in loaded.warnings]
    assert message.startswith('orchestration "o", step "s": Ignored, because they are not used: agent_id, ')
    assert "position_x" not in message
    assert "next_step_id" not in message
    assert canonical(loaded.definitions[0].definition) == canonical(
        parse(step("print", position_x=10.5)).definitions[0].definition
    )


def test_null_counts_as_not_given() -> None:
    loaded = parse(step("human", human_fields=None, timeout_seconds=None, retry=None, on_expiry=""))
    assert list(loaded.problems) == []
    assert canonical(loaded.definitions[0].definition) == canonical(parse(step("human")).definitions[0].definition)


def test_routes_to_nothing_may_be_empty_text() -> None:
    loaded = parse(step("evaluator", route_map={"a": "", "b": None}))
    found = loaded.definitions[0].definition
    assert isinstance(found, Orchestration)
    assert found.steps[0].model_dump()["route_map"] == {"a": None, "b": None}


def test_other_names_of_fields_are_the_same_fields() -> None:
    fields = [{"key": "a", "type": "select", "options": "x, y,,z"}]
    same = [{"name": "a", "type": "select", "options": ["x", "y", "z"]}]
    ours, theirs = (parse(step("human", human_fields=given)).definitions[0].definition for given in (same, fields))
    assert canonical(ours) == canonical(theirs)
    tool = {"name": "t", "generalName": "T", "url": "https://example.com", "inputSchema": {"type": "object"}}
    (found,) = parse_bodies({"tools": [tool]}).definitions
    assert b'"label":"T"' in canonical(found.definition)


def test_a_lenient_parser_leaves_unknown_fields_out() -> None:
    body = {"id": "o", "steps": [step("print", human_prompt="hi", sparkle=1)], "colour": "red"}
    problems = Problems()
    loaded = parse_items([DefinitionSource("orchestration", body)], problems, lenient=True)
    assert loaded.errors == []
    assert [str(problem) for problem in loaded.warnings] == [
        'orchestration "o": Ignored, because they are not used: colour.',
        'orchestration "o", step "s": Ignored, because they are not used: human_prompt, sparkle.',
    ]


def test_messages_stay_short_for_any_input() -> None:
    long = "x" * 100_000
    for loaded in (
        parse(step("print", **{long: 1})),
        parse(step("print", output_key=long)),
        parse(step("merge", merge_strategy=long)),
        parse({"id": long, "type": "end"}),
        parse({"id": "s", "type": long}),
    ):
        assert len(only(loaded)) < 1500


def test_versions_follow_content_and_nothing_else() -> None:
    (first,) = parse(step("print"), description="x").definitions
    content = canonical(first.definition)
    same = parse(
        {"print_content": "hello", "type": "print", "id": "s", "name": "", "timeout_seconds": 300},
        description="x", created_at="2026-01-01", updated_at="2026-01-02", max_attempts=3,
    )  # fmt: skip
    assert canonical(same.definitions[0].definition) == content
    assert restore("orchestration", content) == first.definition
    other = canonical(parse(step("print", print_content="hello!"), description="x").definitions[0].definition)
    assert address(other) != address(content)
    assert address(content) == "439a53bd9d3b5df6b6dd2b1b59fbab9b1a76766fc8c3552ab962d296ebfc4237"


@pytest.mark.parametrize("kind", LEAST)
def test_every_step_type_comes_back_as_it_was(kind: str) -> None:
    (parsed,) = parse(step(kind, name="n", on_error="s2", retry={"attempts": 2}), step("end", id="s2")).definitions
    assert restore("orchestration", canonical(parsed.definition)) == parsed.definition
