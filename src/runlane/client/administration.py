"""Administration over HTTP: keys, tenants, roles, the audit log and lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from runlane.client.http import PREFIX, Http
from runlane.client.wire import micros, parse
from runlane.domain.access import ApiKey, AuditEntry, Permission, Role
from runlane.domain.lane import Lane
from runlane.domain.tenant import Tenant, TenantBudget, TenantLimits


class Administration:
    """Operations of platform admins and managers of keys and lanes. A change is in effect when its call returns."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def keys(self, *, tenant: str | None = None, before: str | None = None, limit: int = 100) -> Sequence[ApiKey]:
        """Return keys, newest first, revoked ones included. `before` is the id of the last key of the previous page."""
        query = {"tenant": tenant, "cursor": before, "limit": limit}
        return [parse(ApiKey, item) for item in (await self._http.read(f"{PREFIX}/keys", query))["keys"]]

    async def create_key(
        self, name: str, role: str, *, tenant: str | None = None, expires_in_seconds: float | None = None
    ) -> tuple[ApiKey, str | None]:
        """Create a key. The second value is the key itself; None in the response to a repeated request."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in_seconds": expires_in_seconds}
        answer = await self._http.change("POST", f"{PREFIX}/keys", body)
        return parse(ApiKey, answer), answer["key"]

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key; it is rejected from then on."""
        return parse(ApiKey, await self._http.change("DELETE", f"{PREFIX}/keys/{_part(key_id)}"))

    async def tenants(self) -> Sequence[Tenant]:
        """Return the tenants that the key may see."""
        return [_tenant(item) for item in (await self._http.read(f"{PREFIX}/tenants"))["tenants"]]

    async def tenant(self, tenant_id: str) -> Tenant:
        """Return one tenant."""
        return _tenant(await self._http.read(f"{PREFIX}/tenants/{_part(tenant_id)}"))

    async def create_tenant(self, tenant_id: str, fields: Mapping[str, Any] | None = None) -> Tenant:
        """Create a tenant. `fields` are those of `POST /api/v2/tenants`."""
        return _tenant(await self._http.change("POST", f"{PREFIX}/tenants", {"id": tenant_id, **(fields or {})}))

    async def set_tenant(self, tenant_id: str, fields: Mapping[str, Any]) -> Tenant:
        """Change a tenant. `fields` are those of `PATCH /api/v2/tenants/{tenant}`; a limit that is None is removed."""
        return _tenant(await self._http.change("PATCH", f"{PREFIX}/tenants/{_part(tenant_id)}", fields))

    async def delete_tenant(self, tenant_id: str) -> Tenant:
        """Delete a tenant that has no runs, and revoke its keys."""
        return _tenant(await self._http.change("DELETE", f"{PREFIX}/tenants/{_part(tenant_id)}"))

    async def roles(self) -> Sequence[Role]:
        """Return the built-in roles, then the custom ones."""
        return [_role(item) for item in (await self._http.read(f"{PREFIX}/roles"))["roles"]]

    async def set_role(self, name: str, permissions: Sequence[str]) -> Role:
        """Create or change a custom role."""
        body = {"permissions": list(permissions)}
        return _role(await self._http.change("PUT", f"{PREFIX}/roles/{_part(name)}", body))

    async def delete_role(self, name: str) -> Role:
        """Delete a custom role that no key has."""
        return _role(await self._http.change("DELETE", f"{PREFIX}/roles/{_part(name)}"))

    async def audit(
        self,
        *,
        tenant: str | None = None,
        action: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return administrative changes, newest first. `before` is the id of the last entry of the previous page."""
        query = {"tenant": tenant, "action": action, "cursor": before, "limit": limit}
        entries = (await self._http.read(f"{PREFIX}/audit", query))["entries"]
        return [parse(AuditEntry, item) for item in entries]

    async def set_lane(self, name: str, fields: Mapping[str, Any]) -> tuple[Lane, Mapping[str, Any]]:
        """Change a lane. `fields` are those of `PATCH /api/v2/lanes/{name}`. The second value is the changed fields."""
        answer = await self._http.change("PATCH", f"{PREFIX}/lanes/{_part(name)}", fields)
        return parse(Lane, answer["lane"]), answer["changed"]


def _part(name: str) -> str:
    return quote(name, safe="")


def _tenant(answer: Mapping[str, Any]) -> Tenant:
    return Tenant(
        id=answer["id"],
        name=answer["name"],
        limits=TenantLimits(answer["max_queued"], answer["max_running"], answer["rate_per_second"]),
        enabled=answer["enabled"],
        created_at_us=micros(answer["created_at"]) or 0,
        updated_at_us=micros(answer["updated_at"]) or 0,
        budget=TenantBudget(answer["max_cost_usd_per_day"], answer["on_cap"]),
    )


def _role(answer: Mapping[str, Any]) -> Role:
    # A newer server may have permissions that do not exist in this version.
    known = frozenset(Permission(name) for name in answer["permissions"] if name in set(Permission))
    return Role(answer["name"], known, answer["built_in"])
