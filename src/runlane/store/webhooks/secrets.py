"""The secrets of endpoints, of runs' webhooks and of tenants: encrypted, by owner and version.

The default secret of a tenant signs the webhooks of runs that were started without a secret.

Only cipher text is stored and read here; `webhooks.keys` encrypts and decrypts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, FromClause, Integer, Text, and_, bindparam, delete, func, or_, select, true, update
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import lock_key
from runlane.domain.webhook import WebhookKey
from runlane.errors import Conflict
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us, optional, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import webhook_secrets
from runlane.store.sql.statement import Row, Statement

_columns = (
    webhook_secrets.c.owner,
    webhook_secrets.c.version,
    webhook_secrets.c.tenant,
    webhook_secrets.c.key_id,
    webhook_secrets.c.value,
    webhook_secrets.c.public_key,
    webhook_secrets.c.valid_until,
)


@dataclass(frozen=True, slots=True)
class NewSecret:
    """An encrypted secret to store. `public_key` is that of an ed25519 key."""

    owner: str
    version: int
    tenant: str
    key_id: str
    value: str
    public_key: str | None = None

    def row(self) -> tuple[Any, ...]:
        """Return the secret as a member of ADD_SECRETS."""
        return (self.owner, self.version, self.tenant, self.key_id, self.value, self.public_key)


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A stored, encrypted secret."""

    owner: str
    version: int
    tenant: str
    key_id: str
    value: str
    public_key: str | None
    valid_until_us: int | None


def secret_name(owner: str, version: int) -> str:
    """Return the name that encryption binds the value to. No secret of a tenant can have such a name."""
    return f"webhook:{owner}:{version}"


def default_owner(tenant: str) -> str:
    """Return the owner of the default secret of a tenant. No id of an endpoint or a run has this form."""
    return f"tenant:{tenant}"


def _add(batch: FromClause) -> Executable:
    b = batch.c
    names = ["owner", "version", "tenant", "key_id", "value", "public_key"]
    return (
        upsert(webhook_secrets)
        .from_select(
            [*names, "created_at"], select(*(b[name] for name in names), now_us()).select_from(batch).where(true())
        )
        .on_conflict_do_nothing(index_elements=["owner", "version"])
    )


ADD_SECRETS = Statement(
    "add_webhook_secrets",
    _add,
    {
        "owner": Text(),
        "version": Integer(),
        "tenant": Text(),
        "key_id": Text(),
        "value": Text(),
        "public_key": Text(),
    },
    purpose="Store webhook secrets.",
)
_in_force = or_(webhook_secrets.c.valid_until.is_(None), webhook_secrets.c.valid_until > now_us())
VALID_SECRETS = Statement(
    "valid_webhook_secrets",
    select(*_columns)
    .where(member(webhook_secrets.c.owner, "owners"), _in_force)
    .order_by(webhook_secrets.c.owner, webhook_secrets.c.version.desc()),
    purpose="Read the webhook secrets that sign at this moment, newest first.",
)
END_SECRETS = Statement(
    "end_webhook_secrets",
    update(webhook_secrets)
    .where(webhook_secrets.c.owner == bindparam("owner"), webhook_secrets.c.valid_until.is_(None))
    .values(valid_until=now_us() + bindparam("overlap_us", type_=BigInteger()))
    .returning(webhook_secrets.c.version, webhook_secrets.c.valid_until),
    purpose="Bound the time for which the current webhook secret still signs.",
)
DELETE_SECRETS = Statement(
    "delete_webhook_secrets",
    delete(webhook_secrets).where(webhook_secrets.c.owner == bindparam("owner")),
    purpose="Delete the secrets of a deleted webhook endpoint.",
)
_PUBLIC = Statement(
    "webhook_public_keys",
    select(
        webhook_secrets.c.owner.label("endpoint_id"),
        webhook_secrets.c.version,
        webhook_secrets.c.public_key,
        webhook_secrets.c.valid_until,
    )
    .where(optional("tenant", webhook_secrets.c.tenant), webhook_secrets.c.public_key.is_not(None), _in_force)
    .order_by(webhook_secrets.c.owner, webhook_secrets.c.version.desc()),
    purpose="Read the public keys of webhook endpoints that sign at this moment.",
)
_BY_KEY = Statement(
    "count_webhook_secrets_by_key",
    select(webhook_secrets.c.key_id, func.count().label("n")).group_by(webhook_secrets.c.key_id),
    purpose="Count the webhook secrets encrypted with each key.",
)
_OTHER_KEYS = Statement(
    "webhook_secrets_of_other_keys",
    select(*_columns)
    .where(
        webhook_secrets.c.key_id != bindparam("key_id"),
        optional("only_tenant", webhook_secrets.c.tenant),
        or_(
            webhook_secrets.c.owner > bindparam("after_owner"),
            and_(
                webhook_secrets.c.owner == bindparam("after_owner"),
                webhook_secrets.c.version > bindparam("after_version", type_=Integer()),
            ),
        ),
    )
    .order_by(webhook_secrets.c.owner, webhook_secrets.c.version)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read webhook secrets that are to be encrypted with the current key.",
)


def _reseal(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(webhook_secrets)
        .where(
            webhook_secrets.c.owner == b.owner,
            webhook_secrets.c.version == b.version,
            webhook_secrets.c.key_id == b.old_key_id,
        )
        .values(key_id=b.key_id, value=b.value)
        .returning(webhook_secrets.c.owner, webhook_secrets.c.version)
    )


_RESEAL = Statement(
    "reencrypt_webhook_secrets",
    _reseal,
    {"owner": Text(), "version": Integer(), "old_key_id": Text(), "key_id": Text(), "value": Text()},
    purpose="Store webhook secrets encrypted with another key, unless they changed meanwhile.",
)


async def valid_secrets(session: Session, owners: Sequence[str]) -> dict[str, list[StoredSecret]]:
    """Return the secrets of these endpoints or runs that sign at this moment, newest first."""
    found: dict[str, list[StoredSecret]] = {owner: [] for owner in owners}
    for row in await session.fetch(VALID_SECRETS, owners=session.texts(sorted(found))):
        found[row["owner"]].append(stored_secret(row))
    return found


async def rotate_default_secret(database: Database, secret: NewSecret, *, overlap_us: int, actor: str) -> int | None:
    """Make this the default secret of its tenant; return until when the previous one, if any, signs too."""

    async def work(session: Session) -> int | None:
        await session.lock(exclusive=[lock_key("webhook secret", secret.tenant)])
        ended = await session.fetch(END_SECRETS, owner=secret.owner, overlap_us=overlap_us)
        if max((row["version"] for row in ended), default=0) != secret.version - 1:
            raise Conflict(f'The default webhook secret of "{secret.tenant}" was rotated at this moment. Retry.')
        await session.fetch(ADD_SECRETS, [secret.row()])
        await append_audit(
            session,
            actor=actor,
            tenant=secret.tenant,
            action="webhook.secret.rotate",
            subject=secret.owner,
            old={"version": secret.version - 1} if ended else None,
            new={"version": secret.version, "overlap_seconds": overlap_us / 1_000_000},
        )
        return max((row["valid_until"] for row in ended), default=None)

    return await database.transact(work)


async def audit_default_reveal(database: Database, secret: StoredSecret, *, actor: str) -> None:
    """Note in the audit log that the default secret of a tenant was shown."""

    async def work(session: Session) -> None:
        new = {"version": secret.version}
        await append_audit(
            session, actor=actor, tenant=secret.tenant, action="webhook.secret.show", subject=secret.owner, new=new
        )

    await database.transact(work)


async def list_public_keys(database: Database, tenant: str | None) -> list[WebhookKey]:
    """Return the public keys of a tenant's endpoints, or of all."""
    return [from_row(WebhookKey, row) for row in await database.query(_PUBLIC, tenant=tenant)]


async def count_webhook_secrets(database: Database) -> dict[str, int]:
    """Return how many webhook secrets are encrypted with each key."""
    return {row["key_id"]: row["n"] for row in await database.query(_BY_KEY)}


async def webhook_secrets_of_other_keys(
    database: Database, key_id: str, *, tenant: str | None, after: tuple[str, int], limit: int
) -> list[StoredSecret]:
    """Return the next secrets that are encrypted with other keys."""
    rows = await database.query(
        _OTHER_KEYS, key_id=key_id, only_tenant=tenant, after_owner=after[0], after_version=after[1], limit=limit
    )
    return [stored_secret(row) for row in rows]


async def reseal_webhook_secrets(
    database: Database, changes: Sequence[tuple[StoredSecret, NewSecret]], *, actor: str
) -> int:
    """Replace values by the same values under another key; return how many were unchanged meanwhile."""

    async def work(session: Session) -> int:
        await session.lock(exclusive=[lock_key("secrets", "rotate")])
        rows = await session.fetch(
            _RESEAL, [(old.owner, old.version, old.key_id, new.key_id, new.value) for old, new in changes]
        )
        done = {(row["owner"], row["version"]) for row in rows}
        for old, new in changes:
            if (old.owner, old.version) in done:
                await append_audit(
                    session,
                    actor=actor,
                    tenant=old.tenant,
                    action="webhook.secret.encrypt",
                    subject=old.owner,
                    old={"key_id": old.key_id},
                    new={"key_id": new.key_id},
                )
        return len(done)

    return await database.transact(work)


def stored_secret(row: Row) -> StoredSecret:
    """Return the secret of a row."""
    return from_row(StoredSecret, row)
