"""Held deliveries: those of a disabled endpoint, which are sent or discarded when that ends.

An endpoint may have been disabled for weeks, so there may be millions of them. They are changed in parts, each in a
transaction of its own, and a caller that is interrupted repeats its request.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Text, bindparam, case, select, update

from runlane.domain.webhook import DeliveryStatus
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import webhook_deliveries
from runlane.store.sql.statement import Statement

HELD_AT_ONCE: Final = 5_000
# Deliveries that are released before their endpoint is enabled are due after this time, because a claim holds those
# that are due again.
_RELEASED_US: Final = 300 * 1_000_000
_status = bindparam("status", type_=Text())
_is_held = webhook_deliveries.c.status == lit(DeliveryStatus.HELD)
_PAGE = Statement(
    "held_webhooks",
    select(webhook_deliveries.c.id)
    .where(
        webhook_deliveries.c.endpoint_id == bindparam("endpoint_id"),
        _is_held,
        webhook_deliveries.c.id > bindparam("after", type_=Text()),
    )
    .order_by(webhook_deliveries.c.id)
    .limit(lit(HELD_AT_ONCE + 1)),
    purpose="Read a page of the deliveries that wait for a disabled webhook endpoint.",
)
_MOVE = Statement(
    "move_held_webhooks",
    update(webhook_deliveries)
    .where(member(webhook_deliveries.c.id, "ids"), _is_held)
    .values(
        status=_status,
        next_at=case((_status == lit(DeliveryStatus.PENDING), now_us() + lit(_RELEASED_US)), else_=None),
        ended_at=case((_status == lit(DeliveryStatus.DISCARDED), now_us()), else_=None),
    )
    .returning(webhook_deliveries.c.id),
    purpose="Send or discard a page of the deliveries that wait for a disabled webhook endpoint.",
)


async def settle_most(database: Database, endpoint_id: str, *, send: bool) -> int:
    """Send or discard held deliveries in parts, until a last part is left to the caller; return how many."""
    count, after = 0, ""
    while after is not None:
        moved, after = await _settle_part(database, endpoint_id, after, send=send)
        count += moved
    return count


async def _settle_part(database: Database, endpoint_id: str, after: str, *, send: bool) -> tuple[int, str | None]:
    """Return how many deliveries after an id were changed, and the last of them; None if the last part is reached."""
    status = DeliveryStatus.PENDING if send else DeliveryStatus.DISCARDED

    async def work(session: Session) -> tuple[int, str | None]:
        ids = [row["id"] for row in await session.fetch(_PAGE, endpoint_id=endpoint_id, after=after)]
        if len(ids) <= HELD_AT_ONCE:
            return 0, None
        part = ids[:HELD_AT_ONCE]
        return len(await session.fetch(_MOVE, ids=session.texts(part), status=status.value)), part[-1]

    return await database.transact(work)
