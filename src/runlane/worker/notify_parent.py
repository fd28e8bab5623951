"""Wake the run that waits for a child run when the child has ended."""

from __future__ import annotations

import structlog

from runlane.bus import Bus
from runlane.domain.text import load_json
from runlane.errors import Unavailable
from runlane.store.orchestration.children import wake_parents
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)


async def notify_parent(database: Database, bus: Bus, child: Claimed) -> None:
    """Wake the parent of this run, which has ended. A parent that is not woken polls its child, at longer intervals."""
    if child.plan is None or "parent" not in load_json(child.plan):
        return
    try:
        bus.ring(await wake_parents(database, [child.run_id]))
    except Unavailable as error:
        log.warning("parent_not_woken", run_id=child.run_id, error=str(error))
