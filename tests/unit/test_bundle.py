"""Bundles: an export is imported unchanged; a foreign bundle is imported with a report of every change."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.catalog.bundle_format import BundleContents, pack, unpack
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.definitions.schema.definition import Agent, McpServer, Orchestration, Tool
from runlane.definitions.versions import canonical
from runlane.errors import InvalidRequest

NONE: list[str] = []


def bundle(marker: str = "synapse_export", **lists: Any) -> dict[str, Any]:
    return {marker: True, "version": "1.0", "exported_at": "2026-01-31T12:00:00", "has_python_tools": False, **lists}


def orchestration(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "flow", "name": "Flow", "steps": list(steps), **fields}


def exported(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    """A step as the other product's editor writes it: every field of every type."""
    return {
        "id": name, "name": name.title(), "type": kind, "agent_id": None, "prompt_template": None, "model": None,
        "input_keys": [], "output_key": None, "max_turns": 15, "timeout_seconds": 300, "allowed_tools": None,
        "next_step_id": None, "max_iterations": 3, "include_full_history": None, "cache_responses_enabled": False,
        "cache_semantic_enabled": False, "cache_response_ttl_seconds": 3600, "cache_response_threshold": 0.95,
        "cache_tools_enabled": True, "cache_tool_ttl_seconds": 3600, "position_x": 120.0, "position_y": 40.0,
        "route_map": {}, "route_descriptions": {}, "evaluator_prompt": None, "parallel_branches": [],
        "merge_strategy": "list", "loop_count": 3, "loop_step_ids": [], "human_prompt": None, "human_fields": [],
        "human_channel_id": None, "human_timeout_seconds": 3600, "transform_code": None, **fields,
    }  # fmt: skip


def warnings(unpacked: BundleContents) -> list[str]:
    left_out = "Ignored, because they are not used"
    return [problem.brief for problem in unpacked.loaded.problems if left_out not in problem.message]


def only_orchestration(unpacked: BundleContents) -> Orchestration:
    assert unpacked.skipped == []
    (parsed,) = unpacked.loaded.definitions
    assert isinstance(parsed.definition, Orchestration)
    return parsed.definition


def test_an_exported_bundle_is_imported_unchanged() -> None:
    bodies: dict[str, Any] = {
        "orchestrations": [orchestration({"id": "s", "type": "agent", "agent_id": "a"})],
        "agents": [{"id": "a", "tools": ["calc", "files__read"]}, {"id": "b"}],
        "tools": [
            {"name": "calc", "tool_type": "python", "code": "result = 1"},
            {"name": "web", "url": "https://example.com", "headers": {"Authorization": "Bearer {secret.WEB}"}},
        ],
        "mcp_servers": [{"name": "files", "url": "https://example.com", "token": "{secret.FILES}"}],
    }
    loaded = check_loaded(parse_bodies(bodies), ())
    assert list(loaded.problems) == []
    packed = pack((parsed.definition for parsed in loaded.definitions), "2026-01-31T12:00:00Z")
    assert (packed["runlane_export"], packed["version"], packed["has_python_tools"]) == (True, "1.0", True)
    assert {name: len(packed[name]) for name in ("orchestrations", "agents", "mcp_servers", "custom_tools")} == {
        "orchestrations": 1,
        "agents": 2,
        "mcp_servers": 1,
        "custom_tools": 2,
    }
    unpacked = unpack(packed)
    assert (unpacked.skipped, list(unpacked.loaded.problems)) == ([], [])
    assert {canonical(parsed.definition) for parsed in unpacked.loaded.definitions} == {
        canonical(parsed.definition) for parsed in loaded.definitions
    }
    assert {(needed.name, needed.id, needed.field) for needed in unpacked.secrets} == {
        ("WEB", "web", "headers.Authorization"),
        ("FILES", "files", "token"),
    }


def test_an_exported_pipeline_is_imported_whole() -> None:
    steps = [
        exported("research", "agent", agent_id="agent_scout", prompt_template="Look into {{user_topic}}",
                 output_key="findings", next_step_id="fan"),
        exported("fan", "parallel", parallel_branches=[["pro"], ["contra"]], next_step_id="join"),
        exported("pro", "llm", prompt_template="For: {{findings}}", output_key="pro", next_step_id="join"),
        exported("contra", "llm", prompt_template="Against: {state.findings}", output_key="contra",
                 next_step_id="join"),
        exported("join", "merge", merge_strategy="concat", input_keys=["pro", "contra"], output_key="both",
                 next_step_id="judge"),
        exported("judge", "evaluator", model="gemini-pro", evaluator_prompt="Good? {{both}} on {{user_topic}}",
                 route_map={"approve": "review", "revise": "research"}),
        exported("review", "human", human_prompt="{{both}}", output_key="answer", human_fields=[
            {"key": "decision", "type": "select", "label": "Decision", "options": ["yes", "no"]},
            {"key": "tone", "type": "select", "options": "dry, warm"},
            {"key": "notes", "type": "textarea"},
        ]),
    ]  # fmt: skip
    unpacked = unpack(bundle(orchestrations=[orchestration(*steps, entry_step_id="research", trigger="manual")]))
    found = only_orchestration(unpacked)
    assert [step.type for step in found.steps] == [step["type"] for step in steps]
    human = found.steps[-1].model_dump()["human_fields"]
    assert [(item["name"], item["options"]) for item in human] == [
        ("decision", ["yes", "no"]),
        ("tone", ["dry", "warm"]),
        ("notes", []),
    ]
    assert warnings(unpacked) == ["{{user_topic}} of the first step is never set; the run's message replaces it."]
    assert found.steps[0].model_dump()["prompt_template"] == "Look into {state.user_input}"
    assert found.steps[5].model_dump()["evaluator_prompt"] == "Good? {{both}} on {state.user_input}"
    checked = check_loaded(unpacked.loaded, ())
    assert [(problem.tolerable, problem.brief.split(".")[0]) for problem in checked.errors] == [
        (True, 'step "research", field agent_id: The agent "agent_scout" does not exist')
    ]


def test_a_first_input_is_found_in_the_first_branches() -> None:
    steps = [
        exported("fan", "parallel", parallel_branches=["a", ["b"]], next_step_id="join"),
        exported("a", "llm", prompt_template="{{company}}", output_key="x"),
        exported("b", "llm", prompt_template="{{company.name}} {{x}}", output_key="y"),
        exported("join", "llm", prompt_template="{{x}} {{other}}"),
    ]
    unpacked = unpack(bundle(orchestrations=[orchestration(*steps)]))
    found = only_orchestration(unpacked)
    assert found.steps[1].model_dump()["prompt_template"] == "{state.user_input}"
    assert found.steps[2].model_dump()["prompt_template"] == "{state.user_input.name} {{x}}"
    assert found.steps[3].model_dump()["prompt_template"] == "{{x}} {{other}}"
    assert found.steps[0].model_dump()["parallel_branches"] == [["a"], ["b"]]
    assert len([problem for problem in check_loaded(unpacked.loaded, ()).errors if problem.tolerable]) == 1


@pytest.mark.parametrize(
    ("step", "expected", "field", "value"),
    [
        (exported("s", "agent"), "changed to a model call without tools (llm)", "type", "llm"),
        (exported("s", "human", human_fields=[{"name": "Editor notes"}]), "was renamed to Editor_notes", "human_fields",
         [{"name": "Editor_notes", "type": "text", "label": "Editor notes", "options": NONE, "required": False,
           "default": None}]),
        (exported("s", "human", human_fields=[{"key": "1st", "type": "dropdown", "options": "a"}]),
         "was renamed to field_1st", None, None),
        (exported("s", "human", human_fields=[{"name": "a", "type": "dropdown", "options": "x,y"}]),
         "The type 'dropdown' of the field \"a\" was changed to select", None, None),
        (exported("s", "human", human_fields=[{"name": "a", "type": "sparkle"}]), "changed to text", None, None),
        (exported("s", "human", human_fields=[{"name": "a", "type": "select"}]), "has no options", None, None),
    ],
)  # fmt: skip
def test_changes_to_imported_steps_are_reported(
    step: dict[str, Any], expected: str, field: str | None, value: Any
) -> None:
    unpacked = unpack(bundle(orchestrations=[orchestration(step)]))
    found = only_orchestration(unpacked)
    assert any(expected in message and message.startswith('step "s": ') for message in warnings(unpacked)), warnings(
        unpacked
    )
    if field is not None:
        assert found.steps[0].model_dump()[field] == value


def test_several_unknown_inputs_are_parameters() -> None:
    step = exported("s", "llm", prompt_template="{{number}} of {{repository}}")
    unpacked = unpack(bundle(orchestrations=[orchestration(step)]))
    assert only_orchestration(unpacked).steps[0].model_dump()["prompt_template"] == "{{number}} of {{repository}}"
    assert [problem.tolerable for problem in check_loaded(unpacked.loaded, ()).errors] == [True, True]


def test_names_that_cannot_be_ids() -> None:
    servers: list[dict[str, Any]] = [
        {"name": "Jira & Confluence", "command": "npx", "args": "-y mcp-remote", "env": {}},
        {"name": "&", "command": "npx"},
        {"name": "My files", "label": "Files", "url": "https://example.com"},
    ]
    unpacked = unpack(bundle(mcp_servers=servers))
    found = [parsed.definition for parsed in unpacked.loaded.definitions]
    assert [(item.id, item.label) for item in found if isinstance(item, McpServer)] == [
        ("Jira_Confluence", "Jira & Confluence"),
        ("My_files", "Files"),
    ]
    assert [parsed.location.id for parsed in unpacked.loaded.definitions] == ["Jira_Confluence", "My_files"]
    assert "The name 'Jira & Confluence' was changed to Jira_Confluence." in warnings(unpacked)
    assert [skipped.id for skipped in unpacked.skipped] == ["&"]


def test_state_schemas_of_all_sorts() -> None:
    schema: dict[str, Any] = {
        "a": {"type": "array", "default": []},
        "b": "str",
        "c": {"type": "sparkle"},
        "d": 7,
        "e": {"type": "number", "description": "x"},
        "f": None,
    }
    unpacked = unpack(bundle(orchestrations=[orchestration({"id": "s", "type": "end"}, state_schema=schema)]))
    found = only_orchestration(unpacked)
    assert {key: (field.type, field.default) for key, field in found.state_schema.items()} == {
        "a": ("list", []),
        "b": ("string", None),
        "c": ("any", None),
        "d": ("any", 7),
        "e": ("number", None),
        "f": ("any", None),
    }
    assert warnings(unpacked) == ["The type 'sparkle' of \"c\" is unknown; changed to any."]


def test_agents_of_all_sorts() -> None:
    agents = [
        {"id": "a", "name": "A", "type": "orchestrator", "orchestration_id": None, "tools": ["all"]},
        {"id": "b", "type": "chat", "tools": "x, y", "avatar": "default", "skip_default_tools": True},
        {"id": "c", "type": "conversational", "orchestration_id": "flow"},
        {"id": "d", "type": "orchestrator", "orchestration_id": "flow"},
        {"id": "e e"},
    ]
    unpacked = unpack(bundle(agents=agents))
    found = [parsed.definition for parsed in unpacked.loaded.definitions if isinstance(parsed.definition, Agent)]
    assert [(agent.id, agent.type, agent.tools, agent.orchestration_id) for agent in found] == [
        ("a", "conversational", ["all"], None),
        ("b", "conversational", ["x", "y"], None),
        ("c", "conversational", [], None),
        ("d", "orchestrator", [], "flow"),
    ]
    assert len(warnings(unpacked)) == 3
    (skipped,) = unpacked.skipped
    assert (skipped.kind, skipped.id) == ("agent", "e e")
    assert "is not a valid id" in skipped.reason


def test_secrets_of_servers_are_requested_by_name() -> None:
    servers: list[dict[str, Any]] = [
        {"name": "github", "label": "GitHub", "server_type": "remote", "url": "https://example.com/mcp",
         "token": "xxxxxxxxx", "status": "connected"},
        {"name": "git", "server_type": "stdio", "command": "uvx", "args": ["mcp-server-git", "--repository", "/repo"],
         "env": {"GIT_TOKEN": "", "GIT_AUTHOR": "", "HOME": "/root", "PORT": 8080}},
        {"name": "jira", "url": "https://example.com/sse", "server_type": "sse", "token": "real-token-value",
         "headers": {"X-Api-Key": "<your key>", "Accept": "text/event-stream"}},
        {"name": "own", "url": "https://example.com", "token": "{secret.OWN}"},
        {"name": "bare", "url": "https://example.com", "token": None, "env": None},
    ]  # fmt: skip
    unpacked = unpack(bundle(mcp_servers=servers))
    assert unpacked.skipped == []
    found = {
        parsed.definition.name: parsed.definition
        for parsed in unpacked.loaded.definitions
        if isinstance(parsed.definition, McpServer)
    }
    assert found["github"].token == "{secret.GITHUB_TOKEN}"
    assert found["git"].env == {
        "GIT_TOKEN": "{secret.GIT_TOKEN}",
        "GIT_AUTHOR": "{secret.GIT_AUTHOR}",
        "HOME": "/root",
        "PORT": "8080",
    }
    assert (found["jira"].server_type, found["jira"].token) == ("remote", "{secret.JIRA_TOKEN}")
    assert found["jira"].headers == {"X-Api-Key": "{secret.JIRA_X_API_KEY}", "Accept": "text/event-stream"}
    assert (found["own"].token, found["bare"].token) == ("{secret.OWN}", None)
    assert [(needed.name, needed.id, needed.field) for needed in unpacked.secrets] == [
        ("GITHUB_TOKEN", "github", "token"),
        ("GIT_TOKEN", "git", "env.GIT_TOKEN"),
        ("GIT_AUTHOR", "git", "env.GIT_AUTHOR"),
        ("JIRA_X_API_KEY", "jira", "headers.X-Api-Key"),
        ("JIRA_TOKEN", "jira", "token"),
        ("OWN", "own", "token"),
    ]
    assert warnings(unpacked) == [
        "The server type 'sse' was changed to remote.",
        "The credential in token was removed; store it as a secret.",
    ]
    assert "real-token-value" not in str(unpacked)
    assert check_loaded(unpacked.loaded, ()).errors == []


def test_tools_of_all_sorts() -> None:
    tools = [
        {"name": "weather", "generalName": "Weather", "description": "x", "tool_type": "http", "method": "post",
         "url": "https://example.com/{city}", "inputSchema": '{"type": "object"}',
         "headers": {"Authorization": "", "Content-Type": "", "X-Version": "2"}},
        {"name": "calc", "code": "print(1)", "inputSchema": {"type": "object"}, "headers": None},
        {"name": "odd", "url": "https://example.com", "method": "BREW"},
        {"name": "none"},
    ]  # fmt: skip
    unpacked = unpack(bundle(custom_tools=tools))
    found = {
        parsed.definition.name: parsed.definition
        for parsed in unpacked.loaded.definitions
        if isinstance(parsed.definition, Tool)
    }
    weather = found["weather"]
    assert (weather.method, weather.label, weather.input_schema) == ("POST", "Weather", {"type": "object"})
    assert weather.headers == {"Authorization": "Bearer {secret.WEATHER_AUTHORIZATION}", "X-Version": "2"}
    assert (found["calc"].tool_type, found["odd"].method) == ("python", "GET")
    assert [(skipped.id, skipped.reason) for skipped in unpacked.skipped] == [
        ("none", "A tool of type http needs a url.")
    ]
    assert unpack(bundle(tools=tools[:1])).loaded.definitions[0].definition == weather


def test_the_same_name_twice() -> None:
    unpacked = unpack(bundle(agents=[{"id": "a", "name": "one"}, {"id": "a", "name": "two"}]))
    assert [parsed.definition.id for parsed in unpacked.loaded.definitions] == ["a"]
    assert [skipped.reason for skipped in unpacked.skipped] == ["The bundle contains an earlier item with this name."]


def test_only_what_is_chosen() -> None:
    given = bundle(agents=[{"id": "a"}, {"id": "b"}], mcp_servers=[{"name": "m", "url": "x"}])
    unpacked = unpack(given, {"agent": ["b", "none"]})
    assert [parsed.definition.id for parsed in unpacked.loaded.definitions] == ["b"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "A bundle must be an object"),
        ([], "A bundle must be an object"),
        ({"agents": []}, "This is not a bundle"),
        ({"synapse_export": "yes"}, "This is not a bundle"),
        (bundle(agents={}), '"agents" in the bundle must be a list of objects'),
        (bundle(agents=["a"]), "must be a list of objects"),
        ({"runlane_export": True, "version": "2.0"}, "The bundle has format 2.0"),
        (bundle(agents=[{"id": "a\x00"}]), "contains a NUL character"),
    ],
)
def test_a_file_that_is_not_a_bundle_is_refused(given: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        unpack(given)


def test_an_empty_bundle_is_one() -> None:
    unpacked = unpack({"synapse_export": True})
    assert (list(unpacked.loaded.definitions), unpacked.skipped) == ([], [])


def test_a_placeholder_that_is_none_is_left_to_the_checks() -> None:
    unpacked = unpack(bundle(orchestrations=[orchestration(exported("s", "llm", prompt_template="{{a b}}"))]))
    only_orchestration(unpacked)
    (problem,) = check_loaded(unpacked.loaded, ()).errors
    assert "is not a valid placeholder" in problem.message
