"""OpenAI-compatible endpoints: agents as models, and chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Request
from starlette.responses import Response

from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.idempotency import IdempotencyKey
from runlane.api.openai.chat_format import ChunkRenderer, completion
from runlane.api.openai.errors import answers
from runlane.api.openai.ids import COMPLETION
from runlane.api.openai.messages import parse_messages
from runlane.api.openai.parameters import check_extra, effort_setting, model_settings, request_tags
from runlane.api.openai.questions import answer_question, asked_before
from runlane.api.openai.reader import Subject
from runlane.api.openai.responding import require_answer, stream_answer, whole_answer
from runlane.api.openai.schemas import ChatCompletion, ChatCompletionRequest, ModelList, ModelView
from runlane.api.openai.starting import Asked, Started, find_agent, find_answer, start_run, started
from runlane.api.router import RawRouter
from runlane.api.routes.tasks import Traceparent
from runlane.api.schemas.fields import Name
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.conversation import RequestConversation
from runlane.domain.options import RunOptions
from runlane.store.definitions import find_definition, list_definitions
from runlane.store.queue.runs import find_run

router = RawRouter(tags=["openai"], route_class=LargeBodyRoute)

ModelId = Annotated[Name, Path(description="The agent's id.", examples=["helper"])]
CompletionId = Annotated[str, Path(max_length=200, examples=["chatcmpl-0192f3a1b2c37abc8def0123456789ab"])]
_PAGE: Final = 1000
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer; with `stream`, one frame per piece, and comments while nothing happens.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
                }
            }
        },
    }
}


@router.get("/models", response_model=ModelList, responses=answers())
async def list_models(request: Request, principal: RunsRead) -> JsonBody:
    """List the agents of the caller's tenant."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while page := await list_definitions(
        parts_of(request).database, principal.tenant, "agent", after=after, limit=_PAGE
    ):
        found += [_model(agent.id, agent.created_at_us) for agent in page]
        after = page[-1].id if len(page) == _PAGE else None
        if after is None:
            break
    return JsonBody({"object": "list", "data": found})


@router.get("/models/{model}", response_model=ModelView, responses=answers(404))
async def get_model(request: Request, principal: RunsRead, model: ModelId) -> JsonBody:
    """Return an agent."""
    found = await find_definition(parts_of(request).database, principal.tenant, "agent", model)
    return JsonBody(_model(model, found.created_at_us))


@router.post(
    "/chat/completions", response_model=ChatCompletion, responses={**STREAM, **answers(404, 409, 413, 429, 500)}
)
async def create_chat_completion(
    request: Request,
    principal: RunsWrite,
    body: ChatCompletionRequest,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> Response:
    """Run an agent once, with the earlier messages as its conversation.

    If the last message of the assistant is a question of a run, the user's message answers it and that run continues.
    """
    parts = parts_of(request)
    check_extra(body.model_extra)
    parsed = parse_messages(body.messages, "messages")
    agent = await find_agent(parts, principal, body.model)
    conversation = RequestConversation(parsed.earlier, "", model_settings(agent, _settings(body)))
    options = RunOptions(idempotency_key=idempotency_key, tags=request_tags(_user(body), body.metadata))
    asked = await asked_before(parts, principal, body.model, parsed)
    if asked is not None:
        await answer_question(parts, principal, asked, parsed.message, "messages")
        found = started(request, asked)
    else:
        wanted = Asked(body.model, parsed.message, conversation, options, traceparent)
        found = await start_run(request, principal, wanted)
    usage = body.stream_options is not None and body.stream_options.include_usage
    return await _respond(request, principal, found, stream=bool(body.stream), include_usage=usage)


@router.get("/chat/completions/{completion_id}", response_model=ChatCompletion, responses=answers(404, 429, 500))
async def get_chat_completion(request: Request, principal: RunsRead, completion_id: CompletionId) -> Response:
    """Return a completion by its id when its run has ended, for clients that have lost their connection."""
    found, _ = await find_answer(parts_of(request), principal, completion_id, COMPLETION)
    return await _respond(request, principal, started(request, found), stream=False, include_usage=False)


async def _respond(
    request: Request, principal: Principal, found: Started, *, stream: bool, include_usage: bool
) -> Response:
    run = await find_run(parts_of(request).database, found.id.run_id)
    subject = Subject.of(run, found.id.after)
    if stream:
        renderer = ChunkRenderer(subject, include_usage=include_usage)
        return await stream_answer(request, principal, subject, renderer, found.headers)
    whole = await whole_answer(request, principal, subject)
    if whole is None:
        return Response(status_code=204)
    require_answer(whole[1])
    return JsonBody(completion(subject, *whole), 200, found.headers)


def _settings(body: ChatCompletionRequest) -> dict[str, tuple[str, Any]]:
    tokens = ("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        tokens = ("max_completion_tokens", body.max_completion_tokens)
    return {
        "temperature": ("temperature", body.temperature),
        "top_p": ("top_p", body.top_p),
        "max_tokens": tokens,
        "thinking": effort_setting("reasoning_effort", body.reasoning_effort),
    }


def _user(body: ChatCompletionRequest) -> tuple[str, str] | None:
    if body.safety_identifier is not None:
        return "safety_identifier", body.safety_identifier
    return None if body.user is None else ("user", body.user)


def _model(agent_id: str, created_at_us: int) -> dict[str, Any]:
    return {"id": agent_id, "object": "model", "created": created_at_us // 1_000_000, "owned_by": "runlane"}
