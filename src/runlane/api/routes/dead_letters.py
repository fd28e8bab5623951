"""Dead letters: find them, group them by cause, and handle one or many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request

from runlane.access.policy import may_see, require_content, tenant_to_list
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.bulk import PREVIEW, submit_bulk
from runlane.api.routes.visibility import RunId
from runlane.api.schemas.failures import (
    AcknowledgeLetter,
    AssignLetter,
    CreateLetterBulk,
    DiscardLetter,
    LetterFilterBody,
    LetterRetried,
    RetryLetter,
)
from runlane.api.schemas.fields import MAX_PAGE, Moment, Name, StepPath, moment_us
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.bulk import BulkActionName, BulkJob
from runlane.domain.dead_letter import (
    UNHANDLED,
    DeadLetter,
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterSummary,
    LetterState,
)
from runlane.errors import InvalidRequest
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry, parse_options
from runlane.failures.requests import BulkChange
from runlane.store.failures.handling import acknowledge, assign, discard
from runlane.store.failures.letter_groups import MAX_GROUPS, group_letters
from runlane.store.failures.letters import (
    LetterFilter,
    LetterNotFound,
    find_letter,
    list_letters,
    read_letter,
)
from runlane.store.sql.database import Database

router = RawRouter(tags=["dead letters"])
changes = RawRouter(tags=["dead letters"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

_ACTIONS: Final = {
    "retry": BulkActionName.REPLAY,
    "discard": BulkActionName.DISCARD,
    "acknowledge": BulkActionName.ACKNOWLEDGE,
    "assign": BulkActionName.ASSIGN,
}


def letter_query(
    state: Annotated[
        list[LetterState] | None, Query(description="Repeat for several. Default: open and acknowledged.")
    ] = None,
    target: Annotated[Name | None, Query(description="The task, or `orchestration:ID`.")] = None,
    lane: Annotated[Name | None, Query()] = None,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
    code: Annotated[Name | None, Query(description="The code of the step, or the type of the exception.")] = None,
    fingerprint: Annotated[Name | None, Query()] = None,
    step: Annotated[StepPath | None, Query(description="The path of the failed step, or its last part.")] = None,
    assigned_to: Annotated[Name | None, Query()] = None,
    died_from: Annotated[Moment | None, Query(description="RFC 3339; this moment or later.")] = None,
    died_before: Annotated[Moment | None, Query(description="RFC 3339; before this moment.")] = None,
    text: Annotated[Name | None, Query(description="Part of the message, the run's id or the target.")] = None,
) -> LetterFilter:
    """Return the filter of the request; `_searched` restricts it to what the caller may see."""
    return LetterFilter(
        tuple(state) if state else UNHANDLED,
        tenant,
        target,
        lane,
        code,
        fingerprint,
        step,
        assigned_to,
        None if died_from is None else moment_us(died_from),
        None if died_before is None else moment_us(died_before),
        text,
    )


Wanted = Annotated[LetterFilter, Depends(letter_query)]


@router.get("/dead-letters", response_model=DeadLetterPage, responses=answers(429))
async def get_letters(
    request: Request,
    principal: RunsRead,
    wanted: Wanted,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ValueBody:
    """Find dead letters, latest death first, with an exact count of the open ones."""
    read = partial(list_letters, cursor=cursor, limit=limit)
    return ValueBody(await _searched(parts_of(request), principal, wanted, read))


@router.get("/dead-letters/groups", response_model=DeadLetterGroups, responses=answers(429))
async def get_groups(
    request: Request,
    principal: RunsRead,
    wanted: Wanted,
    limit: Annotated[int, Query(ge=1, le=MAX_GROUPS)] = 50,
) -> ValueBody:
    """Group dead letters by their cause, largest group first."""
    read = partial(group_letters, limit=limit)
    return ValueBody(await _searched(parts_of(request), principal, wanted, read))


@router.get("/dead-letters/{run_id}", response_model=DeadLetter, responses=answers(404))
async def get_letter(request: Request, principal: RunsRead, run_id: RunId) -> ValueBody:
    """Return a dead letter with the input, the error, every attempt and the last steps of its run."""
    letter = await read_letter(parts_of(request).database, run_id)
    if letter is None or not may_see(principal, letter.tenant):
        raise LetterNotFound(run_id)
    require_content(principal, letter.target)
    return ValueBody(letter)


@changes.post(
    "/dead-letters/{run_id}/retry", status_code=202, response_model=LetterRetried, responses=answers(404, 409, 429)
)
async def retry_dead_letter(request: Request, principal: RunsWrite, run_id: RunId, body: RetryLetter) -> JsonBody:
    """Retry a dead letter. Its state is `retrying` until the run has ended; then it is resolved or open again."""
    parts = parts_of(request)
    await _require_visible(parts, principal, run_id)
    how = parse_options(LetterRetry, body.model_dump())
    assert isinstance(how, LetterRetry)  # noqa: S101 - for the type checker
    change = await retry_letter(parts.database, run_id, how, actor=principal.actor)
    parts.connection.publish_change(change)
    return JsonBody(
        {
            "run_id": run_id,
            "state": LetterState.RETRYING.value,
            "status": change.status.value,
            "new_run_id": change.new_run_id,
        },
        202,
    )


@changes.post("/dead-letters/{run_id}/discard", response_model=DeadLetterSummary, responses=answers(404, 409))
async def discard_letter(request: Request, principal: RunsWrite, run_id: RunId, body: DiscardLetter) -> ValueBody:
    """Discard a dead letter. Its run stays failed and holds its ordering key unless `release` is set."""
    parts = parts_of(request)
    await _require_visible(parts, principal, run_id)
    letter, change = await discard(parts.database, run_id, note=body.note, release=body.release, actor=principal.actor)
    if change is not None:
        parts.connection.publish_change(change)
    return ValueBody(letter)


@changes.post("/dead-letters/{run_id}/acknowledge", response_model=DeadLetterSummary, responses=answers(404, 409))
async def acknowledge_letter(
    request: Request, principal: RunsWrite, run_id: RunId, body: AcknowledgeLetter
) -> ValueBody:
    """Acknowledge an open dead letter. It is still listed, but no longer counted."""
    parts = parts_of(request)
    await _require_visible(parts, principal, run_id)
    return ValueBody(await acknowledge(parts.database, run_id, note=body.note, actor=principal.actor))


@changes.post("/dead-letters/{run_id}/assign", response_model=DeadLetterSummary, responses=answers(404))
async def assign_letter(request: Request, principal: RunsWrite, run_id: RunId, body: AssignLetter) -> ValueBody:
    """Assign a dead letter to a person."""
    parts = parts_of(request)
    await _require_visible(parts, principal, run_id)
    return ValueBody(await assign(parts.database, run_id, body.to, actor=principal.actor))


@changes.post(
    "/dead-letters/bulk",
    status_code=202,
    response_model=BulkJob,
    responses={**answers(404, 429), 200: PREVIEW},
)
async def create_letter_job(request: Request, principal: RunsWrite, body: CreateLetterBulk) -> ValueBody:
    """Retry, discard, acknowledge or assign many dead letters in the background, each at most once. See /bulk."""
    tenant = tenant_to_list(principal, None if body.filter is None else body.filter.tenant)
    wanted = BulkChange(
        _ACTIONS[body.action],
        None if body.filter is None else _body_filter(body.filter, tenant),
        tuple(body.run_ids or ()),
        body.options,
        body.rate,
        tenant,
        principal.actor,
        {} if body.filter is None else body.filter.model_dump(mode="json", exclude_none=True),
    )
    return await submit_bulk(parts_of(request), principal, wanted, dry_run=body.dry_run)


def _body_filter(given: LetterFilterBody, tenant: str | None) -> LetterFilter:
    if not given.model_dump(exclude_none=True):
        raise InvalidRequest(
            "The filter is empty, which would match every dead letter. Give at least one field, such as the state."
        )
    return LetterFilter(
        tuple(given.state) if given.state else UNHANDLED,
        tenant,
        given.target,
        given.lane,
        given.code,
        given.fingerprint,
        given.step,
        given.assigned_to,
        None if given.died_from is None else moment_us(given.died_from),
        None if given.died_before is None else moment_us(given.died_before),
        given.text,
    )


async def _require_visible(parts: Services, principal: Principal, run_id: str) -> None:
    letter = await find_letter(parts.database, run_id)
    if letter is None or not may_see(principal, letter["tenant"]):
        raise LetterNotFound(run_id)


async def _searched(
    parts: Services,
    principal: Principal,
    wanted: LetterFilter,
    read: Callable[[Database, LetterFilter], Awaitable[Any]],
) -> Any:
    """Restrict a filter to what the caller may see, and read within the limit of concurrent searches."""
    visible = replace(wanted, tenant=tenant_to_list(principal, wanted.tenant))
    async with parts.searches.turn(principal):
        return await read(parts.database, visible)
