"""Loose forms: definitions as other tools write them, put into the form that our parser takes.

Nothing is decided silently: whatever is not kept as it was is told. What cannot be put right is left as it is, for the
parser to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import orjson

from runlane.definitions.checks.placeholders import known_keys, templates_of
from runlane.definitions.graph import TransitionKind, graph_of
from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN
from runlane.definitions.schema.definition import Orchestration
from runlane.templates.template import placeholders_in, with_key

Tell = Callable[[str, str | None], None]

_STATE_TYPES: Final = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean", "array": "list",
    "dict": "object", "map": "object", "json": "object",
}  # fmt: skip
_KNOWN_STATE_TYPES: Final = {"any", "string", "number", "integer", "boolean", "list", "object"}
_FIELD_TYPES: Final = {
    "string": "text", "str": "text", "input": "text", "longtext": "textarea", "multiline": "textarea", "int": "number",
    "integer": "number", "float": "number", "bool": "boolean", "checkbox": "boolean", "dropdown": "select",
    "choice": "select", "radio": "select", "checkboxes": "multiselect", "multi_select": "multiselect",
}  # fmt: skip
_KNOWN_FIELD_TYPES: Final = {"text", "textarea", "number", "boolean", "date", "email", "select", "multiselect"}
_AGENT_TYPES: Final = {"conversational", "analysis", "code", "orchestrator", "delegate", "builder"}
_METHODS: Final = {"GET", "POST", "PUT", "PATCH", "DELETE"}


def tidy_orchestration(body: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """An orchestration in our form."""
    body = dict(body)
    if body.get("trigger") not in (None, "manual", "scheduled"):
        tell(f"The trigger {body['trigger']!r} is not known and left out.", None)
        del body["trigger"]
    schema = body.get("state_schema")
    if isinstance(schema, dict):
        body["state_schema"] = {
            key: _state_field(key, value, tell) for key, value in cast("dict[str, Any]", schema).items()
        }
    if isinstance(body.get("steps"), list):
        body["steps"] = [
            _step(dict(cast("dict[str, Any]", step)), tell) if isinstance(step, dict) else step
            for step in cast("list[Any]", body["steps"])
        ]
    return body


def tidy_agent(body: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """An agent in our form."""
    body = dict(body)
    kind = body.get("type")
    if kind is not None and kind not in _AGENT_TYPES:
        tell(f"The type {kind!r} is not known; it is conversational now.", None)
        kind = body["type"] = "conversational"
    if kind == "orchestrator" and not body.get("orchestration_id"):
        tell("An orchestrator without an orchestration; it is conversational now.", None)
        body["type"] = "conversational"
    elif kind != "orchestrator" and body.get("orchestration_id"):
        tell("Only orchestrators have an orchestration_id; it is left out.", None)
        del body["orchestration_id"]
    if isinstance(body.get("tools"), str):
        body["tools"] = [part.strip() for part in body["tools"].split(",") if part.strip()]
    return body


def tidy_tool(body: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """A tool in our form."""
    body = _named(body, tell)
    body.setdefault("tool_type", "python" if body.get("code") and not body.get("url") else "http")
    method = body.get("method")
    if isinstance(method, str):
        body["method"] = method.upper()
        if method.upper() not in _METHODS:
            tell(f"The method {method!r} is not known; it is GET now.", None)
            body["method"] = "GET"
    for name in ("inputSchema", "outputSchema", "input_schema", "output_schema"):
        if isinstance(body.get(name), str):
            body[name] = _json(body[name])
    return body


def tidy_server(body: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """An MCP server in our form."""
    body = _named(body, tell)
    kind = body.get("server_type")
    if kind not in ("stdio", "remote"):
        body["server_type"] = "stdio" if body.get("command") else "remote"
        if kind is not None:
            tell(f"The server type {kind!r} is {body['server_type']} here.", None)
    if isinstance(body.get("args"), str):
        body["args"] = body["args"].split()
    return body


def bind_first_input(orchestration: Orchestration) -> tuple[Orchestration, str | None]:
    """Let the run's message fill the one placeholder of the first step that nothing fills; its key, if there is one.

    Where unknown placeholders are pasted through, people name the message as they like.
    """
    unbound = _unbound(orchestration)
    if len(unbound) != 1:
        # Several are parameters, which only the run's input can give.
        return orchestration, None
    (key,) = unbound
    steps = [
        step.model_copy(update={name: _replaced(value, key) for name, value in templates_of(step)})
        for step in orchestration.steps
    ]
    return orchestration.model_copy(update={"steps": steps}), key


def _unbound(orchestration: Orchestration) -> set[str]:
    """What the first step asks for and nothing gives; the first steps of its parts, if it has parts."""
    graph = graph_of(orchestration)
    first = graph.steps.get(orchestration.entry)
    if first is None:
        return set()
    inside = (TransitionKind.BRANCH, TransitionKind.BODY)
    begins = [graph.steps.get(link.target or "") for link in graph.links[first.id] if link.kind in inside]
    asked = {
        path.partition(".")[0]
        for step in (first, *(step for step in begins if step is not None))
        for _, value in templates_of(step)
        for path in placeholders_in(value)
    }
    return asked - known_keys(orchestration)


def _replaced(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return with_key(value, key, "user_input")
    if isinstance(value, dict):
        return {name: _replaced(inner, key) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_replaced(inner, key) for inner in cast("list[Any]", value)]
    return value


def _named(body: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """With a name that can be an id; what people read stays what it was."""
    name = body.get("name")
    if not isinstance(name, str) or re.fullmatch(ID_PATTERN, name):
        return dict(body)
    made = re.sub(r"[^A-Za-z0-9_.\-]+", "_", name).strip("_.-")
    if not made:
        return dict(body)
    tell(f"The name {name!r} is {made} now.", None)
    label = {} if body.get("label") or body.get("generalName") else {"label": name[:200]}
    return {**body, "name": made[:128], **label}


def _state_field(key: str, value: Any, tell: Tell) -> Any:
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        return {"default": value}
    field = dict(cast("dict[str, Any]", value))
    kind = field.get("type")
    if kind is None or kind in _KNOWN_STATE_TYPES:
        return field
    field["type"] = _STATE_TYPES.get(str(kind).lower(), "any")
    if field["type"] == "any":
        tell(f'The type {kind!r} of "{key}" is not known; it is any now.', None)
    return field


def _step(step: dict[str, Any], tell: Tell) -> dict[str, Any]:
    name = step.get("id") if isinstance(step.get("id"), str) else None
    if step.get("type") == "agent" and not step.get("agent_id"):
        tell("The step has no agent; it is a model call without tools (llm) now.", name)
        step["type"] = "llm"
    branches = step.get("parallel_branches")
    if isinstance(branches, list):
        step["parallel_branches"] = [
            [branch] if isinstance(branch, str) else branch for branch in cast("list[Any]", branches)
        ]
    fields = step.get("human_fields")
    if isinstance(fields, list):
        step["human_fields"] = [
            _human_field(dict(cast("dict[str, Any]", field)), name, tell) if isinstance(field, dict) else field
            for field in cast("list[Any]", fields)
        ]
    return step


def _human_field(field: dict[str, Any], step: str | None, tell: Tell) -> dict[str, Any]:
    written = field.get("name") or field.get("key")
    if isinstance(written, str) and re.fullmatch(KEY_PATTERN, written) is None:
        made = re.sub(r"\W+", "_", written, flags=re.ASCII).strip("_") or "field"
        made = made if not made[0].isdigit() else f"field_{made}"
        tell(f"The field {written!r} is called {made} now.", step)
        field = {**{key: value for key, value in field.items() if key != "key"}, "name": made}
        field.setdefault("label", written)
    kind = field.get("type")
    if kind is not None and kind not in _KNOWN_FIELD_TYPES:
        field["type"] = _FIELD_TYPES.get(str(kind).lower(), "text")
        tell(f'The type {kind!r} of the field "{written}" is {field["type"]} now.', step)
    if field.get("type") in ("select", "multiselect") and not field.get("options"):
        tell(f'The field "{written}" has no options to choose from; it is text now.', step)
        field["type"] = "text"
    return field


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
