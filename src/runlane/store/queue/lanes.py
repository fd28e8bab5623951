"""Lanes: their settings, which can be changed while runs execute, and the assignment of kinds of runs to lanes.

A change holds the lane's lock exclusively. Claims hold it while they take runs, so when a change returns, every claim
under the old settings has ended: a disabled lane starts no more runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, FromClause, Integer, Text, bindparam, delete, exists, func, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.base import Executable

from runlane.domain.lane import DEFAULT_LANE, MAX_NAME, POLL_BOUNDS_MS, SLOT_BOUNDS, STALE_BOUNDS_MINUTES, Lane
from runlane.domain.run import Status
from runlane.domain.start_tags import PRIORITY_BOUNDS_SECONDS
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import check_text
from runlane.errors import Conflict, InvalidRequest
from runlane.store.access.audit import append_audit
from runlane.store.queue.claim_locks import lane_lock
from runlane.store.queue.claim_survey import READY, READY_LIMITED, READY_QUARANTINED, all_ready
from runlane.store.queue.lane_holds import holds_in
from runlane.store.queue.lane_names import check_lanes, require_lane
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import by_key_only, lit, member, now_us
from runlane.store.sql.schema import lane_kinds, lanes, runs
from runlane.store.sql.statement import Row, Statement

# How many waiting runs move to another lane in one transaction.
_MOVE_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A change of a lane; None leaves a field unchanged. `uncapped` removes the cap, `unbounded` the stale timeout."""

    enabled: bool | None = None
    max_slots: int | None = None
    uncapped: bool = False
    poll_interval_ms: int | None = None
    fair: bool | None = None
    priority_seconds: int | None = None
    stale_timeout_minutes: int | None = None
    unbounded: bool = False


SETTINGS = ("enabled", "max_slots", "poll_interval_ms", "fair", "priority_seconds", "stale_timeout_minutes")
_settings_columns = [lanes.c.name, *(lanes.c[name] for name in SETTINGS)]


def _declare(batch: FromClause) -> Executable:
    return (
        insert(lanes)
        .from_select(
            ["name", "tenant", "updated_at"],
            select(batch.c.name, batch.c.tenant, now_us()).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["name"])
    )


DECLARE = Statement(
    "declare_lanes", _declare, {"name": Text(), "tenant": Text()}, purpose="Create lanes that do not exist yet."
)
_LIST = Statement(
    "list_lanes",
    select(
        lanes,
        select(func.count())
        .where(runs.c.lane == lanes.c.name, runs.c.status == lit(Status.RUNNING))
        .scalar_subquery()
        .label("running"),
    ).order_by(lanes.c.name),
    purpose="Read all lanes with their running runs.",
)
_ready = all_ready(runs.c.lane, runs.c.accepted_at).c
_READY_IN_LANES = Statement(
    "ready_in_lanes",
    select(_ready.lane, func.count().label("queued"), func.min(_ready.accepted_at).label("oldest")).group_by(
        _ready.lane
    ),
    purpose="Count the ready runs of each lane, and find the oldest.",
)
_SETTINGS = Statement(
    "lane_settings",
    select(*_settings_columns).where(lanes.c.name == bindparam("lane")),
    purpose="Read the settings of a lane.",
)
_KINDS = Statement(
    "list_lane_kinds",
    select(lane_kinds).order_by(lane_kinds.c.kind),
    purpose="Read which lanes operators assigned to kinds of runs.",
)
_SET = Statement(
    "set_lane",
    update(lanes)
    .where(lanes.c.name == bindparam("lane"))
    .values(
        enabled=func.coalesce(bindparam("new_enabled", type_=Boolean()), lanes.c.enabled),
        max_slots=func.nullif(func.coalesce(bindparam("new_max_slots", type_=Integer()), lanes.c.max_slots), lit(-1)),
        poll_interval_ms=func.coalesce(bindparam("new_poll", type_=Integer()), lanes.c.poll_interval_ms),
        fair=func.coalesce(bindparam("new_fair", type_=Boolean()), lanes.c.fair),
        priority_seconds=func.coalesce(bindparam("new_priority", type_=Integer()), lanes.c.priority_seconds),
        stale_timeout_minutes=func.nullif(
            func.coalesce(bindparam("new_stale", type_=Integer()), lanes.c.stale_timeout_minutes), lit(-1)
        ),
        # An operator's settings must outlive the definitions that named the lane.
        tenant=None,
        updated_at=now_us(),
    )
    .returning(*_settings_columns),
    purpose="Change the settings of a lane.",
)


_in_lane = runs.c.lane == lanes.c.name
# A ready or running run is in the lane.
IS_IN_USE = or_(
    *(exists().where(_in_lane, ready) for ready in (READY, READY_LIMITED, READY_QUARANTINED)),
    exists().where(_in_lane, runs.c.status == lit(Status.RUNNING)),
)
_DELETE = Statement(
    "delete_lane",
    delete(lanes).where(lanes.c.name == bindparam("lane"), ~IS_IN_USE).returning(lanes.c.name),
    purpose="Delete a lane that no run uses.",
)


def _assign(batch: FromClause) -> Executable:
    statement = insert(lane_kinds).from_select(
        ["kind", "lane", "updated_at"],
        select(batch.c.kind, batch.c.lane, now_us()).select_from(batch).where(true()),
    )
    return statement.on_conflict_do_update(
        index_elements=["kind"],
        set_={"lane": statement.excluded.lane, "updated_at": statement.excluded.updated_at},
    )


_ASSIGN = Statement(
    "assign_kinds", _assign, {"kind": Text(), "lane": Text()}, purpose="Assign kinds of runs to a lane."
)
_UNASSIGN = Statement(
    "unassign_kinds",
    delete(lane_kinds).where(member(lane_kinds.c.kind, "kinds")),
    purpose="Remove the assignment of kinds of runs to lanes.",
)
_WAITING = Statement(
    "waiting_of_kinds",
    select(runs.c.id)
    .where(
        runs.c.id > bindparam("after"),
        member(runs.c.target, "kinds"),
        runs.c.lane != bindparam("lane"),
        runs.c.status.in_([lit(status) for status in Status if status.waiting]),
    )
    .order_by(runs.c.id)
    .limit(lit(_MOVE_AT_ONCE)),
    purpose="Read a page of waiting runs of some kinds that are not in a lane.",
)
# The page is a parameter and not a join: with statistics of an empty table, Postgres reads it again for every run.
_MOVE = Statement(
    "move_waiting",
    update(runs)
    .where(
        member(runs.c.id, "ids"),
        by_key_only(runs.c.status).in_([lit(status) for status in Status if status.waiting]),
    )
    .values(lane=bindparam("lane"))
    .returning(runs.c.id),
    purpose="Move a page of waiting runs to the lane assigned to their kind.",
)


async def declare_lanes(database: Database, names: Collection[str]) -> None:
    """Create the lanes named in code that do not exist."""
    await read(database, DECLARE, [(name, None) for name in sorted(names)])


async def list_lanes(database: Database) -> list[Lane]:
    """Return every lane with its running and queued runs, and the kinds that operators assigned to it."""
    return await database.transact(lanes_in)


async def lanes_in(session: Session) -> list[Lane]:
    """Return every lane, within a transaction."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for row in await session.fetch(_KINDS):
        kinds[row["lane"]].append(row["kind"])
    holds = await holds_in(session)
    ready = {row["lane"]: (row["queued"], row["oldest"]) for row in await session.fetch(_READY_IN_LANES)}
    return [
        Lane(
            name=row["name"],
            enabled=bool(row["enabled"]),
            max_slots=row["max_slots"],
            poll_interval_ms=row["poll_interval_ms"],
            fair=bool(row["fair"]),
            priority_seconds=row["priority_seconds"],
            stale_timeout_minutes=row["stale_timeout_minutes"],
            running=row["running"],
            queued=ready.get(row["name"], (0, None))[0],
            oldest_queued_at_us=ready.get(row["name"], (0, None))[1],
            kinds=tuple(kinds[row["name"]]),
            held=row["name"] in holds,
            holds=holds.get(row["name"], ()),
        )
        for row in await session.fetch(_LIST)
    ]


async def set_lane(
    database: Database, name: str, change: LaneChange, *, create: bool = False, actor: str = "local"
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Change a lane with immediate effect; return its old settings, None for a new lane, and the new ones."""
    check_text(name, "The lane name", MAX_NAME)
    _check_bounds("max_slots", change.max_slots, SLOT_BOUNDS)
    _check_bounds("poll_interval_ms", change.poll_interval_ms, POLL_BOUNDS_MS)
    _check_bounds("priority_seconds", change.priority_seconds, PRIORITY_BOUNDS_SECONDS)
    _check_bounds("stale_timeout_minutes", change.stale_timeout_minutes, STALE_BOUNDS_MINUTES)

    async def work(session: Session) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
        await session.lock(exclusive=[lane_lock(name)])
        old = await _settings(session, name)
        if create and old is None:
            await session.fetch(DECLARE, [(name, None)])
        rows = await session.fetch(
            _SET,
            lane=name,
            new_enabled=change.enabled,
            new_max_slots=-1 if change.uncapped else change.max_slots,
            new_poll=change.poll_interval_ms,
            new_fair=change.fair,
            new_priority=change.priority_seconds,
            new_stale=-1 if change.unbounded else change.stale_timeout_minutes,
        )
        if not rows:
            await require_lane(session, name)
        new = _audit_fields(rows[0])
        if old != new:
            await append_audit(
                session,
                actor=actor,
                tenant=DEFAULT_TENANT,
                action="lane.set",
                subject=name,
                old=old,
                new=new,
            )
        return old, new

    return await database.transact(work)


async def create_lane(database: Database, name: str, change: LaneChange, *, actor: str = "local") -> Mapping[str, Any]:
    """Create a lane with these settings; return them. Conflict if it exists."""
    known = await database.query(_SETTINGS, lane=name)
    if not known:
        old, new = await set_lane(database, name, change, create=True, actor=actor)
        if old is None:
            return new
    raise Conflict(f'The lane "{name}" exists. Change it: runlane lanes set {name}')


async def delete_lane(database: Database, name: str, *, actor: str = "local") -> None:
    """Delete a lane that no ready or running run uses, to which no kind is assigned, and without holds.

    Runs that wait in it for something else stay: a lane without a row is served with the default settings.
    """
    if name == DEFAULT_LANE:
        raise InvalidRequest(f'The lane "{DEFAULT_LANE}" always exists and cannot be deleted.')

    async def work(session: Session) -> None:
        await session.lock(exclusive=[lane_lock(name)])
        await require_lane(session, name)
        old = await _settings(session, name)
        kinds = [row["kind"] for row in await session.fetch(_KINDS) if row["lane"] == name]
        if kinds:
            raise Conflict(f'The kind "{kinds[0]}" is assigned to the lane "{name}". Assign it to another one first.')
        if name in await holds_in(session):
            raise Conflict(f'The lane "{name}" has holds. Release them first: runlane lanes holds {name}')
        if not await session.fetch(_DELETE, lane=name):
            raise Conflict(f'Runs wait or are executed in the lane "{name}". Wait until these runs have ended.')
        await append_audit(session, actor=actor, tenant=DEFAULT_TENANT, action="lane.delete", subject=name, old=old)

    await database.transact(work)


async def _settings(session: Session, name: str) -> Mapping[str, Any] | None:
    rows = await session.fetch(_SETTINGS, lane=name)
    return _audit_fields(rows[0]) if rows else None


def _audit_fields(row: Row) -> Mapping[str, Any]:
    return {**row, "enabled": bool(row["enabled"]), "fair": bool(row["fair"])}


async def move_kinds(database: Database, kinds: Collection[str], lane: str, *, actor: str = "local") -> int:
    """Assign these kinds of runs to a lane, including waiting runs; return how many of those moved."""
    await check_lanes(database, [lane])
    for kind in kinds:
        check_text(kind, "The kind", 200)

    async def assign(session: Session) -> None:
        old = await _assigned(session)
        await session.fetch(_ASSIGN, [(kind, lane) for kind in sorted(kinds)])
        for kind in sorted(kinds):
            if old.get(kind) != lane:
                await _audit_kind(session, actor, kind, old.get(kind), lane)

    await database.transact(assign)
    moved, after = 0, ""
    while True:
        page, count = await _move_page(database, kinds, lane, after)
        moved += count
        if len(page) < _MOVE_AT_ONCE:
            return moved
        after = page[-1]


async def unassign_kinds(database: Database, kinds: Collection[str], *, actor: str = "local") -> None:
    """Remove the assignment of these kinds; new runs use the lane declared in code."""

    async def work(session: Session) -> None:
        old = await _assigned(session)
        await session.fetch(_UNASSIGN, kinds=session.texts(sorted(kinds)))
        for kind in sorted(kinds):
            if kind in old:
                await _audit_kind(session, actor, kind, old[kind], None)

    await database.transact(work)


async def _assigned(session: Session) -> dict[str, str]:
    return {row["kind"]: row["lane"] for row in await session.fetch(_KINDS)}


async def _audit_kind(session: Session, actor: str, kind: str, old: str | None, new: str | None) -> None:
    await append_audit(
        session,
        actor=actor,
        tenant=DEFAULT_TENANT,
        action="kind.move",
        subject=kind,
        old=None if old is None else {"lane": old},
        new=None if new is None else {"lane": new},
    )


async def _move_page(database: Database, kinds: Collection[str], lane: str, after: str) -> tuple[list[str], int]:
    """Return the runs of the page, and how many of them moved: others may have started meanwhile."""

    async def work(session: Session) -> tuple[list[str], int]:
        rows = await session.fetch(_WAITING, kinds=session.texts(sorted(kinds)), lane=lane, after=after)
        page = [row["id"] for row in rows]
        if not page:
            return [], 0
        return page, len(await session.fetch(_MOVE, ids=session.texts(page), lane=lane))

    return await database.transact(work)


def _check_bounds(name: str, value: int | None, bounds: tuple[int, int]) -> None:
    if value is not None and not bounds[0] <= value <= bounds[1]:
        raise InvalidRequest(f"{name}={value} is out of bounds: it must be between {bounds[0]} and {bounds[1]}.")
