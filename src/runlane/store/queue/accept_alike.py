"""Accept runs that differ only in ids, inputs, traces and concurrency keys, in one round trip on Postgres.

Bulk requests send such runs. Their common values are sent once and looked up once, and one row is returned. These
statements store all runs or none; every other case, every wait and every rejection is left to the other statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    column,
    exists,
    func,
    insert,
    select,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import Grouping

from runlane.domain.concurrency import ConcurrencyStrategy, limits_to_text
from runlane.domain.run import Accepted, RunHook, Status
from runlane.store.access.tenants import FREE
from runlane.store.queue.accept import NewRun
from runlane.store.queue.accept_statements import ALONE_COLUMNS, RETURNS, insert_first_events, new_rows, timed
from runlane.store.queue.limits import limit_locks
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Duplicate
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import limit_slots, limit_waits, run_inputs, runs, tenants

_OWN_COLUMNS = {name: ALONE_COLUMNS[name] for name in ("id", "input", "trace")}
_LIMITED_COLUMNS = {**_OWN_COLUMNS, "limits": Text(), "limit_key": Text()}
_SHARED: Final = [name for name in ALONE_COLUMNS if name not in _OWN_COLUMNS]
_own = itemgetter(*(NewRun._fields.index(name) for name in _OWN_COLUMNS))
_shape = itemgetter(*(NewRun._fields.index(name) for name in _SHARED))


def _shared(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=ALONE_COLUMNS[name])


def _is_free() -> ColumnElement[bool]:
    return exists().where(tenants.c.id == _shared("tenant"), FREE, ~tenants.c.shares_lanes)


def _insert_runs(admitted: FromClause, **more: ColumnElement[Any]) -> Executable:
    columns = select(*admitted.c, *(_shared(name).label(name) for name in _SHARED)).selected_columns
    rows = new_rows(columns) | more
    return (
        insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted))
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at)
    )


def _insert_inputs(batch: FromClause | None, changed: FromClause) -> Executable:
    assert batch is not None  # noqa: S101 - these compound writes have a batch
    names = [name for name in batch.c.keys() if name in ("input", "trace", "limits")]  # noqa: SIM118 - not a dict
    values = [batch.c.id, *(batch.c[name] for name in names), _shared("plan")]
    return insert(run_inputs).from_select(["run_id", *names, "plan"], select(*values).select_from(batch))


def _summary(changed: FromClause) -> Select[Any]:
    values = {"stored": func.count(), "status": func.min(changed.c.status), "lane": func.min(changed.c.lane)}
    return select(*(value.label(name) for name, value in values.items())).select_from(changed)


_ACCEPT_ALIKE = CompoundWrite(
    "accept_alike",
    _insert_runs,
    columns=_OWN_COLUMNS,
    returns=RETURNS,
    links=[_insert_inputs, insert_first_events],
    final=_summary,
    admit=lambda batch: timed(batch, _is_free()),
    purpose="Store new runs that differ in their ids, inputs and traces alone, as one statement without a transaction.",
)


def _is_current() -> ColumnElement[bool]:
    """Take the locks of the keys; return whether the statement sees everything that earlier holders have committed.

    The statement counts rows that were committed when it began, but may get a lock later. The number of its transaction
    is assigned after the locks, so every earlier holder has a lower one. If this number is the first one that the
    statement does not see, and no lower one was in progress, nothing was committed in between.
    """
    wanted = func.unnest(bindparam("locks", type_=ARRAY(BigInteger()))).table_valued(column("key", BigInteger()))
    wanted = wanted.render_derived(name="wanted_locks")
    # The condition is never true, so the count is 0 once all locks are taken.
    taken = select(func.count().label("count")).where(func.pg_advisory_xact_lock(wanted.c.key).is_(None))
    locked = taken.select_from(wanted).cte("locked").prefix_with("materialized")
    snapshot = func.pg_current_snapshot()
    number = case((locked.c.count == lit(0), func.pg_current_xact_id()))
    unseen = func.pg_snapshot_xmax(snapshot)
    current = and_(number == unseen, func.pg_snapshot_xmin(snapshot) == unseen)
    return select(current).select_from(locked).scalar_subquery()


def _has_room() -> ColumnElement[bool]:
    """Return whether every key has room for all its runs of the batch, and no run waits for one of them."""
    # The column of the batch, for one scan of the index over all keys. One scan for each key would cost twice as much.
    keys = bindparam("limit_key", type_=ARRAY(Text()))
    least, rooms = bindparam("least_room", type_=BigInteger()), bindparam("rooms", type_=ARRAY(BigInteger()))
    # Only a key with more admitted runs than the smallest room is looked up. Without `rooms`, all keys have the
    # smallest room.
    room = func.coalesce(Grouping(rooms)[func.array_position(keys, limit_slots.c.key)], least)
    full = (
        select(limit_slots.c.key)
        .where(limit_slots.c.key == any_(keys))
        .group_by(limit_slots.c.key)
        .having(and_(func.count() > least, func.count() > room))
    )
    # If no run waits, one lookup in the table replaces a lookup for each key.
    is_waited = and_(exists().select_from(limit_waits), exists().where(limit_waits.c.key == any_(keys)))
    return and_(~full.exists(), ~is_waited)


def _insert_slots(batch: FromClause | None, changed: FromClause) -> Executable:
    assert batch is not None  # noqa: S101 - this compound write has a batch
    b = batch.c
    return insert(limit_slots).from_select(["key", "run_id"], select(b.limit_key, b.id).select_from(batch))


_ACCEPT_ALIKE_LIMITED = CompoundWrite(
    "accept_alike_limited",
    lambda admitted: _insert_runs(admitted, hooks=lit(RunHook.LIMITS)),
    columns=_LIMITED_COLUMNS,
    returns=RETURNS,
    links=[_insert_inputs, insert_first_events, _insert_slots],
    final=_summary,
    admit=lambda batch: timed(batch, and_(_is_current(), _has_room(), _is_free())),
    as_arrays=True,
    purpose="Store new runs with the limit of one key each, all of them admitted, without a transaction of their own.",
)


def are_alike(requests: Sequence[NewRun]) -> bool:
    """Return whether the runs differ only in their own columns and in the fields that `stand_alone` ignores."""
    return len(set(map(_shape, requests))) == 1


class AlikeLimits(NamedTuple):
    """Runs with one concurrency key each: the members of the statement, and the remaining room of each key."""

    members: list[tuple[object, ...]]
    rooms: dict[str, int]

    def parameters(self) -> dict[str, Any]:
        """Return the other parameters of the statement: the locks, and the rooms if they differ."""
        least = min(self.rooms.values())
        differ = max(self.rooms.values()) > least
        # In the order of the members, which have the key last.
        rooms = [self.rooms[cast("str", member[-1])] for member in self.members] if differ else []
        return {"locks": sorted(limit_locks(self.rooms)), "least_room": least, "rooms": rooms}


def alike_limits(requests: Sequence[NewRun]) -> AlikeLimits | None:
    """Return the members of the statement; None if a run needs another one.

    The runs are ready, have one limit each, which is not shared, and do not exceed the limits by themselves.
    """
    if requests[0].delay_us > 0 or requests[0].hold:
        return None
    members: list[tuple[object, ...]] = []
    numbers: dict[str, int] = {}
    rooms: dict[str, int] = {}
    for run in requests:
        limits = run.limits
        if len(limits) != 1:
            return None
        # A limit that is not shared is counted with the key and the number of the request.
        key, most, _, shared, strategy = limits[0]
        if shared is not None or most is None or strategy is ConcurrencyStrategy.REJECT_NEW:
            return None
        if numbers.setdefault(key, most) != most:
            return None
        rooms[key] = rooms.get(key, most) - 1
        members.append((*_own(run), limits_to_text(limits), key))
    # A key without admitted runs has no rows to count, so the statement cannot find that the batch alone exceeds it.
    return None if min(rooms.values()) < 0 else AlikeLimits(members, rooms)


async def accept_alike(
    database: Database, requests: Sequence[NewRun], limits: AlikeLimits | None = None
) -> dict[str, Accepted] | None:
    """Store runs that are alike with one statement; return the verdicts by id.

    Return None, with nothing stored, if a tenant has limits or shares lanes, or some runs exist. With `limits`, return
    None as well if a key has no room for all its runs, or another transaction wrote at the same time.
    """
    shared: dict[str, Any] = dict(zip(_SHARED, _shape(requests[0]), strict=True))
    try:
        if limits is None:
            rows = await database.execute_single(_ACCEPT_ALIKE, list(map(_own, requests)), **shared)
        else:
            rows = await database.execute_single(_ACCEPT_ALIKE_LIMITED, limits.members, **shared, **limits.parameters())
    except Duplicate:
        return None
    if rows[0]["stored"] != len(requests):
        return None
    status, lane = Status(rows[0]["status"]), rows[0]["lane"]
    return {run.id: Accepted(run.id, status, lane) for run in requests}
