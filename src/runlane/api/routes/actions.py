"""Change runs: cancel, retry, approve, resume, release, priority, tags; one run, or every matching run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import Body, Depends, Request

from runlane.api.answering import answer_question
from runlane.api.auth import RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.run_filters import run_filter
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.actions import Bulk, BulkRequest, Changed, PatchRun, PatchTags, ResumeRun, RetryRun, RunTags
from runlane.api.serializers import ROOT, JsonBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.bulk import BulkActionName, BulkState
from runlane.domain.run import Status
from runlane.failures.actions import ACTIONS
from runlane.failures.bulk_runner import BulkRunner
from runlane.failures.requests import BulkChange, NothingMatches, create_bulk
from runlane.store.failures.bulk_items import changed_runs, preview_items

_once: dict[str, Any] = {
    "tags": ["runs"],
    "route_class": IdempotentRoute,
    "dependencies": [Depends(idempotency_header)],
}
collection = RawRouter(**_once)
single = RawRouter(**_once)

# How long a response waits for its bulk job. The job continues after the wait.
_WAIT_SECONDS = 20.0


@single.post("/{run_id}/cancel", response_model=Changed, responses=answers(404, 409))
async def cancel_run(request: Request, principal: RunsWrite, run_id: RunId) -> JsonBody:
    """Cancel a run that has not ended. The request can be repeated. 409 if the run has completed or failed."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await parts.app.cancel(run_id, actor=principal.actor)
    return JsonBody(_changed(run_id, "cancellation_requested" if status is Status.RUNNING else status.value))


@single.post("/{run_id}/retry", status_code=202, response_model=Changed, responses=answers(404, 409))
async def retry_run(
    request: Request, principal: RunsWrite, run_id: RunId, body: Annotated[RetryRun | None, Body()] = None
) -> JsonBody:
    """Retry a failed run with all its attempts. With `latest`, it continues with the current versions."""
    latest = body is not None and body.latest
    return await _act(
        request, principal, run_id, lambda parts: parts.app.retry(run_id, latest=latest, actor=principal.actor)
    )


@single.post("/{run_id}/approve", status_code=202, response_model=Changed, responses=answers(404, 409))
async def approve_run(request: Request, principal: RunsWrite, run_id: RunId) -> JsonBody:
    """Start a held run."""
    return await _act(request, principal, run_id, lambda parts: parts.app.approve(run_id))


@single.post("/{run_id}/release", status_code=202, response_model=Changed, responses=answers(404, 409))
async def release_run(request: Request, principal: RunsWrite, run_id: RunId) -> JsonBody:
    """Unblock the runs queued behind a failed run that holds their ordering key."""
    return await _act(request, principal, run_id, lambda parts: parts.app.release(run_id))


@single.post("/{run_id}/resume", status_code=202, response_model=Changed, responses=answers(404, 409, 413))
async def resume_run(request: Request, principal: RunsWrite, run_id: RunId, body: ResumeRun) -> JsonBody:
    """Answer a question of a run. If several answers to one question are sent, one is accepted; the others get 409."""
    return await _act(
        request,
        principal,
        run_id,
        lambda parts: answer_question(parts, principal, run_id, body.response, body.step, body.note),
    )


@single.patch("/{run_id}", response_model=Changed, responses=answers(404, 409))
async def patch_run(request: Request, principal: RunsWrite, run_id: RunId, body: PatchRun) -> JsonBody:
    """Change the priority of a waiting run."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await parts.app.set_priority(run_id, body.priority, actor=principal.actor)
    return JsonBody(_changed(run_id, status.value))


@single.patch("/{run_id}/tags", response_model=RunTags, responses=answers(404))
async def patch_tags(request: Request, principal: RunsWrite, run_id: RunId, body: PatchTags) -> JsonBody:
    """Change the tags of a run in any status."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    tags = await parts.app.set_tags(run_id, body.tags, add=body.add, remove=body.remove, actor=principal.actor)
    return JsonBody({"run_id": run_id, "tags": list(tags)})


@collection.post("/runs/cancel", response_model=Bulk, responses=answers(404, 409, 429))
async def cancel_runs(request: Request, principal: RunsWrite, body: BulkRequest) -> JsonBody:
    """Cancel every matching run that has not ended, newest first, at most `limit` of them."""
    return await _bulk(parts_of(request), principal, body, BulkActionName.CANCEL)


@collection.post("/runs/retry", response_model=Bulk, responses=answers(404, 409, 429))
async def retry_runs(request: Request, principal: RunsWrite, body: BulkRequest) -> JsonBody:
    """Retry every matching failed run with all its attempts, newest first, at most `limit` of them."""
    return await _bulk(parts_of(request), principal, body, BulkActionName.RETRY)


async def _act(
    request: Request, principal: Principal, run_id: str, change: Callable[[Services], Awaitable[Status]]
) -> JsonBody:
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await change(parts)
    return JsonBody(_changed(run_id, status.value), 202)


def _changed(run_id: str, status: str) -> dict[str, str]:
    return {"run_id": run_id, "status": status, "stream_url": f"{ROOT}/runs/{run_id}/stream"}


async def _bulk(parts: Services, principal: Principal, body: BulkRequest, action: BulkActionName) -> JsonBody:
    """Change the matching runs as a bulk job, and wait for it. A longer job continues in the background."""
    possible = ACTIONS[action].statuses or frozenset[Status]()
    wanted = run_filter(principal, body.filter, tuple(status for status in Status if status in possible))
    if wanted is None:
        return _bulk_answer(body)
    shown = body.filter.model_dump(mode="json", exclude_none=True)
    change = BulkChange(action, wanted, tenant=wanted.tenant, actor=principal.actor, shown=shown, limit=body.limit)
    try:
        async with parts.searches.turn(principal):
            if body.dry_run:
                ids, more = await preview_items(parts.database, wanted, body.limit)
                return _bulk_answer(body, matched=len(ids), more=more, run_ids=ids)
            job = await create_bulk(parts.database, change)
    except NothingMatches:
        return _bulk_answer(body)
    processor = BulkRunner(parts.database, parts.connection.bus)
    done = await processor.finish_within(job.id, _WAIT_SECONDS)
    return _bulk_answer(
        body,
        matched=job.total,
        changed=done.changed,
        refused=done.refused,
        more=job.more,
        run_ids=await changed_runs(parts.database, job.id),
        job_id=job.id,
        finished=done.state is not BulkState.RUNNING,
    )


def _bulk_answer(
    body: BulkRequest,
    *,
    matched: int = 0,
    changed: int = 0,
    refused: int = 0,
    more: bool = False,
    run_ids: Sequence[str] = (),
    job_id: str | None = None,
    finished: bool = True,
) -> JsonBody:
    return JsonBody(
        {
            "matched": matched,
            "changed": changed,
            "refused": refused,
            "more": more,
            "run_ids": list(run_ids),
            "dry_run": body.dry_run,
            "job_id": job_id,
            "finished": finished,
        }
    )
