"""The state and history of threads of agents and orchestrations: messages, and open questions as interrupts.

The state after each run is stored when the run ends. The messages of an open run are read from its log.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, cast

from runlane.api.agent_server.native_questions import interrupts_of
from runlane.api.openai.questions import open_questions
from runlane.domain.graph import ThreadStatus
from runlane.domain.native_thread import AGENT_NODE, MESSAGES
from runlane.domain.text import dump_json, load_json
from runlane.domain.thread import Thread
from runlane.domain.timestamps import format_timestamp
from runlane.errors import NotFound
from runlane.store.queue.search import find_standing
from runlane.store.sql.database import Database, Session
from runlane.store.threads.native_runs import asking_runs, read_history, read_messages
from runlane.store.threads.states import MAX_HISTORY_BYTES
from runlane.store.threads.thread_runs import list_thread_runs

_CHECKPOINTS: Final = uuid.UUID("0b0f0f5e-5d7c-4a57-9d0e-0c6f6a3f6c55")
_HISTORY: Final = 1000


async def with_questions(
    database: Database, threads: Sequence[Thread], *, with_values: bool = True
) -> AsyncGenerator[Thread]:
    """Yield threads with the questions of their paused runs. A thread with a question is interrupted."""
    asking = await asking_runs(database, [one.key for one in threads if one.native is not None and one.open_runs])
    for one in threads:
        yield await _with_run(database, one, asking[one.key], with_values) if one.key in asking else one


async def _with_run(database: Database, thread: Thread, run_id: str, with_values: bool) -> Thread:
    waits = await open_questions(database, run_id, (await find_standing(database, run_id)).last_seq)
    if not waits:
        return thread
    interrupts = {item["id"]: [item] for item in interrupts_of(waits)}
    values = await _current_values(database, thread, run_id) if with_values else None
    return replace(thread, status=ThreadStatus.INTERRUPTED, interrupts=interrupts, values=values)


async def current(database: Database, thread: Thread) -> Thread:
    """Return a thread with its current state."""
    if thread.native is None:
        return thread
    (shown,) = [one async for one in with_questions(database, [thread])]
    if shown.status is ThreadStatus.BUSY:
        for run in reversed((await list_thread_runs(database, thread.tenant, thread.id, limit=10))[0]):
            if run.status.value == "running":
                return replace(shown, values=await _current_values(database, thread, run.id))
    return shown


async def _current_values(database: Database, thread: Thread, run_id: str) -> dict[str, Any]:
    async def work(session: Session) -> Any:
        return await read_messages(session, [run_id])

    values: dict[str, Any] = dict(thread.values or {})
    content = (await database.transact(work)).get(run_id)
    if content is None:
        return values
    return {**values, **content.values, MESSAGES: [*values.get(MESSAGES, ()), *content.messages]}


async def read_native_state(database: Database, thread: Thread, checkpoint_id: str | None) -> dict[str, Any]:
    """Return the state of a thread, now or after one of its runs."""
    if checkpoint_id is not None:
        for state in await read_native_history(database, thread, before=None, limit=_HISTORY):
            if state["checkpoint_id"] == checkpoint_id:
                return state
        raise NotFound(
            f'The thread "{thread.id}" has no checkpoint "{checkpoint_id}". See POST /threads/{thread.id}/history'
        )
    shown = await current(database, thread)
    past = await read_native_history(database, thread, before=None, limit=1)
    items = [item for found in shown.interrupts.values() for item in found]
    if not items and past and shown.status is not ThreadStatus.BUSY:
        return past[0]
    parent = past[0]["checkpoint"] if past else None
    head = str(uuid.uuid5(_CHECKPOINTS, f"{thread.key}/{thread.run_count}/open"))
    state = _state(thread, shown.values or {}, head, parent, thread.updated_at_us, {})
    busy = shown.status is ThreadStatus.BUSY
    if items or busy:
        state["next"] = [AGENT_NODE]
        state["tasks"] = [_task(item) for item in items] or [_task(None)]
        state["interrupts"] = items
    return state


def within_bound(thread: Thread, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first states, up to a total of MAX_HISTORY_BYTES, because each state repeats the earlier messages."""
    values: dict[str, Any] = dict(thread.values or {})
    messages = cast("list[Any]", values.get(MESSAGES) or [])
    ends = list(accumulate((len(dump_json(message)) for message in messages), initial=0))
    size = 0
    for number, state in enumerate(states):
        shown = cast("list[Any]", state["values"][MESSAGES])
        size += ends[min(len(shown), len(messages))]
        if number and size > MAX_HISTORY_BYTES:
            return states[:number]
    return states


async def read_native_history(
    database: Database, thread: Thread, *, before: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the states after the runs of a thread, newest first. `before` is the id of a checkpoint."""
    rows = await read_history(database, thread.key, None, _HISTORY if before is not None else limit + 1)
    states: list[dict[str, Any]] = []
    for index, row in enumerate(rows):
        older = rows[index + 1]["run_id"] if index + 1 < len(rows) else None
        values = dict(thread.values or {})
        values[MESSAGES] = list(values.get(MESSAGES, ()))[: row["message_count"]]
        parent = None if older is None else _place(thread, _checkpoint_id(older))
        metadata = {**load_json(row["metadata"]), "run_id": row["run_id"], "source": "loop"}
        states.append(_state(thread, values, _checkpoint_id(row["run_id"]), parent, row["created_at"], metadata))
    if before is not None:
        places = [state["checkpoint_id"] for state in states]
        states = states[places.index(before) + 1 :] if before in places else []
    return states[:limit]


def _checkpoint_id(run_id: str) -> str:
    return str(uuid.uuid5(_CHECKPOINTS, run_id))


def _place(thread: Thread, checkpoint_id: str) -> dict[str, Any]:
    return {"checkpoint_id": checkpoint_id, "thread_id": thread.id, "checkpoint_ns": ""}


def _state(
    thread: Thread, values: Any, checkpoint_id: str, parent: Any, at_us: int, metadata: dict[str, Any]
) -> dict[str, Any]:
    return {
        "values": values,
        "next": [],
        "tasks": [],
        "metadata": {**metadata, "thread_id": thread.id, "graph_id": thread.native},
        "created_at": format_timestamp(at_us),
        "checkpoint": _place(thread, checkpoint_id),
        "parent_checkpoint": parent,
        "interrupts": [],
        "checkpoint_id": checkpoint_id,
        "parent_checkpoint_id": None if parent is None else parent["checkpoint_id"],
    }


def _task(item: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": item["id"] if item is not None else AGENT_NODE,
        "name": AGENT_NODE,
        "path": ["__pregel_pull", AGENT_NODE],
        "error": None,
        "interrupts": [] if item is None else [item],
        "checkpoint": None,
        "state": None,
        "result": None,
    }
