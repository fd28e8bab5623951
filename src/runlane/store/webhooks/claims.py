"""Claim deliveries that are due, within the rate and the concurrency of their endpoints.

A claim locks the endpoints that have due deliveries and skips those that another process has locked, so the bounds of
an endpoint are exact in the whole cluster. A claimed delivery is leased: while it is `delivering`, `next_at` is the end
of the lease, and an abandoned one is due again. Each claim increases the fence, which the result has to name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.text import load_json
from runlane.domain.webhook import CIRCUIT_FAILURES, DeliveryStatus, allowance, paid_until, rate_wait_us
from runlane.domain.webhook_places import Places
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once, now_us
from runlane.store.sql.schema import run_inputs, run_webhooks, webhook_deliveries, webhook_endpoints, webhook_messages
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.secrets import StoredSecret, default_owner, valid_secrets

# Endpoints of one claim, and deliveries that it holds back in one statement.
_ENDPOINTS_AT_ONCE = 50
# How soon the next page of endpoints is read when those of one page all have to wait.
_NEXT_PAGE_SECONDS = 0.1
_SET_ASIDE_AT_ONCE = 1000
_OPEN = (lit(DeliveryStatus.PENDING), lit(DeliveryStatus.DELIVERING))
_is_open = webhook_deliveries.c.status.in_(_OPEN)
_is_due = and_(_is_open, webhook_deliveries.c.next_at <= now_once())

# For the maintenance survey.
DUE = exists().where(_is_open, webhook_deliveries.c.next_at <= now_once())


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this process sends until its lease ends. `secrets` sign it, newest first."""

    id: str
    fence: int
    tries: int
    max_tries: int
    endpoint_id: str
    tenant: str
    message_id: str
    type: str
    run_id: str | None
    url: str
    body: str
    neutral: bool
    own: bool
    claimed_at_us: int
    secrets: tuple[StoredSecret, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    # The trace of the run, which the request continues.
    trace: str | None = None

    @property
    def owners(self) -> tuple[str, ...]:
        """Return the owners of its secrets: the endpoint, or the run whose own webhook it is, then its tenant."""
        if self.own and self.run_id is not None:
            return self.run_id, default_owner(self.tenant)
        return (self.endpoint_id,)


@dataclass(frozen=True, slots=True)
class ClaimedDeliveries:
    """The claimed deliveries. `more` may be claimed at once.

    After `again_seconds`, a rate allows another delivery, or the next page of endpoints may have one.
    """

    deliveries: Sequence[ClaimedDelivery]
    more: bool = False
    again_seconds: float | None = None


class _Taken(NamedTuple):
    """The deliveries that a claim took of one endpoint: its `whole` share, or less because its rate makes it wait.

    `paid_until` is what is used of its rate afterwards, unless the endpoint was not served.
    """

    ids: Sequence[str] = ()
    whole: bool = False
    wait_us: int | None = None
    paid_until: int | None = None


_due_of_endpoint = exists().where(webhook_deliveries.c.endpoint_id == webhook_endpoints.c.id, _is_due)
_ENDPOINTS = Statement(
    "due_webhook_endpoints",
    select(
        webhook_endpoints.c.id,
        webhook_endpoints.c.tenant,
        webhook_endpoints.c.kind,
        webhook_endpoints.c.enabled,
        webhook_endpoints.c.ordered,
        webhook_endpoints.c.rate_per_second,
        webhook_endpoints.c.max_in_flight,
        webhook_endpoints.c.failures,
        webhook_endpoints.c.probe_at,
        webhook_endpoints.c.paid_until,
        now_us().label("now"),
    )
    .where(_due_of_endpoint)
    .order_by(webhook_endpoints.c.served_at)
    .limit(lit(_ENDPOINTS_AT_ONCE))
    .with_for_update(skip_locked=True),
    purpose="Lock the webhook endpoints that have due deliveries, the least recently served first.",
)
_IN_FLIGHT = Statement(
    "webhooks_in_flight",
    select(webhook_deliveries.c.endpoint_id, func.count().label("n"))
    .where(
        member(webhook_deliveries.c.endpoint_id, "ids"),
        webhook_deliveries.c.status == lit(DeliveryStatus.DELIVERING),
        _is_open,
        webhook_deliveries.c.next_at > now_once(),
    )
    .group_by(webhook_deliveries.c.endpoint_id),
    purpose="Count the deliveries of webhook endpoints that are being sent.",
)


def _serve(batch: FromClause) -> Executable:
    values = {"served_at": now_us(), "paid_until": batch.c.paid_until}
    return update(webhook_endpoints).where(webhook_endpoints.c.id == batch.c.id).values(values)


_SERVED = Statement(
    "webhook_endpoints_served",
    _serve,
    {"id": Text(), "paid_until": BigInteger()},
    purpose="Note when webhook endpoints were served, and what of their rates is used.",
)


def _picked(name: str, *conditions: ColumnElement[bool], limit: ColumnElement[int]) -> ColumnElement[bool]:
    picked = (
        select(webhook_deliveries.c.id)
        .where(webhook_deliveries.c.endpoint_id == bindparam("endpoint_id"), _is_due, *conditions)
        .order_by(webhook_deliveries.c.next_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte(name)
    )
    return webhook_deliveries.c.id == picked.c.id


_earlier = webhook_deliveries.alias("earlier")
_in_order = ~exists().where(
    _earlier.c.run_id == webhook_deliveries.c.run_id,
    _earlier.c.endpoint_id == webhook_deliveries.c.endpoint_id,
    _earlier.c.status.in_(_OPEN),
    ~_earlier.c.neutral,
    or_(
        _earlier.c.created_at < webhook_deliveries.c.created_at,
        and_(_earlier.c.created_at == webhook_deliveries.c.created_at, _earlier.c.id < webhook_deliveries.c.id),
    ),
)
_slots = bindparam("slots", type_=Integer())
_lease = now_us() + bindparam("lease_us", type_=BigInteger())
_returned = (
    webhook_deliveries.c.id,
    webhook_deliveries.c.fence,
    webhook_deliveries.c.message_id,
    webhook_deliveries.c.run_id,
)


def _take(name: str, purpose: str, *conditions: ColumnElement[bool]) -> Statement:
    return Statement(
        name,
        update(webhook_deliveries)
        .where(_picked("picked", *conditions, limit=_slots))
        .values(status=lit(DeliveryStatus.DELIVERING), fence=webhook_deliveries.c.fence + lit(1), next_at=_lease)
        .returning(*_returned),
        purpose=purpose,
    )


_any_or_neutral = or_(~bindparam("only_neutral", type_=Boolean()), webhook_deliveries.c.neutral)
_TAKE = _take("take_webhooks", "Lease due deliveries of a webhook endpoint.", _any_or_neutral)
_TAKE_ORDERED = _take(
    "take_ordered_webhooks",
    "Lease due deliveries of a webhook endpoint that gets the messages of each run in order.",
    _any_or_neutral,
    or_(webhook_deliveries.c.neutral, webhook_deliveries.c.run_id.is_(None), _in_order),
)
_waits = (webhook_deliveries.c.status == lit(DeliveryStatus.PENDING), ~webhook_deliveries.c.neutral)
_HOLD = Statement(
    "hold_webhooks",
    update(webhook_deliveries)
    .where(_picked("waiting", *_waits, limit=lit(_SET_ASIDE_AT_ONCE)))
    .values(status=lit(DeliveryStatus.HELD), next_at=None),
    purpose="Hold the deliveries of a disabled webhook endpoint.",
)
_DISCARD = Statement(
    "discard_webhooks",
    update(webhook_deliveries)
    .where(_picked("waiting", limit=lit(_SET_ASIDE_AT_ONCE)))
    .values(status=lit(DeliveryStatus.DISCARDED), next_at=None, ended_at=now_us()),
    purpose="Discard the deliveries of a deleted webhook endpoint.",
)
_DEFER = Statement(
    "defer_webhooks",
    update(webhook_deliveries)
    .where(_picked("waiting", *_waits, limit=lit(_SET_ASIDE_AT_ONCE)))
    .values(next_at=bindparam("probe_at", type_=BigInteger())),
    purpose="Defer the deliveries of a failing webhook endpoint to its next probe.",
)
_READ = Statement(
    "read_claimed_webhooks",
    select(
        webhook_deliveries.c.id,
        webhook_deliveries.c.fence,
        webhook_deliveries.c.tries,
        webhook_deliveries.c.max_tries,
        webhook_deliveries.c.endpoint_id,
        webhook_deliveries.c.tenant,
        webhook_deliveries.c.message_id,
        webhook_deliveries.c.type,
        webhook_deliveries.c.run_id,
        webhook_deliveries.c.neutral,
        func.coalesce(webhook_deliveries.c.body, webhook_messages.c.body).label("body"),
        webhook_endpoints.c.kind,
        webhook_endpoints.c.url,
        webhook_endpoints.c.headers,
        run_webhooks.c.url.label("run_url"),
        run_inputs.c.trace,
        now_us().label("now"),
    )
    .select_from(
        webhook_deliveries.join(webhook_messages, webhook_messages.c.id == webhook_deliveries.c.message_id)
        .join(webhook_endpoints, webhook_endpoints.c.id == webhook_deliveries.c.endpoint_id)
        .outerjoin(run_webhooks, run_webhooks.c.run_id == webhook_deliveries.c.run_id)
        .outerjoin(run_inputs, run_inputs.c.run_id == webhook_deliveries.c.run_id)
    )
    .where(member(webhook_deliveries.c.id, "ids"))
    .order_by(webhook_deliveries.c.created_at, webhook_deliveries.c.id),
    purpose="Read what is sent for claimed webhook deliveries.",
)


async def claim_deliveries(session: Session, places: Places, lease_us: int) -> ClaimedDeliveries:
    """Claim due deliveries for the free places of a process."""
    if places.free <= 0:
        return ClaimedDeliveries(())
    endpoints = await session.fetch(_ENDPOINTS)
    if not endpoints:
        return ClaimedDeliveries(())
    ids = session.texts([row["id"] for row in endpoints])
    in_flight = {row["endpoint_id"]: row["n"] for row in await session.fetch(_IN_FLIGHT, ids=ids)}
    # Others may wait behind the endpoints of a full page.
    full = len(endpoints) == _ENDPOINTS_AT_ONCE
    taken: list[_Taken] = []
    served: list[tuple[str, int]] = []
    for position, row in enumerate(endpoints):
        had_room = places.free > 0
        # Each endpoint gets its share of the places; the next endpoint may use the places that are left.
        share = places.share(row["tenant"], row["id"], among=len(endpoints) - position)
        item = await _claim_of(session, row, in_flight.get(row["id"], 0), share, lease_us)
        places.take(row["tenant"], row["id"], len(item.ids))
        taken.append(item)
        if item.paid_until is not None:
            served.append((row["id"], item.paid_until))
        elif full and had_room:
            # An endpoint that cannot be served now makes room in the next page.
            served.append((row["id"], row["paid_until"]))
    if served:
        await session.fetch(_SERVED, served)
    claimed = [delivery_id for item in taken for delivery_id in item.ids]
    waits = [item.wait_us / 1_000_000 for item in taken if item.wait_us is not None]
    if full and not claimed:
        waits.append(_NEXT_PAGE_SECONDS)
    return ClaimedDeliveries(
        await read_claimed(session, claimed),
        more=places.free > 0 and ((full and bool(claimed)) or any(item.whole for item in taken)),
        again_seconds=min(waits, default=None),
    )


async def _claim_of(session: Session, endpoint: Row, in_flight: int, share: int, lease_us: int) -> _Taken:
    if endpoint["kind"] == "deleted":
        await session.fetch(_DISCARD, endpoint_id=endpoint["id"])
        return _Taken()
    now, most = endpoint["now"], endpoint["max_in_flight"]
    failing = endpoint["failures"] >= CIRCUIT_FAILURES
    only_neutral = False
    if not endpoint["enabled"]:
        await session.fetch(_HOLD, endpoint_id=endpoint["id"])
        only_neutral = True
    elif failing:
        most = 1
        if endpoint["probe_at"] is not None and endpoint["probe_at"] > now:
            await session.fetch(_DEFER, endpoint_id=endpoint["id"], probe_at=endpoint["probe_at"])
            only_neutral = True
    allowed = allowance(endpoint["rate_per_second"], endpoint["paid_until"], now)
    free = min(share, most - in_flight)
    room = min(free, allowed)
    if room <= 0:
        wait_us = rate_wait_us(endpoint["rate_per_second"], endpoint["paid_until"], now)
        return _Taken(wait_us=wait_us if free > 0 else None)
    statement = _TAKE_ORDERED if endpoint["ordered"] else _TAKE
    rows = await session.fetch(
        statement, endpoint_id=endpoint["id"], slots=room, lease_us=lease_us, only_neutral=only_neutral
    )
    used = paid_until(endpoint["rate_per_second"], endpoint["paid_until"], now, len(rows))
    wait_us = rate_wait_us(endpoint["rate_per_second"], used, now) if len(rows) == allowed < free else None
    return _Taken([row["id"] for row in rows], len(rows) == share, wait_us, used)


async def read_claimed(session: Session, ids: Sequence[str]) -> list[ClaimedDelivery]:
    """Return claimed deliveries with their content, and the secrets that sign it."""
    if not ids:
        return []
    rows = await session.fetch(_READ, ids=session.texts(ids))
    claimed = [_claimed(row) for row in rows]
    secrets = await valid_secrets(session, sorted({owner for item in claimed for owner in item.owners}))
    return [_with_secrets(item, secrets) for item in claimed]


def _claimed(row: Row) -> ClaimedDelivery:
    own = row["kind"] == "run"
    return ClaimedDelivery(
        id=row["id"],
        fence=row["fence"],
        tries=row["tries"],
        max_tries=row["max_tries"],
        endpoint_id=row["endpoint_id"],
        tenant=row["tenant"],
        message_id=row["message_id"],
        type=row["type"],
        run_id=row["run_id"],
        url=row["run_url"] or "" if own else row["url"],
        body=row["body"],
        neutral=bool(row["neutral"]),
        own=own,
        claimed_at_us=row["now"],
        headers=load_json(row["headers"]),
        trace=row["trace"],
    )


def _with_secrets(delivery: ClaimedDelivery, secrets: Mapping[str, Sequence[StoredSecret]]) -> ClaimedDelivery:
    """Return the delivery with the secrets of the first owner that has any."""
    found = next((secrets[owner] for owner in delivery.owners if secrets[owner]), ())
    return replace(delivery, secrets=tuple(found))
