"""Whose runs a caller may see: its own tenant's; for everybody else's the answer is that there is no such run."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Path

from runlane.api.parts import Parts
from runlane.errors import Forbidden, RunNotFound
from runlane.model.access import Principal
from runlane.store.search import Standing, find_standing

RunId = Annotated[str, Path(description="The run's id.", examples=["run_0192f3a1b2c37abc8def0123456789ab"])]
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


async def see(parts: Parts, principal: Principal, run_id: str) -> Standing:
    """Where the run stands, if the caller may see it."""
    if _ID.fullmatch(run_id) is None:
        raise RunNotFound(run_id)
    standing = await find_standing(parts.database, run_id)
    if not may_see(principal, standing.tenant):
        raise RunNotFound(run_id)
    return standing


def may_see(principal: Principal, tenant: str) -> bool:
    """Whether what belongs to a tenant is the caller's business."""
    return principal.everywhere or principal.tenant == tenant


def tenant_filter(principal: Principal, wanted: str | None) -> str | None:
    """The tenant that a search is limited to; None for all of them, which only a platform admin may ask for."""
    if principal.everywhere:
        return wanted
    if wanted is not None and wanted != principal.tenant:
        raise Forbidden(f'This key belongs to the tenant "{principal.tenant}" and sees no other.')
    return principal.tenant
