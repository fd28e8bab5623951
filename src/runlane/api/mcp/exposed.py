"""Tasks, agents and orchestrations with `expose: mcp`: each is a separate tool with its input schema.

A call starts a run and waits for its end. If the run takes longer than RUNLANE_MCP_WAIT_SECONDS, the call returns the
id of the run. The name of the tool is the name of the target. If another tool has that name, or clients do not accept
it, it is changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from runlane.api.mcp.run_tools import start_target
from runlane.api.mcp.tool import CHANGE, CallContext, ServedTool, ToolAnswer
from runlane.api.mcp.waiting import follow_run, run_answer
from runlane.domain.options import RunOptions
from runlane.domain.task import Task
from runlane.errors import InvalidRequest
from runlane.store.exposed import ExposedDefinition, list_exposed
from runlane.submit.tasks import MAX_KEY
from runlane.templates.json_schema import misfit

_KEY: Final = "idempotency_key"
_KEY_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY,
    "description": "A repeated call with the same key starts no further run and returns the run of the first call.",
}
_MESSAGE: Final[Mapping[str, Any]] = {"type": "string", "description": "The request."}
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_JSON_TYPES: Final = {"list": "array", "any": None}
# Model providers accept these names, and clients pass them to the model.
_VALID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 64
_HASH: Final = 8
_ABOUT: Final = "The run is durable: if the response has no result yet, call follow_run with its run_id."


async def exposed_tools(caller: CallContext, taken: Collection[str]) -> list[ServedTool]:
    """Return the tools of the exposed targets that the caller may start. `taken` contains the names of other tools."""
    if not caller.may(CHANGE):
        return []
    names = set(taken)
    tasks = [task for _, task in sorted(caller.parts.app.tasks.items()) if task.expose == "mcp"]
    definitions = await list_exposed(caller.parts.database, caller.principal.tenant)
    return [
        *[_task_tool(task, _free_name("task", task.name, names)) for task in tasks],
        *[_definition_tool(found, _free_name(found.kind, found.id, names)) for found in definitions],
    ]


def _free_name(kind: str, name: str, names: set[str]) -> str:
    """Return a valid name that no other tool has, and add it to the names."""
    for candidate in _candidates(kind, name):
        if _VALID.fullmatch(candidate) and candidate not in names:
            names.add(candidate)
            return candidate
    raise AssertionError("the last candidate is unique")


def _candidates(kind: str, name: str) -> Iterable[str]:
    plain = _OTHER.sub("_", name)
    digest = hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()
    yield plain
    yield f"{kind}_{plain}"
    yield f"{kind}_{plain[: _MAX_NAME - len(kind) - _HASH - 2]}_{digest[:_HASH]}"
    yield f"{kind}_{digest[: _MAX_NAME // 2]}"


def _task_tool(task: Task, name: str) -> ServedTool:
    schema = task.input_schema or _ANY_OBJECT
    keyed = _KEY not in schema.get("properties", {})
    return _tool(
        name,
        task.name,
        task.about or f"Runs the task {task.signature}.",
        _with_key(schema) if keyed else schema,
        partial(_call, "task", task.name, keyed),
    )


def _definition_tool(definition: ExposedDefinition, name: str) -> ServedTool:
    body = definition.body
    fields: Mapping[str, Any] = body.get("state_schema") or {}
    values: dict[str, Any] = {"type": "object", "description": "Further values of the initial state."}
    if fields:
        values["properties"] = {key: _field_schema(field) for key, field in fields.items()}
    schema = {
        "type": "object",
        "properties": {"message": _MESSAGE, "input": values},
        "required": ["message"],
        "additionalProperties": False,
    }
    about = body.get("description") or f'Runs the {definition.kind} "{definition.id}".'
    title = body.get("name") or definition.id
    return _tool(name, title, about, _with_key(schema), partial(_call, definition.kind, definition.id, True))


def _field_schema(field: Mapping[str, Any]) -> dict[str, Any]:
    kind = field.get("type", "any")
    shown = {
        "type": _JSON_TYPES.get(kind, kind),
        "description": field.get("description"),
        "default": field.get("default"),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}


def _with_key(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "properties": {**schema.get("properties", {}), _KEY: _KEY_SCHEMA}}


def _tool(name: str, title: str, about: str, schema: Mapping[str, Any], perform: Any) -> ServedTool:
    async def checked(caller: CallContext, given: Mapping[str, Any]) -> ToolAnswer:
        problem = misfit(dict(given), schema)
        if problem is not None:
            raise InvalidRequest(f'The tool "{name}" was not called: {problem}.')
        return await perform(caller, given)

    return ServedTool(name, title, f"{about} {_ABOUT}", CHANGE, schema, checked)


async def _call(kind: str, target: str, keyed: bool, caller: CallContext, given: Mapping[str, Any]) -> ToolAnswer:
    arguments = dict(given)
    key = arguments.pop(_KEY, None) if keyed else None
    message = "" if kind == "task" else str(arguments.get("message", ""))
    values: Mapping[str, Any] = arguments if kind == "task" else arguments.get("input", {})
    options = RunOptions(idempotency_key=key or caller.idempotency_key)
    accepted = await start_target(caller, kind, target, message, values, options)
    run = await follow_run(caller, accepted.run_id, 0, caller.parts.app.settings.mcp_wait_seconds)
    return run_answer(run, replayed=accepted.replayed)
