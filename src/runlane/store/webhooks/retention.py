"""Retention of webhooks: delete messages with their deliveries and attempts by age. Also the overview for checks."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Float, Text, bindparam, cast, delete, exists, func, select

from runlane.domain.webhook import CIRCUIT_FAILURES, DeliveryStatus
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_once, now_us
from runlane.store.sql.schema import (
    run_webhooks,
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
    webhook_notices,
    webhook_secrets,
)
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.notices import DELETE_NOTICES
from runlane.store.webhooks.run_webhooks import DELETE_LEFT_WEBHOOKS, DELETE_RUN_SECRETS

AT_ONCE = 500
_IDLE_US = 86_400 * 1_000_000

_age = cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger)
_OLD = Statement(
    "old_webhook_messages",
    select(
        webhook_messages.c.id,
        webhook_messages.c.run_id,
        webhook_messages.c.created_at,
        (now_us() - _age).label("until"),
    )
    .order_by(webhook_messages.c.id)
    .limit(lit(AT_ONCE)),
    purpose="Find webhook messages past their retention, among the oldest.",
)
_of_message = select(webhook_deliveries.c.id).where(member(webhook_deliveries.c.message_id, "ids"))
_DELETES = [
    Statement(
        "delete_webhook_attempts",
        delete(webhook_attempts).where(webhook_attempts.c.delivery_id.in_(_of_message)),
        purpose="Delete the tries of old webhook messages.",
    ),
    Statement(
        "delete_webhook_deliveries",
        delete(webhook_deliveries).where(member(webhook_deliveries.c.message_id, "ids")),
        purpose="Delete the deliveries of old webhook messages.",
    ),
    Statement(
        "delete_webhook_messages",
        delete(webhook_messages).where(member(webhook_messages.c.id, "ids")),
        purpose="Delete old webhook messages.",
    ),
]
# Selects deleted endpoints, and origins of runs' webhooks that were not used for a day, to which no row refers.
_DELETE_UNUSED = Statement(
    "delete_unused_webhook_endpoints",
    delete(webhook_endpoints).where(
        webhook_endpoints.c.kind != lit("endpoint"),
        webhook_endpoints.c.updated_at < now_once() - lit(_IDLE_US),
        webhook_endpoints.c.served_at < now_once() - lit(_IDLE_US),
        ~exists().where(webhook_deliveries.c.endpoint_id == webhook_endpoints.c.id),
    ),
    purpose="Delete webhook endpoints that nothing refers to.",
)
_of_tenant = bindparam("tenant", type_=Text())
_DROPS = [
    Statement(
        "drop_webhook_attempts",
        delete(webhook_attempts).where(
            webhook_attempts.c.delivery_id.in_(
                select(webhook_deliveries.c.id).where(webhook_deliveries.c.tenant == _of_tenant)
            )
        ),
        purpose="Delete the webhook attempts of a deleted tenant.",
    ),
    *(
        Statement(
            f"drop_{table.name}",
            delete(table).where(table.c.tenant == _of_tenant),
            purpose=f"Delete the {table.name.replace('_', ' ')} of a deleted tenant.",
        )
        # Endpoints are deleted before deliveries, as in a claim.
        for table in (
            webhook_endpoints,
            webhook_deliveries,
            webhook_messages,
            webhook_secrets,
            run_webhooks,
            webhook_notices,
        )
    ),
]
_OVERVIEW = Statement(
    "webhook_overview",
    select(
        select(func.count())
        .where(webhook_endpoints.c.kind == lit("endpoint"), ~webhook_endpoints.c.enabled)
        .scalar_subquery()
        .label("disabled"),
        select(func.count())
        .where(
            webhook_endpoints.c.kind == lit("endpoint"),
            webhook_endpoints.c.enabled,
            webhook_endpoints.c.failures >= lit(CIRCUIT_FAILURES),
        )
        .scalar_subquery()
        .label("failing"),
        select(func.count())
        .where(webhook_deliveries.c.status.in_([lit(DeliveryStatus.PENDING), lit(DeliveryStatus.DELIVERING)]))
        .scalar_subquery()
        .label("pending"),
        select(now_us() - func.min(webhook_deliveries.c.created_at))
        .where(webhook_deliveries.c.status.in_([lit(DeliveryStatus.PENDING), lit(DeliveryStatus.DELIVERING)]))
        .scalar_subquery()
        .label("oldest_us"),
        exists()
        .where(
            webhook_deliveries.c.status.in_([lit(DeliveryStatus.PENDING), lit(DeliveryStatus.DELIVERING)]),
            webhook_deliveries.c.tries == lit(0),
            webhook_deliveries.c.next_at < now_us() - lit(60_000_000),
        )
        .label("untried"),
    ),
    purpose="Count disabled webhook endpoints and undelivered messages.",
)


@dataclass(frozen=True, slots=True)
class WebhookOverview:
    """Endpoints that are disabled or failing, and deliveries that are not done.

    `untried` means that a delivery has been due for a minute.
    """

    disabled: int
    pending: int
    oldest_seconds: float
    untried: bool
    failing: int = 0


async def delete_old_messages(session: Session, keep_seconds: float) -> int:
    """Delete some of the messages older than that; return how many."""
    rows = [row for row in await session.fetch(_OLD, keep_seconds=keep_seconds) if row["created_at"] < row["until"]]
    if rows:
        ids = session.texts([row["id"] for row in rows])
        for statement in _DELETES:
            await session.fetch(statement, ids=ids)
        run_ids = session.texts(sorted({row["run_id"] for row in rows if row["run_id"] is not None}))
        await session.fetch(DELETE_LEFT_WEBHOOKS, ids=run_ids)
        await session.fetch(DELETE_RUN_SECRETS, ids=run_ids)
    if len(rows) < AT_ONCE:
        await session.fetch(_DELETE_UNUSED)
        await session.fetch(DELETE_NOTICES)
    return len(rows)


async def drop_webhooks(session: Session, tenant: str) -> None:
    """Delete the webhooks of a deleted tenant."""
    for statement in _DROPS:
        await session.fetch(statement, tenant=tenant)


async def webhook_overview(database: Database) -> WebhookOverview:
    """Return the state of webhooks for checks and metrics."""
    (row,) = await database.query(_OVERVIEW)
    oldest = 0.0 if row["oldest_us"] is None else max(0, row["oldest_us"]) / 1_000_000
    return WebhookOverview(row["disabled"], row["pending"], oldest, bool(row["untried"]), row["failing"])
