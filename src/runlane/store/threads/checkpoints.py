"""Read the checkpoints of threads, each with the values of its channels and the writes of its tasks.

The ids of checkpoints sort by the time of their creation. Writes are returned in the order in which a superstep applies
them: by the path of their task, the task, and their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import FromClause, Integer, Select, Text, bindparam, cast, or_, select, tuple_
from sqlalchemy.sql.base import Executable

from runlane.domain.text import load_json
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import checkpoint_values, checkpoint_writes, checkpoints
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.deletion import EMPTY

# The namespace of the checkpoints of a thread's own graph; checkpoints of subgraphs have other namespaces.
ROOT: Final = ""
# How many checkpoints one transaction reads.
PAGE: Final = 50
# The encoding and the bytes of a value.
Encoded = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class TaskWrite:
    """A write of a task to a channel."""

    task_id: str
    channel: str
    value: Encoded
    task_path: str
    number: int


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A stored checkpoint. `values` has the channels that have a value; `snapshot` is JSON."""

    thread: str
    ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    checkpoint: Encoded
    metadata: Mapping[str, Any]
    snapshot: str | None
    created_at_us: int
    values: Mapping[str, Encoded]
    writes: Sequence[TaskWrite]


@dataclass(frozen=True, slots=True)
class CheckpointQuery:
    """Selects checkpoints, newest first: of one thread or of all, of one namespace or of all.

    `after` is the last checkpoint of the previous page: its id, namespace and thread.
    """

    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    after: tuple[str, str, str] | None = None


_c = checkpoints.c
_thread, _ns, _id, _before = (bindparam(name, type_=Text()) for name in ("thread", "ns", "id", "before"))
_limit = bindparam("limit", type_=Integer())
_NEWEST = Statement(
    "newest_checkpoint",
    select(checkpoints).where(_c.thread == _thread, _c.ns == _ns).order_by(_c.id.desc()).limit(lit(1)),
    purpose="Read the newest checkpoint of a thread in a namespace.",
)
_FIND = Statement(
    "find_checkpoint",
    select(checkpoints).where(_c.thread == _thread, _c.ns == _ns, _c.id == _id),
    purpose="Read a checkpoint.",
)


def _page(name: str, purpose: str, *columns: Any) -> Statement:
    place = (_c.id, _c.ns, _c.thread)
    after = tuple(bindparam(f"after_{label}", type_=Text()) for label in ("id", "ns", "thread"))
    query: Select[Any] = (
        select(checkpoints)
        .where(
            *(column == bindparam(column.name, type_=Text()) for column in columns),
            or_(cast(_before, Text).is_(None), _c.id < _before),
            or_(cast(after[0], Text).is_(None), tuple_(*place) < tuple_(*after)),
        )
        .order_by(*(column.desc() for column in place))
        .limit(_limit)
    )
    return Statement(name, query, purpose=purpose)


_OF_NAMESPACE = _page("checkpoints_of_namespace", "Read a page of checkpoints of a namespace.", _c.thread, _c.ns)
_OF_THREAD = _page("checkpoints_of_thread", "Read a page of checkpoints of a thread.", _c.thread)
_OF_ALL = _page("checkpoints_of_all_threads", "Read a page of checkpoints of all threads.")


def _read_values(batch: FromClause) -> Executable:
    v, b = checkpoint_values.c, batch.c
    found = (v.thread == b.thread) & (v.ns == b.ns) & (v.channel == b.channel) & (v.version == b.version)
    return select(v.thread, v.ns, v.channel, v.version, v.encoding, v.value).select_from(
        batch.join(checkpoint_values, found)
    )


def _read_writes(batch: FromClause) -> Executable:
    w, b = checkpoint_writes.c, batch.c
    found = (w.thread == b.thread) & (w.ns == b.ns) & (w.checkpoint_id == b.id)
    return select(
        w.thread, w.ns, w.checkpoint_id, w.task_id, w.index, w.task_path, w.channel, w.encoding, w.value
    ).select_from(batch.join(checkpoint_writes, found))


_VALUES = Statement(
    "read_checkpoint_values",
    _read_values,
    {"thread": Text(), "ns": Text(), "channel": Text(), "version": Text()},
    purpose="Read the values of channels in these versions.",
)
_WRITES = Statement(
    "read_checkpoint_writes",
    _read_writes,
    {"thread": Text(), "ns": Text(), "id": Text()},
    purpose="Read the writes of tasks to checkpoints.",
)


async def find_checkpoint(
    database: Database, thread: str, ns: str = "", checkpoint_id: str | None = None
) -> CheckpointRecord | None:
    """Return a checkpoint, by default the newest of the namespace, or None."""

    async def work(session: Session) -> CheckpointRecord | None:
        if checkpoint_id is None:
            rows = await session.fetch(_NEWEST, thread=thread, ns=ns)
        else:
            rows = await session.fetch(_FIND, thread=thread, ns=ns, id=checkpoint_id)
        return next(iter(await records_of(session, rows)), None)

    return await database.transact(work)


async def load_checkpoint(
    database: Database, thread: str, ns: str, checkpoint_id: str | None
) -> CheckpointRecord | None:
    """Find a checkpoint for the run that owns the thread, which nothing deletes meanwhile.

    If there is none, this takes one round trip.
    """
    if checkpoint_id is None:
        rows = await database.query(_NEWEST, thread=thread, ns=ns)
    else:
        rows = await database.query(_FIND, thread=thread, ns=ns, id=checkpoint_id)
    if not rows:
        return None
    return (await database.transact(lambda session: records_of(session, rows)))[0]


async def read_checkpoints(
    database: Database,
    query: CheckpointQuery,
    limit: int | None = None,
    matches: Callable[[Mapping[str, Any]], bool] = lambda metadata: True,
) -> tuple[list[CheckpointRecord], CheckpointQuery | None]:
    """Return a page of checkpoints whose metadata matches, newest first, and the query of the next page, or None.

    A page may be empty although later ones are not, because it is the result of reading at most PAGE checkpoints.
    """
    size = PAGE if limit is None else min(PAGE, limit)

    async def work(session: Session) -> tuple[list[CheckpointRecord], CheckpointQuery | None]:
        rows = await _page_of(session, query, size)
        found = [row for row in rows if matches(load_json(row["metadata"]))]
        over = len(rows) < size or len(found) == limit
        last = None if over else (rows[-1]["id"], rows[-1]["ns"], rows[-1]["thread"])
        following = None if last is None else CheckpointQuery(query.thread, query.ns, None, query.before, last)
        return await records_of(session, found), following

    return await database.transact(work)


async def _page_of(session: Session, query: CheckpointQuery, limit: int) -> Sequence[Row]:
    if query.thread is not None and query.id is not None and query.ns is not None:
        rows = await session.fetch(_FIND, thread=query.thread, ns=query.ns, id=query.id)
        return [row for row in rows if query.before is None or row["id"] < query.before]
    after = query.after or (None, None, None)
    place = {"after_id": after[0], "after_ns": after[1], "after_thread": after[2]}
    if query.thread is None:
        return await session.fetch(_OF_ALL, before=query.before, limit=limit, **place)
    if query.ns is None:
        return await session.fetch(_OF_THREAD, thread=query.thread, before=query.before, limit=limit, **place)
    return await session.fetch(
        _OF_NAMESPACE, thread=query.thread, ns=query.ns, before=query.before, limit=limit, **place
    )


async def records_of(session: Session, rows: Sequence[Row]) -> list[CheckpointRecord]:
    """Return checkpoints with their values and writes."""
    versions = [load_json(row["versions"]) for row in rows]
    wanted = {
        (row["thread"], row["ns"], channel, version): None
        for row, channels in zip(rows, versions, strict=True)
        for channel, version in channels.items()
    }
    values = {
        (row["thread"], row["ns"], row["channel"], row["version"]): (row["encoding"], bytes(row["value"]))
        for row in await session.fetch(_VALUES, list(wanted))
        if row["encoding"] != EMPTY
    }
    writes: dict[tuple[str, str, str], list[TaskWrite]] = {}
    for row in await session.fetch(_WRITES, [(row["thread"], row["ns"], row["id"]) for row in rows]):
        write = TaskWrite(
            row["task_id"], row["channel"], (row["encoding"], bytes(row["value"])), row["task_path"], row["index"]
        )
        writes.setdefault((row["thread"], row["ns"], row["checkpoint_id"]), []).append(write)
    return [
        CheckpointRecord(
            thread=row["thread"],
            ns=row["ns"],
            id=row["id"],
            parent_id=row["parent_id"],
            run_id=row["run_id"],
            checkpoint=(row["encoding"], bytes(row["checkpoint"])),
            metadata=load_json(row["metadata"]),
            snapshot=row["snapshot"],
            created_at_us=row["created_at"],
            values={
                channel: values[row["thread"], row["ns"], channel, version]
                for channel, version in channels.items()
                if (row["thread"], row["ns"], channel, version) in values
            },
            # The rows are sorted here, because the databases do not agree on the order of strings.
            writes=sorted(
                writes.get((row["thread"], row["ns"], row["id"]), ()),
                key=lambda write: (write.task_path, write.task_id, write.number),
            ),
        )
        for row, channels in zip(rows, versions, strict=True)
    ]
