"""Create, list, move and delete users, vaults and memories.

These changes are not operations of a memory. A title is unique, so they are made where every process sees them: in the
database, or in the file if no other copy exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import BigInteger, FromClause, Integer, Text, bindparam, delete, insert, literal_column, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import new_id
from runlane.domain.memory import (
    CONTEXT_FRAGMENT,
    DEFAULT_CONTEXT,
    Memory,
    MemoryOpKind,
    MemoryOpState,
    MemoryUser,
    Vault,
)
from runlane.errors import Conflict, MemoryOwnedElsewhere, NotFound
from runlane.store.memory.operations import PlannedOp, apply_ops, log_ops
from runlane.store.memory.planning import missing_memory
from runlane.store.memory.rows import MEMORY_COLUMNS, memory_from, user_from, vault_from
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us, optional
from runlane.store.sql.schema.memory import (
    memories,
    memory_entries,
    memory_fragments,
    memory_indexes,
    memory_nodes,
    memory_ops,
    memory_users,
    memory_vaults,
    memory_vectors,
)
from runlane.store.sql.statement import Statement

_m, _v, _u = memories.c, memory_vaults.c, memory_users.c
_tenant = bindparam("tenant", type_=Text())
_id = bindparam("id", type_=Text())
_after = bindparam("after", type_=Text())
_limit = bindparam("limit", type_=Integer())


def _values(*names: str) -> dict[str, object]:
    return {name: bindparam(name, type_=Text()) for name in names}


_CREATE_USER = Statement(
    "memory_create_user",
    insert(memory_users)
    .values(
        **_values("tenant", "id", "email", "display_name", "time_zone"),
        status=literal_column("'active'"),
        created_at=bindparam("created_at", type_=BigInteger()),
    )
    .returning(*memory_users.c),
    purpose="Create a user that memory is kept for.",
)
_GET_USER = Statement(
    "memory_get_user", select(memory_users).where(_u.tenant == _tenant, _u.id == _id), purpose="Read a user."
)
_CREATE_VAULT = Statement(
    "memory_create_vault",
    insert(memory_vaults)
    .values(
        **_values("id", "tenant", "user_id", "title", "description"),
        created_at=bindparam("created_at", type_=BigInteger()),
    )
    .returning(*memory_vaults.c),
    purpose="Create a vault.",
)
_VAULTS = Statement(
    "memory_list_vaults",
    select(memory_vaults).where(_v.tenant == _tenant, _v.id > _after).order_by(_v.id).limit(_limit),
    purpose="List the vaults of a tenant.",
)
_GET_VAULT = Statement(
    "memory_get_vault",
    select(memory_vaults).where(_v.tenant == _tenant, _v.id == _id),
    purpose="Read a vault by its id.",
)
_VAULT_BY_TITLE = Statement(
    "memory_vault_by_title",
    select(memory_vaults).where(
        _v.tenant == _tenant,
        _v.user_id == bindparam("user_id", type_=Text()),
        _v.title == bindparam("title", type_=Text()),
    ),
    purpose="Read a vault by its title.",
)
_DELETE_VAULT = Statement(
    "memory_delete_vault", delete(memory_vaults).where(_v.tenant == _tenant, _v.id == _id), purpose="Delete a vault."
)
_VAULT_IN_USE = Statement(
    "memory_vault_in_use", select(_m.id).where(_m.vault_id == _id).limit(1), purpose="Check whether a vault is empty."
)
_LOCK_VAULT = Statement(
    "memory_lock_vault",
    select(_v.id).where(_v.tenant == _tenant, _v.id == _id).with_for_update(),
    purpose="Lock a vault that gets a memory or is deleted.",
)
_CREATE_MEMORY = Statement(
    "memory_create",
    insert(memories)
    .values(
        **_values("id", "tenant", "vault_id", "memory_type", "title", "description"),
        created_at=bindparam("created_at", type_=BigInteger()),
        used_at=bindparam("created_at", type_=BigInteger()),
        last_seq=1,
        applied_seq=1,
        epoch=0,
        parked=False,
        stale=False,
    )
    .returning(*MEMORY_COLUMNS),
    purpose="Create a memory.",
)
_LIST = Statement(
    "memory_list",
    select(*MEMORY_COLUMNS)
    .where(_m.tenant == _tenant, _m.id > _after, optional("vault_id", _m.vault_id))
    .order_by(_m.id)
    .limit(_limit),
    purpose="List the memories of a tenant.",
)
_GET = Statement(
    "memory_get", select(*MEMORY_COLUMNS).where(_m.tenant == _tenant, _m.id == _id), purpose="Read a memory by its id."
)
_BY_TITLE = Statement(
    "memory_by_title",
    select(*MEMORY_COLUMNS).where(
        _m.tenant == _tenant,
        _m.vault_id == bindparam("vault_id", type_=Text()),
        _m.title == bindparam("title", type_=Text()),
    ),
    purpose="Read a memory by its title.",
)
_MOVE = Statement(
    "memory_move",
    update(memories)
    .where(_m.tenant == _tenant, _m.id == _id)
    .values(vault_id=bindparam("vault_id", type_=Text()))
    .returning(*MEMORY_COLUMNS),
    purpose="Move a memory to another vault.",
)
_OWNERS = Statement(
    "memory_living_owners",
    select(_m.id, _m.owner, memory_nodes.c.url)
    .where(member(_m.id, "ids"), memory_nodes.c.id == _m.owner, memory_nodes.c.lease_until > now_us())
    .order_by(_m.id),
    purpose="Read which nodes own memories.",
)
_LOCK = Statement(
    "memory_lock_to_delete",
    select(_m.id).where(_m.tenant == _tenant, member(_m.id, "ids")).order_by(_m.id).with_for_update(),
    purpose="Lock memories before they are deleted.",
)

_USERS = Statement(
    "memory_list_users", select(memory_users).where(_u.tenant == _tenant).order_by(_u.id), purpose="List users."
)
_TENANT_DELETIONS = (
    Statement(
        "memory_delete_vaults_of_tenant",
        delete(memory_vaults).where(
            _v.tenant == _tenant, ~select(_m.id).where(_m.tenant == _tenant, _m.vault_id == _v.id).exists()
        ),
        purpose="Delete the vaults of a tenant.",
    ),
    Statement(
        "memory_delete_users_of_tenant", delete(memory_users).where(_u.tenant == _tenant), purpose="Delete users."
    ),
)


def _delete_rows(table: FromClause) -> Executable:
    key = table.c.id if table is memories else table.c.memory_id
    return delete(table).where(member(key, "ids"))  # type: ignore[arg-type]


_DELETIONS = tuple(
    Statement(f"memory_delete_{name}", _delete_rows(table), purpose="Delete everything of memories.")
    for name, table in (
        ("all_vectors", memory_vectors),
        ("all_indexes", memory_indexes),
        ("all_ops", memory_ops),
        ("all_fragments", memory_fragments),
        ("all_entries", memory_entries),
        ("memories", memories),
    )
)


async def delete_tenant(database: Database, tenant: str) -> None:
    """Delete the vaults and users of a tenant that has no memories."""

    async def work(session: Session) -> None:
        for statement in _TENANT_DELETIONS:
            await session.fetch(statement, tenant=tenant)

    await database.transact(work)


async def list_users(database: Database, tenant: str) -> Sequence[MemoryUser]:
    """Return the users of a tenant."""
    return [user_from(row) for row in await database.query(_USERS, tenant=tenant)]


async def create_user(
    database: Database, tenant: str, user_id: str, email: str, display_name: str, time_zone: str, now: int
) -> MemoryUser:
    """Create a user. Conflict if the id or the address is taken."""

    async def work(session: Session) -> MemoryUser:
        rows = await session.fetch(
            _CREATE_USER,
            tenant=tenant,
            id=user_id,
            email=email,
            display_name=display_name,
            time_zone=time_zone,
            created_at=now,
        )
        return user_from(rows[0])

    try:
        return await database.transact(work)
    except database.duplicates as error:
        raise Conflict(f'A user "{user_id}" or with the address "{email}" exists already.') from error


async def get_user(database: Database, tenant: str, user_id: str) -> MemoryUser:
    """Return a user."""
    rows = await database.query(_GET_USER, tenant=tenant, id=user_id)
    if not rows:
        raise NotFound(f'The user "{user_id}" does not exist. Create it: runlane memory create-user')
    return user_from(rows[0])


async def create_vault(database: Database, tenant: str, title: str, description: str, user_id: str, now: int) -> Vault:
    """Create a vault. Conflict if the title is taken."""

    async def work(session: Session) -> Vault:
        values = {"tenant": tenant, "user_id": user_id, "title": title, "description": description}
        rows = await session.fetch(_CREATE_VAULT, id=new_id("vault"), created_at=now, **values)
        return vault_from(rows[0])

    try:
        return await database.transact(work)
    except database.duplicates as error:
        raise Conflict(f'A vault "{title}" exists already. Choose another title.') from error


async def list_vaults(database: Database, tenant: str, after: str | None, limit: int) -> Sequence[Vault]:
    """Return vaults by id."""
    rows = await database.query(_VAULTS, tenant=tenant, after=after or "", limit=limit)
    return [vault_from(row) for row in rows]


async def get_vault(database: Database, tenant: str, vault_id: str) -> Vault:
    """Return a vault."""
    rows = await database.query(_GET_VAULT, tenant=tenant, id=vault_id)
    if not rows:
        raise _missing_vault(vault_id)
    return vault_from(rows[0])


async def _lock_vault(session: Session, tenant: str, vault_id: str) -> None:
    if not await session.fetch(_LOCK_VAULT, tenant=tenant, id=vault_id):
        raise _missing_vault(vault_id)


def _missing_vault(vault_id: str) -> NotFound:
    return NotFound(f'The vault "{vault_id}" does not exist. List them: runlane memory list-vaults')


async def find_vault(database: Database, tenant: str, title: str, user_id: str = "") -> Vault | None:
    """Return the vault with a title, or None."""
    rows = await database.query(_VAULT_BY_TITLE, tenant=tenant, user_id=user_id, title=title)
    return vault_from(rows[0]) if rows else None


async def delete_vault(database: Database, tenant: str, vault_id: str) -> None:
    """Delete a vault that has no memories."""

    async def work(session: Session) -> None:
        await _lock_vault(session, tenant, vault_id)
        if await session.fetch(_VAULT_IN_USE, id=vault_id):
            raise Conflict(f'The vault "{vault_id}" has memories. Delete or move them first.')
        await session.fetch(_DELETE_VAULT, tenant=tenant, id=vault_id)

    await database.transact(work)


async def create_memory(database: Database, new: Memory, check: Callable[[Session], Awaitable[None]]) -> Memory:
    """Create a memory with its context. Conflict if the title is taken in the vault. `check` may refuse it."""
    content = DEFAULT_CONTEXT.encode()
    context = {
        "content": DEFAULT_CONTEXT,
        "sha256": sha256(content).hexdigest(),
        "size": len(content),
        "updated_at": new.created_at_us,
    }
    op = PlannedOp(new.id, 1, new_id("op"), "", MemoryOpKind.PUT_FRAGMENT, CONTEXT_FRAGMENT, context, new.created_at_us)

    async def work(session: Session) -> Memory:
        await _lock_vault(session, new.tenant, new.vault_id)
        await check(session)
        rows = await session.fetch(
            _CREATE_MEMORY,
            id=new.id,
            tenant=new.tenant,
            vault_id=new.vault_id,
            memory_type=new.memory_type,
            title=new.title,
            description=new.description,
            created_at=new.created_at_us,
        )
        await apply_ops(session, [op])
        await log_ops(session, [op], {new.id: MemoryOpState.APPLIED})
        return memory_from(rows[0])

    try:
        return await database.transact(work)
    except database.duplicates as error:
        raise Conflict(f'A memory "{new.title}" exists already in this vault. Choose another title.') from error


async def list_memories(
    database: Database, tenant: str, vault_id: str | None, after: str | None, limit: int
) -> Sequence[Memory]:
    """Return memories by id."""
    rows = await database.query(_LIST, tenant=tenant, vault_id=vault_id, after=after or "", limit=limit)
    return [memory_from(row) for row in rows]


async def get_memory(database: Database, tenant: str, memory_id: str) -> Memory:
    """Return a memory."""
    rows = await database.query(_GET, tenant=tenant, id=memory_id)
    if not rows:
        raise missing_memory(memory_id)
    return memory_from(rows[0])


async def find_memory(database: Database, tenant: str, vault_id: str, title: str) -> Memory | None:
    """Return the memory with a title, or None."""
    rows = await database.query(_BY_TITLE, tenant=tenant, vault_id=vault_id, title=title)
    return memory_from(rows[0]) if rows else None


async def move_memory(database: Database, tenant: str, memory_id: str, vault_id: str) -> Memory:
    """Move a memory to another vault of its tenant."""

    async def work(session: Session) -> Memory:
        await _lock_vault(session, tenant, vault_id)
        rows = await session.fetch(_MOVE, tenant=tenant, id=memory_id, vault_id=vault_id)
        if not rows:
            raise missing_memory(memory_id)
        return memory_from(rows[0])

    try:
        return await database.transact(work)
    except database.duplicates as error:
        raise Conflict(f'The vault "{vault_id}" has a memory with this title already.') from error


async def require_owner(database: Database, memory_ids: Sequence[str], node_id: str | None) -> None:
    """Raise MemoryOwnedElsewhere if another node owns one of these memories."""
    await database.transact(lambda session: _require_owner(session, session.texts(memory_ids), node_id))


async def _require_owner(session: Session, ids: Any, node_id: str | None) -> None:
    for row in await session.fetch(_OWNERS, ids=ids):
        if row["owner"] != node_id:
            raise MemoryOwnedElsewhere(row["id"], row["owner"], row["url"])


async def delete_memories(
    database: Database, tenant: str, memory_ids: Sequence[str], node_id: str | None = None
) -> int:
    """Delete memories with everything in them. A memory that another node owns is refused."""

    async def work(session: Session) -> int:
        locked = await session.fetch(_LOCK, tenant=tenant, ids=session.texts(memory_ids))
        ids = session.texts([row["id"] for row in locked])
        await _require_owner(session, ids, node_id)
        for statement in _DELETIONS:
            await session.fetch(statement, ids=ids)
        return len(locked)

    return await database.transact(work)
