"""Events: append to the streams of runs and read them, for one run or many.

The number of an event comes from `runs.last_seq`, increased by the same transaction, so a number is used once and
readers never find a gap. A worker's events are inserted through the fence: only while its attempt owns the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    select,
    true,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.events import Event, StoredEvent
from runlane.domain.run import Status
from runlane.domain.text import load_json
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import byte_size, lit, member, now_us
from runlane.store.sql.schema import run_events, runs
from runlane.store.sql.statement import Dialect, Row, Statement, text_list


@dataclass(frozen=True, slots=True)
class RunPosition:
    """The position of a run's stream."""

    run_id: str
    first_seq: int
    last_seq: int
    ended: bool


class EventPart(NamedTuple):
    """Some stored events of a run, and whether there may be more after them."""

    lines: list[StoredEvent]
    more: bool


# run_id, seq, attempt, type, at, data as JSON text
EventRow = tuple[str, int, int, str, int | None, str]

# Larger values of an event are read by a second statement, and only as many as PART_BYTES have room for.
INLINE_BYTES: Final = 32 * 1024
PART_BYTES: Final = 8 * 1024 * 1024

_COLUMNS = {
    "run_id": Text(),
    "seq": Integer(),
    "attempt": Integer(),
    "type": Text(),
    "at": BigInteger(),
    "data": Text(),
}
_NAMES = ["run_id", "seq", "attempt", "type", "at", "data"]


def _append(batch: FromClause) -> Executable:
    b = batch.c
    return insert(run_events).from_select(
        _NAMES, select(b.run_id, b.seq, b.attempt, b.type, func.coalesce(b.at, now_us()), b.data).select_from(batch)
    )


def _append_fenced(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    return insert(run_events).from_select(
        _NAMES,
        select(b.run_id, b.seq, b.attempt, b.type, func.coalesce(b.at, now_us()), b.data).select_from(
            batch.join(runs, fence)
        ),
    )


# For changes that are not made by an attempt: accept, cancel, release, takeover.
APPEND = Statement("append_events", _append, _COLUMNS, purpose="Add events to runs.")
# For writes of a worker.
APPEND_FENCED = Statement(
    "append_events_fenced", _append_fenced, _COLUMNS, purpose="Add events of an attempt, through the fence."
)

_of_run = run_events.c.run_id == bindparam("run_id")
_READ = Statement(
    "read_events",
    select(run_events)
    .where(_of_run, run_events.c.seq > bindparam("after", type_=BigInteger()))
    .order_by(run_events.c.seq)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the events of a run after a sequence number.",
)
_HAS = Statement(
    "has_event",
    select(
        exists()
        .where(run_events.c.run_id == bindparam("run_id"), run_events.c.type == bindparam("type"))
        .label("found")
    ),
    purpose="Check whether a run has an event of a type.",
)


def _unless_large(data: ColumnElement[str]) -> ColumnElement[str | None]:
    return case((byte_size(data) <= lit(INLINE_BYTES), data)).label("data")


def _lines(batch: FromClause) -> Executable:
    # A limited subquery for each run: a plain join may read all events, because Postgres estimates many for each run.
    part = (
        select(run_events)
        .where(run_events.c.run_id == batch.c.run_id, run_events.c.seq > batch.c.after)
        .order_by(run_events.c.seq)
        .limit(bindparam("limit", type_=Integer()))
        .correlate(batch)
        .lateral("next")
    )
    e = part.c
    columns = (e.run_id, e.seq, e.type, e.attempt, e.at, _unless_large(e.data))
    return select(*columns).select_from(batch.join(part, true())).order_by(e.run_id, e.seq)


def _lines_without_lateral(batch: FromClause) -> Executable:
    e = run_events.c
    return (
        select(e.run_id, e.seq, e.type, e.attempt, e.at, _unless_large(e.data))
        .select_from(
            batch.join(
                run_events,
                (e.run_id == batch.c.run_id)
                & (e.seq > batch.c.after)
                & (e.seq <= batch.c.after + bindparam("limit", type_=Integer())),
            )
        )
        .order_by(e.run_id, e.seq)
    )


_AFTER: Final = {"run_id": Text(), "after": Integer()}
_READ_NEXT: Final = "Read the next events of many runs."
_LINES: Final[Mapping[Dialect, Statement]] = {
    "postgresql": Statement("read_next_events", _lines, _AFTER, purpose=_READ_NEXT),
    "sqlite": Statement("read_next_events", _lines_without_lateral, _AFTER, purpose=_READ_NEXT),
}
_size = byte_size(run_events.c.data)
# The columns of an event with the size of its values, which are null if they are large.
SIZED: Final = (
    *(run_events.c[name] for name in ("seq", "type", "attempt", "at")),
    _unless_large(run_events.c.data),
    _size.label("size"),
)
_PAGE = Statement(
    "read_event_page",
    select(*SIZED)
    .where(run_events.c.run_id == bindparam("run_id"), run_events.c.seq > bindparam("after", type_=Integer()))
    .order_by(run_events.c.seq)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the events of a run.",
)
_LARGE = Statement(
    "read_large_events",
    select(run_events.c.seq, run_events.c.data).where(
        run_events.c.run_id == bindparam("run_id"),
        run_events.c.seq >= bindparam("first", type_=Integer()),
        run_events.c.seq <= bindparam("last", type_=Integer()),
        _size > lit(INLINE_BYTES),
    ),
    purpose="Read the large values of some events of a run.",
)
_LAST = Statement(
    "read_last_events_of_type",
    select(run_events.c.seq, run_events.c.type, run_events.c.attempt, run_events.c.at, run_events.c.data)
    .where(run_events.c.run_id == bindparam("run_id"), run_events.c.type == bindparam("type"))
    .order_by(run_events.c.seq.desc())
    .limit(1),
    purpose="Read the last events of a type of a run.",
)
_POSITIONS = Statement(
    "read_positions",
    select(runs.c.id, runs.c.first_seq, runs.c.last_seq, runs.c.status).where(member(runs.c.id, "ids")),
    purpose="Read the first and last event numbers of runs.",
)


async def append(session: Session, events: Iterable[EventRow]) -> None:
    """Insert events whose numbers the same transaction has taken from their runs."""
    await session.fetch(APPEND, list(events))


async def read_events(database: Database, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
    """Return the events of a run after a number, in order."""
    rows = await read(database, _READ, run_id=run_id, after=after, limit=limit)
    return [
        Event(row["run_id"], row["seq"], row["type"], row["attempt"], row["at"], load_json(row["data"])) for row in rows
    ]


async def has_event(database: Database, run_id: str, kind: str) -> bool:
    """Return whether the run's stream has an event of this type."""
    return bool((await database.query(_HAS, run_id=run_id, type=kind))[0]["found"])


async def read_positions(database: Database, run_ids: Sequence[str]) -> list[RunPosition]:
    """Return the positions of these runs; a deleted run is missing."""
    rows = await database.query(_POSITIONS, ids=text_list(database.dialect, run_ids))
    return [RunPosition(row["id"], row["first_seq"], row["last_seq"], Status(row["status"]).terminal) for row in rows]


async def read_lines(
    database: Database, positions: Sequence[tuple[str, int]], limit: int
) -> dict[str, list[StoredEvent]]:
    """Return the stored events of each run after its number, at most `limit` of each.

    The data of an event with more than INLINE_BYTES is empty: `read_part` reads it.
    """
    rows = await read(database, _LINES[database.dialect], [tuple(position) for position in positions], limit=limit)
    found: dict[str, list[StoredEvent]] = defaultdict(list)
    for row in rows:
        found[row["run_id"]].append(StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], row["data"] or ""))
    return found


async def read_page(database: Database, run_id: str, after: int, limit: int) -> list[StoredEvent]:
    """Return the next stored events of one run, at most PART_BYTES of them or one that is larger.

    Retention may have deleted the oldest.
    """
    return (await read_part(database, run_id, after, limit)).lines


async def read_part(database: Database, run_id: str, after: int, limit: int, most_bytes: int = PART_BYTES) -> EventPart:
    """Return the next stored events of one run, and whether there may be more after them."""
    rows = await database.query(_PAGE, run_id=run_id, after=after, limit=limit)
    ends = list(accumulate(row["size"] for row in rows))
    fitting = rows[: max(1, bisect_right(ends, most_bytes))]
    large = await _large_values(database, run_id, fitting)
    lines = [
        StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], data)
        for row in fitting
        # Retention may have deleted the event since.
        if (data := row["data"] if row["data"] is not None else large.get(row["seq"])) is not None
    ]
    return EventPart(lines, len(rows) == limit or len(fitting) < len(rows))


async def _large_values(database: Database, run_id: str, rows: Sequence[Row]) -> dict[int, str]:
    numbers = [row["seq"] for row in rows if row["data"] is None]
    if not numbers:
        return {}
    found = await database.query(_LARGE, run_id=run_id, first=numbers[0], last=numbers[-1])
    return {row["seq"]: row["data"] for row in found}


async def read_last(database: Database, run_id: str, kind: str) -> StoredEvent | None:
    """Return the newest stored event of this type."""
    for row in await read(database, _LAST, run_id=run_id, type=kind):
        return StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], row["data"])
    return None
