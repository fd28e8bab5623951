"""Changing runs: cancel, retry, approve, resume, release, priority; for one run, or for every matching run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, Request

from runlane.access.policy import tenant_to_list
from runlane.api.auth import RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.actions import Bulk, BulkFilter, BulkRequest, Changed, PatchRun, ResumeRun
from runlane.api.schemas.fields import moment_us
from runlane.api.serializers import ROOT, JsonBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.run import Status
from runlane.errors import InvalidRequest, RunNotFound, WrongState
from runlane.store.queue.search import RunFilter, search_run_ids

_once: dict[str, Any] = {
    "tags": ["runs"],
    "route_class": IdempotentRoute,
    "dependencies": [Depends(idempotency_header)],
}
collection = APIRouter(**_once)
single = APIRouter(**_once)

# Bulk changes share the connection pool with other requests.
_AT_ONCE = 4


@single.post("/{run_id}/cancel", response_model=Changed, responses=answers(404, 409))
async def cancel_run(request: Request, principal: RunsWrite, run_id: RunId) -> JsonBody:
    """Cancel a run that has not ended. Repeating is harmless. One that completed or failed is 409."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await parts.app.cancel(run_id, actor=principal.actor)
    return JsonBody(_changed(run_id, "cancellation_requested" if status is Status.RUNNING else status.value))


@single.post("/{run_id}/retry", status_code=202, response_model=Changed, responses=answers(404, 409))
async def retry_run(request: Request, principal: RunsWrite, run_id: RunId) -> JsonBody:
    """Retry a failed run, with all its attempts."""
    return await _act(request, principal, run_id, lambda parts: parts.app.retry(run_id))


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
    """Answer a question of a run. Of several answers to one question exactly one is accepted; the others are 409."""
    return await _act(
        request,
        principal,
        run_id,
        lambda parts: parts.app.resume(
            run_id, body.response, step=body.step, answered_by=principal.name, platform=principal.everywhere
        ),
    )


@single.patch("/{run_id}", response_model=Changed, responses=answers(404, 409))
async def patch_run(request: Request, principal: RunsWrite, run_id: RunId, body: PatchRun) -> JsonBody:
    """Move a waiting run forward or back."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await parts.app.set_priority(run_id, body.priority, actor=principal.actor)
    return JsonBody(_changed(run_id, status.value))


@collection.post("/runs/cancel", response_model=Bulk, responses=answers(404, 409, 429))
async def cancel_runs(request: Request, principal: RunsWrite, body: BulkRequest) -> JsonBody:
    """Cancel every matching run that has not ended, newest first, at most `limit` of them."""
    open_statuses = tuple(status for status in Status if not status.terminal)
    actor = principal.actor
    return await _bulk(
        parts_of(request), principal, body, open_statuses, lambda app, run_id: app.cancel(run_id, actor=actor)
    )


@collection.post("/runs/retry", response_model=Bulk, responses=answers(404, 409, 429))
async def retry_runs(request: Request, principal: RunsWrite, body: BulkRequest) -> JsonBody:
    """Retry every matching failed run with all its attempts, newest first, at most `limit` of them."""
    return await _bulk(parts_of(request), principal, body, (Status.FAILED,), lambda app, run_id: app.retry(run_id))


async def _act(
    request: Request, principal: Principal, run_id: str, change: Callable[[Services], Awaitable[Status]]
) -> JsonBody:
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    status = await change(parts)
    return JsonBody(_changed(run_id, status.value), 202)


def _changed(run_id: str, status: str) -> dict[str, str]:
    return {"run_id": run_id, "status": status, "stream_url": f"{ROOT}/runs/{run_id}/stream"}


async def _bulk(
    parts: Services,
    principal: Principal,
    body: BulkRequest,
    possible: tuple[Status, ...],
    change: Callable[[Any, str], Awaitable[Status]],
) -> JsonBody:
    wanted = _filter(principal, body.filter, possible)
    ids, more = await _matching(parts, principal, wanted, body.limit)
    changed: list[str] = []
    if not body.dry_run:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(run_id: str) -> None:
            async with gate:
                try:
                    await change(parts.app, run_id)
                except (WrongState, RunNotFound):
                    return  # its status changed meanwhile
                changed.append(run_id)

        await asyncio.gather(*(one(run_id) for run_id in ids))
    return JsonBody(
        {
            "matched": len(ids),
            "changed": len(changed),
            "refused": 0 if body.dry_run else len(ids) - len(changed),
            "more": more,
            "run_ids": ids if body.dry_run else sorted(changed, reverse=True),
            "dry_run": body.dry_run,
        }
    )


async def _matching(
    parts: Services, principal: Principal, wanted: RunFilter | None, limit: int
) -> tuple[list[str], bool]:
    if wanted is None:
        return [], False
    release = parts.searches.take(principal)
    try:
        return await search_run_ids(parts.database, wanted, limit)
    finally:
        release()


def _filter(principal: Principal, given: BulkFilter, possible: tuple[Status, ...]) -> RunFilter | None:
    """Return the filter; None when nothing can match. An empty one would match everything, probably by mistake."""
    if not given.model_dump(exclude_none=True):
        raise InvalidRequest("The filter is empty, which would match every run. Give at least one field.")
    statuses = tuple(status for status in possible if given.status is None or status in given.status)
    if not statuses:
        return None
    return RunFilter(
        statuses=statuses,
        target=given.target,
        lane=given.lane,
        tenant=tenant_to_list(principal, given.tenant),
        ordering_key=given.ordering_key,
        accepted_from_us=None if given.accepted_from is None else moment_us(given.accepted_from),
        accepted_before_us=None if given.accepted_before is None else moment_us(given.accepted_before),
        text=given.text,
    )
