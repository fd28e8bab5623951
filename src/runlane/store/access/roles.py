"""Custom roles. They apply in every tenant, and a change applies to the next request of every key with the role.

The built-in roles are defined in code. A custom role cannot have the name of one, so a role name is unambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Text, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert

from runlane.domain.access import (
    BUILT_IN_ROLES,
    Permission,
    Role,
    check_permissions,
    check_role_name,
    known_permissions,
)
from runlane.domain.ids import lock_key
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json, load_json
from runlane.errors import Conflict, InvalidRequest, NotFound, nearest
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import api_keys, roles
from runlane.store.sql.statement import Row, Statement

_by_name = roles.c.name == bindparam("role")
_FIND = Statement("find_role", select(roles).where(_by_name), purpose="Read a role.")
_LIST = Statement("list_roles", select(roles).order_by(roles.c.name), purpose="Read all roles.")
_set = insert(roles).values(
    name=bindparam("role"),
    permissions=bindparam("permissions", type_=Text()),
    created_at=now_us(),
    updated_at=now_us(),
)
_SET = Statement(
    "set_role",
    _set.on_conflict_do_update(
        index_elements=["name"],
        set_={"permissions": _set.excluded.permissions, "updated_at": _set.excluded.updated_at},
    ),
    purpose="Create or change a role.",
)
_DELETE = Statement("delete_role", delete(roles).where(_by_name), purpose="Delete a role.")
_IN_USE = Statement(
    "role_in_use",
    select(api_keys.c.id)
    .where(api_keys.c.role == bindparam("role"), api_keys.c.revoked_at.is_(None))
    .order_by(api_keys.c.id)
    .limit(lit(1)),
    purpose="Find an API key that has a role.",
)


def role_lock(name: str) -> int:
    """Return the lock under which a role is changed, deleted and assigned to a key."""
    return lock_key("role", name)


async def list_roles(database: Database) -> list[Role]:
    """Return the built-in roles, then the custom ones."""
    built_in = [Role(name, permissions, built_in=True) for name, permissions in BUILT_IN_ROLES.items()]
    return built_in + [_value(row) for row in await database.query(_LIST)]


async def find_role(database: Database, name: str) -> Role:
    """Return a role, built in or custom."""
    return await database.transact(lambda session: role_in(session, name))


async def role_in(session: Session, name: str) -> Role:
    """Return a role, within a transaction."""
    if name in BUILT_IN_ROLES:
        return Role(name, BUILT_IN_ROLES[name], built_in=True)
    rows = await session.fetch(_FIND, role=name)
    if not rows:
        known = [*BUILT_IN_ROLES, *(row["name"] for row in await session.fetch(_LIST))]
        raise NotFound(f'No role "{name}" exists{nearest(name, known)}. Roles: {", ".join(known)}.')
    return _value(rows[0])


async def set_role(
    database: Database, name: str, permissions: Iterable[str], *, actor: str
) -> tuple[Role | None, Role]:
    """Create or change a custom role; return the old one, if any, and the new one."""
    check_role_name(name)
    wanted = check_permissions(permissions)
    if not wanted:
        raise InvalidRequest(f"A role without permissions allows nothing. Permissions: {', '.join(Permission)}.")
    new = Role(name, wanted, built_in=False)

    async def work(session: Session) -> Role | None:
        await session.lock(exclusive=[role_lock(name)])
        rows = await session.fetch(_FIND, role=name)
        old = _value(rows[0]) if rows else None
        await session.fetch(_SET, role=name, permissions=dump_json(sorted(wanted)))
        await append_audit(
            session,
            actor=actor,
            tenant=DEFAULT_TENANT,
            action="role.set",
            subject=name,
            old=None if old is None else {"permissions": sorted(old.permissions)},
            new={"permissions": sorted(wanted)},
        )
        return old

    return await database.transact(work), new


async def delete_role(database: Database, name: str, *, actor: str) -> Role:
    """Delete a custom role that no key has; revoked keys do not count."""
    check_role_name(name)

    async def work(session: Session) -> Role:
        await session.lock(exclusive=[role_lock(name)])
        old = await role_in(session, name)
        users = await session.fetch(_IN_USE, role=name)
        if users:
            raise Conflict(
                f'The role "{name}" is in use by key {users[0]["id"]}. Revoke its keys first: runlane keys revoke ID'
            )
        await session.fetch(_DELETE, role=name)
        await append_audit(
            session,
            actor=actor,
            tenant=DEFAULT_TENANT,
            action="role.delete",
            subject=name,
            old={"permissions": sorted(old.permissions)},
        )
        return old

    return await database.transact(work)


def _value(row: Row) -> Role:
    return Role(row["name"], known_permissions(load_json(row["permissions"])), built_in=False)
