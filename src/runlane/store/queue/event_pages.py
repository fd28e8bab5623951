"""Following runs: where many of them stand, and their new events, each in one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import FromClause, Integer, Text, bindparam, select
from sqlalchemy.sql.base import Executable

from runlane.domain.events import StoredEvent
from runlane.domain.run import Status
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import member
from runlane.store.sql.schema import run_events, runs
from runlane.store.sql.statement import Statement


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How far a run's stream has come."""

    run_id: str
    first_seq: int
    last_seq: int
    ended: bool


def _lines(batch: FromClause) -> Executable:
    e = run_events.c
    return (
        select(e.run_id, e.seq, e.type, e.attempt, e.at, e.data)
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


_LINES = Statement(
    "read_next_events", _lines, {"run_id": Text(), "after": Integer()}, purpose="Read the next events of many runs."
)
_PAGE = Statement(
    "read_event_page",
    select(run_events.c.seq, run_events.c.type, run_events.c.attempt, run_events.c.at, run_events.c.data)
    .where(run_events.c.run_id == bindparam("run_id"), run_events.c.seq > bindparam("after", type_=Integer()))
    .order_by(run_events.c.seq)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the events of a run.",
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


async def read_positions(database: Database, run_ids: Sequence[str]) -> list[RunPosition]:
    """Where these runs stand; a run that is not kept is missing."""

    async def work(session: Session) -> list[RunPosition]:
        rows = await session.fetch(_POSITIONS, ids=session.texts(run_ids))
        return [
            RunPosition(row["id"], row["first_seq"], row["last_seq"], Status(row["status"]).terminal) for row in rows
        ]

    return await database.transact(work)


async def read_lines(
    database: Database, positions: Sequence[tuple[str, int]], limit: int
) -> dict[str, list[StoredEvent]]:
    """The stored events of each run after its number, at most `limit` numbers of each."""
    rows = await read(database, _LINES, [tuple(position) for position in positions], limit=limit)
    found: dict[str, list[StoredEvent]] = defaultdict(list)
    for row in rows:
        found[row["run_id"]].append(StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], row["data"]))
    return found


async def read_page(database: Database, run_id: str, after: int, limit: int) -> list[StoredEvent]:
    """The next stored events of one run, wherever they begin: retention may have cut the oldest."""
    rows = await read(database, _PAGE, run_id=run_id, after=after, limit=limit)
    return [StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], row["data"]) for row in rows]


async def read_last(database: Database, run_id: str, kind: str) -> StoredEvent | None:
    """The newest stored event of this type."""
    for row in await read(database, _LAST, run_id=run_id, type=kind):
        return StoredEvent(row["seq"], row["type"], row["attempt"], row["at"], row["data"])
    return None
