"""API keys: create, list, revoke and find.

Only the hash of a key is stored, and keys are found by it. Every request finds its key again, in one statement that
also checks expiry, revocation and the tenant: every process rejects a revoked key from the moment the revocation
commits, because no process caches keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Integer, Text, and_, bindparam, cast, func, insert, or_, select, update

from runlane.domain.access import (
    BUILT_IN_ROLES,
    ApiKey,
    MintedKey,
    Principal,
    known_permissions,
    mint_key,
    parse_key,
    same_hash,
)
from runlane.domain.ids import new_id
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import check_text, load_json
from runlane.errors import Forbidden, InvalidRequest, NotFound
from runlane.store.access.audit import append_audit
from runlane.store.access.roles import role_in, role_lock
from runlane.store.access.tenants import FIND_TENANT, tenant_lock, unknown_tenant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import api_keys, roles, tenants
from runlane.store.sql.statement import Row, Statement

MAX_NAME = 200
MAX_LIFE_SECONDS = 100 * 366 * 86400
# The precision of `last_used_at`, which is informational and must not make every request a write.
TOUCH_SECONDS = 60
_STALE_US = TOUCH_SECONDS * 1_000_000

_valid = and_(
    api_keys.c.revoked_at.is_(None),
    or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now_us()),
)
_stale = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < now_us() - lit(_STALE_US))
_columns = [column for column in api_keys.c if column.name != "hash"]

# A valid key of an enabled tenant, with its role.
USABLE_KEYS = (
    select(
        api_keys.c.id, api_keys.c.name, api_keys.c.tenant, api_keys.c.role, api_keys.c.expires_at, roles.c.permissions
    )
    .select_from(
        api_keys.join(tenants, and_(tenants.c.id == api_keys.c.tenant, tenants.c.enabled)).outerjoin(
            roles, roles.c.name == api_keys.c.role
        )
    )
    .where(_valid)
)
_FIND = Statement(
    "find_principal",
    USABLE_KEYS.add_columns(api_keys.c.hash, _stale.label("stale")).where(api_keys.c.hash == bindparam("hash")),
    purpose="Find the caller of a request by the hash of its API key.",
)
_STILL = Statement(
    "find_principals",
    USABLE_KEYS.where(member(api_keys.c.id, "key_ids")),
    purpose="Read again the callers with open streams or remembered keys, to find revoked keys.",
)
_TOUCH = Statement(
    "touch_key",
    update(api_keys).where(api_keys.c.id == bindparam("key_id"), _stale).values(last_used_at=now_us()),
    purpose="Note when an API key was last used, at most once per interval.",
)
_life = bindparam("life_us", type_=BigInteger())
_not_after = bindparam("not_after", type_=BigInteger())
_CREATE = Statement(
    "create_key",
    insert(api_keys)
    .values(
        id=bindparam("key_id"),
        tenant=bindparam("tenant"),
        name=bindparam("name"),
        prefix=bindparam("prefix"),
        hash=bindparam("hash"),
        role=bindparam("role"),
        created_at=now_us(),
        # Null plus a time is null: a key without a lifetime expires with the key that creates it, if that key expires.
        expires_at=func.coalesce(now_us() + cast(_life, BigInteger), cast(_not_after, BigInteger)),
        created_by=bindparam("actor"),
    )
    .returning(*_columns),
    purpose="Add an API key.",
)
_READ = Statement("read_key", select(*_columns).where(api_keys.c.id == bindparam("key_id")), purpose="Read an API key.")
_READ_BY_HASH = Statement(
    "read_key_by_hash",
    select(*_columns).where(api_keys.c.hash == bindparam("hash")),
    purpose="Read an API key by its hash, if it is stored.",
)
_REVOKE = Statement(
    "revoke_key",
    update(api_keys)
    .where(api_keys.c.id == bindparam("key_id"), api_keys.c.revoked_at.is_(None))
    .values(revoked_at=now_us())
    .returning(*_columns),
    purpose="Revoke an API key.",
)
_before = bindparam("before", type_=Text())
_LIST = Statement(
    "list_keys",
    select(*_columns)
    .where(
        or_(cast(_before, Text).is_(None), api_keys.c.id < _before),
        optional("tenant", api_keys.c.tenant),
    )
    .order_by(api_keys.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of API keys, newest first.",
)
_HAS = Statement(
    "count_usable_keys",
    select(func.count().label("n")).select_from(api_keys).where(_valid),
    purpose="Count the API keys that are neither revoked nor expired.",
)


@dataclass(frozen=True, slots=True)
class FoundKey:
    """The principal of a key; `stale` when the time of its last use should be updated."""

    principal: Principal
    stale: bool


async def find_principal(database: Database, raw_key: str) -> FoundKey | None:
    """Return the principal of a key; None if the key is unknown, expired or revoked, or its tenant is disabled."""
    wanted = parse_key(raw_key)
    if wanted is None:
        return None
    for row in await database.query(_FIND, hash=wanted):
        # Compared again, because an index of another collation may find another row.
        if not same_hash(row["hash"], wanted):
            return None
        principal = principal_of(row)
        return None if principal is None else FoundKey(principal, stale=bool(row["stale"]))
    return None


async def find_principals(database: Database, key_ids: Sequence[str]) -> dict[str, Principal]:
    """Return the principals of these keys; expired and revoked keys and those of disabled tenants are missing."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_STILL, key_ids=session.texts(key_ids))

    found = [principal_of(row) for row in await database.transact(work)]
    return {principal.key_id: principal for principal in found if principal is not None}


async def touch_key(database: Database, key_id: str) -> None:
    """Note that the key was used, unless that was noted within the last minute."""

    async def work(session: Session) -> None:
        await session.fetch(_TOUCH, key_id=key_id)

    await database.transact(work)


async def create_key(
    database: Database,
    name: str,
    role: str,
    *,
    actor: str,
    tenant: str = DEFAULT_TENANT,
    life_seconds: float | None = None,
    not_after_us: int | None = None,
    given: MintedKey | None = None,
) -> tuple[ApiKey, str]:
    """Create a key; return it and its secret, which is stored nowhere and cannot be shown again.

    `not_after_us` is the time at which the creating key expires: a longer lifetime is rejected, and the default is the
    same time. `given` is a key that another system created. If it is stored already, it is returned unchanged.
    """
    check_text(name, "The key's name", MAX_NAME)
    if life_seconds is not None and not 0 < life_seconds <= MAX_LIFE_SECONDS:
        raise InvalidRequest(f"A key's lifetime of {life_seconds!r} seconds must be more than 0 and at most a century.")
    minted = given or mint_key()

    async def work(session: Session) -> ApiKey:
        await session.lock(exclusive=[tenant_lock(tenant), role_lock(role)])
        if given is not None and (stored := await session.fetch(_READ_BY_HASH, hash=given.hash)):
            return from_row(ApiKey, stored[0])
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        await role_in(session, role)
        rows = await session.fetch(
            _CREATE,
            key_id=new_id("key"),
            tenant=tenant,
            name=name,
            prefix=minted.prefix,
            hash=minted.hash,
            role=role,
            life_us=None if life_seconds is None else int(life_seconds * 1_000_000),
            not_after=not_after_us,
            actor=actor,
        )
        key = from_row(ApiKey, rows[0])
        _check_expiry(key, not_after_us)
        await append_audit(
            session, actor=actor, tenant=tenant, action="key.create", subject=key.id, new=_audit_fields(key)
        )
        return key

    return await database.transact(work), minted.raw


async def list_keys(
    database: Database, *, tenant: str | None = None, before: str | None = None, limit: int = 100
) -> list[ApiKey]:
    """Return the newest keys, including revoked ones; `before` is the last id of the previous page."""
    return [from_row(ApiKey, row) for row in await database.query(_LIST, tenant=tenant, before=before, limit=limit)]


async def find_key(database: Database, key_id: str, *, tenant: str | None = None) -> ApiKey:
    """Return a key by its id. With `tenant`, keys of other tenants are not found."""
    rows = await database.query(_READ, key_id=key_id)
    if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
        raise _no_key(key_id)
    return from_row(ApiKey, rows[0])


async def revoke_key(database: Database, key_id: str, *, actor: str, tenant: str | None = None) -> ApiKey:
    """Revoke a key everywhere. Repeating is harmless. With `tenant`, keys of other tenants are not found."""

    async def work(session: Session) -> ApiKey:
        rows = await session.fetch(_READ, key_id=key_id)
        if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
            raise _no_key(key_id)
        old = from_row(ApiKey, rows[0])
        for row in await session.fetch(_REVOKE, key_id=key_id):
            new = from_row(ApiKey, row)
            await append_audit(
                session,
                actor=actor,
                tenant=new.tenant,
                action="key.revoke",
                subject=key_id,
                old=_audit_fields(old),
                new=_audit_fields(new),
            )
            return new
        return old

    return await database.transact(work)


async def has_keys(database: Database) -> bool:
    """Return whether an API key exists that can be used."""
    return (await database.query(_HAS))[0]["n"] > 0


def principal_of(row: Row) -> Principal | None:
    """Return the principal of a row of USABLE_KEYS; None if its role does not exist."""
    permissions = BUILT_IN_ROLES.get(row["role"])
    if permissions is None:
        if row["permissions"] is None:
            return None
        permissions = known_permissions(load_json(row["permissions"]))
    return from_row(Principal, row, key_id=row["id"], permissions=permissions)


def _check_expiry(key: ApiKey, not_after_us: int | None) -> None:
    if not_after_us is not None and (key.expires_at_us is None or key.expires_at_us > not_after_us):
        seconds = max(0, (not_after_us - key.created_at_us) // 1_000_000)
        raise Forbidden(
            "The new key would be valid for longer than the key that creates it. "
            f"Pass expires_in_seconds of at most {seconds}, or leave it out: then both expire at the same time."
        )


def _no_key(key_id: str) -> NotFound:
    return NotFound(f'No key "{key_id}" exists. Ids begin with key_; see: runlane keys list')


def _audit_fields(key: ApiKey) -> dict[str, object]:
    return {
        "name": key.name,
        "role": key.role,
        "prefix": key.prefix,
        "expires_at_us": key.expires_at_us,
        "revoked_at_us": key.revoked_at_us,
    }
