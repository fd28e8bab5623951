"""Store events of a tenant, each id of a sender once, and delete old ones.

The sender's ids are reserved by their primary key in the transaction that stores the events, so a repeated event finds
the first one however many processes receive it. An id is free again when its time has elapsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    insert,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import new_id
from runlane.domain.quota import EVENTS_PER_MINUTE, STORED_BYTES
from runlane.domain.tenant_event import EventReceipt, NewEvent
from runlane.store.access.tenants import unknown_tenant
from runlane.store.events.rates import pay_rate
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once, now_us, upsert
from runlane.store.sql.schema import event_ids, event_outcomes, stored_events, tenant_quotas, tenants
from runlane.store.sql.statement import Statement

# Events and ids that one transaction deletes.
DELETED_AT_ONCE: Final = 500
IDS_DELETED_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class EventLimits:
    """For how long an id of a sender is remembered, and how many events a tenant may send in a minute."""

    id_seconds: float
    per_minute: int


def _reserve(batch: FromClause) -> Executable:
    b = batch.c
    statement = upsert(event_ids).from_select(
        ["tenant", "sent_id", "event_id", "received_at"],
        select(bindparam("tenant", type_=Text()), b.sent_id, b.event_id, now_us()).select_from(batch).where(true()),
    )
    fresh = statement.excluded
    forgotten = now_us() - cast(bindparam("id_seconds", type_=Float()) * 1_000_000, BigInteger)
    return statement.on_conflict_do_update(
        index_elements=["tenant", "sent_id"],
        set_={"event_id": fresh.event_id, "received_at": fresh.received_at},
        where=event_ids.c.received_at < forgotten,
    ).returning(event_ids.c.sent_id)


_RESERVE = Statement(
    "reserve_event_ids",
    _reserve,
    {"sent_id": Text(), "event_id": Text()},
    purpose="Reserve the ids of senders for new events.",
)
_KNOWN = Statement(
    "find_event_ids",
    select(event_ids.c.sent_id, event_ids.c.event_id).where(
        event_ids.c.tenant == bindparam("tenant"), member(event_ids.c.sent_id, "sent_ids")
    ),
    purpose="Find the events that were stored under ids of senders.",
)


def _insert(batch: FromClause) -> Executable:
    b = batch.c
    return insert(stored_events).from_select(
        ["id", "tenant", "name", "sent_id", "key", "data", "source", "depth", "received_at"],
        select(b.id, b.tenant, b.name, b.sent_id, b.key, b.data, b.source, b.depth, now_us()).select_from(batch),
    )


INSERT_EVENTS = Statement(
    "store_events",
    _insert,
    {
        "id": Text(),
        "tenant": Text(),
        "name": Text(),
        "sent_id": Text(),
        "key": Text(),
        "data": Text(),
        "source": Text(),
        "depth": Integer(),
    },
    purpose="Store events of a tenant.",
)


def _limit(name: str) -> ColumnElement[int]:
    of_tenant = (tenant_quotas.c.tenant == tenants.c.id, tenant_quotas.c.name == lit(name))
    return select(tenant_quotas.c.most).where(*of_tenant).scalar_subquery()


_QUOTAS = Statement(
    "quotas_of_events",
    select(_limit(EVENTS_PER_MINUTE).label("per_minute"), _limit(STORED_BYTES).label("stored_bytes"))
    .select_from(tenants)
    .where(tenants.c.id == bindparam("tenant")),
    purpose="Read the quotas that events of a tenant use.",
)
_age = cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger)
_OLD = Statement(
    "old_events",
    select(stored_events.c.id)
    .where(stored_events.c.received_at < now_once() - _age, stored_events.c.matched_at.is_not(None))
    .order_by(stored_events.c.received_at)
    .limit(lit(DELETED_AT_ONCE))
    .with_for_update(skip_locked=True),
    purpose="Find stored events past their retention.",
)
_DELETES = (
    Statement(
        "delete_event_outcomes",
        delete(event_outcomes).where(member(event_outcomes.c.event_id, "ids")),
        purpose="Delete the outcomes of events past their retention.",
    ),
    Statement(
        "delete_events",
        delete(stored_events).where(member(stored_events.c.id, "ids")),
        purpose="Delete stored events past their retention.",
    ),
)
_old_ids = (
    select(event_ids.c.tenant, event_ids.c.sent_id)
    .where(event_ids.c.received_at < now_once() - _age)
    .order_by(event_ids.c.received_at)
    .limit(lit(IDS_DELETED_AT_ONCE))
)
_DELETE_IDS = Statement(
    "delete_event_ids",
    delete(event_ids)
    .where(tuple_(event_ids.c.tenant, event_ids.c.sent_id).in_(_old_ids))
    .returning(event_ids.c.sent_id),
    purpose="Forget ids of senders.",
)


async def store_events(
    session: Session, tenant: str, events: Sequence[NewEvent], *, source: str, limits: EventLimits
) -> list[EventReceipt]:
    """Store events in their order; one whose id was sent before is the stored one. Raises RateLimited."""
    # Imported here: a command that reads runs loads this module, and needs neither.
    from runlane.store.access.quota_warnings import warn_of_quota
    from runlane.store.access.stored_bytes import add_stored

    found = await session.fetch(_QUOTAS, tenant=tenant)
    if not found:
        raise await unknown_tenant(session, tenant)
    per_minute = limits.per_minute if found[0]["per_minute"] is None else found[0]["per_minute"]
    used = await pay_rate(session, f"tenant:{tenant}", len(events), per_minute, f'The tenant "{tenant}"')
    await warn_of_quota(session, tenant, EVENTS_PER_MINUTE, per_minute, used - len(events), used)
    ids = [new_id("evt") for _ in events]
    first: dict[str, str] = {}
    for event_id, event in zip(ids, events, strict=True):
        if event.sent_id is not None:
            first.setdefault(event.sent_id, event_id)
    known = await _sent_before(session, tenant, first, limits.id_seconds)
    receipts: list[EventReceipt] = []
    fresh: list[tuple[object, ...]] = []
    stored: list[str] = []
    for event_id, event in zip(ids, events, strict=True):
        before = known.get(event.sent_id or "")
        if before is None and event.sent_id is not None and first[event.sent_id] != event_id:
            before = first[event.sent_id]
        receipts.append(EventReceipt(before or event_id, event.name, duplicate=before is not None))
        if before is None:
            stored.append(event.data)
            fresh.append((event_id, tenant, event.name, event.sent_id, event.key, event.data, source, 0))
    if fresh and found[0]["stored_bytes"] is not None:
        await add_stored(session, tenant, stored)
    await session.fetch(INSERT_EVENTS, fresh)
    return receipts


async def _sent_before(session: Session, tenant: str, first: dict[str, str], id_seconds: float) -> dict[str, str]:
    """Reserve ids of senders; return those that belong to stored events, with the event."""
    if not first:
        return {}
    # The ids are sorted, so that two processes with the same ids wait for each other and do not deadlock.
    rows = await session.fetch(_RESERVE, sorted(first.items()), tenant=tenant, id_seconds=id_seconds)
    taken = sorted(set(first) - {row["sent_id"] for row in rows})
    if not taken:
        return {}
    found = await session.fetch(_KNOWN, tenant=tenant, sent_ids=session.texts(taken))
    return {row["sent_id"]: row["event_id"] for row in found}


async def delete_old_events(session: Session, keep_seconds: float, id_seconds: float) -> bool:
    """Delete some events past their retention with their outcomes, and old ids of senders.

    Return whether there may be more.
    """
    ids = [row["id"] for row in await session.fetch(_OLD, keep_seconds=keep_seconds)]
    if ids:
        for statement in _DELETES:
            await session.fetch(statement, ids=session.texts(ids))
    forgotten = await session.fetch(_DELETE_IDS, keep_seconds=id_seconds)
    return len(ids) == DELETED_AT_ONCE or len(forgotten) == IDS_DELETED_AT_ONCE
