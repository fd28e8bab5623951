"""Accept runs: one run of a task, or a batch. The response 202 is sent after the commit."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import Depends, Header, Path, Request

from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers, rate_headers
from runlane.api.fast_path import FastPathRoute
from runlane.api.idempotency import IdempotencyKey, IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.tasks import TASKS, Batch, BatchRequest, Links, TaskRunRequest, TaskView
from runlane.api.serializers import RUNS, JsonBody, accepted_json, accepted_reply
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.events import EventType
from runlane.domain.run import Accepted
from runlane.observability import tracing
from runlane.store.queue.events import read_page
from runlane.submit.orchestrations import StartRequest
from runlane.submit.tasks import TaskRequest

router = RawRouter(tags=["tasks"])
fast_path = RawRouter(tags=["tasks"], route_class=FastPathRoute)
batches = RawRouter(tags=["tasks"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

TaskName = Annotated[str, Path(description="The task's name.", examples=["greet"])]
Traceparent = Annotated[
    str | None,
    Header(description="W3C Trace Context; the run's attempts continue this trace.", include_in_schema=False),
]


@router.get("/tasks", response_model=TASKS.schema, responses=answers())
async def list_tasks(request: Request, principal: RunsRead) -> JsonBody:
    """List the registered tasks."""
    return TASKS.all([TaskView.of(task) for _, task in sorted(parts_of(request).app.tasks.items())])


@fast_path.post("/tasks/{name:path}/run", status_code=202, response_model=Links, responses=answers(404, 409, 413, 429))
async def run_task(
    request: Request,
    principal: RunsWrite,
    name: TaskName,
    body: TaskRunRequest,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> JsonBody:
    """Accept a run of a task. When the response is sent, the run is stored, so it survives a crash of this server."""
    wanted = TaskRequest(name, body.input, body.options(idempotency_key))
    return await accept(request, principal, wanted, "task", name, traceparent)


@batches.post("/runs/batch", status_code=202, response_model=Batch, responses=answers(404, 409, 413, 429))
async def run_batch(
    request: Request,
    principal: RunsWrite,
    body: BatchRequest,
    traceparent: Traceparent = None,
) -> JsonBody:
    """Accept many runs, in order. All of them are checked before the first is stored."""
    parts = parts_of(request)
    key = request.headers.get("idempotency-key")
    # Each run gets its own key, so that a batch that is repeated after a crash finds the runs that it created.
    requests = [
        TaskRequest(
            item.task,
            item.input,
            item.options(item.idempotency_key or (None if key is None else f"batch:{key}#{position}")),
        )
        for position, item in enumerate(body.runs)
    ]
    with tracing.span("accept batch", {"runlane.count": len(requests), "runlane.tenant": principal.tenant}):
        accepted = await parts.app.enqueue_requests(
            requests,
            tenant=principal.tenant,
            trace=tracing.current_parent() or tracing.valid_parent(traceparent),
        )
    quota = accepted[-1].quota if accepted else None
    batch = {"runs": [accepted_json(item) for item in accepted], "count": len(accepted)}
    return JsonBody(batch, 202, rate_headers(quota))


async def accept(
    request: Request,
    principal: Principal,
    wanted: TaskRequest | StartRequest,
    kind: str,
    name: str,
    traceparent: str | None,
    root: str = RUNS,
) -> JsonBody:
    """Accept the run that a request describes; `kind` and `name` describe it in traces."""
    parts = parts_of(request)
    with tracing.span(f"accept {name}", {f"runlane.{kind}": name, "runlane.tenant": principal.tenant}):
        trace = tracing.current_parent() or tracing.valid_parent(traceparent)
        accepted = await parts.app.submit(wanted, tenant=principal.tenant, trace=trace)
    return await accepted_answer(parts, accepted, root)


async def accepted_answer(parts: Services, accepted: Accepted, root: str) -> JsonBody:
    """Return the response to an accepted request. A repeated request gets the same response."""
    status = await first_status(parts, accepted.run_id) if accepted.replayed else None
    return accepted_reply(accepted, status, root=root)


async def first_status(parts: Services, run_id: str) -> str | None:
    """Return the status with which a run was accepted, so that a repeated request gets the same response."""
    lines = await read_page(parts.database, run_id, 0, 1)
    if not lines or lines[0].type != EventType.QUEUED:
        return None
    data: dict[str, Any] = orjson.loads(lines[0].data)
    return data.get("status")
