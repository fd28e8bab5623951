"""Checks of tools, MCP servers and schemas: what they call exists, can be filled, and has no cycles."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.dependencies import find_dependencies
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.definitions.scope import scope_of
from tests.unit.test_definition_references import call, errors, load, only, step, warnings

URL = "https://example.com"
URL_RULE = (
    "It must begin with http:// or https:// and a host without placeholders or credentials, "
    "such as https://api.example.com/items/{id}. Put credentials into headers."
)


def tool(name: str = "t", **fields: Any) -> dict[str, Any]:
    return {"name": name, **({"url": URL} if "tool_type" not in fields else {}), **fields}


def agent_tool(name: str, agent: str) -> dict[str, Any]:
    return tool(name, tool_type="agent", agent_id=agent)


def orchestration_tool(name: str, orchestration: str) -> dict[str, Any]:
    return tool(name, tool_type="orchestration", orchestration_id=orchestration)


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ({"tools": [tool(input_schema={"type": "strin"})]},
         ('tool "t", field input_schema: It is not a valid JSON Schema: "type" is not a type; types are string, '
          "number, integer, boolean, object, array and null. Correct it; see https://json-schema.org.")),
        ({"tools": [tool(inputSchema={"$ref": "https://x.example/s"})]},
         ("field input_schema: It is not a valid JSON Schema: a $ref points outside of it, and nothing is fetched; "
          "put its target under $defs. Correct it; see https://json-schema.org.")),
        ({"tools": [tool(input_schema={"type": "array"})]},
         ("field input_schema: Arguments are an object, but the schema has the type 'array'. "
          'Write "type": "object" with properties.')),
        ({"tools": [tool(output_schema={"properties": 5})]},
         ('field output_schema: It is not a valid JSON Schema: "properties": it is not of type "object". '
          "Correct it; see https://json-schema.org.")),
        ({"agents": [{"id": "a", "output_schema": {"type": 1}}]},
         ('agent "a", field output_schema: It is not a valid JSON Schema: "type" is not a type; types are string, '
          "number, integer, boolean, object, array and null. Correct it; see https://json-schema.org.")),
        ({"agents": [{"id": "a", "output_schema": {"type": "string"}}]},
         ("field output_schema: The answer is an object, but the schema has the type 'string'. "
          'Write "type": "object" with properties.')),
        ({"orchestrations": [{"id": "o", "steps": [step("s", "llm", output_schema={"pattern": "("})]}]},
         ('step "s", field output_schema: It is not a valid JSON Schema: "pattern" is not a supported pattern. '
          "Correct it; see https://json-schema.org.")),
        ({"agents": [{"id": "a"}], "orchestrations": [
            {"id": "o", "steps": [step("s", "agent", agent_id="a", output_schema={"required": "x"})]}]},
         ('step "s", field output_schema: It is not a valid JSON Schema: "required": it is not of type "array". '
          "Correct it; see https://json-schema.org.")),
        ({"tools": [tool(url="https://{host}/x")]}, f'tool "t", field url: {URL_RULE}'),
        ({"tools": [tool(url="x.example/y")]}, URL_RULE),
        ({"tools": [tool(url=f"{URL}/{{a.b}}")]},
         ("field url: It has a brace outside of a placeholder. "
          "Placeholders are {field}, {data.field}, {data} and {secret.NAME}.")),
        ({"tools": [tool("final_answer")]},
         ('tool "final_answer", field name: This name is reserved for the answers of models with an output_schema. '
          "Choose another.")),
        ({"tools": [tool(headers={"a b": "x"})]},
         "field headers.a b: This is not a valid name of a header. Use letters, digits and '-'."),
        ({"tools": [tool(headers={"Host": "inner.example"})]},
         "field headers.Host: This header is set by the HTTP client. Remove it."),
        ({"tools": [tool(headers={"X-A": "x\r\nX-B: y"})]},
         "field headers.X-A: A header must not contain line breaks. Remove them."),
        ({"mcp_servers": [{"name": "m", "url": "x"}]}, f'MCP server "m", field url: {URL_RULE}'),
        ({"mcp_servers": [{"name": "m", "url": f"{URL}/{{a}}"}]},
         "field url: Only {secret.NAME} is allowed here: a server has no arguments."),
        ({"mcp_servers": [{"name": "m", "url": URL, "headers": {"Host": "x"}}]},
         "field headers.Host: This header is set by the HTTP client. Remove it."),
        ({"mcp_servers": [{"name": "m", "url": URL, "allowed_tools": ["m__read"]}]},
         'field allowed_tools: "m__read" begins with the name of the server. Write "read".'),
        ({"mcp_servers": [{"name": "m", "url": URL, "allowed_tools": ["a b"]}]},
         "field allowed_tools: 'a b' is not a valid tool name. Use 1 to 128 of A-Z, a-z, 0-9, '_', '-', '.' and '/'."),
        ({"mcp_servers": [{"name": "m", "url": URL, "effects": {"": "once"}}]},
         "field effects: '' is not a valid tool name. Use 1 to 128 of A-Z, a-z, 0-9, '_', '-', '.' and '/'."),
        ({"mcp_servers": [{"name": "m", "url": URL, "allowed_tools": ["read"]}],
          "agents": [{"id": "a", "tools": ["m__raed"]}]},
         'field tools: The MCP server "m" does not allow "raed" (did you mean "read"?). Its allowed_tools: read.'),
        ({"tools": [agent_tool("t", "x")]}, 'tool "t", field agent_id: The agent "x" does not exist. Known: none.'),
        ({"tools": [orchestration_tool("t", "x")]},
         'tool "t", field orchestration_id: The orchestration "x" does not exist. Known: none.'),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_location(bodies: dict[str, list[Any]], expected: str) -> None:
    assert expected in only(errors(load(**bodies)))


def test_valid_definitions_have_no_problems() -> None:
    loaded = load(
        tasks=["send"],
        agents=[
            {"id": "a", "tools": ["t", "m__read", "ask_b", "mail"], "output_schema": {"type": "object"}},
            {"id": "b", "tools": ["m__write", "free__anything"]},
        ],
        tools=[
            tool(
                url=f"{URL}/{{id}}?q={{q}}&k={{secret.KEY}}",
                headers={"X-Own": "{own}"},
                input_schema={
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "q": {}, "own": {}},
                    "required": ["id"],
                },
            ),
            agent_tool("ask_b", "b"),
            tool("mail", tool_type="task", task="send"),
            orchestration_tool("start", "o"),
        ],
        mcp_servers=[
            {"name": "m", "url": URL, "allowed_tools": ["read", "write"], "effects": {"write": "once"}},
            {"name": "free", "server_type": "stdio", "command": "x", "effects": {"a/b.c-d": "ask"}},
        ],
        orchestrations=[call("o")],
    )
    assert [str(problem) for problem in loaded.problems] == []


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ({"tools": [tool(url=f"{URL}/{{idd}}", input_schema={"properties": {"id": {}}})]},
         ('field url: input_schema has no property for {idd} (did you mean "id"?), so the model does not pass it. '
          "Properties: id.")),
        ({"tools": [tool(url=f"{URL}/{{id}}", input_schema={"properties": {"id": {}}})]},
         'field url: The path needs {id}, but input_schema does not require "id". Add it to required.'),
        ({"tools": [tool(headers={"X": "{x}"}, input_schema={"properties": {"id": {}}})]},
         "field headers.X: input_schema has no property for {x}, so the model does not pass it. Properties: id."),
        ({"mcp_servers": [{"name": "m", "url": URL, "allowed_tools": ["read"], "effects": {"reed": "once"}}]},
         '"reed" (did you mean "read"?) is not in allowed_tools, so it is never called.'),
    ],
)  # fmt: skip
def test_oddities_are_warnings(bodies: dict[str, list[Any]], expected: str) -> None:
    loaded = load(**bodies)
    assert errors(loaded) == []
    assert expected in only(warnings(loaded))


def test_tasks_of_tools_are_checked_where_they_are_known() -> None:
    tools = [tool(tool_type="task", task="sed")]
    assert errors(load(tools=tools)) == []
    assert 'field task: No task "sed" is registered (did you mean "send"?)' in only(errors(load(["send"], tools=tools)))


def test_agents_that_call_themselves_by_tools_are_reported() -> None:
    loaded = load(agents=[{"id": "a", "tools": ["ask_a"]}], tools=[agent_tool("ask_a", "a")])
    message = only(errors(loaded)[:1])
    assert 'agent "a", field tools: The agent would call itself endlessly: agent a -> tool ask_a -> agent a' in message
    longer = load(
        agents=[{"id": "a", "tools": ["to_b"]}, {"id": "b", "tools": ["to_c"]}, {"id": "c", "tools": ["to_a"]}],
        tools=[agent_tool("to_a", "a"), agent_tool("to_b", "b"), agent_tool("to_c", "c")],
    )
    assert "agent a -> tool to_b -> agent b -> tool to_c -> agent c -> tool to_a -> agent a" in only(errors(longer))
    every = load(agents=[{"id": "a", "tools": ["all"]}], tools=[agent_tool("ask_a", "a")])
    assert 'Name the tools of the agent instead of "all".' in only(errors(every))
    fine = load(
        agents=[{"id": "a", "tools": ["to_b"]}, {"id": "b"}], tools=[agent_tool("to_b", "b"), agent_tool("to_a", "a")]
    )
    assert errors(fine) == []


def test_a_cycle_through_a_stored_agent_is_reported_for_the_tool() -> None:
    stored = [parsed.definition for parsed in load(agents=[{"id": "a"}], tools=[agent_tool("t", "a")]).definitions]
    new = parse_bodies({"agents": [{"id": "a", "tools": ["t"]}]})
    assert "would call itself" in only(errors(check_loaded(new, stored)))
    stored = [parsed.definition for parsed in parse_bodies({"agents": [{"id": "a", "tools": ["t"]}]}).definitions]
    new = parse_bodies({"tools": [agent_tool("t", "a")]})
    assert 'tool "t", field agent_id: The agent would call itself' in only(errors(check_loaded(new, stored)))


def test_orchestrations_that_start_themselves_by_tools_are_reported() -> None:
    by_step = load(
        orchestrations=[{"id": "o", "steps": [step("s", "tool", forced_tool="again", arguments={})]}],
        tools=[orchestration_tool("again", "o")],
    )
    assert 'step "s": The orchestration would start itself endlessly: o -> o' in only(errors(by_step))
    by_agent = load(
        orchestrations=[{"id": "o", "steps": [step("s", "agent", agent_id="a")]}],
        agents=[{"id": "a", "tools": ["ask"]}, {"id": "b", "tools": ["again"]}],
        tools=[agent_tool("ask", "b"), orchestration_tool("again", "o")],
    )
    assert "o -> o" in only(errors(by_agent))


def test_the_targets_of_tools_are_pinned_with_them() -> None:
    loaded = load(
        orchestrations=[{"id": "o", "steps": [step("s", "agent", agent_id="a")]}, call("inner")],
        agents=[{"id": "a", "tools": ["ask", "start"]}, {"id": "b"}],
        tools=[agent_tool("ask", "b"), orchestration_tool("start", "inner")],
    )
    scope = scope_of(parsed.definition for parsed in loaded.definitions)
    assert find_dependencies(("orchestration", "o"), scope) == {
        ("orchestration", "o"),
        ("orchestration", "inner"),
        ("agent", "a"),
        ("agent", "b"),
        ("tool", "ask"),
        ("tool", "start"),
    }
