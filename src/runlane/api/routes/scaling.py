"""The figures from which an autoscaler computes the number of workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from runlane.access.policy import require_platform
from runlane.api.auth import WorkersView
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.serializers import ValueBody
from runlane.api.services import parts_of
from runlane.domain.scaling import Demand

router = RawRouter(tags=["lanes and workers"])

_MAX_LENGTH = 2_000


@router.get("/scaling", response_model=Demand, responses=answers(404))
async def get_scaling(
    request: Request,
    principal: WorkersView,
    lanes: Annotated[
        str | None,
        Query(
            max_length=_MAX_LENGTH,
            description="The lanes of the pool, comma-separated. Default: all.",
            examples=["a,b"],
        ),
    ] = None,
    concurrency: Annotated[int, Query(ge=1, le=10_000, description="The slots of one worker.")] = 1,
) -> ValueBody:
    """Return the number of slots for the runs that are running or could start. The value is at most a second old.

    The request needs a key of the default tenant or a platform admin, because it includes the runs of every tenant.
    """
    require_platform(principal)
    names = None if lanes is None else {name.strip() for name in lanes.split(",") if name.strip()}
    parts = parts_of(request)
    return ValueBody(await parts.demand.read(parts.database, names or None, concurrency))
