"""Convert definitions of other tools into the form of the parser.

Every change is reported as a warning. What cannot be converted is left unchanged, and rejected by the parser.
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

Warn = Callable[[str, str | None], None]

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


def tidy_orchestration(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Convert an orchestration."""
    body = dict(body)
    # It becomes a schedule of its own.
    own = body.pop("schedule", None)
    if body.get("trigger") == "scheduled" and own is None:
        warn("It has a scheduled trigger and no schedule. If no schedule of the bundle starts it, create one.", None)
    if body.get("trigger") not in (None, "manual", "scheduled"):
        warn(f"The trigger {body['trigger']!r} is unknown and was removed.", None)
        del body["trigger"]
    schema = body.get("state_schema")
    if isinstance(schema, dict):
        body["state_schema"] = {
            key: _state_field(key, value, warn) for key, value in cast("dict[str, Any]", schema).items()
        }
    if isinstance(body.get("steps"), list):
        body["steps"] = [
            _step(dict(cast("dict[str, Any]", step)), warn) if isinstance(step, dict) else step
            for step in cast("list[Any]", body["steps"])
        ]
    return body


def tidy_agent(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Convert an agent."""
    body = dict(body)
    kind = body.get("type")
    if kind is not None and kind not in _AGENT_TYPES:
        warn(f"The type {kind!r} is unknown; changed to conversational.", None)
        kind = body["type"] = "conversational"
    if kind == "orchestrator" and not body.get("orchestration_id"):
        warn("An orchestrator without an orchestration_id; changed to conversational.", None)
        body["type"] = "conversational"
    elif kind != "orchestrator" and body.get("orchestration_id"):
        warn("Only orchestrators have an orchestration_id; removed.", None)
        del body["orchestration_id"]
    if isinstance(body.get("tools"), str):
        body["tools"] = [part.strip() for part in body["tools"].split(",") if part.strip()]
    return body


def tidy_tool(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Convert a tool."""
    body = _named(body, warn)
    body.setdefault("tool_type", "python" if body.get("code") and not body.get("url") else "http")
    method = body.get("method")
    if isinstance(method, str):
        body["method"] = method.upper()
        if method.upper() not in _METHODS:
            warn(f"The method {method!r} is unknown; changed to GET.", None)
            body["method"] = "GET"
    for name in ("inputSchema", "outputSchema", "input_schema", "output_schema"):
        if isinstance(body.get(name), str):
            body[name] = _json(body[name])
    return body


def tidy_server(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Convert an MCP server."""
    body = _named(body, warn)
    kind = body.get("server_type")
    if kind not in ("stdio", "remote"):
        body["server_type"] = "stdio" if body.get("command") else "remote"
        if kind is not None:
            warn(f"The server type {kind!r} was changed to {body['server_type']}.", None)
    if isinstance(body.get("args"), str):
        body["args"] = body["args"].split()
    return body


def bind_first_input(orchestration: Orchestration) -> tuple[Orchestration, str | None]:
    """Replace the only unset placeholder of the first step by the run's message; return its key, if there is one.

    Other products leave unknown placeholders in the text, so authors choose any name for the message.
    """
    unbound = _unbound(orchestration)
    if len(unbound) != 1:
        # Several are parameters, which only the run's input can set.
        return orchestration, None
    (key,) = unbound
    steps = [
        step.model_copy(update={name: _replaced(value, key) for name, value in templates_of(step)})
        for step in orchestration.steps
    ]
    return orchestration.model_copy(update={"steps": steps}), key


def _unbound(orchestration: Orchestration) -> set[str]:
    """Return the unset keys of the first step, or of the first steps of its parts."""
    graph = graph_of(orchestration)
    first = graph.steps.get(orchestration.entry)
    if first is None:
        return set()
    inside = (TransitionKind.BRANCH, TransitionKind.BODY)
    begins = [graph.steps.get(link.target or "") for link in graph.links[first.id] if link.kind in inside]
    used = {
        path.partition(".")[0]
        for step in (first, *(step for step in begins if step is not None))
        for _, value in templates_of(step)
        for path in placeholders_in(value)
    }
    return used - known_keys(orchestration)


def _replaced(value: Any, key: str) -> Any:
    if isinstance(value, str):
        return with_key(value, key, "user_input")
    if isinstance(value, dict):
        return {name: _replaced(inner, key) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_replaced(inner, key) for inner in cast("list[Any]", value)]
    return value


def _named(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Return the body with a name that is a valid id; the label keeps the original name."""
    name = body.get("name")
    if not isinstance(name, str) or re.fullmatch(ID_PATTERN, name):
        return dict(body)
    made = re.sub(r"[^A-Za-z0-9_.\-]+", "_", name).strip("_.-")
    if not made:
        return dict(body)
    warn(f"The name {name!r} was changed to {made}.", None)
    label = {} if body.get("label") or body.get("generalName") else {"label": name[:200]}
    return {**body, "name": made[:128], **label}


def _state_field(key: str, value: Any, warn: Warn) -> Any:
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
        warn(f'The type {kind!r} of "{key}" is unknown; changed to any.', None)
    return field


def _step(step: dict[str, Any], warn: Warn) -> dict[str, Any]:
    name = step.get("id") if isinstance(step.get("id"), str) else None
    if step.get("type") == "agent" and not step.get("agent_id"):
        warn("The step has no agent; changed to a model call without tools (llm).", name)
        step["type"] = "llm"
    branches = step.get("parallel_branches")
    if isinstance(branches, list):
        step["parallel_branches"] = [
            [branch] if isinstance(branch, str) else branch for branch in cast("list[Any]", branches)
        ]
    fields = step.get("human_fields")
    if isinstance(fields, list):
        step["human_fields"] = [
            _human_field(dict(cast("dict[str, Any]", field)), name, warn) if isinstance(field, dict) else field
            for field in cast("list[Any]", fields)
        ]
    return step


def _human_field(field: dict[str, Any], step: str | None, warn: Warn) -> dict[str, Any]:
    written = field.get("name") or field.get("key")
    if isinstance(written, str) and re.fullmatch(KEY_PATTERN, written) is None:
        made = re.sub(r"\W+", "_", written, flags=re.ASCII).strip("_") or "field"
        made = made if not made[0].isdigit() else f"field_{made}"
        warn(f"The field {written!r} was renamed to {made}.", step)
        field = {**{key: value for key, value in field.items() if key != "key"}, "name": made}
        field.setdefault("label", written)
    kind = field.get("type")
    if kind is not None and kind not in _KNOWN_FIELD_TYPES:
        field["type"] = _FIELD_TYPES.get(str(kind).lower(), "text")
        warn(f'The type {kind!r} of the field "{written}" was changed to {field["type"]}.', step)
    if field.get("type") in ("select", "multiselect") and not field.get("options"):
        warn(f'The field "{written}" has no options; changed to text.', step)
        field["type"] = "text"
    return field


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
