"""Store the results of tries, through the fence, with the health of their endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FromClause, Integer, Text, bindparam, case, insert, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.text import clean_text, dump_json
from runlane.domain.webhook import DeliveryStatus, EndpointHealth, ErrorKind
from runlane.domain.webhook_events import WebhookType
from runlane.store.access.audit import append_audit
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import by_key_only, lit, member, now_us
from runlane.store.sql.schema import webhook_attempts, webhook_deliveries, webhook_endpoints
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.claims import ClaimedDelivery
from runlane.store.webhooks.outbox import NewMessage, add_messages

_MAX_ERROR = 500
_GONE = "The endpoint answered 410 Gone."


@dataclass(frozen=True, slots=True)
class TryResult:
    """The result of one try. `delay_us` is the wait before the next one; None if there is none."""

    status: DeliveryStatus
    started_at_us: int
    duration_us: int
    status_code: int | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None
    response_headers: Mapping[str, str] | None = None
    response_body: str | None = None
    address: str | None = None
    request_headers: Mapping[str, str] | None = None
    delay_us: int | None = None


def _own(batch: FromClause) -> tuple[ColumnElement[bool], ...]:
    """Return the fence: the condition that the delivery still has the claim that the result names."""
    b = batch.c
    return (
        webhook_deliveries.c.id == b.id,
        webhook_deliveries.c.fence == b.fence,
        by_key_only(webhook_deliveries.c.status) == lit(DeliveryStatus.DELIVERING),
    )


def _record(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(webhook_deliveries)
        .where(*_own(batch))
        .values(
            status=b.status,
            tries=webhook_deliveries.c.tries + lit(1),
            next_at=now_us() + b.delay_us,
            ended_at=case((b.status == lit(DeliveryStatus.PENDING), None), else_=now_us()),
            status_code=b.status_code,
            error=b.error,
        )
        .returning(webhook_deliveries.c.id, webhook_deliveries.c.tries)
    )


def _insert_attempts(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    names = ["status_code", "error_kind", "error", "response_headers", "response_body", "address", "request_headers"]
    return insert(webhook_attempts).from_select(
        ["delivery_id", "number", "started_at", "duration_us", *names],
        select(c.id, c.tries, c.started_at, c.duration_us, *(c[name] for name in names)).select_from(changed),
    )


_OUTCOME = {
    "started_at": BigInteger(),
    "duration_us": BigInteger(),
    "status_code": Integer(),
    "error_kind": Text(),
    "error": Text(),
    "response_headers": Text(),
    "response_body": Text(),
    "address": Text(),
    "request_headers": Text(),
}
RECORD_TRIES = CompoundWrite(
    "record_webhook_tries",
    _record,
    columns={"id": Text(), "fence": Integer(), "status": Text(), "delay_us": BigInteger(), **_OUTCOME},
    returns={"id": Text(), "tries": Integer()},
    key=("id",),
    carries=tuple(_OUTCOME),
    links=[_insert_attempts],
    final=lambda changed: select(*(changed.c[name] for name in ("id", "tries"))),
    purpose="Store the results of tries of webhook deliveries, through the fence.",
)
_LOCK = Statement(
    "lock_webhook_endpoints",
    select(
        webhook_endpoints.c.id,
        webhook_endpoints.c.tenant,
        webhook_endpoints.c.kind,
        webhook_endpoints.c.enabled,
        webhook_endpoints.c.failures,
        webhook_endpoints.c.failed_messages,
        webhook_endpoints.c.first_failure_at,
        webhook_endpoints.c.last_success_at,
        webhook_endpoints.c.probe_at,
        now_us().label("now"),
    )
    .where(member(webhook_endpoints.c.id, "ids"))
    .order_by(webhook_endpoints.c.id)
    .with_for_update(),
    purpose="Lock webhook endpoints while results of their deliveries are stored.",
)
_HEALTH_COLUMNS = {
    "failures": Integer(),
    "failed_messages": Integer(),
    "first_failure_at": BigInteger(),
    "last_success_at": BigInteger(),
    "probe_at": BigInteger(),
}


def _set_health(batch: FromClause) -> Executable:
    values = {name: batch.c[name] for name in _HEALTH_COLUMNS}
    return update(webhook_endpoints).where(webhook_endpoints.c.id == batch.c.id).values(values)


_HEALTH = Statement(
    "set_webhook_health",
    _set_health,
    {"id": Text(), **_HEALTH_COLUMNS},
    purpose="Store the health of webhook endpoints.",
)
DISABLE = Statement(
    "disable_webhook_endpoint",
    update(webhook_endpoints)
    .where(webhook_endpoints.c.id == bindparam("id"), webhook_endpoints.c.enabled)
    .values(
        enabled=False,
        disabled_reason=bindparam("reason", type_=Text()),
        disabled_at=now_us(),
        version=webhook_endpoints.c.version + lit(1),
        updated_at=now_us(),
    )
    .returning(webhook_endpoints.c.id),
    purpose="Disable a webhook endpoint.",
)


def _give_back(batch: FromClause) -> Executable:
    pending = {"status": lit(DeliveryStatus.PENDING), "next_at": now_us(), "fence": webhook_deliveries.c.fence + lit(1)}
    return update(webhook_deliveries).where(*_own(batch)).values(pending)


_RELEASE = Statement(
    "release_webhooks",
    _give_back,
    {"id": Text(), "fence": Integer()},
    purpose="Give back webhook deliveries that a stopping process has not sent, through the fence.",
)


async def record_tries(session: Session, results: Sequence[tuple[ClaimedDelivery, TryResult]]) -> int:
    """Store results; return how many passed the fence. Another process has sent the others since."""
    if not results:
        return 0
    # Endpoints are locked before deliveries, as in a claim.
    ids = session.texts(sorted({delivery.endpoint_id for delivery, _ in results}))
    endpoints = {row["id"]: row for row in await session.fetch(_LOCK, ids=ids)}
    ordered = sorted(results, key=lambda item: item[0].id)
    passed = {row["id"] for row in await session.write(RECORD_TRIES, [_member(*item) for item in ordered])}
    judged: list[tuple[Row, EndpointHealth, list[TryResult]]] = []
    for endpoint_id, row in endpoints.items():
        own = [item for item in results if item[0].endpoint_id == endpoint_id and item[0].id in passed]
        counted = [item for item in own if not item[0].neutral]
        if counted:
            judged.append((row, _health(row, counted), [result for _, result in counted]))
    if judged:
        await session.fetch(_HEALTH, [_health_member(row["id"], health) for row, health, _ in judged])
    for row, health, tried in judged:
        await _disable_if_failed(session, row, health, tried)
    return len(passed)


async def release(session: Session, deliveries: Sequence[ClaimedDelivery]) -> None:
    """Make deliveries due at once that this process has claimed and not sent, unless another one has claimed them."""
    await session.fetch(_RELEASE, sorted((delivery.id, delivery.fence) for delivery in deliveries))


async def disable(session: Session, endpoint_id: str, tenant: str, reason: str, actor: str) -> bool:
    """Disable an endpoint, with an audit entry and a message to the others; False if it is disabled already."""
    if not await session.fetch(DISABLE, id=endpoint_id, reason=clean_text(reason, _MAX_ERROR)):
        return False
    await append_audit(
        session,
        actor=actor,
        tenant=tenant,
        action="webhook.disable",
        subject=endpoint_id,
        old={"enabled": True},
        new={"enabled": False, "reason": reason},
    )
    data = {"endpoint_id": endpoint_id, "reason": reason}
    await add_messages(session, [NewMessage(tenant, WebhookType.ENDPOINT_DISABLED, data)])
    return True


def _health(row: Row, results: Sequence[tuple[ClaimedDelivery, TryResult]]) -> EndpointHealth:
    """Return the health of an endpoint after these results."""
    health = EndpointHealth(
        row["failures"], row["failed_messages"], row["first_failure_at"], row["last_success_at"], row["probe_at"]
    )
    for delivery, result in results:
        if result.status is DeliveryStatus.DELIVERED:
            health = health.succeeded(row["now"])
        else:
            health = health.failed(row["now"], first_try=delivery.tries == 0)
    return health


def _health_member(endpoint_id: str, health: EndpointHealth) -> tuple[Any, ...]:
    return (
        endpoint_id,
        health.failures,
        health.failed_messages,
        health.first_failure_at_us,
        health.last_success_at_us,
        health.probe_at_us,
    )


async def _disable_if_failed(session: Session, row: Row, health: EndpointHealth, results: Sequence[TryResult]) -> None:
    if row["kind"] != "endpoint" or not row["enabled"]:
        return
    if any(result.error_kind is ErrorKind.GONE for result in results):
        await disable(session, row["id"], row["tenant"], _GONE, "webhooks")
    elif health.must_disable(row["now"]):
        reason = f"It has failed for 5 days: {health.failed_messages} messages without a success."
        await disable(session, row["id"], row["tenant"], reason, "webhooks")


def _member(delivery: ClaimedDelivery, result: TryResult) -> tuple[Any, ...]:
    headers = result.response_headers
    return (
        delivery.id,
        delivery.fence,
        result.status.value,
        result.delay_us,
        result.started_at_us,
        result.duration_us,
        result.status_code,
        None if result.error_kind is None else result.error_kind.value,
        None if result.error is None else clean_text(result.error, _MAX_ERROR),
        None if headers is None else dump_json(dict(headers)),
        None if result.response_body is None else clean_text(result.response_body),
        result.address,
        dump_json(dict(result.request_headers)) if result.request_headers else None,
    )
