"""Runs that wait for an event of their tenant: the waits that an event may answer, and the events for a wait.

Events and waits are compared in two ways, so that none is missed: a matched event finds the open waits, and a new wait
is compared once with the events that were stored before. An event answers a wait if it was received after the wait
began, or at most `lookback` earlier.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, FromClause, Integer, Text, and_, bindparam, exists, or_, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.tenant_event import TenantEvent
from runlane.domain.text import load_json
from runlane.store.events.reading import event_of
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.schema import run_waits, stored_events
from runlane.store.sql.statement import Row, Statement

_SEARCHED_AT_ONCE: Final = 100
_PAGE: Final = 500
# Events that are compared with one new wait, in pages.
_LOOKED_AT: Final = 50_000
_EVENTS_AT_ONCE: Final = 1000

_open = and_(
    run_waits.c.match.is_not(None),
    run_waits.c.answered_at.is_(None),
    run_waits.c.settled_at.is_(None),
)
UNSEARCHED = and_(_open, run_waits.c.looked_at.is_(None))


def _awaited(batch: FromClause) -> Executable:
    b = batch.c
    return select(b.id, b.tenant).where(
        exists().where(run_waits.c.tenant == b.tenant, run_waits.c.name == b.name, _open)
    )


_AWAITED = Statement(
    "awaited_events",
    _awaited,
    {"id": Text(), "tenant": Text(), "name": Text()},
    purpose="Find the events that a run may wait for.",
)
_after_run, _after_path = bindparam("after_run", type_=Text()), bindparam("after_path", type_=Text())
_WAITS = Statement(
    "waits_for_tenant_event",
    within_bytes(
        select(run_waits.c.run_id, run_waits.c.path, run_waits.c.match),
        run_waits.c.tenant == bindparam("tenant"),
        run_waits.c.name == bindparam("name"),
        _open,
        run_waits.c.opened_at - run_waits.c.lookback_us <= bindparam("received_at", type_=BigInteger()),
        or_(run_waits.c.run_id > _after_run, and_(run_waits.c.run_id == _after_run, run_waits.c.path > _after_path)),
        keys=[run_waits.c.run_id, run_waits.c.path],
        order=[(run_waits.c.run_id, False), (run_waits.c.path, False)],
        large=[run_waits.c.match],
        limit=lit(_PAGE),
    ),
    purpose="Read a page of the open waits for an event of a tenant.",
)
_UNSEARCHED = Statement(
    "unsearched_waits",
    within_bytes(
        select(
            run_waits.c.run_id,
            run_waits.c.path,
            run_waits.c.tenant,
            run_waits.c.name,
            run_waits.c.match,
            (run_waits.c.opened_at - run_waits.c.lookback_us).label("since"),
        ),
        UNSEARCHED,
        keys=[run_waits.c.run_id, run_waits.c.path],
        order=[(run_waits.c.opened_at, False), (run_waits.c.run_id, False), (run_waits.c.path, False)],
        large=[run_waits.c.match],
        limit=lit(_SEARCHED_AT_ONCE),
    ),
    purpose="Find new waits that were not compared with earlier events.",
)
_EARLIER = Statement(
    "events_before_wait",
    within_bytes(
        select(stored_events),
        stored_events.c.tenant == bindparam("tenant"),
        stored_events.c.name == bindparam("name"),
        stored_events.c.received_at >= bindparam("since", type_=BigInteger()),
        stored_events.c.id > bindparam("after", type_=Text()),
        keys=[stored_events.c.id],
        order=[(stored_events.c.id, False)],
        large=[stored_events.c.data],
        limit=bindparam("limit", type_=Integer()),
    ),
    purpose="Read a page of the events that a new wait may use, oldest first.",
)
_SEARCHED = Statement(
    "mark_searched",
    update(run_waits)
    .where(run_waits.c.run_id == bindparam("run_id"), run_waits.c.path == bindparam("path"))
    .values(looked_at=now_us()),
    purpose="Note that a wait was compared with earlier events.",
)


class OpenMatch(NamedTuple):
    """A wait that an event may answer."""

    run_id: str
    path: str
    match: dict[str, Any]


async def awaited(session: Session, events: Sequence[Row]) -> Sequence[Row]:
    """Return id and tenant of the events whose name a run waits for."""
    return await session.fetch(_AWAITED, [(row["id"], row["tenant"], row["name"]) for row in events])


async def waits_for(database: Database, event: TenantEvent, after: OpenMatch | None) -> list[OpenMatch]:
    """Return a page of the waits that the event may answer; `after` is the last one of the previous page."""
    rows = await database.query(
        _WAITS,
        tenant=event.tenant,
        name=event.name,
        received_at=event.received_at_us,
        after_run="" if after is None else after.run_id,
        after_path="" if after is None else after.path,
    )
    return [OpenMatch(row["run_id"], row["path"], load_json(row["match"])) for row in rows]


async def unsearched_waits(database: Database) -> tuple[Sequence[Row], bool]:
    """Return some new waits that were not compared with earlier events, and whether there may be more."""
    rows = await database.query(_UNSEARCHED)
    return rows, len(rows) == _SEARCHED_AT_ONCE or is_cut(rows)


async def earlier_events(database: Database, wait: Row) -> AsyncGenerator[TenantEvent]:
    """Yield the stored events that a new wait may use, oldest first. They are read a page at a time."""
    given = {"tenant": wait["tenant"], "name": wait["name"], "since": wait["since"]}
    left, after = _LOOKED_AT, ""
    while left > 0:
        limit = min(left, _EVENTS_AT_ONCE)
        rows = await database.query(_EARLIER, **given, after=after, limit=limit)
        for row in rows:
            yield event_of(row)
        if len(rows) < limit and not is_cut(rows):
            return
        left, after = left - len(rows), rows[-1]["id"]


async def mark_searched(database: Database, wait: Row) -> None:
    """Note that a wait was compared with earlier events."""

    async def work(session: Session) -> None:
        await session.fetch(_SEARCHED, run_id=wait["run_id"], path=wait["path"])

    await database.transact(work)
