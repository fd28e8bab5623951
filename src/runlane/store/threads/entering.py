"""How accepted runs enter their threads: missing threads are created, and open runs are treated as the strategies say.

The threads of many runs are read, created and changed with one statement each. The caller holds the locks of the
ordering keys of the threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import FromClause, Integer, Text, bindparam, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.graph import CancelAction, MultitaskStrategy, Operation, ThreadStatus
from runlane.domain.text import dump_json, load_json
from runlane.errors import Conflict, UnknownThread
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.json_containment import text_contains_any
from runlane.store.sql.schema import threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.cancelling import cancel_open_runs, has_open_runs, is_deleted
from runlane.store.threads.native_runs import asking_runs_in, check_target, store_turn
from runlane.store.threads.request_checks import check_request
from runlane.store.threads.thread_start import ThreadStart
from runlane.store.threads.threads import Ttl, create_thread_in


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """How a run entered its thread: its ordinal there, 0 for an operation, and what it changed."""

    ordinal: int = 0
    changes: tuple[RunChange, ...] = ()


def _open_runs(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(threads)
        .where(threads.c.key == b.key)
        .values(
            open_runs=threads.c.open_runs + lit(1),
            run_count=threads.c.run_count + lit(1),
            metadata=b.metadata,
            config=b.config,
            updated_at=now_us(),
            # A thread does not expire while it has an open run; the end of the run sets the time again.
            expires_at=None,
        )
        .returning(threads.c.key, threads.c.run_count)
    )


def _create_open(batch: FromClause) -> Executable:
    names = ["key", "tenant", "id", "metadata", "config", "ttl_minutes", "ttl_strategy"]
    times = ["created_at", "updated_at", "state_updated_at"]
    constants = (lit(ThreadStatus.IDLE), lit(1), lit(1), *(now_us() for _ in times))
    rows = select(*(batch.c[name] for name in names), *constants)
    return (
        upsert(threads)
        # The condition keeps SQLite's parser from reading ON CONFLICT as a join.
        .from_select([*names, "status", "open_runs", "run_count", *times], rows.where(batch.c.key.is_not(None)))
        .on_conflict_do_nothing()
        .returning(threads.c.key, threads.c.run_count)
    )


_OPEN = Statement(
    "open_thread_runs",
    _open_runs,
    {"key": Text(), "metadata": Text(), "config": Text()},
    purpose="Note new runs in their threads.",
)
_CREATE_OPEN = Statement(
    "create_threads_of_runs",
    _create_open,
    {
        "key": Text(),
        "tenant": Text(),
        "id": Text(),
        "metadata": Text(),
        "config": Text(),
        "ttl_minutes": Integer(),
        "ttl_strategy": Text(),
    },
    purpose="Create threads with their first runs.",
)
_LOCK_MANY = Statement(
    "lock_threads",
    select(threads).where(member(threads.c.key, "keys")).order_by(threads.c.key).with_for_update(),
    purpose="Lock the threads of new runs.",
)
_OCCUPY = Statement(
    "occupy_thread",
    update(threads)
    .where(threads.c.key == bindparam("key", type_=Text()))
    .values(open_runs=threads.c.open_runs + lit(1), expires_at=None),
    purpose="Note in a thread that its state is being changed.",
)


async def enter_threads(session: Session, starts: Sequence[ThreadStart]) -> dict[str, ThreadEntry]:
    """Apply the strategies of new runs to the open runs of their threads, and note the runs. Return entries by run."""
    if len({start.key for start in starts}) < len(starts):
        # Later runs of a thread see the earlier ones.
        return {key: entry for start in starts for key, entry in (await enter_threads(session, [start])).items()}
    keys = session.texts(sorted(start.key for start in starts))
    rows = {row["key"]: row for row in await session.fetch(_LOCK_MANY, keys=keys)} if starts else {}
    entries: dict[str, ThreadEntry] = {}
    opening: list[ThreadStart] = []
    for start in starts:
        row = rows.get(start.key)
        _check_visible(start, row)
        if row is not None and row["open_runs"] and await is_deleted(session, start.key):
            raise Conflict(
                f'The thread "{start.thread_id}" is being deleted: a run of it has not stopped yet. Send the request '
                "again in a moment, or use another thread."
            )
        shown = _new_row(start) if row is None else row
        check_target(shown, start.thread_id, None if start.turn is None else start.graph_id)
        await check_request(session, shown, start.request)
        if start.operation is not Operation.RUN:
            entries[start.run.id] = await _occupy(session, start, row)
            continue
        changes = await _make_room(session, start, shown["open_runs"])
        entries[start.run.id] = ThreadEntry(1, changes)
        opening.append(start)
    for key, ordinal in (await _open(session, opening, rows)).items():
        entries[key] = replace(entries[key], ordinal=ordinal)
    for start in opening:
        if start.turn is not None:
            await store_turn(session, start.key, start.graph_id, start.run, start.turn)
    return entries


def _check_visible(start: ThreadStart, row: Row | None) -> None:
    """Raise UnknownThread for a thread that does not exist, or that the caller may not see."""
    if row is None:
        if not start.creates:
            raise UnknownThread(start.thread_id)
    elif start.rule is not None and not text_contains_any(row["metadata"], start.rule.text):
        raise UnknownThread(start.thread_id)


def _new_row(start: ThreadStart) -> Row:
    """Return the columns that the checks of a request read, for a thread that is created for it."""
    return {
        "key": start.key,
        "id": start.thread_id,
        "status": ThreadStatus.IDLE.value,
        "open_runs": 0,
        "run_count": 0,
        "interrupts": None,
        "native": None,
    }


async def _occupy(session: Session, start: ThreadStart, row: Row | None) -> ThreadEntry:
    """Note an operation in its thread. Operations wait for each other; a run, which may take long, refuses them."""
    if row is None:
        await create_thread_in(session, start.tenant, start.thread_id, metadata=start.metadata, ttl=_ttl(start))
    elif row["open_runs"] and await has_open_runs(session, start.key):
        raise busy_thread(start.thread_id)
    await session.fetch(_OCCUPY, key=start.key)
    return ThreadEntry()


async def _open(session: Session, starts: Sequence[ThreadStart], rows: Mapping[str, Row]) -> dict[str, int]:
    """Note new runs in their threads, and create the missing ones. Return the ordinals of the runs in them."""
    created: list[tuple[object, ...]] = []
    changed: list[tuple[object, ...]] = []
    for start in starts:
        row = rows.get(start.key)
        known: Mapping[str, Any] = start.metadata if row is None else load_json(row["metadata"])
        metadata = dump_json({**known, "graph_id": start.graph_id, "assistant_id": start.assistant_id})
        config = dump_json({"configurable": start.request.config.get("configurable", {})})
        if row is None:
            ttl = (None, None) if start.ttl is None else (start.ttl.minutes, start.ttl.strategy)
            created.append((start.key, start.tenant, start.thread_id, metadata, config, *ttl))
        else:
            changed.append((start.key, metadata, config))
    opened = [*await session.fetch(_CREATE_OPEN, created), *await session.fetch(_OPEN, changed)]
    ordinals = {row["key"]: row["run_count"] for row in opened}
    for start in starts:
        if start.key not in ordinals:  # the lock of the key excludes this case
            raise UnknownThread(start.thread_id)
    return {start.run.id: ordinals[start.key] for start in starts}


def _ttl(start: ThreadStart) -> Ttl | None:
    return None if start.ttl is None else Ttl(start.ttl.minutes, start.ttl.strategy)


async def _make_room(session: Session, start: ThreadStart, open_runs: int) -> tuple[RunChange, ...]:
    if start.turn is not None and open_runs:
        # New input replaces a question without an answer, as it does for graphs.
        asking = await asking_runs_in(session, start.key)
        withdrawn = await cancel_open_runs(session, start.key, CancelAction.INTERRUPT, actor=start.actor, only=asking)
        return (*withdrawn, *await _apply_strategy(session, start, open_runs - len(withdrawn)))
    return await _apply_strategy(session, start, open_runs)


async def _apply_strategy(session: Session, start: ThreadStart, open_runs: int) -> tuple[RunChange, ...]:
    if not open_runs or start.strategy is MultitaskStrategy.ENQUEUE:
        return ()
    if start.strategy is MultitaskStrategy.REJECT:
        raise busy_thread(start.thread_id)
    action = CancelAction(start.strategy.value)
    return await cancel_open_runs(session, start.key, action, actor=start.actor)


def busy_thread(thread_id: str) -> Conflict:
    """Return the error for a thread that has an open run."""
    return Conflict(
        f'The thread "{thread_id}" has a run that has not ended. Wait for it, or send "multitask_strategy": '
        '"enqueue", "interrupt" or "rollback".'
    )
