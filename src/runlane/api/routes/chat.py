"""Agent runs and conversations: post, read, follow, cancel and delete them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, Header, Path, Query, Request
from starlette.responses import Response

from runlane.access.policy import may_see, tenant_to_list
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.chat_stream import ChatCursor, mark_json
from runlane.api.error_responses import answers, rate_headers
from runlane.api.idempotency import IdempotencyKey, IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.tasks import Traceparent, accept, first_status
from runlane.api.schemas.chat import (
    AgentRequest,
    ChatBody,
    ChatCancelled,
    ChatDeleted,
    ChatEvents,
    ChatLinks,
)
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.schemas.tasks import Links
from runlane.api.serializers import ORCHESTRATIONS, ROOT, JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.api.sse import EventStream
from runlane.api.sse_encoding import line_json
from runlane.domain.access import Principal
from runlane.domain.views import ChatPage, ChatState, MessagePage
from runlane.domain.wire import to_dict
from runlane.errors import UnknownSession
from runlane.observability import tracing
from runlane.store.chat.deletion import delete_session
from runlane.store.chat.turns import SHOWN_TURNS, Turn, find_session, list_sessions, read_turns, with_newest_messages
from runlane.store.queue.events import PART_BYTES, read_part
from runlane.submit.chat import ChatRequest
from runlane.submit.orchestrations import StartRequest

router = RawRouter(tags=["chat"], route_class=LargeBodyRoute)
changes = RawRouter(tags=["chat"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

AgentId = Annotated[Name, Path(description="The agent's id.", examples=["helper"])]
SessionId = Annotated[str, Path(description="The session's id.", examples=["sess_0192f3a1b2c37abc8def0123456789ab"])]
After = Annotated[
    str | None, Query(max_length=40, description="The id of the last event that the reader has received, such as 2.17.")
]
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MOST_TURNS: Final = 500
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One frame per event: `id` is TURN.NUMBER, such as 2.17; `data` is the run's event with its "
        "`chat_turn`. Live pieces of answers have no id. The stream ends when no turn is open, unless `follow` is set. "
        "If the runs of turns were deleted, `truncated` names the next turn.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "data": {"type": "string"}},
                },
                "example": 'id: 1.1\ndata: {"chat_turn":1,"type":"queued","seq":1,"run_id":"run_1","attempt":0,'
                '"at":"2026-01-31T12:00:00.000000Z","status":"queued"}\n\n',
            }
        },
    }
}


@router.post("/agents/{agent_id}/run", status_code=202, response_model=Links, responses=answers(404, 409, 413, 429))
async def run_agent(
    request: Request,
    principal: RunsWrite,
    agent_id: AgentId,
    body: AgentRequest,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> JsonBody:
    """Accept a run of an agent, with the current versions of its definitions. Its result is the agent's answer."""
    start = StartRequest(agent_id, body.message, body.input, body.options(idempotency_key), kind="agent")
    return await accept(request, principal, start, "agent", agent_id, traceparent, ORCHESTRATIONS)


@router.post("/chat", status_code=202, response_model=ChatLinks, responses=answers(404, 409, 413, 429))
async def post_message(
    request: Request,
    principal: RunsWrite,
    body: ChatBody,
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
) -> JsonBody:
    """Accept the next turn of a conversation. Turns of a session run one at a time, in order of arrival."""
    parts = parts_of(request)
    with tracing.span(f"chat {body.agent}", {"runlane.agent": body.agent, "runlane.tenant": principal.tenant}):
        posted = await parts.app.post(
            ChatRequest(body.agent, body.message, body.session_id, body.input, body.options(idempotency_key)),
            tenant=principal.tenant,
            trace=tracing.current_parent() or tracing.valid_parent(traceparent),
        )
    root = f"{ROOT}/chat/{posted.session_id}"
    first = await first_status(parts, posted.run_id) if posted.replayed else None
    links = {"stream_url": f"{root}/stream", "status_url": f"{root}/status"}
    return JsonBody(
        to_dict(posted) | {"status": first or posted.status.value} | links, 202, rate_headers(posted.quota) or None
    )


@router.get("/chat", response_model=ChatPage, responses=answers(404))
async def get_sessions(
    request: Request,
    principal: RunsRead,
    agent: Annotated[Name | None, Query(description="Only conversations with this agent.")] = None,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ValueBody:
    """List conversations, newest first."""
    found = await list_sessions(
        parts_of(request).database, tenant=tenant_to_list(principal, tenant), agent=agent, before=cursor, limit=limit
    )
    following = found[-1].session_id if len(found) == limit else None
    return ValueBody(ChatPage(tuple(found), following))


@router.get("/chat/{session_id}/status", response_model=ChatState, responses=answers(404))
async def get_session(request: Request, principal: RunsRead, session_id: SessionId) -> ValueBody:
    """Return the status of a conversation and its newest messages."""
    parts = parts_of(request)
    return ValueBody(await with_newest_messages(parts.database, await _see(parts, principal, session_id)))


@router.get("/chat/{session_id}/messages", response_model=MessagePage, responses=answers(404))
async def get_messages(
    request: Request,
    principal: RunsRead,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only turns after this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=_MOST_TURNS, description="The maximum number of turns.")] = 100,
) -> ValueBody:
    """List all messages by turn. They are stored as long as the conversation, even if its runs were deleted."""
    parts = parts_of(request)
    session = await _see(parts, principal, session_id)
    turns = await read_turns(parts.database, session_id, after, limit)
    last = turns[-1].turn if turns else after
    messages = tuple(message for turn in turns for message in turn.messages())
    return ValueBody(MessagePage(session_id, messages, last, session.turns))


@router.get("/chat/{session_id}/events", response_model=ChatEvents, responses=answers(400, 404))
async def get_session_events(
    request: Request,
    principal: RunsRead,
    session_id: SessionId,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 500,
) -> Response:
    """List stored events of all turns in order, each in the JSON format of the stream."""
    parts = parts_of(request)
    await _see(parts, principal, session_id)
    cursor = ChatCursor.of(after) if after else ChatCursor()
    events: list[str] = []
    room = PART_BYTES
    async for turn in _turns_from(parts, session_id, cursor.turn):
        seq = cursor.seq if turn.turn == cursor.turn else 0
        lines, more = await read_part(parts.database, turn.run_id, seq, limit - len(events), room)
        events += [mark_json(line_json(turn.run_id, line), turn.turn) for line in lines]
        room -= sum(len(line.data) for line in lines)
        if lines:
            cursor = ChatCursor(turn.turn, lines[-1].seq)
        # Turns after an open turn may have events as well; the events of the open turn come first.
        if more or room <= 0 or len(events) >= limit or not turn.status.terminal:
            break
    head = orjson.dumps({"session_id": session_id, "count": len(events), "next_after": str(cursor)}).decode()
    return Response(f'{head[:-1]},"events":[{",".join(events)}]}}', media_type="application/json")


@router.get("/chat/{session_id}/stream", response_class=Response, responses={**answers(404), **_STREAM})
async def stream_session(
    request: Request,
    principal: RunsRead,
    session_id: SessionId,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that the reader has received, such as 2.17.")
    ] = None,
    after: After = None,
    follow: Annotated[bool, Query(description="Keep the stream open when no turn is open, for later turns.")] = False,
) -> Response:
    """Follow a conversation: stored events after the given event, then live events until no turn is open."""
    parts = parts_of(request)
    session = await _see(parts, principal, session_id)
    cursor = ChatCursor.of(last_event_id or after or "0.0")
    return EventStream(await parts.follow_chat(principal, session_id, cursor, session.turns, follow=follow))


@changes.post("/chat/{session_id}/cancel", response_model=ChatCancelled, responses=answers(404, 409))
async def cancel_session(
    request: Request,
    principal: RunsWrite,
    session_id: SessionId,
    only_current: Annotated[bool, Query(description="Cancel only the running or next turn.")] = False,
) -> JsonBody:
    """Cancel the turns that have not ended. Messages are kept, and the conversation can be continued."""
    parts = parts_of(request)
    await _see(parts, principal, session_id)
    run_ids = await parts.app.cancel_chat(session_id, only_current=only_current, actor=principal.actor)
    return JsonBody(
        {
            "session_id": session_id,
            "status": "cancellation_requested" if run_ids else "idle",
            "run_ids": run_ids,
        }
    )


@changes.delete("/chat/{session_id}", response_model=ChatDeleted, responses=answers(404, 409))
async def remove_session(request: Request, principal: RunsWrite, session_id: SessionId) -> JsonBody:
    """Delete a conversation with its runs and messages. 409 while a turn is open."""
    parts = parts_of(request)
    await _see(parts, principal, session_id)
    await delete_session(parts.database, session_id)
    return JsonBody({"session_id": session_id, "deleted": True})


async def _turns_from(parts: Services, session_id: str, first: int) -> AsyncGenerator[Turn]:
    after = first - 1
    while turns := await read_turns(parts.database, session_id, after, SHOWN_TURNS):
        for turn in turns:
            yield turn
        after = turns[-1].turn


async def _see(parts: Services, principal: Principal, session_id: str) -> ChatState:
    """Return the session. Raise UnknownSession if the caller may not see it."""
    if _ID.fullmatch(session_id) is None:
        raise UnknownSession(session_id)
    session = await find_session(parts.database, session_id)
    if not may_see(principal, session.tenant):
        raise UnknownSession(session_id)
    return session
