"""References between definitions: their targets exist, they have no cycles, and they define what a run may use."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest

from runlane.definitions.dependencies import find_dependencies
from runlane.definitions.loader import LoadedDefinitions, check_loaded, parse_bodies
from runlane.definitions.scope import scope_of


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


def only(messages: list[str]) -> str:
    assert len(messages) == 1, messages
    return messages[0]


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ({"orchestrations": [{"id": "o", "steps": [step("s", "agent", agent_id="writr")]}]},
         'step "s", field agent_id: The agent "writr" does not exist (did you mean "writer"?). Known: writer.'),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "evaluator", route_map={"a": None}, agent_id="x")]}]},
         'field agent_id: The agent "x" does not exist. Known: writer.'),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "tool", forced_tool="serch")]}]},
         ('field forced_tool: The tool "serch" does not exist (did you mean "search"?), '
          "and its prefix is not an MCP server. Tools: search. Servers: files.")),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "tool", forced_tool="fils__read")]}]},
         'The tool "fils__read" does not exist, and its prefix is not an MCP server. Tools: search. Servers: files.'),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "agent", agent_id="writer", allowed_tools=["x"])]}]},
         ('field allowed_tools: The tool "x" does not exist, '
          "and its prefix is not an MCP server. Tools: search. Servers: files.")),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "orchestration", orchestration_id="x")]}]},
         'field orchestration_id: The orchestration "x" does not exist. Known: o.'),
        ({"agents": [{"id": "a", "tools": ["x"]}]},
         ('agent "a", field tools: The tool "x" does not exist, '
          "and its prefix is not an MCP server. Tools: search. Servers: files.")),
        ({"agents": [{"id": "a", "delegate_agent_ids": ["writers"]}]},
         ('agent "a", field delegate_agent_ids: The agent "writers" does not exist (did you mean "writer"?). '
          "Known: a, writer.")),
        ({"agents": [{"id": "a", "type": "orchestrator", "orchestration_id": "x"}]},
         'agent "a", field orchestration_id: The orchestration "x" does not exist. Known: none.'),
    ],
)  # fmt: skip
def test_a_reference_to_nothing_is_reported(bodies: dict[str, list[Any]], expected: str) -> None:
    others: dict[str, list[Any]] = {
        "agents": [{"id": "writer"}],
        "tools": [{"name": "search", "url": "https://example.com"}],
        "mcp_servers": [{"name": "files", "url": "https://example.com"}],
    }
    for folder, given in bodies.items():
        others[folder] = [*others.get(folder, []), *given]
    assert expected in only(errors(load(**others)))


def test_a_registered_task_can_be_called_as_a_tool() -> None:
    bodies: dict[str, list[Any]] = {
        "agents": [{"id": "clerk", "tools": ["send"]}],
        "orchestrations": [
            {"id": "mail", "steps": [{"id": "a", "type": "tool", "forced_tool": "send", "arguments": {}}]}
        ],
    }
    assert errors(load(tasks=["send"], **bodies)) == []
    assert len(errors(load(tasks=["sent"], **bodies))) == 2


def test_tasks_are_checked_where_they_are_known() -> None:
    bodies = [{"id": "o", "steps": [step("s", "task", task="sed")]}]
    assert errors(load(orchestrations=bodies)) == []
    message = only(errors(load(orchestrations=bodies, tasks=["send"])))
    assert 'field task: No task "sed" is registered (did you mean "send"?). Registered: send.' in message


def test_names_are_taken_once() -> None:
    message = only(
        errors(load(agents=[{"id": "a"}, {"id": "a", "name": "other"}], tools=[{"name": "a", "url": "http://x"}]))
    )
    assert message.startswith('agent "a": The name is already used')


def test_a_reference_to_something_broken_is_not_a_second_error() -> None:
    parsed = parse_bodies(
        {
            "agents": [{"id": "a", "nope": 1}],
            "orchestrations": [{"id": "o", "steps": [step("s", "agent", agent_id="a")]}],
        }
    )
    assert len(check_loaded(parsed, ()).errors) == 1


def call(name: str, *targets: str) -> dict[str, Any]:
    steps = [step(f"s{number}", "orchestration", orchestration_id=target) for number, target in enumerate(targets)]
    for first, second in pairwise(steps):
        first["next_step_id"] = second["id"]
    return {"id": name, "steps": steps or [step("end", "end")]}


def test_orchestrations_that_start_themselves_are_reported() -> None:
    message = only(errors(load(orchestrations=[call("a", "a")])))
    assert 'orchestration "a", step "s0": The orchestration would start itself endlessly: a -> a.' in message
    messages = errors(
        load(orchestrations=[call("a", "x", "b"), call("b", "c"), call("c", "a"), call("x"), call("y", "a")])
    )
    assert [line.split(": ")[2] for line in messages] == [
        "a -> b -> c -> a. Break the cycle.",
        "b -> c -> a -> b. Break the cycle.",
        "c -> a -> b -> c. Break the cycle.",
    ]


def test_orchestrations_that_start_themselves_through_agents_are_reported() -> None:
    loaded = load(
        orchestrations=[{"id": "a", "steps": [step("s", "agent", agent_id="boss")]}],
        agents=[
            {"id": "boss", "delegate_agent_ids": ["clerk"]},
            {"id": "clerk", "type": "orchestrator", "orchestration_id": "a", "delegate_agent_ids": ["boss"]},
        ],
    )
    assert "a -> a" in only(errors(loaded))


def test_ids_that_the_api_uses_are_refused() -> None:
    assert 'The id "runs" is reserved by the API' in only(errors(load(orchestrations=[call("runs")])))


def test_reach_has_everything_that_a_run_may_use() -> None:
    loaded = load(
        orchestrations=[
            {
                "id": "top",
                "steps": [
                    step("s1", "orchestration", orchestration_id="inner", next_step_id="s2"),
                    step("s2", "evaluator", route_map={"a": None}, agent_id="judge", next_step_id="s3"),
                    step("s3", "agent", agent_id="boss", allowed_tools=["files__read"]),
                ],
            },
            {"id": "inner", "steps": [step("s", "tool", forced_tool="search")]},
            {"id": "deep", "steps": [step("s", "tool", forced_tool="web__get")]},
            call("other"),
        ],
        agents=[
            {"id": "judge"},
            {"id": "boss", "delegate_agent_ids": ["clerk"]},
            {"id": "clerk", "type": "orchestrator", "orchestration_id": "deep", "tools": ["calc"]},
            {"id": "every", "tools": ["all"]},
            {"id": "unused"},
        ],
        tools=[{"name": name, "url": "https://example.com"} for name in ("search", "calc", "unused")],
        mcp_servers=[{"name": name, "url": "https://example.com"} for name in ("files", "web", "spare")],
    )
    assert loaded.errors == []
    scope = scope_of(parsed.definition for parsed in loaded.definitions)
    assert find_dependencies(("orchestration", "top"), scope) == {
        ("orchestration", "top"), ("orchestration", "inner"), ("orchestration", "deep"),
        ("agent", "judge"), ("agent", "boss"), ("agent", "clerk"),
        ("tool", "search"), ("tool", "calc"), ("mcp_server", "files"), ("mcp_server", "web"),
    }  # fmt: skip
    assert find_dependencies(("orchestration", "other"), scope) == {("orchestration", "other")}
    assert find_dependencies(("agent", "clerk"), scope) == {
        ("agent", "clerk"), ("tool", "calc"), ("orchestration", "deep"), ("mcp_server", "web"),
    }  # fmt: skip
    assert len(find_dependencies(("agent", "every"), scope)) == 7


def test_tools_of_servers_whose_names_contain_the_separator() -> None:
    loaded = load(
        agents=[{"id": "a", "tools": ["my__files__read"]}],
        mcp_servers=[{"name": "my__files", "url": "https://example.com"}],
    )
    assert loaded.errors == []
    scope = scope_of(parsed.definition for parsed in loaded.definitions)
    assert scope.server_of("my__files__read") == "my__files"
    assert scope.server_of("__read") is None


def test_an_agent_may_leave_missing_tools_out() -> None:
    agent = {"id": "a", "tools": ["x"], "on_missing_tools": "skip"}
    loaded = load(agents=[agent])
    assert errors(loaded) == []
    assert 'The tool "x" does not exist' in only(warnings(loaded))
    assert only(warnings(loaded)).endswith("The agent works without it.")
    assert only(errors(load(agents=[{**agent, "on_missing_tools": "fail"}])))


class _CountedServers(dict[str, Any]):
    lookups = 0

    def __contains__(self, name: object) -> bool:
        self.lookups += 1
        return super().__contains__(name)


def test_the_name_of_a_tool_is_compared_with_servers_a_bounded_number_of_times() -> None:
    """Each comparison of a name of a megabyte takes a millisecond."""
    scope = scope_of(())
    scope.servers = servers = _CountedServers()
    assert scope.server_of("a" + "_" * 100_000) is None
    assert 0 < servers.lookups <= 128


def test_cycles_through_agents_and_tools_are_found_and_bounded() -> None:
    loaded = load(
        orchestrations=[
            {
                "id": "top",
                "steps": [step("one", "agent", agent_id="clerk"), step("two", "orchestration", orchestration_id="end")],
            },
            call("end"),
            {"id": "before", "steps": [step("s", "orchestration", orchestration_id="top")]},
        ],
        agents=[{"id": "clerk", "tools": ["report"]}],
        tools=[{"name": "report", "tool_type": "orchestration", "orchestration_id": "top"}],
    )
    assert only(errors(loaded)) == (
        'orchestration "top", step "one": The orchestration would start itself endlessly: top -> top. Break the cycle.'
    )
    many = [
        {"id": f"o{n}", "steps": [step("s", "orchestration", orchestration_id=f"o{(n + 1) % 60}")]} for n in range(60)
    ]
    assert len(errors(load(orchestrations=many))) == 50
