"""Authorization: which actions a principal may perform, and in which tenant.

The role is checked first, then the tenant. A missing permission is reported as such. A resource of another tenant is
reported as not found, so that principals cannot find out which resources other tenants have. Only the built-in role
platform_admin acts in every tenant, whatever tenant its key belongs to.
"""

from __future__ import annotations

from runlane.domain.access import PLATFORM_ADMIN, Permission, Principal, Role
from runlane.domain.memory import MEMORY_TASKS
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import Forbidden, NotFound, RunlaneError

# The principal of the command line, and of a server without keys that listens on loopback only.
LOCAL = Principal("local", "local", DEFAULT_TENANT, PLATFORM_ADMIN, frozenset(Permission))


def require(
    principal: Principal,
    permission: Permission,
    tenant: str | None = None,
    missing: RunlaneError | None = None,
) -> None:
    """Raise Forbidden if the role lacks the permission, and `missing` if the resource belongs to another tenant.

    `missing` is the error for a resource that does not exist, such as RunNotFound(run_id).
    """
    if permission not in principal.permissions:
        raise Forbidden(
            f'The key "{principal.name}" has the role {principal.role}, which does not include {permission.value}. '
            "Use a key with a role that does."
        )
    if tenant is not None and not may_see(principal, tenant):
        raise missing or NotFound("It does not exist.")


def require_everywhere(principal: Principal, permission: Permission) -> None:
    """Require a permission for actions that affect every tenant: changes of tenants and roles."""
    require(principal, permission)
    if not principal.everywhere:
        raise Forbidden(
            f'This applies to every tenant, and the key "{principal.name}" acts in "{principal.tenant}" only. '
            f"Use a key with the role {PLATFORM_ADMIN}."
        )


def require_platform(principal: Principal) -> None:
    """Require a key of the default tenant, for actions that affect every tenant: lanes and the demand for workers."""
    if not (principal.everywhere or principal.tenant == DEFAULT_TENANT):
        raise Forbidden(
            f'This concerns the runs of every tenant, and the key "{principal.name}" belongs to "{principal.tenant}". '
            f'Use a key of the tenant "{DEFAULT_TENANT}".'
        )


def require_content(principal: Principal, target: str) -> None:
    """Require further permissions to read a run of this target: exports and imports of memories contain entries."""
    if target.startswith(MEMORY_TASKS):
        require(principal, Permission.MEMORY_READ)


def may_see(principal: Principal, tenant: str) -> bool:
    """Return whether the principal may see resources of a tenant."""
    return principal.everywhere or principal.tenant == tenant


def tenant_to_list(principal: Principal, wanted: str | None = None) -> str | None:
    """Return the tenant to which a list is restricted; None for all tenants, the default of platform_admin."""
    if principal.everywhere:
        return wanted
    return tenant_to_use(principal, wanted)


def tenant_to_use(principal: Principal, wanted: str | None = None) -> str:
    """Return the tenant of a new resource: the tenant of the key, unless platform_admin names another."""
    if wanted is None:
        return principal.tenant
    if not may_see(principal, wanted):
        raise NotFound(f'No tenant "{wanted}" exists.')
    return wanted


def check_grant(principal: Principal, role: Role, tenant: str) -> None:
    """Raise Forbidden if the role has more permissions than the principal, or belongs to another tenant."""
    require(principal, Permission.KEYS_MANAGE)
    tenant_to_use(principal, tenant)
    lacking = _lacking(principal, role)
    if lacking is not None:
        raise Forbidden(
            f'The role "{role.name}" allows more than the key "{principal.name}" does: {lacking}. '
            "Choose a role with fewer permissions."
        )


def check_revocation(principal: Principal, role: Role) -> None:
    """Raise Forbidden if the principal may not revoke a key with this role, because the role has more permissions."""
    require(principal, Permission.KEYS_MANAGE)
    lacking = _lacking(principal, role)
    if lacking is not None:
        raise Forbidden(
            f'The key has the role "{role.name}", which allows more than the key "{principal.name}" does: '
            f"{lacking}. Use a key with the role {PLATFORM_ADMIN}."
        )


def _lacking(principal: Principal, role: Role) -> str | None:
    """Return the permissions of the role that the principal lacks, or None."""
    beyond = sorted(role.permissions - principal.permissions)
    if principal.everywhere or not (beyond or role.name == PLATFORM_ADMIN):
        return None
    return ", ".join(beyond) or "every tenant"
