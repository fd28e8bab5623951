"""The reference page of definitions, generated from the classes that parse them.

`python -m tests.pages.definitions > docs/reference/definitions.md` writes it. A test compares both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runlane.definitions.parser import STEP_TYPES
from runlane.definitions.schema.agent_context import AgentMemory, Compaction
from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN
from runlane.definitions.schema.definition import Agent, McpServer, ModelSettings, Orchestration, StateField, Tool
from runlane.definitions.schema.step import EndStep, HumanField, StepRetry
from runlane.definitions.schema.trigger import Trigger
from runlane.domain.concurrency import ConcurrencyStrategy
from runlane.domain.failure_codes import FAILURE_CODES, RUN_FAILURE_CODES
from runlane.domain.flow_control import (
    BacklogRule,
    BatchRule,
    ConcurrencyLimitRule,
    DebounceRule,
    FlowControl,
    RateLimitRule,
    ThrottleRule,
    UniqueRule,
)
from runlane.domain.schedule import Exclusion, ScheduleSettings, ScheduleTarget, TimeSpec

_INTRO: Final = """\
# Definitions

Orchestrations, agents, tools, MCP servers, schedules and triggers are JSON files in a directory, by default
`definitions`:

```text
definitions/
  orchestrations/   one file per orchestration, or lists of them
  agents/
  tools/
  mcp_servers/
  triggers/
  schedules/
```

A file contains one definition or a list of definitions; the folder determines their kind. Files that do not end in
`.json` and hidden files are ignored. A file has at most 8 MiB, a definition 2 MiB, an orchestration 500 steps, and a
tenant 10,000 definitions with 64 MiB together.

`runlane validate` reports each problem with the file, the definition, the step, the field and the fix. `runlane sync`
stores the directory in the database, `runlane dev` does so whenever a file changes. Definitions without a file stay
until `runlane sync --prune`; `dev` removes them from the embedded database of the project.
`runlane schema orchestration` prints a JSON Schema for completion and validation in editors: `"$schema"` is allowed in
every definition.

Unknown fields are errors. Fields of other step types that are empty or have their default, as editors of other tools
write them, are ignored with a warning. `null` means not given where a field has a default.

## Names

An **id** has 1 to 128 of `A-Z`, `a-z`, `0-9`, `_`, `.` and `-` and begins with a letter or digit. A **key** of the
state has 1 to 128 of `A-Z`, `a-z`, `0-9` and `_` and begins with a letter or `_`.

## The state and placeholders

The state of a run is one JSON object. At the start it has the defaults of `state_schema`, then `user_input` and
`user_query` (both the run's message), then the run's `input`. The output of a step is stored under its `output_key`.

Fields whose description mentions placeholders are templates, rendered from the state:

| placeholder | value |
| --- | --- |
| `{state.key}`, `{{key}}` | the value of `key` |
| `{state.key.sub.0}`, `{{key.sub.0}}` | a part of it: names in objects, positions in lists, `-1` for the last |
| `\\{{key}}` | the text `{{key}}`; a backslash before a placeholder makes it text, two are one backslash |

Within text, a string is inserted as it is, null as nothing, and any other value as JSON. In `arguments` and `input`, a
string that is exactly one placeholder becomes the value itself. Other braces, such as those of JSON, are text. A
placeholder that can never have a value is an error when definitions are checked; one without a value in a run fails the
step. Inserted values are not rendered again.

Conditions (`if_condition`, `switch_expression`, `while_condition`, `for_each`) are expressions and use `state.key`,
without braces. They and scripts (`transform_code`) are checked like placeholders: a key that is never set, a field
that the form of a human step does not have, and a comparison with a value that is not an option of a select field are
errors. A key that may be missing is read with `state.get("key")` or after `"key" in state`, and is not reported.

## Warnings

A probable mistake, or something that this installation cannot execute, is a warning: `runlane validate`, sync and
import report it and succeed. `runlane validate --strict` exits with code 1 if there are warnings.

| warning | reason |
| --- | --- |
| a model with an unknown provider, or without one where several may serve it | the step would fail |
| a model named `scripted` without `answers` | the step would fail |
| `{key}`, `${key}` and templates of other formats in a template | they are plain text |
| placeholders in an agent's `system_prompt` | it is sent unchanged |
| a script that never sets `result` | the step would fail |
| a tool or MCP server at an address that `RUNLANE_OUTBOUND_ALLOW` does not allow | the call would be refused |
| a case of a `switch` that is not an option of its select field | it is never taken |

## Secrets

Definitions are stored forever and displayed, so they must not contain credentials. Headers, environment variables and
tokens refer to a secret as `{secret.NAME}`; a value that looks like a credential is rejected.

## Versions

The version of a definition is the SHA-256 of its content in canonical form: JSON with sorted keys, without fields that
equal their default and without `created_at` and `updated_at`. Versions are kept. A run uses, from its start to its end,
the versions that were current when it was accepted, including those of all definitions that it can reach; changing or
removing a definition does not affect it.
"""

_STEPS: Final = """\
## Steps

Every step has a `type` and these fields; the following sections list the fields of each type.
"""

_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "llm": {"prompt_template": "Summarise: {state.facts}", "output_key": "summary", "next_step_id": "publish"},
    "agent": {"agent_id": "researcher", "prompt_template": "Find facts on {{user_input}}", "output_key": "facts"},
    "tool": {"forced_tool": "search", "arguments": {"query": "{{user_input}}"}, "output_key": "hits"},
    "evaluator": {
        "evaluator_prompt": "Is this good enough? {state.summary}",
        "route_map": {"good": "publish", "bad": "research"},
        "route_descriptions": {"good": "true and complete", "bad": "anything else"},
        "fallback_route": "bad",
    },
    "parallel": {"parallel_branches": [["draft"], ["find_title", "shorten_title"]], "next_step_id": "join"},
    "merge": {"input_keys": ["draft", "title"], "merge_strategy": "dict", "output_key": "parts"},
    "loop": {
        "for_each": "state.hits",
        "loop_step_ids": ["read", "rate"],
        "max_concurrency": 4,
        "output_key": "ratings",
    },
    "human": {
        "human_prompt": "Publish this? {state.summary}",
        "human_fields": [
            {"name": "decision", "type": "select", "options": ["approve", "reject"], "required": True},
            {"name": "notes", "type": "textarea", "label": "Notes for the author"},
        ],
        "expires_after_seconds": 86400,
        "on_expiry": "remind",
        "output_key": "review",
    },
    "transform": {"transform_code": "result = sorted(state['hits'])[:3]", "output_key": "best"},
    "extract_json": {"input_keys": ["summary"], "required": True, "output_key": "facts"},
    "if_else": {
        "if_condition": "state.review.decision == 'approve'",
        "if_true_step_id": "publish",
        "if_false_step_id": "draft",
    },
    "switch": {
        "switch_expression": "state.language",
        "switch_cases": {"en": "publish", "de": "translate"},
        "switch_default_step_id": "sorry",
    },
    "print": {"print_content": "Done: {state.summary}", "output_key": "response"},
    "end": {},
    "orchestration": {"orchestration_id": "review", "message": "{state.summary}", "input": {"facts": "{{facts}}"}},
    "task": {"task": "send_mail", "arguments": {"to": "{{review.email}}", "body": "{{summary}}"}},
    "wait": {"event": "payment", "expires_after_seconds": 3600, "on_expiry": "remind"},
}


_CODES: Final = """\
### Failure codes

The codes of failed steps: `code` of the event `step_error`, of `error` in the state, and of `retry.on`. Other codes in
`retry.on` are errors of the definition. Models that you register may fail with their own codes; raise one of these if
steps should refer to it.
"""
_RUN_CODES: Final = """\
These end the whole run, and `retry` must not name them:
"""

_SCHEDULES: Final = """\
A moment is a string with an offset, such as `2026-01-31T12:00:00Z`. See [schedules](../how-to/schedules.md).
"""


_FLOW_CONTROL: Final = """\
A key is a template over the fields of the input, `tags` and, for orchestrations and agents, `message`; without it, all
runs of the target share one key. See [flow control](../how-to/flow-control.md).
"""
_RULES: Final[dict[str, type[BaseModel]]] = {
    "unique": UniqueRule,
    "rate_limit": RateLimitRule,
    "throttle": ThrottleRule,
    "debounce": DebounceRule,
    "batch": BatchRule,
    "concurrency": ConcurrencyLimitRule,
    "max_backlog": BacklogRule,
}


def page() -> str:
    """Return the page as Markdown."""
    parts = [
        _INTRO,
        _section("Orchestrations", Orchestration, without={"steps"}),
        _section("State fields", StateField, level=3),
        f"{_STEPS}\n{_table(EndStep, without={'type'})}",
        _section("Retry", StepRetry, level=3),
        f"{_CODES}\n{_codes(FAILURE_CODES)}\n{_RUN_CODES}\n{_codes(RUN_FAILURE_CODES)}",
    ]
    for name, kind in STEP_TYPES.items():
        common = set(EndStep.model_fields)
        body = {"id": name if name != "if_else" else "choose", "type": name, **_EXAMPLES[name]}
        example = f"```json kind=step\n{json.dumps(body, indent=2, ensure_ascii=False)}\n```\n"
        parts.append(f"{_section(name, kind, level=3, without=common)}\n{example}")
        if name == "human":
            parts.append(_section("Fields of a human step", HumanField, level=4))
    parts += [
        _section("Agents", Agent),
        _section("Model settings", ModelSettings),
        _section("Compaction", Compaction, level=3),
        _section("Memory of agents", AgentMemory, level=3),
        _section("Tools", Tool),
        _section("MCP servers", McpServer),
        f"{_section('Schedules', ScheduleSettings)}\n{_SCHEDULES}",
        _section("Targets of schedules", ScheduleTarget, level=3),
        _section("Times of schedules", TimeSpec, level=3),
        _section("Exclusions of schedules", Exclusion, level=3),
        _section("Triggers", Trigger),
        f"{_section('Flow control', FlowControl)}\n{_FLOW_CONTROL}",
        *(_section(f"Rule {name}", kind, level=3) for name, kind in _RULES.items()),
    ]
    return "\n".join(parts)


def _codes(codes: Mapping[str, str]) -> str:
    rows = [f"| `{code}` | {about} |" for code, about in codes.items()]
    return "\n".join(("| code | |", "| --- | --- |", *rows, ""))


def _section(title: str, model: type[BaseModel], *, level: int = 2, without: set[str] | None = None) -> str:
    about = " ".join((model.__doc__ or "").split())
    table = _table(model, without=without or set())
    return f"{'#' * level} {title}\n\n{about}\n{f'{chr(10)}{table}' if table else ''}"


def _table(model: type[BaseModel], *, without: set[str]) -> str:
    rows = [
        f"| `{name}`{f', `{field.alias}`' if field.alias else ''} | {_type(field)} | {_default(field)} | "
        f"{(field.description or '').replace('|', '/')} |"
        for name, field in model.model_fields.items()
        if name not in without
    ]
    if not rows:
        return ""
    return "\n".join(("| field | value | default | |", "| --- | --- | --- | --- |", *rows, ""))


def _type(field: FieldInfo) -> str:
    patterns = {getattr(item, "pattern", None) for item in field.metadata}
    if ID_PATTERN in patterns:
        return "id"
    if KEY_PATTERN in patterns:
        return "key"
    return _words(field.annotation)


def _words(annotation: Any) -> str:
    plain: dict[Any, str] = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        Any: "any value",
        HumanField: "fields",
        StateField: "state fields",
        StepRetry: "[retry](#retry)",
        ModelSettings: "[settings](#model-settings)",
        Compaction: "[compaction](#compaction)",
        AgentMemory: "[memory](#memory-of-agents)",
        ScheduleTarget: "[target](#targets-of-schedules)",
        TimeSpec: "[times](#times-of-schedules)",
        Exclusion: "[exclusions](#exclusions-of-schedules)",
        FlowControl: "[rules](#flow-control)",
        ConcurrencyStrategy: ", ".join(f"`{strategy}`" for strategy in ConcurrencyStrategy),
        **{kind: f"[{name}](#rule-{name})" for name, kind in _RULES.items()},
    }
    origin = get_origin(annotation)
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    if origin in (Union, UnionType):
        return " or ".join(_words(part) for part in get_args(annotation) if part is not NoneType)
    if origin is list:
        return f"list of {_many(get_args(annotation)[0])}"
    if origin is dict:
        return f"object of {_many(get_args(annotation)[1])}"
    metadata = getattr(annotation, "__metadata__", None)
    if metadata:
        if any(getattr(item, "json_schema", {}).get("format") == "date-time" for item in metadata):
            return "moment"
        for item in metadata:
            pattern = next((getattr(part, "pattern", None) for part in getattr(item, "metadata", [])), None)
            if pattern in (ID_PATTERN, KEY_PATTERN):
                return "id" if pattern == ID_PATTERN else "key"
        return _words(get_args(annotation)[0])
    return str(annotation)


def _many(annotation: Any) -> str:
    words = _words(annotation)
    return {"id": "ids", "key": "keys", "string": "strings", "list of ids": "lists of ids"}.get(words, words)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", [], {}) or isinstance(value, ModelSettings):
        return ""
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    sys.stdout.write(page())
