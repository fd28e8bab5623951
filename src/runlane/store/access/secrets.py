"""Secrets in the database: encrypted values by tenant and name.

Only cipher text is stored and read here; access.secrets has the keys. A rotation replaces a row only if it has not
changed since it was read, so a value that is set meanwhile is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import lock_key
from runlane.domain.secret import Secret
from runlane.errors import NotFound, SecretQuotaExceeded, nearest
from runlane.store.access.audit import append_audit
from runlane.store.access.tenants import FIND_TENANT, tenant_lock, unknown_tenant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us, optional, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import secrets
from runlane.store.sql.statement import Row, Statement, text_list

_described = [column for column in secrets.c if column.name != "value"]
_one = and_(secrets.c.tenant == bindparam("tenant"), secrets.c.name == bindparam("name"))


# The bytes that encryption adds to a value: a head, a nonce and a tag, before the base64 encoding.
_SEAL_BYTES: Final = 1 + 6 + 12 + 16


@dataclass(frozen=True, slots=True)
class SecretQuota:
    """The maximum number of secrets of a tenant, and of the bytes of their values together."""

    secrets: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class EncryptedSecret:
    """A stored, encrypted value."""

    tenant: str
    name: str
    key_id: str
    value: str
    version: int


def _put(batch: FromClause) -> Executable:
    b = batch.c
    statement = upsert(secrets).from_select(
        ["tenant", "name", "key_id", "value", "version", "created_at", "updated_at", "updated_by"],
        select(b.tenant, b.name, b.key_id, b.value, b.version, now_us(), now_us(), b.updated_by)
        .select_from(batch)
        .where(true()),
    )
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["tenant", "name"],
        set_={
            "key_id": new.key_id,
            "value": new.value,
            "version": secrets.c.version + 1,
            "updated_at": new.updated_at,
            "updated_by": new.updated_by,
        },
    ).returning(*_described)


_PUT = Statement(
    "put_secret",
    _put,
    {"tenant": Text(), "name": Text(), "key_id": Text(), "value": Text(), "version": Integer(), "updated_by": Text()},
    purpose="Store a new version of a secret.",
)
_READ = Statement("read_secret", select(*_described).where(_one), purpose="Read the description of a secret.")
_COUNT = Statement(
    "count_secrets_of_tenant",
    select(
        func.count().label("secrets"),
        cast(func.coalesce(func.sum(func.length(secrets.c.value)), 0), BigInteger).label("characters"),
        cast(
            func.coalesce(func.sum(case((secrets.c.name == bindparam("name"), func.length(secrets.c.value)))), 0),
            BigInteger,
        ).label("own_characters"),
    ).where(secrets.c.tenant == bindparam("tenant")),
    purpose="Count the secrets of a tenant, and whether one exists.",
)
_DELETE = Statement("delete_secret", delete(secrets).where(_one).returning(secrets.c.name), purpose="Delete a secret.")
_SEALED = Statement(
    "encrypted_secrets",
    select(secrets.c.tenant, secrets.c.name, secrets.c.key_id, secrets.c.value, secrets.c.version).where(
        secrets.c.tenant == bindparam("tenant"), member(secrets.c.name, "names")
    ),
    purpose="Read the encrypted values of some secrets of a tenant.",
)
_NAMES = Statement(
    "secret_names",
    select(secrets.c.name).where(secrets.c.tenant == bindparam("tenant")),
    purpose="Read the names of a tenant's secrets.",
)
_after = bindparam("after", type_=Text())
_LIST = Statement(
    "list_secrets",
    select(*_described)
    .where(
        secrets.c.tenant == bindparam("tenant"),
        or_(cast(_after, Text).is_(None), secrets.c.name > _after),
    )
    .order_by(secrets.c.name)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of a tenant's secrets, without values.",
)
_KEYS = Statement(
    "count_secrets_by_key",
    select(secrets.c.key_id, func.count().label("n")).group_by(secrets.c.key_id).order_by(secrets.c.key_id),
    purpose="Count the secrets encrypted with each key.",
)
_OTHER_KEYS = Statement(
    "secrets_of_other_keys",
    select(secrets.c.tenant, secrets.c.name, secrets.c.key_id, secrets.c.value, secrets.c.version)
    .where(
        secrets.c.key_id != bindparam("key_id"),
        optional("only_tenant", secrets.c.tenant),
        or_(
            secrets.c.tenant > bindparam("after_tenant"),
            and_(secrets.c.tenant == bindparam("after_tenant"), secrets.c.name > bindparam("after_name")),
        ),
    )
    .order_by(secrets.c.tenant, secrets.c.name)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read secrets that are to be encrypted with the current key.",
)


def _reseal(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(secrets)
        .where(
            secrets.c.tenant == b.tenant,
            secrets.c.name == b.name,
            secrets.c.version == b.version,
            secrets.c.key_id == b.old_key_id,
        )
        .values(key_id=b.key_id, value=b.value)
        .returning(secrets.c.tenant, secrets.c.name)
    )


_RESEAL = Statement(
    "reencrypt_secrets",
    _reseal,
    {"tenant": Text(), "name": Text(), "version": Integer(), "old_key_id": Text(), "key_id": Text(), "value": Text()},
    purpose="Store secrets encrypted with another key, unless they changed meanwhile.",
)


async def put_secret(
    database: Database, tenant: str, name: str, *, key_id: str, value: str, quota: SecretQuota, actor: str
) -> tuple[Secret | None, Secret]:
    """Store an encrypted value; return the old and the new secret. Raises SecretQuotaExceeded above the quota."""

    async def work(session: Session) -> tuple[Secret | None, Secret]:
        await session.lock(exclusive=[tenant_lock(tenant)])
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        await _check_quota(session, tenant, name, len(value), quota)
        before = [from_row(Secret, row) for row in await session.fetch(_READ, tenant=tenant, name=name)]
        rows = await session.fetch(_PUT, [(tenant, name, key_id, value, 1, actor)])
        old, new = (before[0] if before else None), from_row(Secret, rows[0])
        await append_audit(
            session,
            actor=actor,
            tenant=tenant,
            action="secret.set",
            subject=name,
            old=None if old is None else _audited(old),
            new=_audited(new),
        )
        return old, new

    return await database.transact(work)


async def _check_quota(session: Session, tenant: str, name: str, characters: int, quota: SecretQuota) -> None:
    """Raise if the quota of the tenant is exceeded. The caller holds the tenant's lock.

    A tenant above a quota that was lowered may still replace a value by one that is not longer.
    """
    (held,) = await session.fetch(_COUNT, tenant=tenant, name=name)
    is_new = not held["own_characters"]
    if is_new and held["secrets"] >= quota.secrets:
        raise SecretQuotaExceeded(
            f'The tenant "{tenant}" has {held["secrets"]} secrets and may have {quota.secrets}, so "{name}" is not '
            "stored. Delete one that is not needed (runlane secrets delete NAME), or raise RUNLANE_MAX_SECRETS."
        )
    count = held["secrets"] + is_new
    after = held["characters"] - held["own_characters"] + characters
    value_bytes = after * 3 // 4 - count * _SEAL_BYTES
    if value_bytes > quota.value_bytes and characters > held["own_characters"]:
        raise SecretQuotaExceeded(
            f'With "{name}" the secrets of the tenant "{tenant}" would have {value_bytes} bytes; together they may '
            f"have {quota.value_bytes}. Delete one that is not needed (runlane secrets delete NAME), or raise "
            "RUNLANE_MAX_SECRETS_BYTES."
        )


async def delete_secret(database: Database, tenant: str, name: str, *, actor: str) -> Secret:
    """Delete a secret and return its last description."""

    async def work(session: Session) -> Secret:
        await session.lock(exclusive=[tenant_lock(tenant)])
        found = await session.fetch(_READ, tenant=tenant, name=name)
        if not found:
            known = sorted(row["name"] for row in await session.fetch(_NAMES, tenant=tenant))
            raise NotFound(f'No secret "{name}" exists{nearest(name, known)}. See: runlane secrets list')
        old = from_row(Secret, found[0])
        await session.fetch(_DELETE, tenant=tenant, name=name)
        await append_audit(session, actor=actor, tenant=tenant, action="secret.delete", subject=name, old=_audited(old))
        return old

    return await database.transact(work)


async def list_secrets(
    database: Database, tenant: str, *, after: str | None = None, limit: int = 1000
) -> Sequence[Secret]:
    """Return a tenant's secrets by name; `after` is the last name of the previous page."""
    return [from_row(Secret, row) for row in await database.query(_LIST, tenant=tenant, after=after, limit=limit)]


async def read_sealed(database: Database, tenant: str, names: Collection[str]) -> list[EncryptedSecret]:
    """Return the encrypted values of the secrets that exist."""
    wanted = text_list(database.dialect, sorted(names))
    return [_sealed(row) for row in await database.query(_SEALED, tenant=tenant, names=wanted)]


async def count_by_key(database: Database) -> dict[str, int]:
    """Return how many secrets are encrypted with each key, in all tenants."""
    return {row["key_id"]: row["n"] for row in await database.query(_KEYS)}


async def read_of_other_keys(
    database: Database, key_id: str, *, tenant: str | None, after: tuple[str, str], limit: int
) -> list[EncryptedSecret]:
    """Return the next secrets that are encrypted with other keys, in all tenants or in one, by tenant and name."""
    rows = await database.query(
        _OTHER_KEYS,
        key_id=key_id,
        only_tenant=tenant,
        after_tenant=after[0],
        after_name=after[1],
        limit=limit,
    )
    return [_sealed(row) for row in rows]


async def reseal(database: Database, changes: Sequence[tuple[EncryptedSecret, EncryptedSecret]], *, actor: str) -> int:
    """Replace values by the same values under another key; return how many were unchanged meanwhile."""

    async def work(session: Session) -> int:
        # Without the lock, two concurrent rotations would wait for each other's rows.
        await session.lock(exclusive=[lock_key("secrets", "rotate")])
        rows = await session.fetch(
            _RESEAL,
            [(old.tenant, old.name, old.version, old.key_id, new.key_id, new.value) for old, new in changes],
        )
        done = {(row["tenant"], row["name"]) for row in rows}
        for old, new in changes:
            if (old.tenant, old.name) in done:
                await append_audit(
                    session,
                    actor=actor,
                    tenant=old.tenant,
                    action="secret.rotate",
                    subject=old.name,
                    old={"key_id": old.key_id},
                    new={"key_id": new.key_id},
                )
        return len(done)

    return await database.transact(work)


async def stored_names(database: Database, tenant: str) -> set[str]:
    """Return the names of a tenant's secrets."""
    return {row["name"] for row in await database.query(_NAMES, tenant=tenant)}


def _sealed(row: Row) -> EncryptedSecret:
    return EncryptedSecret(row["tenant"], row["name"], row["key_id"], row["value"], row["version"])


def _audited(secret: Secret) -> dict[str, object]:
    return {"version": secret.version, "key_id": secret.key_id}
