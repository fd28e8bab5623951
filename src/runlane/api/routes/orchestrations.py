"""Runs of orchestrations: start, fork, send events, and list the open waits of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from runlane import queries
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotencyKey, IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.tasks import Traceparent, accept, accepted_answer
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.actions import Changed
from runlane.api.schemas.fields import Name
from runlane.api.schemas.orchestrations import ForkRun, OrchestrationRequest, SendEvent
from runlane.api.schemas.tasks import Links
from runlane.api.serializers import ORCHESTRATIONS, JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.views import WaitList
from runlane.submit.orchestrations import StartRequest

collection = RawRouter(tags=["orchestrations"], route_class=LargeBodyRoute)
forks = RawRouter(tags=["orchestrations"], route_class=LargeBodyRoute)
single = RawRouter(tags=["orchestrations"])
changes = RawRouter(tags=["orchestrations"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

OrchestrationId = Annotated[Name, Path(description="The orchestration's id.", examples=["article"])]
EventName = Annotated[Name, Path(description="The name that the step waits for.", examples=["payment"])]


@collection.post(
    "/orchestrations/{orchestration_id}/run",
    status_code=202,
    response_model=Links,
    responses=answers(404, 409, 413, 429),
)
async def run_orchestration(
    request: Request,
    principal: RunsWrite,
    orchestration_id: OrchestrationId,
    body: OrchestrationRequest,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> JsonBody:
    """Accept a run of an orchestration with the current versions of its definitions."""
    start = StartRequest(orchestration_id, body.message, body.input, body.options(idempotency_key))
    return await accept(request, principal, start, "orchestration", orchestration_id, traceparent, ORCHESTRATIONS)


@forks.post("/{run_id}/fork", status_code=202, response_model=Links, responses=answers(404, 409, 413, 429))
async def fork_run(
    request: Request, principal: RunsWrite, run_id: RunId, body: ForkRun, idempotency_key: IdempotencyKey = None
) -> JsonBody:
    """Start a new run at a recorded step of this run. Earlier steps are copied and not executed again."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    accepted = await parts.app.fork(
        run_id,
        body.from_step,
        body.state,
        idempotency_key=idempotency_key,
        latest=body.latest,
        actor=principal.actor,
    )
    return await accepted_answer(parts, accepted, ORCHESTRATIONS)


@changes.post("/{run_id}/events/{name}", status_code=202, response_model=Changed, responses=answers(404, 409, 413))
async def send_event(
    request: Request, principal: RunsWrite, run_id: RunId, name: EventName, body: SendEvent
) -> JsonBody:
    """Send an event to the step that has waited longest for it; if none waits, to the first step that will wait."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await parts.app.send_event(run_id, name, body.data, sent_by=principal.name)
    changed = {"run_id": run_id, "status": status.value, "stream_url": f"{ORCHESTRATIONS}/{run_id}/stream"}
    return JsonBody(changed, 202)


@single.get("/{run_id}/waits", response_model=WaitList, responses=answers(404))
async def get_waits(request: Request, principal: RunsRead, run_id: RunId) -> ValueBody:
    """List the open waits of a run: for people, times and events."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    waits = await queries.get_waits(parts.database, run_id)
    return ValueBody(WaitList(run_id, tuple(waits)))
