"""Commands of the thread protocol: start a run, and answer questions. A refusal is a response of type `error`.

A command creates a run like any other request, so the run is stored before the response is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Send

from runlane.api.agent_server.command_schemas import CommandMessage, EventsBody, RespondParams
from runlane.api.agent_server.event_channels import MAX_PARTS, EventNumber
from runlane.api.agent_server.event_stream import follow_events
from runlane.api.agent_server.native_state import current
from runlane.api.agent_server.routing import agent_router, check_uuid
from runlane.api.agent_server.run_schemas import ThreadRunBody
from runlane.api.agent_server.runs import LastEventId, resume_run
from runlane.api.agent_server.starting import start
from runlane.api.agent_server.thread_events import sse_frame
from runlane.api.agent_server.threads import ThreadId
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import ImpossibleEvent, answers
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.api.sse import EventStream
from runlane.domain.access import Principal
from runlane.domain.graph import MultitaskStrategy, StreamMode, ThreadStatus
from runlane.domain.thread import ThreadRun
from runlane.domain.validation import first_problem
from runlane.errors import Conflict, RunlaneError, UnknownThread
from runlane.store.threads.threads import find_thread
from runlane.submit.graphs import GraphRunRequest

router = agent_router("thread streams")

# The stream modes of a run, because its readers choose channels later.
_MODES: Final = (
    StreamMode.VALUES.value,
    StreamMode.UPDATES.value,
    StreamMode.MESSAGES_TUPLE.value,
    StreamMode.TOOLS.value,
    StreamMode.TASKS.value,
    StreamMode.CUSTOM.value,
    StreamMode.CHECKPOINT_IDS.value,
)
_NO_INTERRUPT: Final = "no_such_interrupt"
_INVALID: Final = "invalid_argument"
# Errors with any other status concern limits, access or outages, not the command.
_ABOUT_COMMANDS: Final = frozenset({400, 404, 409, 413, 422})
# Commands of the protocol for which the API has paths instead.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "subscription.subscribe": "POST /threads/{id}/stream/events",
    "subscription.unsubscribe": "POST /threads/{id}/stream/events",
    "subscription.reconnect": "POST /threads/{id}/stream/events with `since`",
    "agent.getTree": "GET /assistants/{id}/graph",
    "input.inject": "run.start",
    "state.get": "GET /threads/{id}/state",
    "state.listCheckpoints": "POST /threads/{id}/history",
    "state.fork": "POST /threads/{id}/runs with `checkpoint`",
}


class CommandRefused(Exception):
    """A command that cannot be performed, with a code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@router.post("/threads/{thread_id}/commands", response_model=dict[str, Any], responses=answers(429))
async def send_command(request: Request, principal: RunsWrite, thread_id: ThreadId, body: CommandMessage) -> JsonBody:
    """Perform a command: `run.start` or `input.respond`."""
    return JsonBody(await perform_command(request, principal, check_uuid(thread_id, "thread id"), body))


@router.post("/threads/{thread_id}/stream/events", response_class=Response, responses=answers(400, 404, 429))
async def stream_events(
    request: Request, principal: RunsRead, thread_id: ThreadId, body: EventsBody, last_event_id: LastEventId = None
) -> Response:
    """Stream the events of a thread, across runs and pauses. `since` or Last-Event-ID resumes after an event."""
    parts = parts_of(request)
    thread = await find_thread(parts.database, principal.tenant, thread_id)
    since = body.since if body.since is not None else _number(last_event_id)
    return ThreadEvents(await follow_events(parts, principal, thread, body.subscription, since, sse_frame))


class ThreadEvents(EventStream):
    """A stream that breaks off when this process stops, because clients reconnect after a break only."""

    async def _stream(self, send: Send) -> None:
        async def unless_last(message: Message) -> None:
            if message.get("more_body") is not False or self._follower.complete:
                await send(message)

        await super()._stream(unless_last)


async def perform_command(
    connection: HTTPConnection, principal: Principal, thread_id: str, command: CommandMessage
) -> dict[str, Any]:
    """Perform a command and return the response. Raise the errors that concern limits, access and outages."""
    try:
        if command.method in _ELSEWHERE:
            raise CommandRefused(
                "not_supported", f'"{command.method}" is not supported. Use {_ELSEWHERE[command.method]}.'
            )
        performer = _PERFORMERS.get(command.method)
        if performer is None:
            raise CommandRefused(
                "unknown_command", f'"{command.method}" is not a command. Use run.start or input.respond.'
            )
        run = await performer(connection, principal, thread_id, command.params)
    except CommandRefused as refused:
        return refuse(command.id, refused.code, str(refused))
    except ValidationError as error:
        return refuse(command.id, _INVALID, first_problem(error, "params"))
    except RunlaneError as error:
        if error.http_status not in _ABOUT_COMMANDS:
            raise
        return refuse(command.id, _INVALID, str(error))
    # A reader that resumes here receives all events of the run, or all events since the run was resumed.
    place = EventNumber(run.ordinal) if run.resumed_at is None else EventNumber(run.ordinal, run.resumed_at, MAX_PARTS)
    meta = {"applied_through_seq": place.to_int()}
    return {"type": "success", "id": command.id, "result": {"run_id": run.id}, "meta": meta}


def refuse(command_id: int | None, code: str, message: str) -> dict[str, Any]:
    """Return the response to a command that is not performed."""
    return {"type": "error", "id": command_id, "error": code, "message": message}


async def _start_run(
    connection: HTTPConnection, principal: Principal, thread_id: str, params: Mapping[str, Any]
) -> ThreadRun:
    body = ThreadRunBody.model_validate(dict(params))
    if body.on_completion is not None or body.after_seconds is not None:
        raise CommandRefused(_INVALID, "on_completion and after_seconds are not for run.start. Leave them out.")
    return await _started(connection, principal, replace(body.to_request(thread_id, None), creates=True))


async def _respond(
    connection: HTTPConnection, principal: Principal, thread_id: str, params: Mapping[str, Any]
) -> ThreadRun:
    wanted = RespondParams.model_validate(dict(params))
    answered = wanted.by_interrupt()
    try:
        parts = parts_of(connection)
        thread = await current(parts.database, await find_thread(parts.database, principal.tenant, thread_id))
    except UnknownThread as error:
        raise CommandRefused(_NO_INTERRUPT, str(error)) from None
    known = {item["id"] for items in thread.interrupts.values() for item in items}
    unknown = [name for name in answered if name not in known]
    if thread.status is not ThreadStatus.INTERRUPTED or unknown:
        name = (unknown or list(answered))[0]
        raise CommandRefused(
            _NO_INTERRUPT,
            f'The thread "{thread_id}" is {thread.status} and has no open interrupt "{name}". '
            f"Open interrupts: {', '.join(sorted(known)) or 'none'}.",
        )
    if thread.native is not None:
        return await resume_run(parts, principal, thread, wanted.command(answered))
    body = ThreadRunBody.model_validate(
        {"assistant_id": thread.metadata["assistant_id"], "command": wanted.command(answered), **wanted.options()}
    )
    # The first answer is used. A second answer must not be applied to the next question.
    request = replace(body.to_request(thread_id, None), strategy=MultitaskStrategy.REJECT)
    try:
        return await _started(connection, principal, request)
    except Conflict as error:
        raise CommandRefused(_NO_INTERRUPT, str(error)) from None


async def _started(connection: HTTPConnection, principal: Principal, wanted: GraphRunRequest) -> ThreadRun:
    request = replace(wanted.request, stream_mode=_MODES, stream_subgraphs=True)
    return (await start(connection, principal, [replace(wanted, request=request)]))[0]


def _number(last_event_id: str | None) -> int | None:
    if not last_event_id or last_event_id in ("-1", "-"):
        return None
    if not last_event_id.isascii() or not last_event_id.isdecimal() or len(last_event_id) > 16:
        raise ImpossibleEvent(f"Last-Event-ID {last_event_id[:40]!r} is not the number of an event of a thread.")
    return int(last_event_id)


Performer = Callable[[HTTPConnection, Principal, str, Mapping[str, Any]], Awaitable[ThreadRun]]
_PERFORMERS: Final[Mapping[str, Performer]] = {"run.start": _start_run, "input.respond": _respond}
