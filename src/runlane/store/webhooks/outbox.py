"""The outbox: messages and their deliveries, written by the transaction of the change that they report.

A crash can therefore delay a message but not lose it, and a change that is rolled back sends nothing. The outbox only
inserts: a transaction that ends runs does not wait for a sender, and does not compete with others for an endpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import BigInteger, ColumnElement, FromClause, Integer, Text, and_, insert, select, true
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import new_id
from runlane.domain.text import dump_json, load_json
from runlane.domain.timestamps import format_timestamp
from runlane.domain.webhook import (
    DEFAULT_IN_FLIGHT,
    DEFAULT_RATE,
    MAX_INCLUDED_BYTES,
    MAX_TRIES,
    DeliveryStatus,
    filter_matches,
    origin_id,
    origin_of,
)
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.schema import webhook_deliveries, webhook_endpoints, webhook_messages
from runlane.store.sql.statement import Row, Statement

# Half of the time for which retention keeps an origin that is not used.
_IN_USE_US: Final = 12 * 3600 * 1_000_000


class RunTarget(NamedTuple):
    """The webhook URL of a run, and the further fields of the body that it gets."""

    url: str
    fields: Mapping[str, Any]


class NewMessage(NamedTuple):
    """A message for the endpoints of a tenant.

    `data` is filtered by its `target`, `lane` and `tags`. `extras` are JSON strings by the names of `INCLUDED`, for the
    endpoints that include them. `own` is the target of the run's own webhook. Without a time, the message has the
    current time.
    """

    tenant: str
    type: str
    data: Mapping[str, Any]
    run_id: str | None = None
    at_us: int | None = None
    extras: Mapping[str, str | None] = {}
    own: RunTarget | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """The fields of an endpoint that the outbox needs."""

    endpoint_id: str
    types: frozenset[str]
    filter: Mapping[str, Any]
    include: frozenset[str]

    def takes(self, message: NewMessage) -> bool:
        """Return whether it receives this message. An endpoint receives none about itself."""
        if message.data.get("endpoint_id") == self.endpoint_id:
            return False
        return (not self.types or message.type in self.types) and filter_matches(self.filter, message.data)


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The endpoints of some tenants, and the time of the database, which is 0 without endpoints."""

    by_tenant: Mapping[str, Sequence[Subscription]]
    now_us: int

    @property
    def includes(self) -> bool:
        """Whether one of them includes more than the data of a message."""
        return any(item.include for items in self.by_tenant.values() for item in items)


def has_endpoints(tenant: Any) -> ColumnElement[bool]:
    """Return the condition that a tenant has endpoints: a column of statements that change runs.

    Whether there are endpoints at all is decided once per statement, and only then for each row.
    """
    endpoints = select(lit(1)).select_from(webhook_endpoints).where(webhook_endpoints.c.kind == lit("endpoint"))
    of_tenant = endpoints.where(webhook_endpoints.c.tenant == tenant).correlate(tenant.table)
    return and_(endpoints.exists(), of_tenant.exists())


_SUBSCRIPTIONS = Statement(
    "webhook_subscriptions",
    select(
        webhook_endpoints.c.id,
        webhook_endpoints.c.tenant,
        webhook_endpoints.c.types,
        webhook_endpoints.c.filter,
        webhook_endpoints.c.include,
        now_us().label("now"),
    ).where(member(webhook_endpoints.c.tenant, "tenants"), webhook_endpoints.c.kind == lit("endpoint")),
    purpose="Read the webhook endpoints of some tenants, to expand a message.",
)


def _insert_messages(batch: FromClause) -> Executable:
    b = batch.c
    return insert(webhook_messages).from_select(
        ["id", "tenant", "type", "run_id", "occurred_at", "created_at", "body"],
        select(b.id, b.tenant, b.type, b.run_id, b.occurred_at, now_us(), b.body).select_from(batch),
    )


def _insert_deliveries(batch: FromClause) -> Executable:
    b = batch.c
    names = ["id", "message_id", "endpoint_id", "tenant", "type", "run_id", "max_tries", "body"]
    return insert(webhook_deliveries).from_select(
        [*names, "status", "next_at", "created_at"],
        select(*(b[name] for name in names), lit(DeliveryStatus.PENDING), now_us(), now_us()).select_from(batch),
    )


def _insert_origins(batch: FromClause) -> Executable:
    b = batch.c
    values: dict[str, Any] = {
        "id": b.id,
        "tenant": b.tenant,
        "kind": lit("run"),
        "url": b.url,
        "description": b.url,
        "rate_per_second": lit(int(DEFAULT_RATE)),
        "max_in_flight": lit(DEFAULT_IN_FLIGHT),
        "created_at": now_us(),
        "updated_at": now_us(),
    }
    return (
        upsert(webhook_endpoints)
        .from_select(list(values), select(*values.values()).select_from(batch).where(true()))
        .on_conflict_do_update(index_elements=["id"], set_={"updated_at": now_us()})
    )


_ADD_MESSAGES = Statement(
    "add_webhook_messages",
    _insert_messages,
    {
        "id": Text(),
        "tenant": Text(),
        "type": Text(),
        "run_id": Text(),
        "occurred_at": BigInteger(),
        "body": Text(),
    },
    purpose="Add webhook messages, in the transaction of what they report.",
)
ADD_DELIVERIES = Statement(
    "add_webhook_deliveries",
    _insert_deliveries,
    {
        "id": Text(),
        "message_id": Text(),
        "endpoint_id": Text(),
        "tenant": Text(),
        "type": Text(),
        "run_id": Text(),
        "max_tries": Integer(),
        "body": Text(),
    },
    purpose="Add the deliveries of webhook messages.",
)
_IN_USE = Statement(
    "webhook_origins_in_use",
    select(webhook_endpoints.c.id).where(
        member(webhook_endpoints.c.id, "ids"), webhook_endpoints.c.updated_at > now_us() - lit(_IN_USE_US)
    ),
    purpose="Find the origins of webhook URLs of runs that retention keeps.",
)
# The update locks an old origin, so that retention does not delete it before the commit of its first new delivery.
_ADD_ORIGINS = Statement(
    "add_webhook_origins",
    _insert_origins,
    {"id": Text(), "tenant": Text(), "url": Text()},
    purpose="Add the origins of webhook URLs of runs, which share a rate and a circuit, or note that they are used.",
)


async def read_subscriptions(session: Session, tenants: Sequence[str]) -> Subscriptions:
    """Return the endpoints of these tenants."""
    by_tenant: dict[str, list[Subscription]] = defaultdict(list)
    rows = await session.fetch(_SUBSCRIPTIONS, tenants=session.texts(sorted(set(tenants))))
    for row in sorted(rows, key=lambda row: row["id"]):
        by_tenant[row["tenant"]].append(_subscription(row))
    return Subscriptions(by_tenant, rows[0]["now"] if rows else 0)


async def add_messages(session: Session, messages: Sequence[NewMessage]) -> int:
    """Store messages for the endpoints that take them, in this transaction; return the number of deliveries."""
    if not messages:
        return 0
    subscriptions = await read_subscriptions(session, [message.tenant for message in messages])
    return await store_messages(session, messages, subscriptions)


async def store_messages(session: Session, messages: Sequence[NewMessage], subscriptions: Subscriptions) -> int:
    """Store messages for these endpoints. One that no endpoint takes is not stored."""
    stored: list[tuple[Any, ...]] = []
    deliveries: list[tuple[Any, ...]] = []
    origins: dict[str, tuple[str, str, str]] = {}
    for message in messages:
        taken = [item for item in subscriptions.by_tenant.get(message.tenant, ()) if item.takes(message)]
        if not taken and message.own is None:
            continue
        message_id = new_id("msg")
        at_us = subscriptions.now_us if message.at_us is None else message.at_us
        head = (message_id, message.tenant, message.type, message.run_id)
        stored.append((*head, at_us, _body(message, at_us)))
        to = [(item.endpoint_id, _body_with(message, at_us, item.include)) for item in taken]
        if message.own is not None:
            origin = origin_id(message.tenant, message.own.url)
            origins[origin] = (origin, message.tenant, origin_of(message.own.url))
            to.append((origin, _body(message, at_us, message.own.fields)))
        deliveries += [(new_id("whd"), message_id, endpoint, *head[1:], MAX_TRIES, body) for endpoint, body in to]
    if stored:
        await session.fetch(_ADD_MESSAGES, stored)
        await _add_origins(session, origins)
        await session.fetch(ADD_DELIVERIES, deliveries)
    return len(deliveries)


async def _add_origins(session: Session, origins: Mapping[str, tuple[str, str, str]]) -> None:
    if not origins:
        return
    known = {row["id"] for row in await session.fetch(_IN_USE, ids=session.texts(sorted(origins)))}
    await session.fetch(_ADD_ORIGINS, [origins[name] for name in sorted(origins.keys() - known)])


def included(texts: Mapping[str, str | None], names: frozenset[str], url: str) -> dict[str, Any]:
    """Return these JSON strings as fields of a body. One that is too long is replaced by its address."""
    fields: dict[str, Any] = {}
    for name in sorted(names & texts.keys()):
        text = texts[name]
        if text is not None and len(text.encode()) > MAX_INCLUDED_BYTES:
            fields |= {name: None, f"{name}_url": url}
        else:
            fields[name] = None if text is None else orjson.Fragment(text)
    return fields


def _subscription(row: Row) -> Subscription:
    return Subscription(
        row["id"],
        frozenset(load_json(row["types"])),
        load_json(row["filter"]),
        frozenset(load_json(row["include"])),
    )


def _body(message: NewMessage, at_us: int, fields: Mapping[str, Any] | None = None) -> str:
    envelope = {"type": message.type, "timestamp": format_timestamp(at_us), "data": message.data}
    return dump_json({**envelope, **(fields or {})})


def _body_with(message: NewMessage, at_us: int, include: frozenset[str]) -> str | None:
    """Return the body for an endpoint that includes more; None if it is that of the message."""
    fields = included(message.extras, include, str(message.data.get("url", "")))
    if not fields:
        return None
    return _body(message._replace(data={**message.data, **fields}), at_us)
