"""Delete threads, the checkpoints of runs, and old checkpoints; copy the checkpoints of a thread.

The values of channels are shared by the checkpoints of a thread, so a value is deleted when no checkpoint that is left
has its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Table,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.text import load_json
from runlane.store.chat.deletion import drop_sessions_of_threads
from runlane.store.schedules.crons import delete_crons_of_threads
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.schema import checkpoint_values, checkpoint_writes, checkpoints, thread_runs, threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.graph_writes import REPLACED_BY

_MINUTE_US: Final = 60_000_000
# The encoding of a channel that has no value in a version.
EMPTY: Final = "empty"


def expiry() -> ColumnElement[Any]:
    """Return when a thread that changes now expires; null without a TTL."""
    return case(
        (threads.c.ttl_minutes.is_not(None), now_us() + cast(threads.c.ttl_minutes, BigInteger) * lit(_MINUTE_US)),
        else_=None,
    )


def _delete_of(table: Table, name: str) -> Statement:
    return Statement(
        f"delete_{table.name}_of_threads",
        delete(table).where(member(table.c[name], "keys")),
        purpose=f"Delete the rows of threads in {table.name}.",
    )


_CHECKPOINTS: Final = [_delete_of(table, "thread") for table in (checkpoints, checkpoint_writes, checkpoint_values)]
_RUNS: Final = Statement(
    "delete_thread_runs_of_threads",
    delete(thread_runs).where(member(thread_runs.c.thread, "keys"), ~member(thread_runs.c.run_id, "kept")),
    purpose="Delete the runs of threads, except those whose result may still be read.",
)
_THREADS: Final = _delete_of(threads, "key")
_SESSIONS: Final = Statement(
    "sessions_of_threads",
    select(threads.c.session_id).where(member(threads.c.key, "keys"), threads.c.session_id.is_not(None)),
    purpose="Find the chat sessions of threads of agents.",
)
_thread = bindparam("thread", type_=Text())
_WRITES_OF_RUNS = Statement(
    "delete_writes_of_runs",
    delete(checkpoint_writes).where(
        checkpoint_writes.c.thread == _thread, member(checkpoint_writes.c.run_id, "run_ids")
    ),
    purpose="Delete writes of runs, including those to checkpoints of other runs.",
)
_replaced_by = literal(REPLACED_BY, Text()) + bindparam("run_id", type_=Text())
_original = func.replace(checkpoint_writes.c.checkpoint_id, _replaced_by, literal("", Text()))
_RESTORED = {"checkpoint_id": _original}
_RESTORE_WRITES = Statement(
    "restore_writes_replaced_by_run",
    upsert(checkpoint_writes)
    .from_select(
        list(checkpoint_writes.c.keys()),
        select(*(_RESTORED.get(name, column) for name, column in checkpoint_writes.c.items())).where(
            checkpoint_writes.c.thread == _thread, _original != checkpoint_writes.c.checkpoint_id
        ),
    )
    .on_conflict_do_nothing(),
    purpose="Restore the questions and answers of earlier runs that a run has replaced.",
)
_DELETE_RESTORED = Statement(
    "delete_writes_replaced_by_run",
    delete(checkpoint_writes).where(
        checkpoint_writes.c.thread == _thread, _original != checkpoint_writes.c.checkpoint_id
    ),
    purpose="Delete the kept questions and answers that a run had replaced.",
)
_DELETE_REPLACED = Statement(
    "delete_replaced_writes",
    delete(checkpoint_writes).where(
        checkpoint_writes.c.thread == _thread, checkpoint_writes.c.checkpoint_id.contains(REPLACED_BY)
    ),
    purpose="Delete writes of a thread that later runs have replaced.",
)
_ORPHANED_WRITES = Statement(
    "delete_writes_without_checkpoint",
    delete(checkpoint_writes).where(
        checkpoint_writes.c.thread == _thread,
        ~checkpoint_writes.c.checkpoint_id.contains(REPLACED_BY),
        # `not exists` is not used: without hash joins, Postgres would compare every write with every checkpoint.
        tuple_(checkpoint_writes.c.ns, checkpoint_writes.c.checkpoint_id).not_in(
            select(checkpoints.c.ns, checkpoints.c.id).where(checkpoints.c.thread == _thread)
        ),
    ),
    purpose="Delete writes of a thread whose checkpoint was deleted.",
)
_CHECKPOINTS_OF_RUNS = Statement(
    "delete_checkpoints_of_runs",
    delete(checkpoints).where(checkpoints.c.thread == _thread, member(checkpoints.c.run_id, "run_ids")),
    purpose="Delete the checkpoints of runs of a thread.",
)
_THREADS_OF_RUNS = Statement(
    "threads_of_runs",
    select(checkpoints.c.thread).where(member(checkpoints.c.run_id, "run_ids")).distinct(),
    purpose="Find the threads in which runs have stored checkpoints.",
)
_KEPT = Statement(
    "read_kept_checkpoints",
    select(checkpoints.c.ns, checkpoints.c.id, checkpoints.c.parent_id, checkpoints.c.versions, checkpoints.c.metadata)
    .where(checkpoints.c.thread == _thread)
    .order_by(checkpoints.c.ns, checkpoints.c.id.desc()),
    purpose="Read the versions of channels that the checkpoints of a thread have.",
)
_VALUES = Statement(
    "read_value_versions",
    select(
        checkpoint_values.c.ns, checkpoint_values.c.channel, checkpoint_values.c.version, checkpoint_values.c.encoding
    ).where(checkpoint_values.c.thread == _thread),
    purpose="Read which versions of channels of a thread are stored.",
)


def _delete_values(batch: FromClause) -> Executable:
    v, b = checkpoint_values.c, batch.c
    unused = select(b.thread, b.ns, b.channel, b.version).select_from(batch)
    return delete(checkpoint_values).where(tuple_(v.thread, v.ns, v.channel, v.version).in_(unused))


def _delete_checkpoints(batch: FromClause) -> Executable:
    c, b = checkpoints.c, batch.c
    return delete(checkpoints).where(tuple_(c.thread, c.ns, c.id).in_(select(b.thread, b.ns, b.id).select_from(batch)))


_DELETE_VALUES = Statement(
    "delete_checkpoint_values",
    _delete_values,
    {"thread": Text(), "ns": Text(), "channel": Text(), "version": Text()},
    purpose="Delete versions of channels that no checkpoint has.",
)
_DELETE_CHECKPOINTS = Statement(
    "delete_checkpoints",
    _delete_checkpoints,
    {"thread": Text(), "ns": Text(), "id": Text()},
    purpose="Delete checkpoints.",
)


def _copy_of(table: Table) -> Statement:
    # The copies belong to no run: deleting the checkpoints of a run must not change a copy.
    replaced: dict[str, ColumnElement[Any]] = {
        "thread": bindparam("target", type_=Text()),
        "run_id": cast(null(), Text),
        "attempt": cast(null(), table.c["attempt"].type) if "attempt" in table.c else cast(null(), Text),
    }
    names = list(table.c.keys())
    rows = select(*(replaced.get(name, table.c[name]) for name in names)).where(table.c.thread == _thread)
    return Statement(
        f"copy_{table.name}",
        upsert(table).from_select(names, rows).on_conflict_do_nothing(),
        purpose=f"Copy the rows of a thread in {table.name} to another thread.",
    )


_COPIES: Final = [_copy_of(table) for table in (checkpoint_values, checkpoint_writes, checkpoints)]


async def delete_checkpoints(session: Session, keys: Sequence[str]) -> None:
    """Delete all checkpoints of these threads."""
    if keys:
        bound = session.texts(keys)
        for statement in _CHECKPOINTS:
            await session.fetch(statement, keys=bound)


async def delete_threads(session: Session, keys: Sequence[str], *, keep_runs: Sequence[str] = ()) -> None:
    """Delete threads that have no open run. The ends of the runs `keep_runs` stay until retention."""
    if not keys:
        return
    await delete_checkpoints(session, keys)
    bound = session.texts(keys)
    sessions = [row["session_id"] for row in await session.fetch(_SESSIONS, keys=bound)]
    if sessions:
        await drop_sessions_of_threads(session, sessions)
    await session.fetch(_RUNS, keys=bound, kept=session.texts(keep_runs))
    await session.fetch(_THREADS, keys=bound)
    await delete_crons_of_threads(session, keys)


async def remove_runs(session: Session, thread: str, run_ids: Sequence[str]) -> None:
    """Delete everything that runs have stored in a thread, as if they had not been executed."""
    bound = session.texts(run_ids)
    await session.fetch(_CHECKPOINTS_OF_RUNS, thread=thread, run_ids=bound)
    await session.fetch(_WRITES_OF_RUNS, thread=thread, run_ids=bound)
    for run_id in run_ids:
        for statement in (_RESTORE_WRITES, _DELETE_RESTORED):
            await session.fetch(statement, thread=thread, run_id=run_id)
    await _delete_unused(session, thread)


async def threads_of_runs(session: Session, run_ids: Sequence[str]) -> list[str]:
    """Return the keys of the threads in which these runs have stored checkpoints."""
    rows = await session.fetch(_THREADS_OF_RUNS, run_ids=session.texts(run_ids))
    return sorted(row["thread"] for row in rows)


async def copy_checkpoints(session: Session, source: str, target: str) -> None:
    """Copy all checkpoints of a thread to another one."""
    for statement in _COPIES:
        await session.fetch(statement, thread=source, target=target)


async def keep_latest(session: Session, thread: str) -> int:
    """Delete all checkpoints of a thread except the newest of each namespace; return how many were deleted."""
    rows = await session.fetch(_KEPT, thread=thread)
    stored = {
        (row["ns"], row["channel"], row["version"])
        for row in await session.fetch(_VALUES, thread=thread)
        if row["encoding"] != EMPTY
    }
    kept = _kept_of(rows, stored)
    old = [(thread, row["ns"], row["id"]) for row in rows if (row["ns"], row["id"]) not in kept]
    await session.fetch(_DELETE_CHECKPOINTS, old)
    await session.fetch(_DELETE_REPLACED, thread=thread)
    if old:
        await _delete_unused(session, thread)
    return len(old)


def _kept_of(rows: Sequence[Row], stored: set[tuple[str, str, str]]) -> set[tuple[str, str]]:
    """Return the newest checkpoint of each namespace, and the ancestors that it needs.

    The value of a delta channel is computed from the writes since the last ancestor that has stored the whole value.
    """
    by_id = {(row["ns"], row["id"]): row for row in rows}
    newest: dict[str, Row] = {}
    for row in rows:
        newest.setdefault(row["ns"], row)
    kept: set[tuple[str, str]] = set()
    for ns, head in newest.items():
        row: Row | None = head
        missing = set(_delta_channels(head))
        while row is not None:
            kept.add((ns, row["id"]))
            versions: Mapping[str, str] = load_json(row["versions"])
            missing -= {name for name in missing if (ns, name, versions.get(name, "")) in stored}
            row = by_id.get((ns, row["parent_id"])) if missing else None
    return kept


def _delta_channels(row: Row) -> Iterable[str]:
    return load_json(row["metadata"]).get("counters_since_delta_snapshot") or ()


async def _delete_unused(session: Session, thread: str) -> None:
    """Delete writes without a checkpoint, and versions of channels that no checkpoint has."""
    await session.fetch(_ORPHANED_WRITES, thread=thread)
    used = {
        (row["ns"], channel, version)
        for row in await session.fetch(_KEPT, thread=thread)
        for channel, version in load_json(row["versions"]).items()
    }
    unused = [
        (thread, row["ns"], row["channel"], row["version"])
        for row in await session.fetch(_VALUES, thread=thread)
        if (row["ns"], row["channel"], row["version"]) not in used
    ]
    await session.fetch(_DELETE_VALUES, unused)
