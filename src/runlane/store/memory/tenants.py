"""Memory and the deletion of a tenant: a tenant with memories stays, and its vaults and users are deleted with it.

Otherwise, a later tenant with the same id would have the memories of the deleted one.
"""

from __future__ import annotations

from sqlalchemy import Text, bindparam, delete, select

from runlane.errors import Conflict
from runlane.store.sql.database import Session
from runlane.store.sql.schema.memory import memories, memory_users, memory_vaults
from runlane.store.sql.statement import Statement

_tenant = bindparam("tenant", type_=Text())
_LOCK = Statement(
    "memory_lock_vaults_of_tenant",
    select(memory_vaults.c.id).where(memory_vaults.c.tenant == _tenant).order_by(memory_vaults.c.id).with_for_update(),
    purpose="Lock the vaults of a tenant that is deleted, so that they get no memories.",
)
_HAS_MEMORIES = Statement(
    "memory_tenant_has_memories",
    select(memories.c.id).where(memories.c.tenant == _tenant).limit(1),
    purpose="Check whether a tenant has memories.",
)
_DELETIONS = tuple(
    Statement(
        f"memory_drop_{table.name}_of_tenant",
        delete(table).where(table.c.tenant == _tenant),
        purpose="Delete the vaults or users of a deleted tenant.",
    )
    for table in (memory_vaults, memory_users)
)


async def drop_memory(session: Session, tenant: str) -> None:
    """Delete the vaults and users of a tenant. Raise Conflict if it has memories."""
    await session.fetch(_LOCK, tenant=tenant)
    await require_no_memories(session, tenant)
    for statement in _DELETIONS:
        await session.fetch(statement, tenant=tenant)


async def require_no_memories(session: Session, tenant: str) -> None:
    """Raise Conflict if a tenant has memories."""
    if await session.fetch(_HAS_MEMORIES, tenant=tenant):
        raise Conflict(
            f'The tenant "{tenant}" has memories and cannot be deleted. Delete them first: '
            f"runlane memory delete-all --confirm {tenant}"
        )
