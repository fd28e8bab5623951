"""RunTagger: the methods that change the tags of runs in the database. `Client` has the same ones over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.tags import check_change
from runlane.operators.run_reader import RunReader
from runlane.store.queue.tags import tag_run


class RunTagger(RunReader):
    """Reads runs, and changes their tags. Nothing waits for tags, so no process is notified."""

    async def set_tags(
        self,
        run_id: str,
        tags: Sequence[str] | None = None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        actor: str = "local",
    ) -> Sequence[str]:
        """Set all tags of a run, or add and remove some. Return its tags. `actor` is for the audit log."""
        return (await tag_run(await self.database(), run_id, check_change(add, remove, tags), actor=actor)).new
