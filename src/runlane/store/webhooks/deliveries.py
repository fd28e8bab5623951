"""Deliveries: the log of what was sent, replays, and tests of an endpoint."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
)

from runlane.domain.ids import new_id
from runlane.domain.webhook import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookDeliveryLog, WebhookReplay
from runlane.errors import NotFound
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import webhook_attempts, webhook_deliveries, webhook_messages
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.claims import ClaimedDelivery, read_claimed

REPLAY_AT_ONCE = 1000

_columns = (
    webhook_deliveries.c.id,
    webhook_deliveries.c.message_id,
    webhook_deliveries.c.endpoint_id,
    webhook_deliveries.c.tenant,
    webhook_deliveries.c.type,
    webhook_deliveries.c.run_id,
    webhook_deliveries.c.status,
    webhook_deliveries.c.tries,
    webhook_deliveries.c.max_tries,
    webhook_deliveries.c.next_at,
    webhook_deliveries.c.replay_of,
    webhook_deliveries.c.status_code,
    webhook_deliveries.c.error,
    webhook_deliveries.c.created_at,
    webhook_deliveries.c.ended_at,
)
_before = bindparam("before", type_=Text())
_since = bindparam("since", type_=BigInteger())


def _matches(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return and_(
        *conditions,
        optional("endpoint", webhook_deliveries.c.endpoint_id),
        optional("status", webhook_deliveries.c.status),
        optional("type", webhook_deliveries.c.type),
        optional("run_id", webhook_deliveries.c.run_id),
        or_(cast(_before, Text).is_(None), webhook_deliveries.c.id < _before),
        or_(cast(_since, BigInteger).is_(None), webhook_deliveries.c.created_at >= _since),
    )


_LIST = Statement(
    "list_webhook_deliveries",
    select(*_columns)
    .where(_matches(optional("tenant", webhook_deliveries.c.tenant)))
    .order_by(webhook_deliveries.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of webhook deliveries, newest first.",
)
# One statement, so that the status and the tries are of one snapshot.
_READ = Statement(
    "read_webhook_delivery",
    select(
        *_columns,
        func.coalesce(webhook_deliveries.c.body, webhook_messages.c.body).label("body"),
        *(column.label(f"try_{column.name}") for column in webhook_attempts.c),
    )
    .select_from(
        webhook_deliveries.join(webhook_messages, webhook_messages.c.id == webhook_deliveries.c.message_id).outerjoin(
            webhook_attempts, webhook_attempts.c.delivery_id == webhook_deliveries.c.id
        )
    )
    .where(webhook_deliveries.c.id == bindparam("delivery_id"))
    .order_by(webhook_attempts.c.number),
    purpose="Read a webhook delivery with what is sent, and its tries.",
)
# A replay does not repeat another replay or test, so that repeating a request does not double its effect.
_TO_REPLAY = Statement(
    "webhooks_to_replay",
    select(*_columns, webhook_deliveries.c.body)
    .where(_matches(webhook_deliveries.c.tenant == bindparam("tenant"), ~webhook_deliveries.c.neutral))
    .order_by(webhook_deliveries.c.id.desc())
    .limit(lit(REPLAY_AT_ONCE)),
    purpose="Find the webhook deliveries that match a replay, newest first.",
)
_BODY = Statement(
    "webhook_delivery_body",
    select(webhook_deliveries.c.body).where(webhook_deliveries.c.id == bindparam("delivery_id")),
    purpose="Read the body of a webhook delivery that differs from its message.",
)
_names = ("id", "message_id", "endpoint_id", "tenant", "type", "run_id", "max_tries", "replay_of", "body")
_NEUTRAL = Statement(
    "add_neutral_webhook",
    insert(webhook_deliveries).values(
        {name: bindparam(name, type_=Integer() if name == "max_tries" else Text()) for name in _names}
        | {
            "status": bindparam("status", type_=Text()),
            "fence": lit(1),
            "next_at": now_us() + bindparam("lease_us", type_=BigInteger()),
            "neutral": bindparam("neutral", type_=Boolean()),
            "created_at": now_us(),
        }
    ),
    purpose="Add a replay or a test of a webhook, which does not change the health of its endpoint.",
)
_ADD_MESSAGE = Statement(
    "add_test_message",
    insert(webhook_messages).values(
        id=bindparam("id"),
        tenant=bindparam("tenant"),
        type=bindparam("type"),
        occurred_at=now_us(),
        created_at=now_us(),
        body=bindparam("body"),
    ),
    purpose="Add the message of a webhook test.",
)


async def list_deliveries(
    database: Database,
    *,
    tenant: str | None = None,
    endpoint: str | None = None,
    status: str | None = None,
    type: str | None = None,  # noqa: A002 - the word of the API
    run_id: str | None = None,
    since_us: int | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[WebhookDelivery]:
    """Return deliveries, newest first; `before` is the last id of the previous page."""
    rows = await database.query(
        _LIST,
        tenant=tenant,
        endpoint=endpoint,
        status=status,
        type=type,
        run_id=run_id,
        since=since_us,
        before=before,
        limit=limit,
    )
    return [_delivery(row) for row in rows]


async def read_delivery(database: Database, delivery_id: str) -> WebhookDeliveryLog:
    """Return a delivery with its body and its tries."""
    rows = await database.query(_READ, delivery_id=delivery_id)
    if not rows:
        raise unknown_delivery(delivery_id)
    attempts = [_attempt(row) for row in rows if row["try_number"] is not None]
    status = DeliveryStatus(rows[0]["status"])
    return from_row(WebhookDeliveryLog, rows[0], status=status, attempts=tuple(attempts))


async def replay_delivery(database: Database, delivery_id: str, *, max_tries: int, actor: str) -> WebhookDelivery:
    """Send the message of a delivery once more, with the same id; return the new delivery."""
    old = await read_delivery(database, delivery_id)

    async def work(session: Session) -> str:
        rows = await session.fetch(_BODY, delivery_id=delivery_id)
        if not rows:
            raise unknown_delivery(delivery_id)
        replay_id = await _add_replay(session, old, rows[0]["body"], max_tries)
        await _audit_replay(session, actor, old.tenant, delivery_id, {"delivery": replay_id, "max_tries": max_tries})
        return replay_id

    return await read_delivery(database, await database.transact(work))


async def replay_many(
    database: Database,
    tenant: str,
    *,
    endpoint: str | None,
    status: str | None,
    type: str | None,  # noqa: A002 - the word of the API
    run_id: str | None,
    since_us: int | None,
    before: str | None,
    max_tries: int,
    actor: str,
) -> WebhookReplay:
    """Replay the newest deliveries that match, a thousand at once."""
    wanted: dict[str, Any] = {
        "endpoint": endpoint, "status": status, "type": type, "run_id": run_id, "since": since_us, "before": before
    }  # fmt: skip

    async def work(session: Session) -> WebhookReplay:
        rows = await session.fetch(_TO_REPLAY, tenant=tenant, **wanted)
        for row in reversed(rows):
            await _add_replay(session, _delivery(row), row["body"], max_tries)
        given = {name: value for name, value in wanted.items() if value is not None}
        await _audit_replay(session, actor, tenant, endpoint or "*", {**given, "deliveries": len(rows)})
        oldest = rows[-1]["id"] if rows else None
        return WebhookReplay(len(rows), more=len(rows) == REPLAY_AT_ONCE, before=oldest)

    return await database.transact(work)


async def replay_all(database: Database, tenant: str, *, actor: str, **wanted: Any) -> int:
    """Replay all deliveries that match, a thousand per transaction; return how many."""
    done = await replay_many(database, tenant, before=None, actor=actor, **wanted)
    replayed = done.replayed
    while done.more:
        done = await replay_many(database, tenant, before=done.before, actor=actor, **wanted)
        replayed += done.replayed
    return replayed


async def add_test(
    session: Session, endpoint_id: str, tenant: str, type_: str, body: str, lease_us: int
) -> ClaimedDelivery:
    """Add a test message, claimed by this process, and return it."""
    message_id, delivery_id = new_id("msg"), new_id("whd")
    await session.fetch(_ADD_MESSAGE, id=message_id, tenant=tenant, type=type_, body=body)
    await session.fetch(
        _NEUTRAL,
        id=delivery_id,
        message_id=message_id,
        endpoint_id=endpoint_id,
        tenant=tenant,
        type=type_,
        run_id=None,
        max_tries=1,
        replay_of=None,
        body=None,
        status=DeliveryStatus.DELIVERING.value,
        lease_us=lease_us,
        neutral=True,
    )
    return (await read_claimed(session, [delivery_id]))[0]


def unknown_delivery(delivery_id: str) -> NotFound:
    """Return the error for a delivery that does not exist."""
    return NotFound(
        f'The webhook delivery "{delivery_id[:100]}" does not exist, or its retention time has elapsed. '
        "See: runlane webhooks deliveries"
    )


async def _add_replay(session: Session, old: WebhookDelivery, body: str | None, max_tries: int) -> str:
    replay_id = new_id("whd")
    await session.fetch(
        _NEUTRAL,
        id=replay_id,
        message_id=old.message_id,
        endpoint_id=old.endpoint_id,
        tenant=old.tenant,
        type=old.type,
        run_id=old.run_id,
        max_tries=max_tries,
        replay_of=old.id,
        body=body,
        status=DeliveryStatus.PENDING.value,
        lease_us=0,
        neutral=True,
    )
    return replay_id


async def _audit_replay(session: Session, actor: str, tenant: str, subject: str, new: dict[str, Any]) -> None:
    await append_audit(session, actor=actor, tenant=tenant, action="webhook.replay", subject=subject, new=new)


def _delivery(row: Row) -> WebhookDelivery:
    return from_row(WebhookDelivery, row, status=DeliveryStatus(row["status"]))


def _attempt(row: Row) -> WebhookAttempt:
    columns = {column.name: row[f"try_{column.name}"] for column in webhook_attempts.c}
    headers = ("response_headers", "request_headers")
    return from_row(WebhookAttempt, columns, json=headers, duration_us=columns["duration_us"])
