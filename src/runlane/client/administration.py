"""Administration over HTTP: keys, tenants, roles, the audit log, lanes, workers and the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.access import ApiKey, AuditEntry, Role
from runlane.domain.database_size import DatabaseSize
from runlane.domain.finding import Diagnosis
from runlane.domain.lane import Lane, LaneHold
from runlane.domain.tenant import Tenant
from runlane.domain.views import WorkerInfo


class Administration:
    """Operations of platform admins and of managers of keys and lanes. A change is in effect when its call returns."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def keys(self, *, tenant: str | None = None, before: str | None = None, limit: int = 100) -> Sequence[ApiKey]:
        """Return keys, newest first, including revoked keys.

        `before` is the id of the last key of the previous page.
        """
        query = {"tenant": tenant, "cursor": before, "limit": limit}
        return await self._http.read_list(ApiKey, f"{PREFIX}/keys", "keys", query)

    async def create_key(
        self, name: str, role: str, *, tenant: str | None = None, expires_in_seconds: float | None = None
    ) -> tuple[ApiKey, str | None]:
        """Create a key. Return its record and the key itself, which is None in the response to a repeated request."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in_seconds": expires_in_seconds}
        answer = await self._http.change("POST", f"{PREFIX}/keys", body)
        return parse(ApiKey, answer), answer["key"]

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key. The server rejects it when this returns."""
        return parse(ApiKey, await self._http.change("DELETE", f"{PREFIX}/keys/{part(key_id)}"))

    async def tenants(self) -> Sequence[Tenant]:
        """Return the tenants that the key may see."""
        return await self._http.read_list(Tenant, f"{PREFIX}/tenants", "tenants")

    async def tenant(self, tenant_id: str) -> Tenant:
        """Return one tenant."""
        return parse(Tenant, await self._http.read(f"{PREFIX}/tenants/{part(tenant_id)}"))

    async def create_tenant(self, tenant_id: str, fields: Mapping[str, Any] | None = None) -> Tenant:
        """Create a tenant. `fields` are those of `POST /api/v2/tenants`."""
        return parse(Tenant, await self._http.change("POST", f"{PREFIX}/tenants", {"id": tenant_id, **(fields or {})}))

    async def set_tenant(self, tenant_id: str, fields: Mapping[str, Any]) -> Tenant:
        """Change a tenant. `fields` are those of `PATCH /api/v2/tenants/{tenant}`. A limit that is None is removed."""
        return parse(Tenant, await self._http.change("PATCH", f"{PREFIX}/tenants/{part(tenant_id)}", fields))

    async def delete_tenant(self, tenant_id: str) -> Tenant:
        """Delete a tenant that has no runs and no memories, and revoke its keys."""
        return parse(Tenant, await self._http.change("DELETE", f"{PREFIX}/tenants/{part(tenant_id)}"))

    async def roles(self) -> Sequence[Role]:
        """Return the built-in roles, then the custom roles."""
        return await self._http.read_list(Role, f"{PREFIX}/roles", "roles")

    async def set_role(self, name: str, permissions: Sequence[str]) -> Role:
        """Create or change a custom role."""
        body = {"permissions": list(permissions)}
        return parse(Role, await self._http.change("PUT", f"{PREFIX}/roles/{part(name)}", body))

    async def delete_role(self, name: str) -> Role:
        """Delete a custom role that no key has."""
        return parse(Role, await self._http.change("DELETE", f"{PREFIX}/roles/{part(name)}"))

    async def audit(
        self,
        *,
        tenant: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return administrative changes, newest first. `before` is the id of the last entry of the previous page."""
        query = {
            "tenant": tenant, "action": action, "subject": subject, "actor": actor, "cursor": before, "limit": limit,
        }  # fmt: skip
        return await self._http.read_list(AuditEntry, f"{PREFIX}/audit", "entries", query)

    async def set_lane(self, name: str, fields: Mapping[str, Any]) -> tuple[Lane, Mapping[str, Any]]:
        """Change a lane. Return it with the changed fields. `fields` are those of `PATCH /api/v2/lanes/{name}`."""
        answer = await self._http.change("PATCH", f"{PREFIX}/lanes/{part(name)}", fields)
        return parse(Lane, answer["lane"]), answer["changed"]

    async def create_lane(
        self, name: str, fields: Mapping[str, Any] | None = None, *, kinds: Sequence[str] = ()
    ) -> Lane:
        """Create a lane and assign `kinds` of runs to it. `fields` are those of `POST /api/v2/lanes`."""
        body = {"name": name, **(fields or {}), "kinds": list(kinds)}
        return parse(Lane, await self._http.change("POST", f"{PREFIX}/lanes", body))

    async def delete_lane(self, name: str) -> Lane:
        """Delete a lane that no run uses."""
        return parse(Lane, await self._http.change("DELETE", f"{PREFIX}/lanes/{part(name)}"))

    async def assign_kinds(self, name: str, kinds: Sequence[str]) -> tuple[Lane, int]:
        """Assign kinds of runs to a lane. Return the lane and the number of waiting runs that moved to it."""
        answer = await self._http.change("PUT", f"{PREFIX}/lanes/{part(name)}/kinds", {"kinds": list(kinds)})
        return parse(Lane, answer["lane"]), answer["moved_runs"]

    async def unassign_kind(self, name: str, kind: str) -> Lane:
        """Remove the assignment of a kind of runs to a lane."""
        return parse(Lane, await self._http.change("DELETE", f"{PREFIX}/lanes/{part(name)}/kinds/{part(kind)}"))

    async def holds(self, lane: str) -> Sequence[LaneHold]:
        """Return the active holds of a lane, oldest first."""
        return await self._http.read_list(LaneHold, f"{PREFIX}/lanes/{part(lane)}/holds", "holds")

    async def hold_lane(
        self, lane: str, reason: str, *, owner: str | None = None, expires_in_seconds: float | None = None
    ) -> LaneHold:
        """Hold a lane, so that it starts no runs until the hold is released or expires."""
        body = {"reason": reason, "owner": owner, "expires_in_seconds": expires_in_seconds}
        return parse(LaneHold, await self._http.change("POST", f"{PREFIX}/lanes/{part(lane)}/holds", body))

    async def release_hold(self, lane: str, hold_id: str) -> LaneHold:
        """Release one hold of a lane. Other holds are kept."""
        path = f"{PREFIX}/lanes/{part(lane)}/holds/{part(hold_id)}"
        return parse(LaneHold, await self._http.change("DELETE", path))

    async def lane(self, name: str) -> Lane:
        """Return one lane."""
        return parse(Lane, await self._http.read(f"{PREFIX}/lanes/{part(name)}"))

    async def worker(self, worker_id: str) -> Mapping[str, Any]:
        """Return a worker with up to 100 of its runs and of its lost attempts, also for a day after its end."""
        return await self._http.read(f"{PREFIX}/workers/{part(worker_id)}")

    async def drain_worker(self, worker_id: str) -> WorkerInfo:
        """Drain a worker: from its next heartbeat it claims no more runs and finishes its own."""
        return parse(WorkerInfo, await self._http.change("POST", f"{PREFIX}/workers/{part(worker_id)}/drain"))

    async def resume_worker(self, worker_id: str) -> WorkerInfo:
        """Resume a drained worker, so that it claims runs again."""
        return parse(WorkerInfo, await self._http.change("POST", f"{PREFIX}/workers/{part(worker_id)}/resume"))

    async def drain_version(self, version: str) -> Sequence[WorkerInfo]:
        """Drain every live worker of a version. Return the workers that were not draining before."""
        return await self._change_version("drain", version)

    async def resume_version(self, version: str) -> Sequence[WorkerInfo]:
        """Resume every drained worker of a version, so that it claims runs again.

        Return the workers that had been drained.
        """
        return await self._change_version("resume", version)

    async def _change_version(self, verb: str, version: str) -> Sequence[WorkerInfo]:
        answer = await self._http.change("POST", f"{PREFIX}/workers/{verb}", {"version": version})
        return [parse(WorkerInfo, item) for item in answer["workers"]]

    async def diagnosis(self) -> Diagnosis:
        """Return the results of the server's checks, each problem with its fix, and the serving processes."""
        return parse(Diagnosis, await self._http.read(f"{PREFIX}/doctor"))

    async def database_size(self) -> DatabaseSize:
        """Return the size of the database and of its tables, largest first."""
        return parse(DatabaseSize, await self._http.read(f"{PREFIX}/doctor/database"))

    async def overview(self) -> Mapping[str, Any]:
        """Return slots, running runs and queued runs at one moment, as `GET /admin/workers/status` returns them."""
        return await self._http.read("/admin/workers/status")
