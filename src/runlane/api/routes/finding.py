"""Search by name, saved views, and export of run lists."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from fastapi import Depends, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from runlane.access.policy import tenant_to_list, tenant_to_use
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.run_filters import Checked
from runlane.api.run_export import MAX_EXPORTED, export_runs
from runlane.api.schemas.fields import Key, Moment, Name, Tag, WantedStatus, moment_us
from runlane.api.schemas.views import VIEWS, SaveView
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.access import Permission
from runlane.domain.saved_view import SavedView
from runlane.domain.search_hit import SearchHits
from runlane.domain.tags import MAX_TAGS
from runlane.store.access.saved_views import delete_view, list_views, save_view
from runlane.store.queue.name_search import search_names
from runlane.store.queue.search import RunFilter

router = RawRouter(tags=["dashboard"])
changes = RawRouter(tags=["dashboard"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Page = Annotated[str, Path(pattern=r"^[a-z][a-z-]{0,40}$", description="The page, such as `runs`.", examples=["runs"])]
# A response that has begun cannot be refused, so its next page waits longer for its turn than a request does.
_EXPORT_WAIT_SECONDS: Final = 60.0
ViewName = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f/]+$")]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]


@router.get("/search", response_model=SearchHits, responses=answers())
async def search(
    request: Request,
    principal: RunsRead,
    q: Annotated[Name, Query(description="An id, the beginning of the id of a run, or a part of a name.")],
    tenant: Tenant = None,
) -> ValueBody:
    """Find runs, conversations, definitions, schedules, and for platform admins lanes and workers; at most 20."""
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        hits = await search_names(
            parts.database,
            q.strip(),
            tenant=tenant_to_list(principal, tenant),
            home=tenant_to_use(principal, tenant),
            operator=principal.everywhere and Permission.WORKERS_VIEW in principal.permissions,
        )
    return ValueBody(SearchHits(tuple(hits)))


@router.get("/views", response_model=VIEWS.schema, responses=answers())
async def get_views(
    request: Request,
    principal: RunsRead,
    page: Annotated[Name | None, Query(description="Only views of this page.")] = None,
    tenant: Tenant = None,
) -> JsonBody:
    """List the saved views of the tenant."""
    return VIEWS.all(await list_views(parts_of(request).database, tenant_to_use(principal, tenant), page))


@changes.put("/views/{page}/{name}", response_model=SavedView, responses=answers(404, 409))
async def put_view(request: Request, principal: RunsWrite, page: Page, name: ViewName, body: SaveView) -> ValueBody:
    """Save the filters of a page for all users of the tenant, or replace the view with this name; at most 200."""
    tenant = tenant_to_use(principal, body.tenant)
    database = parts_of(request).database
    return ValueBody(await save_view(database, tenant, page, name, body.query, actor=principal.name))


@changes.delete("/views/{page}/{name}", response_model=SavedView, responses=answers(404, 409))
async def remove_view(
    request: Request, principal: RunsWrite, page: Page, name: ViewName, tenant: Tenant = None
) -> ValueBody:
    """Delete a saved view."""
    return ValueBody(await delete_view(parts_of(request).database, tenant_to_use(principal, tenant), page, name))


@router.get(
    "/runs/export",
    response_class=Response,
    responses={
        **answers(429),
        200: {
            "description": "One run per line, newest first.",
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}, "text/csv": {}},
        },
    },
)
async def get_export(
    request: Request,
    principal: RunsRead,
    checked: Checked,
    format: Annotated[Literal["jsonl", "csv"], Query(description="One JSON object per line, or CSV.")] = "jsonl",  # noqa: A002
    status: Annotated[list[WantedStatus] | None, Query(description="Repeat for several.")] = None,
    target: Annotated[Name | None, Query()] = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Tenant = None,
    key: Annotated[Key | None, Query(description="The ordering key.")] = None,
    accepted_from: Annotated[Moment | None, Query()] = None,
    accepted_before: Annotated[Moment | None, Query()] = None,
    tag: Annotated[list[Tag] | None, Query(max_length=MAX_TAGS)] = None,
    text: Annotated[Name | None, Query()] = None,
    parent: Annotated[Name | None, Query()] = None,
    schedule_id: Annotated[Name | None, Query()] = None,
    forked_from: Annotated[Name | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EXPORTED)] = MAX_EXPORTED,
) -> Response:
    """Download the runs that match the filters of the list, without inputs and results; up to 100,000 runs."""
    wanted = RunFilter(
        statuses=tuple(status or ()),
        target=target,
        lane=lane,
        tenant=tenant_to_list(principal, tenant),
        ordering_key=key,
        accepted_from_us=None if accepted_from is None else moment_us(accepted_from),
        accepted_before_us=None if accepted_before is None else moment_us(accepted_before),
        tags=tuple(tag or ()),
        text=text,
        parent=parent,
        schedule_id=schedule_id,
        forked_from=forked_from,
    )
    as_csv = format == "csv"
    parts = parts_of(request)
    turn = partial(parts.searches.turn, principal, _EXPORT_WAIT_SECONDS)
    lines = export_runs(parts.database, checked.apply(wanted), limit, turn, as_csv=as_csv)
    headers = {
        "Content-Disposition": f'attachment; filename="runs.{format}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return StreamingResponse(lines, headers=headers, media_type="text/csv" if as_csv else "application/x-ndjson")
