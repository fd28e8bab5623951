"""Runs of agents and orchestrations in threads: their turn of the conversation, and the messages that they leave.

A thread of an agent is a chat session, so the agent receives the earlier turns. The session has the ordering key of the
thread, and its turns are started only through the thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import FromClause, Integer, Text, bindparam, func, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.events import EventType
from runlane.domain.ids import new_id
from runlane.domain.native_thread import MESSAGES, RunMessages, ThreadMessage, human_message, native_name
from runlane.domain.run import AGENT, Status
from runlane.domain.text import dump_json, load_json
from runlane.errors import Conflict
from runlane.store.chat.posting import PLAN_KEY, add_turn, lock_session
from runlane.store.queue.accept import NewRun
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import run_events, run_inputs, run_results, run_waits, runs, thread_runs, threads
from runlane.store.sql.statement import Row, Statement
from runlane.templates.template import text_of

_SHOWN: Final = [lit(EventType.MODEL_RESPONSE), lit(EventType.TOOL_RESULT)]
_thread = bindparam("thread", type_=Text())
_BIND = Statement(
    "bind_native_thread",
    update(threads)
    .where(threads.c.key == bindparam("key", type_=Text()))
    .values(native=bindparam("target", type_=Text()), session_id=bindparam("session_id", type_=Text())),
    purpose="Note the agent or orchestration of a thread, and its chat session.",
)
_RESULTS = Statement(
    "native_results",
    select(runs.c.id, runs.c.status, runs.c.target, run_inputs.c.input, run_results.c.result)
    .select_from(
        runs.outerjoin(run_inputs, run_inputs.c.run_id == runs.c.id).outerjoin(
            run_results, run_results.c.run_id == runs.c.id
        )
    )
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id),
    purpose="Read the messages and results of runs of agents and orchestrations.",
)
_EVENTS = Statement(
    "native_events",
    select(run_events.c.run_id, run_events.c.type, run_events.c.data)
    .where(member(run_events.c.run_id, "ids"), run_events.c.type.in_(_SHOWN))
    .order_by(run_events.c.run_id, run_events.c.seq),
    purpose="Read the answers of models and the results of tools of runs.",
)
_STATES = Statement(
    "native_states",
    select(threads.c.key, threads.c.state_values).where(member(threads.c.key, "keys")).with_for_update(),
    purpose="Read the messages of threads of agents and orchestrations.",
)


def _store(batch: FromClause) -> Executable:
    return (
        update(threads)
        .where(threads.c.key == batch.c.key)
        .values(state_values=batch.c.state_values, interrupts=None, state_updated_at=now_us())
    )


def _count(batch: FromClause) -> Executable:
    return update(thread_runs).where(thread_runs.c.run_id == batch.c.run_id).values(message_count=batch.c.message_count)


_STORE = Statement(
    "store_native_states",
    _store,
    {"key": Text(), "state_values": Text()},
    purpose="Store the messages of threads of agents and orchestrations.",
)
_COUNT = Statement(
    "store_message_counts",
    _count,
    {"run_id": Text(), "message_count": Integer()},
    purpose="Note how many messages a thread has after a run.",
)
_BEFORE = Statement(
    "messages_before_run",
    select(func.max(thread_runs.c.message_count).label("count")).where(
        thread_runs.c.thread == _thread, thread_runs.c.ordinal < bindparam("ordinal", type_=Integer())
    ),
    purpose="Read how many messages a thread had before a run.",
)
_HISTORY = Statement(
    "native_history",
    select(thread_runs.c.run_id, thread_runs.c.message_count, thread_runs.c.metadata, thread_runs.c.created_at)
    .where(
        thread_runs.c.thread == _thread,
        thread_runs.c.message_count.is_not(None),
        thread_runs.c.ordinal < bindparam("before", type_=Integer()),
    )
    .order_by(thread_runs.c.ordinal.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the runs of a thread that are states of its history, newest first.",
)
_ORDINAL = Statement(
    "ordinal_of_run",
    select(thread_runs.c.ordinal).where(
        thread_runs.c.thread == _thread, thread_runs.c.run_id == bindparam("run_id", type_=Text())
    ),
    purpose="Read the ordinal of a run in its thread.",
)
_ASKING = Statement(
    "asking_runs_of_threads",
    select(thread_runs.c.thread, thread_runs.c.run_id)
    .select_from(
        thread_runs.join(runs, runs.c.id == thread_runs.c.run_id).join(run_waits, run_waits.c.run_id == runs.c.id)
    )
    .where(
        member(thread_runs.c.thread, "keys"),
        runs.c.status == lit(Status.PAUSED),
        run_waits.c.kind == lit("human"),
        run_waits.c.answered_at.is_(None),
        run_waits.c.settled_at.is_(None),
    )
    .distinct(),
    purpose="Find the runs of threads that wait for the answer of a person.",
)


@dataclass(frozen=True, slots=True)
class NativeTurn:
    """The turn that a run adds to its thread. `session_id` and `turn` are set where the run is accepted."""

    message: str
    session_id: str | None = None
    turn: int = 0

    @property
    def begins(self) -> bool:
        """Whether it is the first turn of its session."""
        return self.turn == 1


async def enter_conversation(
    session: Session, row: Row | None, thread_id: str, target: str, run: NewRun, given: NativeTurn
) -> tuple[NewRun, NativeTurn]:
    """Return the run and its turn as they continue the conversation of the thread. Conflict for another agent."""
    if row is not None:
        check_target(row, thread_id, target)
    if not target.startswith(AGENT):
        return run, given
    session_id = None if row is None else row["session_id"]
    known = None if session_id is None else await lock_session(session, session_id)
    turn = NativeTurn(given.message, session_id or new_id("sess"), 1 if known is None else known["last_turn"] + 1)
    plan = load_json(run.plan or "{}") | {PLAN_KEY: {"session_id": turn.session_id, "turn": turn.turn}}
    return run._replace(plan=dump_json(plan)), turn


def check_target(row: Row, thread_id: str, target: str | None) -> None:
    """Raise Conflict unless the thread is new or belongs to this agent or orchestration. The target None is a graph."""
    if row["native"] == target or (row["native"] is None and not row["run_count"]):
        return
    has = "a graph" if row["native"] is None else f'"{row["native"]}"'
    raise Conflict(f'The thread "{thread_id}" is one of {has}. Create another thread for "{target or "a graph"}".')


async def store_turn(session: Session, key: str, target: str, run: NewRun, turn: NativeTurn) -> None:
    """Store the turn of an accepted run, and the agent or orchestration of its thread."""
    await session.fetch(_BIND, key=key, target=target, session_id=turn.session_id)
    if turn.session_id is not None:
        await add_turn(
            session,
            run,
            session_id=turn.session_id,
            agent=native_name(target),
            message=turn.message,
            turn=turn.turn,
            is_new=turn.begins,
        )


async def settle_native(session: Session, by_thread: Mapping[str, Sequence[str]]) -> None:
    """Add the messages of ended runs to their threads."""
    ids = [run_id for run_ids in by_thread.values() for run_id in run_ids]
    found = await read_messages(session, ids)
    states: list[tuple[str, str]] = []
    counts: list[tuple[str, int]] = []
    for row in await session.fetch(_STATES, keys=session.texts(sorted(by_thread))):
        values: dict[str, Any] = {} if row["state_values"] is None else load_json(row["state_values"])
        messages: list[ThreadMessage] = list(values.get(MESSAGES, ()))
        for run_id in by_thread[row["key"]]:
            if run_id not in found:
                continue
            messages += found[run_id].messages
            counts.append((run_id, len(messages)))
            values |= found[run_id].values
        states.append((row["key"], dump_json({**values, MESSAGES: messages})))
    await session.fetch(_STORE, states)
    await session.fetch(_COUNT, counts)


@dataclass(frozen=True, slots=True)
class RunContent:
    """The messages that a run adds to the state of its thread."""

    messages: list[ThreadMessage]
    values: dict[str, Any]


async def read_messages(session: Session, run_ids: Sequence[str]) -> dict[str, RunContent]:
    """Return the messages that runs have added to their threads so far, by run."""
    bound = session.texts(sorted(run_ids))
    found: dict[str, RunMessages] = {}
    results = await session.fetch(_RESULTS, ids=bound)
    for row in results:
        message = "" if row["input"] is None else load_json(row["input"]).get("message", "")
        first = [human_message(row["id"], message)] if message else []
        found[row["id"]] = RunMessages(row["id"], first)
    for row in await session.fetch(_EVENTS, ids=bound):
        if row["run_id"] in found:
            found[row["run_id"]].add(row["type"], load_json(row["data"]))
    contents: dict[str, RunContent] = {}
    for row in results:
        values: dict[str, Any] = {}
        if row["status"] == Status.COMPLETED and row["result"] is not None:
            result = load_json(row["result"])
            found[row["id"]].add_result(text_of(result))
            values = {} if row["target"].startswith(AGENT) else {"output": result}
        contents[row["id"]] = RunContent(found[row["id"]].messages, values)
    return contents


async def messages_before(database: Database, key: str, ordinal: int) -> int:
    """Return how many messages a thread had before a run."""
    return (await database.query(_BEFORE, thread=key, ordinal=ordinal))[0]["count"] or 0


async def read_history(database: Database, key: str, before_run: str | None, limit: int) -> list[Row]:
    """Return the runs whose ends are states of a thread, newest first."""
    before = 2**31 - 1
    if before_run is not None:
        rows = await database.query(_ORDINAL, thread=key, run_id=before_run)
        before = rows[0]["ordinal"] if rows else 0
    return list(await database.query(_HISTORY, thread=key, before=before, limit=limit))


async def asking_runs_in(session: Session, key: str) -> list[str]:
    """Return the runs of a thread that wait for the answer of a person."""
    return [row["run_id"] for row in await session.fetch(_ASKING, keys=session.texts([key]))]


async def asking_runs(database: Database, keys: Sequence[str]) -> dict[str, str]:
    """Return the run of each of these threads that waits for the answer of a person."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_ASKING, keys=session.texts(list(keys)))

    return {row["thread"]: row["run_id"] for row in await database.transact(work)} if keys else {}
