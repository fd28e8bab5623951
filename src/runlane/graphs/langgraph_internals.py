"""Every name of LangGraph that is not part of its public interface and that Runlane uses, in one place.

An upgrade of LangGraph may rename or change them without notice. A name that no longer exists is reported here, with
the version; `tests/unit/test_langgraph_internals.py` also checks parameters and values, and that no other module uses
such a name directly.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from runlane.errors import ConfigurationError


def find_internal(module: str, name: str) -> Any:
    """Return a name of a module of LangGraph."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        if getattr(error, "name", None) == "langgraph":
            # LangGraph itself is not installed, which its importer reports with the extra.
            raise
        raise ConfigurationError(
            f"langgraph {version('langgraph')} does not have {module}.{name}, which hosting graphs needs. "
            "Upgrade Runlane, or install an earlier version of langgraph."
        ) from error


_CONSTANTS: Final = "langgraph._internal._constants"
_ALGORITHM: Final = "langgraph.pregel._algo"

# The task of writes that belong to no task, such as those of a command.
NULL_TASK_ID: Final[str] = find_internal(_CONSTANTS, "NULL_TASK_ID")
# The channel of the name of a node that failed.
ERROR_SOURCE_NODE: Final[str] = find_internal(_CONSTANTS, "ERROR_SOURCE_NODE")
# The channel of sends, and the first part of the path of a task: of a send, and of a node.
TASKS: Final[str] = find_internal(_CONSTANTS, "TASKS")
PUSH: Final[str] = find_internal(_CONSTANTS, "PUSH")
PULL: Final[str] = find_internal(_CONSTANTS, "PULL")
# The marker for a channel without a value.
MISSING: Final[Any] = find_internal("langgraph._internal._typing", "MISSING")

# Removes the ids of tasks from a namespace.
recast_checkpoint_ns: Final[Callable[[str], str]] = find_internal("langgraph._internal._config", "recast_checkpoint_ns")
# The values of channels as the state of a graph.
read_channels: Final[Callable[..., Any]] = find_internal("langgraph.pregel._io", "read_channels")
# The function that returns the tasks after a checkpoint, and the parts of it that concern a node.
prepare_next_tasks: Final[Callable[..., dict[str, Any]]] = find_internal(_ALGORITHM, "prepare_next_tasks")
checkpoint_null_version: Final[Callable[[Any], Any]] = find_internal(_ALGORITHM, "checkpoint_null_version")
is_triggered: Final[Callable[..., bool]] = find_internal(_ALGORITHM, "_triggers")
hash_task_id: Final[Callable[..., str]] = find_internal(_ALGORITHM, "_xxhash_str")

# The runtimes that a factory receives: to execute a graph, and to describe one.
ExecutionRuntime: Final[Any] = find_internal("langgraph_sdk.runtime", "_ExecutionRuntime")
ReadRuntime: Final[Any] = find_internal("langgraph_sdk.runtime", "_ReadRuntime")

# The module that makes the ids of checkpoints, and the name in it of the time of the newest id of this process.
checkpoint_id_module: Final[Any] = import_module("langgraph.checkpoint.base.id")
NEWEST_ID_TIME: Final = "_last_v6_timestamp"
find_internal("langgraph.checkpoint.base.id", NEWEST_ID_TIME)
