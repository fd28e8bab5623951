"""Rates of events, per tenant and per source of webhooks: a bucket that one row describes, exact under concurrency."""

from __future__ import annotations

import math
from typing import Final

from sqlalchemy import BigInteger, bindparam, case, select

from runlane.errors import RateLimited
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, now_us, upsert
from runlane.store.sql.schema import event_rates
from runlane.store.sql.statement import Statement

_MINUTE_US: Final = 60_000_000

_cost = bindparam("cost_us", type_=BigInteger())
# At least the current time, so that an unused rate does not accumulate beyond one minute.
_from = case((event_rates.c.paid_until > now_us(), event_rates.c.paid_until), else_=now_us())
_PAY = Statement(
    "pay_event_rate",
    upsert(event_rates)
    .values(key=bindparam("key"), paid_until=now_us() + _cost)
    .on_conflict_do_update(
        index_elements=["key"],
        set_={"paid_until": _from + _cost},
        where=_from + _cost <= now_us() + lit(_MINUTE_US),
    )
    .returning((event_rates.c.paid_until - now_us()).label("paid_us")),
    purpose="Use up a part of a rate of events, unless a minute of it is used up.",
)
_LEFT = Statement(
    "event_rate_left",
    select((event_rates.c.paid_until - now_us()).label("paid_us")).where(event_rates.c.key == bindparam("key")),
    purpose="Read up to when a rate of events is used up.",
)


async def pay_rate(session: Session, key: str, count: int, per_minute: int, what: str) -> int:
    """Count events against a rate; return how many of the events of a minute are used now.

    Raises RateLimited when more than `per_minute` would arrive within a minute.
    """
    # A quota of 0 allows none.
    cost_us = count * _MINUTE_US // per_minute if per_minute else 2 * _MINUTE_US
    if cost_us <= _MINUTE_US:
        paid = await session.fetch(_PAY, key=key, cost_us=cost_us)
        if paid:
            return _used(paid[0]["paid_us"], per_minute)
    rows = await session.fetch(_LEFT, key=key)
    paid_us = rows[0]["paid_us"] if rows else 0
    wait_seconds = max(1.0, (paid_us + cost_us - _MINUTE_US) / 1_000_000)
    raise RateLimited(f"{what} has reached its {per_minute} events per minute. Send later, or fewer.", wait_seconds)


async def used_of_rate(session: Session, key: str, per_minute: int) -> int:
    """Return how many of the events of a minute are used at this moment."""
    rows = await session.fetch(_LEFT, key=key)
    return _used(rows[0]["paid_us"], per_minute) if rows else 0


def _used(paid_us: int, per_minute: int) -> int:
    return max(0, math.ceil(paid_us * per_minute / _MINUTE_US))
