"""RunOperator: the methods that approve, release and reprioritize runs. `Client` has the same ones over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable

from runlane.domain.run import Status
from runlane.resources import Resources
from runlane.run_tagger import RunTagger
from runlane.store.queue import run_changes
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

    async def _publish_change(self, changing: Awaitable[run_changes.RunChange]) -> Status:
        change = await changing
        return (await self.connect()).publish_change(change).status
