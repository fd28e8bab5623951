"""Holds of lanes. A hold prevents a lane from starting runs and has an owner, a reason and optionally an end.

A lane starts nothing while any hold is active, so one owner's release does not undo another's hold. Holds are changed
under the lane's lock, which claims hold while they take runs: when a call returns, every claim that did not see the
hold has ended. A hold expires at its time, even if the process that placed it has died.
"""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import BigInteger, Text, and_, bindparam, cast, delete, func, insert, or_, select, update
from sqlalchemy.types import Float

from runlane.domain.ids import new_id
from runlane.domain.lane import MAX_HOLD_SECONDS, MAX_HOLDS, MAX_OWNER, MAX_REASON, LaneHold
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import check_text
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.access.audit import append_audit
from runlane.store.queue.claim_locks import lane_lock
from runlane.store.queue.lane_names import require_lane
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import lane_holds, lanes
from runlane.store.sql.statement import Statement

# A time after the end of every hold.
_ALWAYS = 2**62
_of_lane = lane_holds.c.lane == bindparam("lane")
_is_active = or_(lane_holds.c.expires_at.is_(None), lane_holds.c.expires_at > now_us())
_ACTIVE = Statement(
    "active_holds",
    select(lane_holds).where(_is_active).order_by(lane_holds.c.id),
    purpose="Read the active holds of all lanes.",
)
_OF_LANE = Statement(
    "active_holds_of_lane",
    select(lane_holds).where(_of_lane, _is_active).order_by(lane_holds.c.id),
    purpose="Read the active holds of a lane.",
)
_seconds = bindparam("seconds", type_=Float())
_ADD = Statement(
    "hold_lane",
    insert(lane_holds)
    .from_select(
        ["id", "lane", "owner", "reason", "created_at", "expires_at"],
        select(
            bindparam("id", type_=Text()),
            bindparam("lane", type_=Text()),
            bindparam("owner", type_=Text()),
            bindparam("reason", type_=Text()),
            now_us(),
            # Without seconds the end is null, and the hold lasts until it is released.
            now_us() + cast(_seconds * 1_000_000, BigInteger),
        ),
    )
    .returning(lane_holds),
    purpose="Add a hold to a lane.",
)
_REMOVE = Statement(
    "release_hold",
    delete(lane_holds).where(_of_lane, lane_holds.c.id == bindparam("hold_id"), _is_active).returning(lane_holds),
    purpose="Remove a hold of a lane.",
)
_REMOVE_EXPIRED = Statement(
    "delete_expired_holds",
    delete(lane_holds).where(_of_lane, ~_is_active),
    purpose="Delete the holds of a lane that have ended.",
)
_last = (
    select(func.max(func.coalesce(lane_holds.c.expires_at, lit(_ALWAYS))))
    .where(and_(lane_holds.c.lane == lanes.c.name, _is_active))
    .scalar_subquery()
)
_NOTE = Statement(
    "note_holds",
    # An operator's lane must outlive the definitions that named it.
    update(lanes).where(lanes.c.name == bindparam("lane")).values(held_until=_last, tenant=None),
    purpose="Note in a lane when its last hold ends.",
)


async def holds_in(session: Session) -> dict[str, tuple[LaneHold, ...]]:
    """Return the active holds by lane."""
    found: dict[str, list[LaneHold]] = defaultdict(list)
    for row in await session.fetch(_ACTIVE):
        found[row["lane"]].append(from_row(LaneHold, row))
    return {lane: tuple(holds) for lane, holds in found.items()}


async def list_holds(database: Database, lane: str) -> list[LaneHold]:
    """Return the active holds of a lane, oldest first."""

    async def work(session: Session) -> list[LaneHold]:
        await require_lane(session, lane)
        return [from_row(LaneHold, row) for row in await session.fetch(_OF_LANE, lane=lane)]

    return await database.transact(work)


async def hold_lane(
    database: Database,
    lane: str,
    *,
    owner: str,
    reason: str,
    expires_in_seconds: float | None = None,
    actor: str = "local",
) -> LaneHold:
    """Prevent a lane from starting runs. The hold is in effect when this returns; running runs may finish."""
    check_text(owner, "The owner of the hold", MAX_OWNER)
    check_text(reason, "The reason of the hold", MAX_REASON)
    if expires_in_seconds is not None and not 0 < expires_in_seconds <= MAX_HOLD_SECONDS:
        raise InvalidRequest(
            f"expires_in_seconds={expires_in_seconds!r} must be above 0 and at most {MAX_HOLD_SECONDS} (30 days)."
        )

    async def work(session: Session) -> LaneHold:
        await session.lock(exclusive=[lane_lock(lane)])
        await require_lane(session, lane)
        await session.fetch(_REMOVE_EXPIRED, lane=lane)
        if len(await session.fetch(_OF_LANE, lane=lane)) >= MAX_HOLDS:
            raise Conflict(f'The lane "{lane}" has {MAX_HOLDS} holds, which is the limit. Release some of them.')
        hold_id = new_id("hold")
        rows = await session.fetch(_ADD, id=hold_id, lane=lane, owner=owner, reason=reason, seconds=expires_in_seconds)
        await session.fetch(_NOTE, lane=lane)
        hold = from_row(LaneHold, rows[0])
        new = {"hold_id": hold.id, "owner": owner, "reason": reason, "expires_in_seconds": expires_in_seconds}
        await append_audit(session, actor=actor, tenant=DEFAULT_TENANT, action="lane.hold", subject=lane, new=new)
        return hold

    return await database.transact(work)


async def release_hold(database: Database, lane: str, hold_id: str, *, actor: str = "local") -> LaneHold:
    """Remove one hold. The lane starts runs again when it was the last and the lane is enabled."""

    async def work(session: Session) -> LaneHold:
        await session.lock(exclusive=[lane_lock(lane)])
        await require_lane(session, lane)
        rows = await session.fetch(_REMOVE, lane=lane, hold_id=hold_id)
        if not rows:
            raise NotFound(f'The lane "{lane}" has no active hold {hold_id!r}. See: runlane lanes holds {lane}')
        await session.fetch(_NOTE, lane=lane)
        hold = from_row(LaneHold, rows[0])
        old = {"hold_id": hold.id, "owner": hold.owner, "reason": hold.reason}
        await append_audit(session, actor=actor, tenant=DEFAULT_TENANT, action="lane.release", subject=lane, old=old)
        return hold

    return await database.transact(work)
