"""The state of a thread and its history, from stored checkpoints, in the form that the LangGraph clients read.

The worker has stored the tasks and channels of each checkpoint with it (`snapshot`). The writes to a checkpoint add
what happened since: results, errors and interrupts of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import BigInteger, Text, bindparam, select

from runlane.domain.tenant import bare_key
from runlane.domain.text import load_json
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import checkpoints, threads
from runlane.store.sql.statement import Statement
from runlane.store.threads.checkpoints import (
    CheckpointQuery,
    CheckpointRecord,
    TaskWrite,
    find_checkpoint,
    read_checkpoints,
)
from runlane.store.threads.plain_values import plain_value

State = dict[str, Any]

# Each state of a history has all values, so one response could be many times the size of a thread.
MAX_HISTORY_BYTES: Final = 32 * 1024 * 1024
_NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
_ERROR: Final = "__error__"
_INTERRUPT: Final = "__interrupt__"
_RETURN: Final = "__return__"
# These channels describe a task and are not its output.
_CONTROL: Final = frozenset({_ERROR, "__error_source_node__", _INTERRUPT, "__resume__"})
_NOTHING: Final[Mapping[str, Any]] = {"next": [], "tasks": [], "channels": [], "single": False}

_VALUES = Statement(
    "state_values_of_idle_thread",
    select(threads.c.state_values).where(
        threads.c.key == bindparam("key", type_=Text()), threads.c.open_runs == lit(0)
    ),
    purpose="Read the state of a thread after its last run.",
)

_UPDATES = Statement(
    "updates_of_thread",
    select(checkpoints.c.id, checkpoints.c.created_at)
    .where(
        checkpoints.c.thread == bindparam("thread", type_=Text()),
        checkpoints.c.ns == bindparam("ns", type_=Text()),
        checkpoints.c.created_at > bindparam("after", type_=BigInteger()),
        checkpoints.c.created_at < bindparam("before", type_=BigInteger()),
        checkpoints.c.metadata.like('%"source":"update"%'),
    )
    .order_by(checkpoints.c.created_at, checkpoints.c.id)
    .limit(lit(10)),
    purpose="Find the checkpoints of a thread that updates of its state have stored between two times.",
)

# The state of a thread without checkpoints.
EMPTY_STATE: Final[Mapping[str, Any]] = {
    "values": {},
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": [],
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}


@dataclass(slots=True)
class _TaskStatus:
    """The status of a task of a checkpoint, from the writes to the checkpoint."""

    output: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    interrupts: list[Any] = field(default_factory=list[Any])
    error: Any = None


async def read_state(
    database: Database,
    thread: str,
    ns: str = "",
    checkpoint_id: str | None = None,
    *,
    subgraphs: bool = False,
) -> State | None:
    """Return the state at a checkpoint, by default the newest of the namespace, or None without a checkpoint.

    The newest state is live: `next` has the tasks that have not finished, and only interrupts without an answer are
    part of it. With `subgraphs`, the tasks that are graphs have their own state.
    """
    record = await find_checkpoint(database, thread, ns, checkpoint_id)
    if record is None:
        return None
    live = checkpoint_id is None
    state = describe_state(record, live=live)
    if live and not ns and _is_partial(record):
        # The results of finished tasks are not part of the checkpoint; the worker stored the state that includes them.
        for row in await database.query(_VALUES, key=thread):
            state["values"] = state["values"] if row["state_values"] is None else load_json(row["state_values"])
    if subgraphs:
        for task in state["tasks"]:
            if task["checkpoint"] is not None:
                task["state"] = await read_state(database, thread, task["checkpoint"]["checkpoint_ns"], subgraphs=True)
    return state


async def read_history(
    database: Database,
    thread: str,
    ns: str = "",
    *,
    limit: int = 10,
    before: str | None = None,
    checkpoint_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> list[State]:
    """Return the states of a thread, newest first. `before` is the id of a checkpoint.

    The page ends before the first state that would exceed MAX_HISTORY_BYTES in total, but includes the newest state.
    """
    wanted = metadata or {}
    query: CheckpointQuery | None = CheckpointQuery(thread, ns, checkpoint_id, before)
    found: list[CheckpointRecord] = []
    size = 0
    while query is not None and len(found) < limit and size <= MAX_HISTORY_BYTES:
        page, query = await read_checkpoints(
            database,
            query,
            limit - len(found),
            lambda stored: all(stored.get(name) == value for name, value in wanted.items()),
        )
        for record in page:
            size += sum(len(data) for _, data in record.values.values())
            if found and size > MAX_HISTORY_BYTES:
                break
            found.append(record)
    return [describe_state(record) for record in found]


async def find_updates(database: Database, thread: str, after_us: int, before_us: int) -> list[tuple[int, str]]:
    """Return the first checkpoints that updates of the state have stored between two times, each with its time."""
    rows = await database.query(_UPDATES, thread=thread, ns="", after=after_us, before=before_us)
    return [(row["created_at"], row["id"]) for row in rows]


def describe_state(record: CheckpointRecord, *, live: bool = False) -> State:
    """Return the state at a checkpoint."""
    snapshot: Mapping[str, Any] = _NOTHING if record.snapshot is None else load_json(record.snapshot)
    statuses = _statuses(record.writes)
    thread_id = bare_key(record.thread)
    tasks = [
        _describe_task(task, statuses.get(task["id"], _TaskStatus()), snapshot, thread_id, live=live)
        for task in snapshot["tasks"]
    ]
    stored = plain_value(record.checkpoint)
    return {
        "values": _values(record, snapshot),
        "next": [
            task["name"] for task in snapshot["tasks"] if not (live and statuses.get(task["id"], _TaskStatus()).output)
        ],
        "tasks": tasks,
        "metadata": {**record.metadata, "thread_id": thread_id},
        "created_at": stored["ts"],
        "checkpoint": _place(record, thread_id, record.id),
        "parent_checkpoint": None if record.parent_id is None else _place(record, thread_id, record.parent_id),
        "interrupts": [item for task in tasks for item in task["interrupts"]],
        "checkpoint_id": record.id,
        "parent_checkpoint_id": record.parent_id,
    }


def _values(record: CheckpointRecord, snapshot: Mapping[str, Any]) -> Any:
    defaults: Mapping[str, Any] = snapshot.get("defaults", {})
    found = {
        name: plain_value(record.values[name]) if name in record.values else defaults[name]
        for name in snapshot["channels"]
        if name in record.values or name in defaults
    }
    return next(iter(found.values()), None) if snapshot["single"] else found


def _place(record: CheckpointRecord, thread_id: str, checkpoint_id: str) -> State:
    place: State = {"checkpoint_id": checkpoint_id, "thread_id": thread_id, "checkpoint_ns": record.ns}
    parents = record.metadata.get("parents")
    if parents:
        place["checkpoint_map"] = {**parents, record.ns: checkpoint_id}
    return place


def _describe_task(
    task: Mapping[str, Any], status: _TaskStatus, snapshot: Mapping[str, Any], thread_id: str, *, live: bool
) -> State:
    inner = task["checkpoint_ns"]
    nested = None if inner is None else {"thread_id": thread_id, "checkpoint_ns": inner}
    return {
        "id": task["id"],
        "name": task["name"],
        "path": task["path"],
        "error": status.error,
        "interrupts": [] if live and status.output else status.interrupts,
        "checkpoint": nested,
        "state": None,
        "result": _result(status.output, snapshot) if status.output else None,
    }


def _result(output: Sequence[tuple[str, Any]], snapshot: Mapping[str, Any]) -> Any:
    for channel, value in output:
        if channel == _RETURN:
            return value
    written: dict[str, list[Any]] = {}
    for channel, value in output:
        if channel in snapshot["channels"]:
            written.setdefault(channel, []).append(value)
    shown = {name: values[0] if len(values) == 1 else {"$writes": values} for name, values in written.items()}
    return next(iter(shown.values()), None) if snapshot["single"] else shown


def _statuses(writes: Sequence[TaskWrite]) -> dict[str, _TaskStatus]:
    found: dict[str, _TaskStatus] = {}
    for write in writes:
        if write.task_id == _NO_TASK:
            continue  # the input of the superstep
        status = found.setdefault(write.task_id, _TaskStatus())
        if write.channel == _INTERRUPT:
            value = plain_value(write.value)
            status.interrupts += value if isinstance(value, list) else [value]
        elif write.channel == _ERROR:
            status.error = plain_value(write.value)
        elif write.channel not in _CONTROL:
            status.output.append((write.channel, plain_value(write.value)))
    return found


def _is_partial(record: CheckpointRecord) -> bool:
    """Return whether a task of the checkpoint has finished: its result is not part of the checkpoint."""
    return any(write.channel not in _CONTROL and write.task_id != _NO_TASK for write in record.writes)
