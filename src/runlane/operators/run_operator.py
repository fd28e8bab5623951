"""RunOperator: the methods that approve, answer, release and reprioritize runs, and set concurrency limits of tenants.

`Client` has the same ones over HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from runlane.domain.concurrency import SharedLimit, shared_limit_key
from runlane.domain.flow_keys import FlowKeyUse, FlowRule
from runlane.domain.run import Status
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import check_text
from runlane.operators.run_tagger import RunTagger
from runlane.resources import Resources
from runlane.store.queue import flow_overview, run_changes, shared_limits
from runlane.submit.tasks import MAX_KEY, check_priority


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

    async def resume(
        self,
        run_id: str,
        response: Mapping[str, Any] | str | None = None,
        *,
        step: str | None = None,
        note: str | None = None,
        answered_by: str = "",
        platform: bool = True,
    ) -> Status:
        """Answer the question of a paused run, which then continues; `step` is required if several questions are open.

        `note` is stored with the answer. With `platform=False`, a question that only platform admins may answer raises
        Forbidden.
        """
        from runlane.submit.orchestrations import answer_run

        given: Mapping[str, Any] | str = {} if response is None else response
        database = await self.database()
        answering = answer_run(
            database, run_id, given, step=step, answered_by=answered_by, platform=platform, note=note
        )
        return await self._publish_change(answering)

    async def send_event(self, run_id: str, name: str, data: Any = None, *, sent_by: str = "") -> Status:
        """Send a run an event that one of its steps waits for, or will wait for."""
        from runlane.submit.orchestrations import send_event

        check_text(name, "The event's name", MAX_KEY)
        return await self._publish_change(send_event(await self.database(), run_id, name, data, sent_by))

    async def flow_keys(
        self,
        *,
        rule: str | None = None,
        target: str | None = None,
        only_skipped: bool = False,
        tenant: str = DEFAULT_TENANT,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[FlowKeyUse]:
        """Return the keys of flow control with their skipped starts. `after` is the last id of the previous page."""
        return await flow_overview.list_flow_keys(
            await self.database(),
            tenant,
            rule=None if rule is None else FlowRule(rule),
            target=target,
            only_skipped=only_skipped,
            after=after,
            limit=limit,
        )

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
