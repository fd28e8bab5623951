"""The inbox: everything that waits for a person, and the answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane import queries
from runlane.access.policy import tenant_to_list
from runlane.api.answering import answer_question
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.fields import MAX_PAGE, Moment, Name, moment_us
from runlane.api.schemas.inbox import LINKS, AnswerMany, AnswersGiven, ClaimQuestion, OneAnswer
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.views import InboxPage
from runlane.domain.wait import AnswerResult, InboxCount, QuestionDetail, QuestionKind
from runlane.domain.wire import to_dict
from runlane.errors import RunlaneError
from runlane.store.orchestration.action_links import list_action_links
from runlane.store.orchestration.inbox import InboxFilter, claim_question, count_inbox, release_question

router = RawRouter(tags=["inbox"])
changes = RawRouter(tags=["inbox"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]


@router.get("/inbox", response_model=InboxPage, responses=answers())
async def get_inbox(
    request: Request,
    principal: RunsRead,
    tenant: Tenant = None,
    about: Annotated[list[QuestionKind] | None, Query(description="Only these kinds. Repeat for several.")] = None,
    target: Annotated[Name | None, Query(description="Only runs of this target, such as `orchestration:ID`.")] = None,
    agent: Annotated[Name | None, Query(description="Only questions of this agent.")] = None,
    tool: Annotated[Name | None, Query(description="Only questions about calls of this tool.")] = None,
    due_before: Annotated[Moment | None, Query(description="Only questions that expire before this time.")] = None,
    asked_before: Annotated[Moment | None, Query(description="Only questions asked before this time.")] = None,
    cursor: Annotated[str | None, Query(max_length=2200, description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ValueBody:
    """List the questions that wait for a person, oldest first. A page scans at most 5,000 questions."""
    wanted = InboxFilter(
        tenant=tenant_to_list(principal, tenant),
        target=target,
        due_before_us=None if due_before is None else moment_us(due_before),
        asked_before_us=None if asked_before is None else moment_us(asked_before),
        kinds=tuple(about or ()),
        agent=agent,
        tool=tool,
    )
    return ValueBody(await queries.get_inbox(parts_of(request).database, wanted, cursor, limit))


@router.get("/inbox/count", response_model=InboxCount, responses=answers())
async def get_inbox_count(request: Request, principal: RunsRead, tenant: Tenant = None) -> ValueBody:
    """Count the open questions by kind, up to 1,000."""
    return ValueBody(await count_inbox(parts_of(request).database, tenant_to_list(principal, tenant)))


@router.get("/inbox/links", response_model=LINKS.schema, responses=answers())
async def get_links(
    request: Request,
    principal: RunsRead,
    run_id: Annotated[Name | None, Query(description="Only links of this run.")] = None,
    tenant: Tenant = None,
) -> JsonBody:
    """List the valid action links, without their URLs, by expiry; at most 1,000."""
    owner = tenant_to_list(principal, tenant)
    parts = parts_of(request)
    return LINKS.all(
        await list_action_links(parts.database, tenant=owner, run_id=run_id, without_keys=parts.without_keys)
    )


@router.get("/inbox/{run_id}/{path:path}", response_model=QuestionDetail, responses=answers(404))
async def get_question(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    path: Annotated[str, Path(max_length=2000, description="The path of the question.", examples=["ask"])],
) -> ValueBody:
    """Return one question. If it was answered, the response contains the answer, its author and its time."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await queries.get_question(parts.database, run_id, path))


@changes.post("/inbox/answer", response_model=AnswersGiven, responses=answers(409, 413))
async def answer_many(request: Request, principal: RunsWrite, body: AnswerMany) -> JsonBody:
    """Answer up to 100 questions. Each answer is accepted or refused separately, in the order of the request."""
    parts = parts_of(request)
    outcomes = [await _answer(parts, principal, one, body.note) for one in body.answers]
    answered = sum(outcome.answered for outcome in outcomes)
    return JsonBody(
        {
            "answered": answered,
            "refused": len(outcomes) - answered,
            "outcomes": [to_dict(outcome) for outcome in outcomes],
        }
    )


@changes.post("/inbox/claim", response_model=QuestionDetail, responses=answers(404, 409))
async def claim(request: Request, principal: RunsWrite, body: ClaimQuestion) -> ValueBody:
    """Claim a question for ten minutes, or release it. Other users see the claim and may still answer."""
    parts = parts_of(request)
    await require_visible(parts, principal, body.run_id)
    change = release_question if body.release else claim_question
    await change(parts.database, body.run_id, body.path, principal.name)
    return ValueBody(await queries.get_question(parts.database, body.run_id, body.path))


async def _answer(parts: Services, principal: Principal, one: OneAnswer, note: str | None) -> AnswerResult:
    try:
        await require_visible(parts, principal, one.run_id)
        await answer_question(parts, principal, one.run_id, one.response, one.step, note)
    except RunlaneError as error:
        if error.http_status >= 500:
            raise
        return AnswerResult(one.run_id, one.step, False, error.code, error.public_message)
    return AnswerResult(one.run_id, one.step, True)
