"""Sources of incoming webhooks. The token of a URL is stored as a hash, the secret encrypted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Boolean, Integer, Text, and_, bindparam, delete, func, select, update

from runlane.domain.ids import lock_key
from runlane.domain.text import dump_json, load_json
from runlane.domain.webhook_source import MAX_SOURCES, SourceOptions, Verifier, WebhookSource
from runlane.errors import Conflict, NotFound
from runlane.store.access.audit import append_audit
from runlane.store.access.tenants import FIND_TENANT, unknown_tenant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import tenants, webhook_sources
from runlane.store.sql.statement import Row, Statement

_one = (webhook_sources.c.tenant == bindparam("tenant"), webhook_sources.c.name == bindparam("name"))
_FIND = Statement("find_webhook_source", select(webhook_sources).where(*_one), purpose="Read a webhook source.")
_BY_TOKEN = Statement(
    "find_webhook_source_by_token",
    select(webhook_sources, now_us().label("now"))
    .select_from(webhook_sources.join(tenants, and_(tenants.c.id == webhook_sources.c.tenant, tenants.c.enabled)))
    .where(webhook_sources.c.token_hash == bindparam("token_hash"), webhook_sources.c.enabled),
    purpose="Find the webhook source of a request, of an enabled tenant.",
)
_LIST = Statement(
    "list_webhook_sources",
    select(webhook_sources).where(webhook_sources.c.tenant == bindparam("tenant")).order_by(webhook_sources.c.name),
    purpose="Read the webhook sources of a tenant.",
)
_COUNT = Statement(
    "count_webhook_sources",
    select(func.count().label("n")).where(webhook_sources.c.tenant == bindparam("tenant")),
    purpose="Count the webhook sources of a tenant.",
)


def _put() -> Any:
    names = ("verifier", "event", "options", "key_id", "secret", "updated_by")
    values: dict[str, Any] = {name: bindparam(name, type_=Text()) for name in names}
    values |= {
        "enabled": bindparam("enabled", type_=Boolean()),
        "rate_per_minute": bindparam("rate_per_minute", type_=Integer()),
        "updated_at": now_us(),
    }
    statement = upsert(webhook_sources).values(
        tenant=bindparam("tenant"),
        name=bindparam("name"),
        token_hash=bindparam("token_hash", type_=Text()),
        created_at=now_us(),
        **values,
    )
    changed = {name: statement.excluded[name] for name in values}
    return statement.on_conflict_do_update(index_elements=["tenant", "name"], set_=changed).returning(
        *webhook_sources.columns
    )


_PUT = Statement("put_webhook_source", _put(), purpose="Create or change a webhook source; its token stays.")
_SET_TOKEN = Statement(
    "set_webhook_token",
    update(webhook_sources)
    .where(*_one)
    .values(
        token_hash=bindparam("token_hash", type_=Text()),
        updated_at=now_us(),
        updated_by=bindparam("updated_by", type_=Text()),
    )
    .returning(*webhook_sources.columns),
    purpose="Replace the token of a webhook source.",
)
_DELETE = Statement(
    "delete_webhook_source",
    delete(webhook_sources).where(*_one).returning(*webhook_sources.columns),
    purpose="Delete a webhook source.",
)


@dataclass(frozen=True, slots=True)
class SealedSource:
    """A source with its encrypted secret, and the database's time."""

    source: WebhookSource
    secret: str
    now_us: int


@dataclass(frozen=True, slots=True)
class NewSource:
    """The stored fields of a source."""

    verifier: Verifier
    event: str
    options: SourceOptions
    enabled: bool
    rate_per_minute: int
    key_id: str
    secret: str
    token_hash: str


async def put_source(
    database: Database, tenant: str, name: str, new: NewSource, *, actor: str
) -> tuple[WebhookSource, bool]:
    """Create or change a source; return it, and whether it is new. A changed one keeps its token."""

    async def work(session: Session) -> tuple[WebhookSource, bool]:
        await session.lock(exclusive=[lock_key("webhook sources", tenant)])
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        before = await session.fetch(_FIND, tenant=tenant, name=name)
        if not before and (await session.fetch(_COUNT, tenant=tenant))[0]["n"] >= MAX_SOURCES:
            raise Conflict(
                f'The tenant "{tenant}" has {MAX_SOURCES} webhook sources, which is the limit. Delete one of them.'
            )
        values = asdict(new) | {"options": dump_json(asdict(new.options)), "verifier": new.verifier.value}
        (row,) = await session.fetch(_PUT, tenant=tenant, name=name, updated_by=actor, **values)
        old = _audited(before[0]) if before else None
        await _audit(session, actor, tenant, "webhook_source.set", name, old, _audited(row))
        return source_of(row), not before

    return await database.transact(work)


async def set_token(database: Database, tenant: str, name: str, token_hash: str, *, actor: str) -> WebhookSource:
    """Replace the token of a source; the old URL is rejected from then on."""

    async def work(session: Session) -> WebhookSource:
        rows = await session.fetch(_SET_TOKEN, tenant=tenant, name=name, token_hash=token_hash, updated_by=actor)
        if not rows:
            raise _unknown(name)
        await _audit(session, actor, tenant, "webhook_source.token", name, None, _audited(rows[0]))
        return source_of(rows[0])

    return await database.transact(work)


async def delete_source(database: Database, tenant: str, name: str, *, actor: str) -> WebhookSource:
    """Delete a source; its events stay."""

    async def work(session: Session) -> WebhookSource:
        rows = await session.fetch(_DELETE, tenant=tenant, name=name)
        if not rows:
            raise _unknown(name)
        await _audit(session, actor, tenant, "webhook_source.delete", name, _audited(rows[0]), None)
        return source_of(rows[0])

    return await database.transact(work)


async def list_sources(database: Database, tenant: str) -> list[WebhookSource]:
    """Return the sources of a tenant by name."""
    return [source_of(row) for row in await database.query(_LIST, tenant=tenant)]


async def find_source(database: Database, tenant: str, name: str) -> WebhookSource:
    """Return a source. Raises NotFound."""
    rows = await database.query(_FIND, tenant=tenant, name=name)
    if not rows:
        raise _unknown(name)
    return source_of(rows[0])


async def find_by_token(database: Database, token_hash: str) -> SealedSource | None:
    """Return the enabled source with this token, if its tenant is enabled."""
    rows = await database.query(_BY_TOKEN, token_hash=token_hash)
    return SealedSource(source_of(rows[0]), rows[0]["secret"], rows[0]["now"]) if rows else None


def source_of(row: Row) -> WebhookSource:
    """Return the source of a row."""
    return from_row(
        WebhookSource,
        row,
        verifier=Verifier(row["verifier"]),
        options=SourceOptions(**load_json(row["options"])),
        enabled=bool(row["enabled"]),
    )


def _audited(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("verifier", "event", "enabled", "rate_per_minute")}


async def _audit(
    session: Session,
    actor: str,
    tenant: str,
    action: str,
    name: str,
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
) -> None:
    await append_audit(session, actor=actor, tenant=tenant, action=action, subject=name, old=old, new=new)


def _unknown(name: str) -> NotFound:
    return NotFound(f'The webhook source "{name[:64]}" does not exist. See: runlane webhook-sources list')
