"""The endpoint of AG-UI clients: run an agent, or answer its interrupts, and receive the events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import Path, Request
from starlette.responses import Response

from runlane.api.ag_ui.interrupts import answer_interrupts
from runlane.api.ag_ui.schemas import AgUiRequest
from runlane.api.ag_ui.stream import AgUiRenderer
from runlane.api.auth import RunsWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.openai.errors import ParameterRefused
from runlane.api.openai.messages import ParsedMessages, checked_text, parse_messages
from runlane.api.openai.reader import Subject
from runlane.api.openai.responding import stream_answer
from runlane.api.openai.starting import Asked, Started, find_agent, start_run, started
from runlane.api.router import RawRouter
from runlane.api.routes.tasks import Traceparent
from runlane.api.schemas.fields import Name
from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.conversation import RequestConversation
from runlane.domain.options import RunOptions
from runlane.errors import InvalidRequest
from runlane.store.queue.runs import find_run

router = RawRouter(tags=["ag-ui"], route_class=LargeBodyRoute)

PREFIX: Final = "/ag-ui"
AgentId = Annotated[Name, Path(description="The agent's id.", examples=["helper"])]
# Clients send messages of earlier runs again; the model does not receive these kinds.
_LEFT_OUT: Final = frozenset({"tool", "reasoning", "activity"})
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One frame per event of AG-UI 1.0, and comments while nothing happens.",
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


@router.post("/agents/{agent_id}", response_class=Response, responses={**answers(404, 409, 413, 429), **_STREAM})
async def run_agent_for_ui(
    request: Request, principal: RunsWrite, agent_id: AgentId, body: AgUiRequest, traceparent: Traceparent = None
) -> Response:
    """Run an agent with the messages as its conversation; with `resume`, answer questions of a run that waits."""
    parts = parts_of(request)
    _refuse_unsupported(body)
    await find_agent(parts, principal, agent_id)
    if body.resume:
        found = started(request, await answer_interrupts(parts, principal, agent_id, body.resume))
    else:
        found = await _start(request, principal, agent_id, body, traceparent)
    subject = Subject.of(await find_run(parts.database, found.id.run_id), found.id.after)
    renderer = AgUiRenderer(subject, body.thread_id, body.run_id)
    return await stream_answer(request, principal, subject, renderer, found.headers)


async def _start(
    request: Request, principal: Principal, agent_id: str, body: AgUiRequest, traceparent: str | None
) -> Started:
    try:
        parsed = _parse(body)
        context = "\n".join(f"{entry.description}: {entry.value}" for entry in body.context or ())
        conversation = RequestConversation(parsed.earlier, checked_text(context, "context"))
    except ParameterRefused as error:
        raise InvalidRequest(str(error)) from None
    key = sha256("\x1f".join((agent_id, body.thread_id, body.run_id)).encode()).hexdigest()
    options = RunOptions(idempotency_key=f"ag-ui:{key}")
    return await start_run(request, principal, Asked(agent_id, parsed.message, conversation, options, traceparent))


def _parse(body: AgUiRequest) -> ParsedMessages:
    return parse_messages([_plain(item) for item in body.messages if item.get("role") not in _LEFT_OUT], "messages")


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without its tool calls, because their results are left out as well."""
    return {name: value for name, value in item.items() if name in ("role", "content")}


def _refuse_unsupported(body: AgUiRequest) -> None:
    for name in _unsupported(body):
        raise InvalidRequest(f'"{name}" is not supported and must be empty. Leave it out.')


def _unsupported(body: AgUiRequest) -> Iterator[str]:
    given = {"tools": body.tools, "state": body.state, "forwardedProps": body.forwarded_props}
    for name, value in given.items():
        if value not in (None, [], {}, ""):
            yield name
