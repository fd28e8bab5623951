"""Visibility of runs: a caller sees the runs of its tenant; other runs do not exist for it."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Path

from runlane.access.policy import may_see, require_content
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.errors import RunNotFound
from runlane.store.queue.search import RunStanding, find_standing

RunId = Annotated[str, Path(description="The run's id.", examples=["run_0192f3a1b2c37abc8def0123456789ab"])]
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


async def require_visible(parts: Services, principal: Principal, run_id: str) -> RunStanding:
    """Return the run's standing. Raise RunNotFound if the caller may not see the run."""
    if _ID.fullmatch(run_id) is None:
        raise RunNotFound(run_id)
    standing = await find_standing(parts.database, run_id)
    if not may_see(principal, standing.tenant):
        raise RunNotFound(run_id)
    require_content(principal, standing.target)
    return standing
