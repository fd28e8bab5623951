"""Pages of a run's events in both directions, filtered by type and by the path of their step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Integer, bindparam, select

from runlane.domain.events import StoredEvent
from runlane.domain.text import load_json
from runlane.store.queue.events import PART_BYTES, SIZED
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member
from runlane.store.sql.schema import run_events
from runlane.store.sql.statement import Row, Statement

# The maximum number of events that one page examines; the next page continues after them.
WINDOW: Final = 20_000
_CHUNK: Final = 1000

_e = run_events.c
_range = (
    _e.run_id == bindparam("run_id"),
    _e.seq > bindparam("after", type_=Integer()),
    _e.seq < bindparam("before", type_=Integer()),
)
_limit = bindparam("limit", type_=Integer())


def _reading(name: str, *, typed: bool, newest_first: bool) -> Statement:
    wanted = (*_range, member(_e.type, "types")) if typed else _range
    order = _e.seq.desc() if newest_first else _e.seq
    return Statement(
        name,
        select(*SIZED).where(*wanted).order_by(order).limit(_limit),
        purpose="Read a part of the events of a run.",
    )


# The statements by two properties: whether types are given, and whether the newest events come first.
_READ: Final = {
    (False, False): _reading("read_event_range", typed=False, newest_first=False),
    (False, True): _reading("read_event_range_newest", typed=False, newest_first=True),
    (True, False): _reading("read_typed_event_range", typed=True, newest_first=False),
    (True, True): _reading("read_typed_event_range_newest", typed=True, newest_first=True),
}
_ONE = Statement(
    "read_event_data",
    select(_e.data).where(_e.run_id == bindparam("run_id"), _e.seq == bindparam("seq", type_=Integer())),
    purpose="Read the values of one event.",
)


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Selects events of a run: between two numbers, of some types, of steps whose path begins with a prefix."""

    after: int
    before: int
    limit: int
    newest_first: bool = False
    types: Collection[str] = ()
    path_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class EventRange:
    """The found events, and the last examined number if more may follow."""

    lines: Sequence[StoredEvent]
    looked_at: int | None


async def read_event_range(database: Database, run_id: str, wanted: EventQuery) -> EventRange:
    """Return the events that match, in the wanted order, at most PART_BYTES of them or one that is larger."""
    room = PART_BYTES
    low, high = wanted.after, wanted.before
    end = max(low, high - WINDOW - 1) if wanted.newest_first else min(high, low + WINDOW + 1)
    found: list[StoredEvent] = []
    statement = _READ[bool(wanted.types), wanted.newest_first]
    # The filter by path needs the values, so it reads more than it returns.
    chunk = wanted.limit if wanted.path_prefix is None else max(wanted.limit, _CHUNK)
    while True:
        after, before = (max(low, end), high) if wanted.newest_first else (low, min(high, end))

        async def work(session: Session, after: int = after, before: int = before) -> Sequence[Row]:
            given = {"types": session.texts(list(wanted.types))} if wanted.types else {}
            return await session.fetch(statement, run_id=run_id, after=after, before=before, limit=chunk, **given)

        rows = await database.transact(work)
        for row in rows:
            data = row["data"] if row["data"] is not None else await _large_data(database, run_id, row["seq"])
            line = StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], data)
            if data and (wanted.path_prefix is None or _is_inside(line, wanted.path_prefix)):
                room -= row["size"]
                if found and room < 0:
                    return EventRange(found, found[-1].seq)
                found.append(line)
                if len(found) == wanted.limit:
                    return EventRange(found, line.seq)
        if len(rows) < chunk:
            whole = end in (wanted.after, wanted.before)
            return EventRange(found, None if whole else (end + 1 if wanted.newest_first else end - 1))
        if wanted.newest_first:
            high = rows[-1]["seq"]
        else:
            low = rows[-1]["seq"]


async def read_event_value(database: Database, run_id: str, seq: int, name: str) -> tuple[bool, object]:
    """Return whether an event has a value of this name, and the value."""
    for row in await database.query(_ONE, run_id=run_id, seq=seq):
        data = load_json(row["data"])
        return name in data, data.get(name)
    return False, None


async def _large_data(database: Database, run_id: str, seq: int) -> str:
    """Return the values of an event that the page has not read; empty if retention has deleted it since."""
    rows = await database.query(_ONE, run_id=run_id, seq=seq)
    return rows[0]["data"] if rows else ""


def _is_inside(line: StoredEvent, prefix: str) -> bool:
    path = load_json(line.data).get("path")
    return isinstance(path, str) and path.startswith(prefix)
