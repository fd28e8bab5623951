"""Accept runs with the limit of one key each: count the admitted runs and store the new ones with one statement.

For Postgres, where the statement saves round trips. The locks of the limits must be taken by an earlier statement,
because this one counts rows that were committed when it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import ARRAY, BigInteger, FromClause, Integer, Text, and_, bindparam, case, column, exists, func, select

from runlane.domain.admission import wait_order
from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyStrategy, counted_limits, limits_to_text
from runlane.domain.run import Accepted, Status
from runlane.store.queue.accept import NewRun, accepted_of, plain_columns
from runlane.store.queue.accept_statements import (
    ALONE_COLUMNS,
    RETURNS,
    admit_alone,
    insert_first_events,
    insert_inputs_limited,
    insert_runs_limited,
    insert_slots,
)
from runlane.store.queue.limit_rows import ADD_WAITS, count_admitted
from runlane.store.queue.limits import limit_locks, read_room, wait_row
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import limit_waits
from runlane.store.sql.statement import Row

# A number that no limit admits. It is the count of a key with waiting runs, so that a new run does not overtake them.
_NO_ROOM: Final = 1 << 62
_COLUMNS = {
    **ALONE_COLUMNS,
    "limits": Text(),
    "limit_key": Text(),
    # The position of the key in `keys`, from 1.
    "limit_no": Integer(),
    # The run is admitted if fewer runs than this are: the number of its limit minus the earlier runs of the batch.
    "limit_room": Integer(),
}


def _admit(batch: FromClause) -> FromClause:
    wanted = func.unnest(bindparam("keys", type_=ARRAY(Text()))).table_valued(column("key", Text()))
    wanted = wanted.render_derived(name="wanted")
    # If no run waits, one lookup in the table replaces a lookup for each key.
    is_waited = and_(exists().select_from(limit_waits), exists().where(limit_waits.c.key == wanted.c.key))
    admitted = case((is_waited, lit(_NO_ROOM)), else_=count_admitted(wanted.c.key))
    # Each key is counted once, however many runs of the batch have it. The elements are in the order of `keys`.
    counts = select(func.array_agg(admitted, type_=ARRAY(BigInteger()))).select_from(wanted).scalar_subquery()
    is_full = and_(batch.c.limit_key.is_not(None), counts[batch.c.limit_no] >= batch.c.limit_room)
    return admit_alone(select(batch, is_full.label("limit_is_full")).select_from(batch).subquery("counted"))


_ACCEPT_COUNTED = CompoundWrite(
    "accept_counted",
    insert_runs_limited,
    columns=_COLUMNS,
    returns={**RETURNS, "mark": Text()},
    links=[insert_inputs_limited, insert_first_events, insert_slots],
    admit=_admit,
    purpose="Store new runs with the limit of one key each and no other keys, queued where their limits have room.",
)


class CountedRuns(NamedTuple):
    """Runs that the statement can decide: its members, and their keys in the order of `limit_no`."""

    members: list[tuple[object, ...]]
    keys: list[str]


def counted_runs(requests: Sequence[NewRun]) -> CountedRuns | None:
    """Return the members of the statement; None if a run has a limit of another kind, or two numbers for one key."""
    members: list[tuple[object, ...]] = []
    seen: dict[str, tuple[int, int]] = {}
    rooms: list[int] = []
    for run in requests:
        if not run.limits:
            members.append((*plain_columns(run), None, None, None, None))
            continue
        limits = counted_limits(run.tenant, run.limits)
        key, most, _, shared, strategy = limits[0]
        if len(limits) > 1 or shared is not None or most is None or strategy is ConcurrencyStrategy.REJECT_NEW:
            return None
        no, number = seen.get(key, (0, most))
        if no == 0:
            rooms.append(most)
            no = len(rooms)
            seen[key] = (no, most)
        elif number != most:
            return None
        members.append((*plain_columns(run), limits_to_text(limits), key, no, rooms[no - 1]))
        if run.delay_us <= 0 and not run.hold:
            rooms[no - 1] -= 1
    return CountedRuns(members, list(seen))


async def accept_counted(
    session: Session, requests: Sequence[NewRun], counted: CountedRuns
) -> Mapping[str, Accepted] | None:
    """Store the runs; return the verdicts by id. None, with nothing stored, if a tenant has limits or shares lanes."""
    await session.lock(exclusive=limit_locks(counted.keys))
    rows = await session.write(_ACCEPT_COUNTED, counted.members, keys=counted.keys)
    if len(rows) < len(requests):
        return None
    blocked = {row["id"]: row for row in rows if row["status"] == Status.BLOCKED}
    if blocked:
        await _store_waits(session, [run for run in requests if run.id in blocked], blocked)
    return accepted_of(rows)


async def _store_waits(session: Session, waiting: Sequence[NewRun], rows: Mapping[str, Row]) -> None:
    limits: dict[str, ConcurrencyLimit] = {}
    members: list[tuple[object, ...]] = []
    for run in waiting:
        own = counted_limits(run.tenant, run.limits)
        limits[own[0].key] = own[0]
        place = wait_order(rows[run.id]["accepted_at"], run.priority, started=False)
        members.append(wait_row(run.id, own, own[0], place, run.fairness_key, run.target))
    await session.fetch(ADD_WAITS, sorted(members))
    room = await read_room(session, limits)
    # A new run waits under a limit with room only if other runs wait for the limit, so these may be admitted.
    session.freed.update(
        key
        for key, limit in limits.items()
        if not room.is_full(limit) or limit.strategy is ConcurrencyStrategy.CANCEL_RUNNING
    )
