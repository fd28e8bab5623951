"""Graphs, assistants and threads: the request of a run of a graph, and the values that clients of threads see.

`GraphRequest` is the input of a run whose target begins with GRAPH, and `ThreadPlan` is part of its plan. The names of
the other values are those of the LangGraph clients, so they do not change.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from runlane.domain.run import GRAPH, Status
from runlane.domain.tenant import bare_key, scoped_key
from runlane.domain.text import dump_json, load_json, utf8_size
from runlane.errors import InputTooLarge

# The field of a run's plan that names its thread.
PLAN_KEY: Final = "thread"
# The ordering key of the runs of a thread begins with this; the rest is the id of the thread.
ORDERING_KEY: Final = "thread:"
# The namespace of the ids of default assistants: the same graph has the same default assistant on every server.
_ASSISTANTS: Final = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


class ThreadStatus(StrEnum):
    """The status of a thread. `busy` is not stored: a thread with open runs is busy."""

    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class ThreadRunStatus(StrEnum):
    """The status of a run of a thread, as the LangGraph clients name it."""

    PENDING = "pending"
    RUNNING = "running"
    ERROR = "error"
    SUCCESS = "success"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


class GraphOutcome(StrEnum):
    """How a completed run left its graph: at its end, or before a node that waits for an answer."""

    SUCCESS = "success"
    INTERRUPTED = "interrupted"


class Operation(StrEnum):
    """The operation of a run on the graph of its thread. Only `run` executes nodes and is a run for clients."""

    RUN = "run"
    UPDATE_STATE = "update_state"
    SUPERSTEPS = "supersteps"


class MultitaskStrategy(StrEnum):
    """The effect of a new run of a thread on the open runs of the thread."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


class CancelAction(StrEnum):
    """Whether a cancelled run leaves its checkpoints, or nothing."""

    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


class StreamMode(StrEnum):
    """The reports of a run of a graph while it is executed."""

    VALUES = "values"
    UPDATES = "updates"
    MESSAGES = "messages"
    MESSAGES_TUPLE = "messages-tuple"
    CUSTOM = "custom"
    DEBUG = "debug"
    TASKS = "tasks"
    CHECKPOINTS = "checkpoints"
    EVENTS = "events"
    TOOLS = "tools"
    # The ids of checkpoints without their state, for the event streams of threads.
    CHECKPOINT_IDS = "checkpoint_ids"


# Modes that clients cannot request by name.
HIDDEN_MODES: Final = frozenset({StreamMode.CHECKPOINT_IDS.value})


class Durability(StrEnum):
    """The time at which checkpoints are stored: before the next superstep, during it, or at the end of the run."""

    SYNC = "sync"
    ASYNC = "async"
    EXIT = "exit"


class PruneStrategy(StrEnum):
    """The part of a thread that pruning deletes: all of it, or the checkpoints before the newest one."""

    DELETE = "delete"
    KEEP_LATEST = "keep_latest"


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """The request of a run of a graph: its stored input. Config and context include those of the assistant.

    `checkpoint` has the keys checkpoint_id, checkpoint_ns and checkpoint_map of the LangGraph clients, each optional.
    `interrupt_before` and `interrupt_after` are names of nodes, or ["*"] for all. `values`, `as_node` and `supersteps`
    belong to the operations of the same name: `supersteps` is a list of supersteps, each with its `updates`.
    """

    input: Any = None
    command: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    checkpoint: Mapping[str, Any] | None = None
    stream_mode: tuple[str, ...] = (StreamMode.VALUES.value,)
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: tuple[str, ...] | None = None
    interrupt_after: tuple[str, ...] | None = None
    durability: str = Durability.ASYNC.value
    feedback_keys: tuple[str, ...] | None = None
    values: Any = None
    as_node: str | None = None
    supersteps: tuple[Any, ...] | None = None

    def to_json(self) -> str:
        """Return the stored input of the run. Fields with their default are left out."""
        return dump_json({name: value for name in _NAMES if (value := getattr(self, name)) != _DEFAULTS[name]})

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> GraphRequest:
        """Return the request of a stored input. A newer server may have stored fields that this version lacks."""
        return cls(**{name: _tuple(name, stored[name]) for name in _NAMES if name in stored})

    @classmethod
    def from_json(cls, stored: str) -> GraphRequest:
        """Return the request of the stored input of a run."""
        return cls.from_dict(load_json(stored))


_NAMES: Final = tuple(item.name for item in fields(GraphRequest))
_DEFAULTS: Final[Mapping[str, Any]] = {name: getattr(GraphRequest(), name) for name in _NAMES}
_TUPLES: Final = frozenset({"stream_mode", "interrupt_before", "interrupt_after", "feedback_keys", "supersteps"})


def _tuple(name: str, value: Any) -> Any:
    return tuple(value) if name in _TUPLES and value is not None else value


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """The thread of a run, stored in its plan. `key` is the key of the thread and of its checkpoints.

    With `is_temporary`, the thread is deleted with the end of the run.
    """

    id: str
    key: str
    assistant_id: str
    operation: Operation = Operation.RUN
    is_temporary: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the field PLAN_KEY of the plan."""
        return {
            "id": self.id,
            "key": self.key,
            "assistant_id": self.assistant_id,
            "operation": self.operation.value,
            **({"temporary": True} if self.is_temporary else {}),
        }

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> ThreadPlan:
        """Return the thread of a plan that has one."""
        stored = plan[PLAN_KEY]
        operation = Operation(stored["operation"])
        return cls(stored["id"], stored["key"], stored["assistant_id"], operation, stored.get("temporary", False))


def thread_key(tenant: str, thread_id: str) -> str:
    """Return the key of a thread and of its checkpoints."""
    return scoped_key(tenant, thread_id)


def thread_ordering_key(tenant: str, thread_id: str) -> str:
    """Return the ordering key of the runs of a thread."""
    return scoped_key(tenant, f"{ORDERING_KEY}{thread_id}")


def key_of_thread(ordering_key: str) -> str:
    """Return the key of the thread whose runs have this ordering key."""
    bare = bare_key(ordering_key)
    return ordering_key.removesuffix(bare) + bare.removeprefix(ORDERING_KEY)


def graph_target(graph_id: str) -> str:
    """Return the target of runs of this graph."""
    return f"{GRAPH}{graph_id}"


@lru_cache(maxsize=4096)
def default_assistant_id(graph_id: str) -> str:
    """Return the id of the assistant that every graph has."""
    return str(uuid.uuid5(_ASSISTANTS, graph_id))


def run_status(status: Status) -> ThreadRunStatus:
    """Return the status of a run as clients of threads name it.

    A graph that waits for an answer has completed its run: the status is `success` and the thread is `interrupted`.
    """
    match status:
        case Status.RUNNING | Status.PAUSED:
            # Callers that have read the question of a paused run of an agent show the run as `success` instead.
            return ThreadRunStatus.RUNNING
        case Status.COMPLETED:
            return ThreadRunStatus.SUCCESS
        case Status.FAILED:
            return ThreadRunStatus.ERROR
        case Status.CANCELLED:
            return ThreadRunStatus.INTERRUPTED
        case _:
            return ThreadRunStatus.PENDING


# Requests merge metadata, so it could grow without end.
MAX_METADATA_BYTES: Final = 1024 * 1024


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return the metadata of a thread or an assistant as it is stored. InputTooLarge beyond its bound."""
    text = dump_json(metadata)
    if utf8_size(text) > MAX_METADATA_BYTES:
        raise InputTooLarge(
            f"The metadata has {utf8_size(text)} bytes; at most {MAX_METADATA_BYTES} are allowed. Store large values "
            "in the state."
        )
    return text


# The keys of `configurable` that have the user of a run. Only the server sets them.
USER_PREFIX: Final = "langgraph_auth_"


def without_user(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that have the user of a run."""
    given: Mapping[str, Any] = config.get("configurable") or {}
    kept = {name: value for name, value in given.items() if not name.startswith(USER_PREFIX)}
    return dict(config) if len(kept) == len(given) else {**config, "configurable": kept}


def merge_config(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run: the config of its assistant, overridden by the config of the request."""
    merged = {**below, **above}
    for name in ("configurable", "metadata"):
        if isinstance(below.get(name), Mapping) and isinstance(above.get(name), Mapping):
            merged[name] = {**below[name], **above[name]}
    if isinstance(below.get("tags"), list) and isinstance(above.get("tags"), list):
        merged["tags"] = [*below["tags"], *above["tags"]]
    return merged
