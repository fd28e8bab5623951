"""OpenAI-compatible responses: turns of conversations, which clients read, resume and cancel by id."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.idempotency import IdempotencyKey
from runlane.api.openai.errors import InvalidValue, answers
from runlane.api.openai.ids import RESPONSE
from runlane.api.openai.messages import ParsedMessages, checked_text, parse_messages
from runlane.api.openai.parameters import check_extra, effort_setting, model_settings, request_tags
from runlane.api.openai.reader import Subject, read_now
from runlane.api.openai.responding import stream_answer, whole_answer
from runlane.api.openai.response_format import MAX_NUMBER, ResponseRenderer, response, resume_point
from runlane.api.openai.routes import STREAM
from runlane.api.openai.schemas import ResponseRequest, ResponseView
from runlane.api.openai.starting import (
    Asked,
    Continued,
    Started,
    answer_in_turn,
    find_agent,
    find_answer,
    find_continued,
    post_turn,
    start_run,
    started,
)
from runlane.api.router import RawRouter
from runlane.api.routes.tasks import Traceparent
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.conversation import RequestConversation
from runlane.domain.options import RunOptions
from runlane.store.queue.runs import find_run

router = RawRouter(tags=["openai"], route_class=LargeBodyRoute)

ResponseId = Annotated[str, Path(max_length=200, examples=["resp_0192f3a1b2c37abc8def0123456789ab"])]


@router.post("/responses", response_model=ResponseView, responses={**STREAM, **answers(404, 409, 413, 429)})
async def create_response(
    request: Request,
    principal: RunsWrite,
    body: ResponseRequest,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> Response:
    """Run an agent as a turn of a conversation; with `store: false`, without a conversation.

    If the conversation waits for an answer of a person, the input answers the question and that run continues.
    """
    parts = parts_of(request)
    check_extra(body.model_extra)
    parsed = _parse_input(body)
    agent = await find_agent(parts, principal, body.model)
    asked = Asked(
        body.model,
        parsed.message,
        RequestConversation(
            parsed.earlier,
            checked_text(body.instructions or "", "instructions"),
            model_settings(agent, _settings(body)),
        ),
        RunOptions(idempotency_key=idempotency_key, tags=request_tags(_user(body), body.metadata)),
        traceparent,
    )
    last = await find_continued(parts, principal, body.model, body.previous_response_id, _session_id(body))
    found = await _start(request, principal, asked, last, store=body.store is not False)
    subject = Subject.of(await find_run(parts.database, found.id.run_id), found.id.after)
    previous = body.previous_response_id
    if body.stream:
        return await stream_answer(request, principal, subject, ResponseRenderer(subject, previous), found.headers)
    if body.background:
        fold, ending = await read_now(parts.database, subject)
        return JsonBody(response(subject, fold, ending, previous), 200, found.headers)
    whole = await whole_answer(request, principal, subject)
    if whole is None:
        return Response(status_code=204)
    return JsonBody(response(subject, *whole, previous), 200, found.headers)


@router.get("/responses/{response_id}", response_model=ResponseView, responses={**STREAM, **answers(404, 429)})
async def get_response(
    request: Request,
    principal: RunsRead,
    response_id: ResponseId,
    stream: Annotated[bool, Query(description="Follow the response until its end.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, le=MAX_NUMBER, description="With `stream`: the last number the client received.")
    ] = None,
) -> Response:
    """Return the current state of a response; with `stream`, follow it from the beginning or after a number."""
    parts = parts_of(request)
    answer_id, run = await find_answer(parts, principal, response_id, RESPONSE)
    found, subject = started(request, answer_id), Subject.of(run, answer_id.after)
    if not stream:
        if starting_after is not None:
            raise InvalidValue("starting_after", "'starting_after' needs stream=true.")
        fold, ending = await read_now(parts.database, subject)
        return JsonBody(response(subject, fold, ending), 200, found.headers)
    if starting_after is None:
        return await stream_answer(request, principal, subject, ResponseRenderer(subject), found.headers)
    resume = resume_point(starting_after)
    if resume.seq > run.last_seq:
        raise InvalidValue("starting_after", f"The response has no event {starting_after} yet.")
    renderer = ResponseRenderer(subject, after=starting_after)
    return await stream_answer(request, principal, subject, renderer, found.headers, resume)


@router.post("/responses/{response_id}/cancel", response_model=ResponseView, responses=answers(404, 409))
async def cancel_response(request: Request, principal: RunsWrite, response_id: ResponseId) -> JsonBody:
    """Cancel the run of a response that has not ended. The request can be repeated safely."""
    parts = parts_of(request)
    answer_id, run = await find_answer(parts, principal, response_id, RESPONSE)
    await parts.app.cancel(run.id, actor=principal.actor)
    found, subject = started(request, answer_id), Subject.of(run, answer_id.after)
    fold, ending = await read_now(parts.database, subject)
    return JsonBody(response(subject, fold, ending), 200, found.headers)


async def _start(
    request: Request, principal: Principal, asked: Asked, last: Continued | None, *, store: bool
) -> Started:
    if last is None:
        return await (post_turn(request, principal, asked, None) if store else start_run(request, principal, asked))
    if not store:
        raise InvalidValue("store", "A turn of a conversation is stored. Omit 'store', or send all messages.")
    answered = await answer_in_turn(parts_of(request), principal, last, asked)
    return started(request, answered) if answered is not None else await post_turn(request, principal, asked, last)


def _parse_input(body: ResponseRequest) -> ParsedMessages:
    if isinstance(body.input, str):
        if not body.input.strip():
            raise InvalidValue("input", "The message to the agent must not be empty.")
        return ParsedMessages(checked_text(body.input, "input"))
    return parse_messages(body.input, "input")


def _session_id(body: ResponseRequest) -> str | None:
    given = body.conversation
    return given if given is None or isinstance(given, str) else given.id


def _settings(body: ResponseRequest) -> dict[str, tuple[str, Any]]:
    effort = None if body.reasoning is None else body.reasoning.effort
    return {
        "temperature": ("temperature", body.temperature),
        "top_p": ("top_p", body.top_p),
        "max_tokens": ("max_output_tokens", body.max_output_tokens),
        "thinking": effort_setting("reasoning.effort", effort),
    }


def _user(body: ResponseRequest) -> tuple[str, str] | None:
    if body.safety_identifier is not None:
        return "safety_identifier", body.safety_identifier
    return None if body.user is None else ("user", body.user)
