"""Webhook endpoints of tenants: create, change, enable, rotate, delete.

A change locks the row of its endpoint, as claims of its deliveries do, so a claim sees an endpoint before a change or
after it. Deleting leaves the row until retention removes it: a message that is being stored may still refer to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    Float,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
    update,
)

from runlane.domain.quota import WEBHOOK_ENDPOINTS
from runlane.domain.text import dump_json, load_json
from runlane.domain.webhook import DeliveryStatus, SignatureKind, WebhookEndpoint
from runlane.errors import Conflict, NotFound
from runlane.store.access.audit import append_audit
from runlane.store.access.quotas import check_one_more
from runlane.store.access.tenants import FIND_TENANT, tenant_lock, unknown_tenant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import webhook_deliveries, webhook_endpoints
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.held import settle_most
from runlane.store.webhooks.recent import WITH_RECENT, recent_of
from runlane.store.webhooks.results import disable
from runlane.store.webhooks.secrets import ADD_SECRETS, DELETE_SECRETS, END_SECRETS, NewSecret


@dataclass(frozen=True, slots=True)
class EndpointFields:
    """The fields of an endpoint that a caller sets; None leaves one unchanged."""

    url: str | None = None
    description: str | None = None
    types: list[str] | None = None
    filter: Mapping[str, list[str]] | None = None
    include: list[str] | None = None
    headers: Mapping[str, str] | None = None
    rate_per_second: float | None = None
    max_in_flight: int | None = None
    ordered: bool | None = None

    def bound(self) -> dict[str, Any]:
        """Return the fields as parameters; lists are JSON."""
        return {
            "new_url": self.url,
            "new_description": self.description,
            "new_types": None if self.types is None else dump_json(self.types),
            "new_filter": None if self.filter is None else dump_json(self.filter),
            "new_include": None if self.include is None else dump_json(self.include),
            "new_headers": None if self.headers is None else dump_json(dict(self.headers)),
            "new_rate": self.rate_per_second,
            "new_in_flight": self.max_in_flight,
            "new_ordered": self.ordered,
        }


_new = {
    "url": bindparam("new_url", type_=Text()),
    "description": bindparam("new_description", type_=Text()),
    "types": bindparam("new_types", type_=Text()),
    "filter": bindparam("new_filter", type_=Text()),
    "include": bindparam("new_include", type_=Text()),
    "headers": bindparam("new_headers", type_=Text()),
    "rate_per_second": bindparam("new_rate", type_=Float()),
    "max_in_flight": bindparam("new_in_flight", type_=Integer()),
    "ordered": bindparam("new_ordered", type_=Boolean()),
}
_is_endpoint = webhook_endpoints.c.kind == lit("endpoint")
_by_id = and_(webhook_endpoints.c.id == bindparam("endpoint_id"), _is_endpoint)
_CREATE = Statement(
    "create_webhook_endpoint",
    insert(webhook_endpoints)
    .values(
        id=bindparam("endpoint_id"),
        tenant=bindparam("tenant"),
        kind=lit("endpoint"),
        signature=bindparam("signature"),
        **_new,
        created_at=now_us(),
        updated_at=now_us(),
    )
    .returning(webhook_endpoints),
    purpose="Add a webhook endpoint.",
)
_FIND = Statement("find_webhook_endpoint", WITH_RECENT.where(_by_id), purpose="Read a webhook endpoint.")
_LOCK = Statement(
    "lock_webhook_endpoint",
    select(webhook_endpoints).where(_by_id).with_for_update(),
    purpose="Lock a webhook endpoint while it is changed.",
)
_after = bindparam("after", type_=Text())
_LIST = Statement(
    "list_webhook_endpoints",
    WITH_RECENT.where(
        _is_endpoint,
        optional("tenant", webhook_endpoints.c.tenant),
        or_(cast(_after, Text).is_(None), webhook_endpoints.c.id > _after),
    )
    .order_by(webhook_endpoints.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of webhook endpoints.",
)
_SET = Statement(
    "set_webhook_endpoint",
    update(webhook_endpoints)
    .where(_by_id)
    .values(
        {name: func.coalesce(value, webhook_endpoints.c[name]) for name, value in _new.items()}
        | {"version": webhook_endpoints.c.version + lit(1), "updated_at": now_us()}
    )
    .returning(webhook_endpoints),
    purpose="Change a webhook endpoint.",
)
_ENABLE = Statement(
    "enable_webhook_endpoint",
    update(webhook_endpoints)
    .where(_by_id)
    .values(
        enabled=True,
        disabled_reason=None,
        disabled_at=None,
        failures=0,
        failed_messages=0,
        first_failure_at=None,
        probe_at=None,
        version=webhook_endpoints.c.version + lit(1),
        updated_at=now_us(),
    )
    .returning(webhook_endpoints),
    purpose="Enable a webhook endpoint, with a new record of health.",
)
_held = and_(
    webhook_deliveries.c.endpoint_id == bindparam("endpoint_id"),
    webhook_deliveries.c.status == lit(DeliveryStatus.HELD),
)
_SEND_HELD = Statement(
    "send_held_webhooks",
    update(webhook_deliveries)
    .where(_held)
    .values(status=lit(DeliveryStatus.PENDING), next_at=now_us())
    .returning(webhook_deliveries.c.id),
    purpose="Send the deliveries that waited for a disabled webhook endpoint.",
)
_DROP_HELD = Statement(
    "drop_held_webhooks",
    update(webhook_deliveries)
    .where(_held)
    .values(status=lit(DeliveryStatus.DISCARDED), ended_at=now_us())
    .returning(webhook_deliveries.c.id),
    purpose="Discard the deliveries that waited for a disabled webhook endpoint.",
)
_DELETE = Statement(
    "delete_webhook_endpoint",
    update(webhook_endpoints).where(_by_id).values(kind=lit("deleted"), enabled=False, updated_at=now_us()),
    purpose="Delete a webhook endpoint; retention removes its row.",
)


async def create_endpoint(
    database: Database,
    endpoint_id: str,
    tenant: str,
    fields: EndpointFields,
    signature: SignatureKind,
    secret: NewSecret,
    *,
    most: int,
    actor: str,
) -> WebhookEndpoint:
    """Add an endpoint. Raises QuotaReached at the quota of the tenant; `most` is the limit of the server."""

    async def work(session: Session) -> WebhookEndpoint:
        await session.lock(exclusive=[tenant_lock(tenant)])
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        await check_one_more(session, tenant, WEBHOOK_ENDPOINTS, most)
        rows = await session.fetch(
            _CREATE, endpoint_id=endpoint_id, tenant=tenant, signature=signature, **fields.bound()
        )
        await session.fetch(ADD_SECRETS, [secret.row()])
        endpoint = endpoint_of(rows[0])
        await _audit(session, actor, "webhook.create", endpoint, new=_audited(endpoint))
        return endpoint

    return await database.transact(work)


async def find_endpoint(database: Database, endpoint_id: str) -> WebhookEndpoint:
    """Return an endpoint."""
    rows = await database.query(_FIND, endpoint_id=endpoint_id)
    if not rows:
        raise unknown_endpoint(endpoint_id)
    return endpoint_of(rows[0])


async def list_endpoints(
    database: Database, tenant: str | None = None, *, after: str | None = None, limit: int = 1000
) -> list[WebhookEndpoint]:
    """Return the endpoints of a tenant, or of all, by id; `after` is the last id of the previous page."""
    return [endpoint_of(row) for row in await database.query(_LIST, tenant=tenant, after=after, limit=limit)]


async def set_endpoint(
    database: Database, endpoint_id: str, fields: EndpointFields, *, version: int | None, actor: str
) -> WebhookEndpoint:
    """Change an endpoint. Raises Conflict if `version` is given and is not its current one."""

    async def work(session: Session) -> WebhookEndpoint:
        old = await lock_endpoint(session, endpoint_id)
        if version is not None and old.version != version:
            raise Conflict(
                f"The webhook endpoint {endpoint_id} has the version {old.version} and not {version}: it was changed "
                "meanwhile. Read it again."
            )
        new = endpoint_of((await session.fetch(_SET, endpoint_id=endpoint_id, **fields.bound()))[0])
        await _audit(session, actor, "webhook.set", new, old=_audited(old), new=_audited(new))
        return new

    return await database.transact(work)


async def enable_endpoint(
    database: Database, endpoint_id: str, *, send_held: bool, actor: str
) -> tuple[WebhookEndpoint, int]:
    """Enable an endpoint; send or discard the held deliveries. Return the endpoint and their number."""
    settled = await settle_most(database, endpoint_id, send=send_held)

    async def work(session: Session) -> tuple[WebhookEndpoint, int]:
        old = await lock_endpoint(session, endpoint_id)
        new = endpoint_of((await session.fetch(_ENABLE, endpoint_id=endpoint_id))[0])
        rows = await session.fetch(_SEND_HELD if send_held else _DROP_HELD, endpoint_id=endpoint_id)
        count = settled + len(rows)
        if not old.enabled:
            await _audit(
                session,
                actor,
                "webhook.enable",
                new,
                old={"enabled": False, "reason": old.disabled_reason},
                new={"enabled": True, "held": "sent" if send_held else "discarded", "deliveries": count},
            )
        return new, count

    return await database.transact(work)


async def disable_endpoint(database: Database, endpoint_id: str, reason: str, *, actor: str) -> WebhookEndpoint:
    """Disable an endpoint. Its messages are held until it is enabled."""

    async def work(session: Session) -> WebhookEndpoint:
        old = await lock_endpoint(session, endpoint_id)
        await disable(session, endpoint_id, old.tenant, reason, actor)
        return endpoint_of((await session.fetch(_FIND, endpoint_id=endpoint_id))[0])

    return await database.transact(work)


async def rotate_secret(
    database: Database, endpoint_id: str, secret: NewSecret, *, overlap_us: int, actor: str
) -> int | None:
    """Make this the current secret; return until when the previous one signs too."""

    async def work(session: Session) -> int | None:
        endpoint = await lock_endpoint(session, endpoint_id)
        ended = await session.fetch(END_SECRETS, owner=endpoint_id, overlap_us=overlap_us)
        if any(row["version"] >= secret.version for row in ended):
            raise Conflict(f"The secret of the webhook endpoint {endpoint_id} was rotated at this moment. Retry.")
        await session.fetch(ADD_SECRETS, [secret.row()])
        until: int | None = max((row["valid_until"] for row in ended), default=None)
        await _audit(
            session,
            actor,
            "webhook.secret.rotate",
            endpoint,
            old={"version": secret.version - 1},
            new={"version": secret.version, "overlap_seconds": overlap_us / 1_000_000},
        )
        return until

    return await database.transact(work)


async def delete_endpoint(database: Database, endpoint_id: str, *, actor: str) -> WebhookEndpoint:
    """Delete an endpoint with its secrets; its pending deliveries are discarded."""

    async def work(session: Session) -> WebhookEndpoint:
        old = await lock_endpoint(session, endpoint_id)
        await session.fetch(_DELETE, endpoint_id=endpoint_id)
        await session.fetch(DELETE_SECRETS, owner=endpoint_id)
        await _audit(session, actor, "webhook.delete", old, old=_audited(old))
        return old

    deleted = await database.transact(work)
    await settle_most(database, endpoint_id, send=False)
    await database.transact(lambda session: session.fetch(_DROP_HELD, endpoint_id=endpoint_id))
    return deleted


async def audit_reveal(database: Database, endpoint: WebhookEndpoint, version: int, *, actor: str) -> None:
    """Note in the audit log that the secret of an endpoint was shown."""

    async def work(session: Session) -> None:
        await _audit(session, actor, "webhook.secret.show", endpoint, new={"version": version})

    await database.transact(work)


async def lock_endpoint(session: Session, endpoint_id: str) -> WebhookEndpoint:
    """Return an endpoint, locked until the transaction ends."""
    rows = await session.fetch(_LOCK, endpoint_id=endpoint_id)
    if not rows:
        raise unknown_endpoint(endpoint_id)
    return endpoint_of(rows[0])


def endpoint_of(row: Row) -> WebhookEndpoint:
    """Return the endpoint of a row."""
    return from_row(
        WebhookEndpoint,
        row,
        types=tuple(load_json(row["types"])),
        filter={name: tuple(values) for name, values in load_json(row["filter"]).items()},
        include=tuple(load_json(row["include"])),
        headers=load_json(row["headers"]),
        ordered=bool(row["ordered"]),
        enabled=bool(row["enabled"]),
        recent=recent_of(row),
    )


def unknown_endpoint(endpoint_id: str) -> NotFound:
    """Return the error for an endpoint that does not exist."""
    return NotFound(f'The webhook endpoint "{endpoint_id[:100]}" does not exist. See: runlane webhooks list')


def _audited(endpoint: WebhookEndpoint) -> dict[str, Any]:
    names = (
        "url",
        "description",
        "types",
        "filter",
        "include",
        "headers",
        "signature",
        "rate_per_second",
        "max_in_flight",
        "ordered",
    )
    return {name: getattr(endpoint, name) for name in names}


async def _audit(
    session: Session,
    actor: str,
    action: str,
    endpoint: WebhookEndpoint,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> None:
    await append_audit(
        session, actor=actor, tenant=endpoint.tenant, action=action, subject=endpoint.id, old=old, new=new
    )
