"""The list of failure codes is complete: every code that the source raises is in it, and only such ones."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runlane import RunlaneError, errors
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.domain.failure_codes import FAILURE_CODES, RUN_FAILURE_CODES

SOURCE = Path(errors.__file__).parents[1]
RAISED = ("StepFailed", "ModelFailed", "ToolFailed", "Failed", "StateRejected", "StorageRefused")
# Modules that hand on the code of another failure, which is found where that one is made.
HAND_ON = {
    "agents.memory",
    "agents.tool_call",
    "interpreter.failure",
    "interpreter.nested",
    "interpreter.state",
    "llm.scripted",
    "orchestration.children",
    "orchestration.replay",
    "steps.dispatch",
    "steps.model_steps",
    "store.queue.committer",
    "tools.http",
    "tools.mcp.clients",
    "tools.mcp.connection",
    "tools.mcp.trace",
}
# Errors of callers and operators, which no step meets.
NOT_OF_STEPS = {
    "app_not_found",
    "assistant_not_found",
    "configuration",
    "conflict",
    "duplicate_graph",
    "duplicate_task",
    "failed",
    "forbidden",
    "graph_not_found",
    "graph_not_loaded",
    "invalid_definitions",
    "invalid_settings",
    "memory_busy",
    "memory_file_broken",
    "memory_owned_elsewhere",
    "memory_owner_unreachable",
    "missing_extra",
    "storage_full",
    "paused",
    "outbound_timeout",  # reported as tool_timeout
    "run_not_found",
    "schedules_limited",
    "schema_outdated",
    "schema_too_new",
    "secret_quota_exceeded",
    "session_not_found",
    "thread_not_found",
    "unauthorized",
    "unexpected_answer",
    "unknown_lane",
    "version_mismatch",
    "wrong_state",
}


def raised() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            if node.func.id not in RAISED:
                continue
            match node.args[0]:
                case ast.Constant(value=str(code)):
                    yield code
                case ast.Name(id=constant) if constant.isupper():
                    yield getattr(importlib.import_module(f"runlane.{name}"), constant)
                case _:
                    assert name in HAND_ON, f"{name}:{node.lineno}: name the code where the failure is made"


def test_every_code_that_is_raised_is_listed() -> None:
    found = set(raised())
    assert len(found) > 50
    assert found - {*FAILURE_CODES} == {*RUN_FAILURE_CODES}


def _all(kind: type[RunlaneError]) -> Iterator[type[RunlaneError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _all(each)


def test_every_listed_code_is_raised() -> None:
    codes = {kind.code for kind in _all(RunlaneError) if kind.__module__.startswith(errors.__name__)}
    assert {*FAILURE_CODES} <= {*raised()} | codes
    # A new kind of error is either something that a step can meet, or it is not.
    assert codes - {*FAILURE_CODES} == NOT_OF_STEPS


def _problems(step: dict[str, Any]) -> list[str]:
    loaded = parse_bodies({"orchestrations": [{"id": "o", "steps": [step]}]})
    return [str(problem) for problem in check_loaded(loaded, []).problems]


def test_a_retry_may_name_every_code_and_nothing_else() -> None:
    step = {"id": "a", "type": "print", "print_content": ""}
    fine = {**step, "retry": {"on": [*FAILURE_CODES]}}
    assert _problems(fine) == []
    wrong = {**step, "retry": {"on": ["timeout", "time_out", "run_timeout"]}}
    unknown, of_the_run = _problems(wrong)
    assert unknown == (
        'orchestration "o", step "a", field retry.on: "time_out" is not a failure code (did you mean '
        '"timeout"?). Use a code of the reference, such as "timeout" or "model_error".'
    )
    assert of_the_run == (
        'orchestration "o", step "a", field retry.on: "run_timeout" ends the run as a whole, so a step cannot be '
        "retried after it. Remove it."
    )
