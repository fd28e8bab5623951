"""The names of LangGraph that are not public are where and what Runlane takes them for. An upgrade fails here first."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from runlane.errors import ConfigurationError
from runlane.graphs import langgraph_internals as internals

SOURCE = Path(internals.__file__).parents[1]
INSTALLED = f"langgraph {version('langgraph')} has changed. Adapt runlane/graphs/langgraph_internals.py and its users: "

# The parameters that Runlane passes: by position, then by name.
CALLS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "prepare_next_tasks": (
        internals.prepare_next_tasks,
        8,
        ("for_execution", "trigger_to_nodes", "updated_channels"),
    ),
    "checkpoint_null_version": (internals.checkpoint_null_version, 1, ()),
    "is_triggered": (internals.is_triggered, 5, ()),
    "hash_task_id": (internals.hash_task_id, 6, ()),
    "read_channels": (internals.read_channels, 2, ()),
    "recast_checkpoint_ns": (internals.recast_checkpoint_ns, 1, ()),
    "ReadRuntime": (internals.ReadRuntime, 0, ("access_context", "store")),
    "ExecutionRuntime": (internals.ExecutionRuntime, 0, ("access_context", "store", "context")),
}
# Stored in checkpoints and writes: another value would make the stored ones unreadable.
VALUES = {
    "NULL_TASK_ID": "00000000-0000-0000-0000-000000000000",
    "ERROR_SOURCE_NODE": "__error_source_node__",
    "TASKS": "__pregel_tasks",
    "PUSH": "__pregel_push",
    "PULL": "__pregel_pull",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_the_arguments_that_runlane_passes(name: str) -> None:
    function, positional, named = CALLS[name]
    try:
        inspect.signature(function).bind(*range(positional), **dict.fromkeys(named))
    except TypeError as error:
        pytest.fail(f"{INSTALLED}{name}: {error}")


@pytest.mark.parametrize("name", VALUES)
def test_a_constant_has_its_stored_value(name: str) -> None:
    assert getattr(internals, name) == VALUES[name], f"{INSTALLED}{name}"


def test_the_ids_of_tasks_are_stable() -> None:
    assert internals.hash_task_id(bytes(16), "ns", "1", "a", internals.PULL, "start") == (
        "c05108d2-0307-785e-632b-e926f0043477"
    ), f"{INSTALLED}the ids of tasks in stored checkpoints would not be found"
    assert internals.recast_checkpoint_ns("outer:id|inner:id") == "outer|inner", f"{INSTALLED}namespaces"


def test_a_name_that_is_gone_is_reported_with_the_version() -> None:
    with pytest.raises(ConfigurationError, match=rf"langgraph {version('langgraph')} does not have .*_algo\.gone"):
        internals.find_internal("langgraph.pregel._algo", "gone")
    with pytest.raises(ConfigurationError, match=r"does not have langgraph\._gone\.name"):
        internals.find_internal("langgraph._gone", "name")


def test_no_other_module_takes_private_names_of_langgraph() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != Path(internals.__file__)
        for name in _imported(path)
        if name.startswith("langgraph") and any(part.startswith("_") for part in name.split("."))
    ]
    assert not found, f"Import these from runlane.graphs.langgraph_internals: {found}"


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
