"""Events: appending to a run's stream and reading it back.

The number comes from `runs.last_seq`, raised by the same transaction, so a number is used once and no reader
ever sees a gap. A worker's events are inserted through the fence: only while its attempt is the run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, FromClause, Integer, Text, and_, bindparam, exists, func, insert, select
from sqlalchemy.sql.base import Executable

from runlane.domain.events import Event
from runlane.domain.text import load_json
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import now_us
from runlane.store.sql.schema import run_events, runs
from runlane.store.sql.statement import Statement

# run_id, seq, attempt, type, at, data as JSON text
EventRow = tuple[str, int, int, str, int | None, str]

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


# For changes that nobody's attempt makes: accept, cancel, release, take-over.
APPEND = Statement("append_events", _append, _COLUMNS, purpose="Add events to runs.")
# For what a worker writes.
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


async def append(session: Session, events: Iterable[EventRow]) -> None:
    """Insert events whose numbers the same transaction has taken from their runs."""
    await session.fetch(APPEND, list(events))


async def read_events(database: Database, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
    """The events of a run after a number, in order."""
    rows = await read(database, _READ, run_id=run_id, after=after, limit=limit)
    return [
        Event(row["run_id"], row["seq"], row["type"], row["attempt"], row["at"], load_json(row["data"])) for row in rows
    ]


async def has_event(database: Database, run_id: str, kind: str) -> bool:
    """Whether the run's stream has an event of this type."""
    return bool((await database.query(_HAS, run_id=run_id, type=kind))[0]["found"])
