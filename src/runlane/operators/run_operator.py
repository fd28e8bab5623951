"""RunOperator: the methods that approve, release and reprioritize runs, and set the concurrency limits of tenants.

`Client` has the same ones over HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from runlane.domain.concurrency import SharedLimit, shared_limit_key
from runlane.domain.flow_keys import FlowKeyUse
from runlane.domain.run import Status
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.operators.run_tagger import RunTagger
from runlane.resources import Resources
from runlane.store.queue import flow_overview, run_changes, shared_limits
from runlane.submit.tasks import check_priority


class RunOperator(RunTagger):
    """Reads runs and changes them. Other processes are notified of each change."""

    async def connect(self) -> Resources:
        """Open the connections."""
        raise NotImplementedError

    async def approve(self, run_id: str) -> Status:
        """Approve a held run."""
        return await self._publish_change(run_changes.approve_run(await self.database(), run_id))

    async def release(self, run_id: str) -> Status:
        """Unblock the runs queued behind a failed run that was accepted with on_dead="block"."""
        return await self._publish_change(run_changes.release_run(await self.database(), run_id))

    async def set_priority(self, run_id: str, priority: int, *, actor: str = "local") -> Status:
        """Change the priority of a waiting run. `actor` is for the audit log."""
        check_priority(priority)
        return await self._publish_change(
            run_changes.set_priority(await self.database(), run_id, priority, actor=actor)
        )

    async def flow_keys(self, *, tenant: str = DEFAULT_TENANT, **filters: Any) -> Sequence[FlowKeyUse]:
        """Return the keys of flow control of a tenant. Filters: rule, target, only_skipped, after, limit."""
        return await flow_overview.list_flow_keys(await self.database(), tenant, **filters)

    async def concurrency_limits(self, *, tenant: str = DEFAULT_TENANT) -> Sequence[SharedLimit]:
        """Return the shared concurrency limits of a tenant with their use."""
        return await shared_limits.list_shared_limits(await self.database(), tenant)

    async def concurrency_limit(self, name: str, *, tenant: str = DEFAULT_TENANT) -> SharedLimit:
        """Return a shared concurrency limit with its use."""
        return await shared_limits.find_shared_limit(await self.database(), tenant, name)

    async def set_concurrency_limit(
        self, name: str, max_running: int, *, tenant: str = DEFAULT_TENANT, actor: str = "local"
    ) -> SharedLimit:
        """Create or change a shared concurrency limit; it applies when this returns. `actor` is for the audit log.

        With a lower number, queued runs wait again until no more than this many are admitted, or all admitted runs are
        running. With a higher one, waiting runs are queued. 0 starts none.
        """
        connection = await self.connect()
        _, notices = await shared_limits.set_shared_limit(connection.database, tenant, name, max_running, actor=actor)
        connection.bus.publish(notices)
        await connection.admitter.admit({shared_limit_key(tenant, name)})
        return await self.concurrency_limit(name, tenant=tenant)

    async def delete_concurrency_limit(
        self, name: str, *, tenant: str = DEFAULT_TENANT, actor: str = "local"
    ) -> SharedLimit:
        """Delete a shared concurrency limit and return it. Conflict while a run holds or awaits a slot of it."""
        return await shared_limits.delete_shared_limit(await self.database(), tenant, name, actor=actor)

    async def _publish_change(self, changing: Awaitable[run_changes.RunChange]) -> Status:
        change = await changing
        return (await self.connect()).publish_change(change).status
