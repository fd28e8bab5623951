"""The keys of flow control, and the starts that have no run."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import RunsRead
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import MAX_PAGE, Key, Name
from runlane.api.schemas.listing import Listing
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.flow_keys import FlowKeyUse, FlowRule

router = RawRouter(tags=["limits and usage"])
FLOW_KEYS = Listing("flow_keys", FlowKeyUse, cursor="id")


@router.get("/flow-control/keys", response_model=FLOW_KEYS.schema, responses=answers(404))
async def get_flow_keys(
    request: Request,
    principal: RunsRead,
    rule: Annotated[FlowRule | None, Query()] = None,
    target: Annotated[Name | None, Query(description="Only keys of this target.")] = None,
    skipped: Annotated[bool, Query(description="Only keys with starts that were skipped or dropped.")] = False,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
    cursor: Annotated[Key | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> JsonBody:
    """List the keys of flow control that were used within a day, with the starts that have no run."""
    found = await parts_of(request).app.flow_keys(
        tenant=tenant_to_use(principal, tenant),
        rule=rule,
        target=target,
        only_skipped=skipped,
        after=cursor,
        limit=limit,
    )
    return FLOW_KEYS.page(found, limit)
