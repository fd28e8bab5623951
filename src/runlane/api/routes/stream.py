"""The live stream of a run: SSE with event numbers as ids, which Last-Event-ID resumes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request
from starlette.responses import Response

from runlane.api.auth import RunsRead
from runlane.api.error_responses import ImpossibleEvent, answers
from runlane.api.router import RawRouter
from runlane.api.routes.runs import MAX_SEQ
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.services import parts_of
from runlane.api.sse import EventStream

router = RawRouter(tags=["runs"])

_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One frame per event: `id` is its number, `data` its JSON. Live values such as progress have "
        "no id. The stream ends after `done`; a reader that reconnects after the end gets `stream_complete`. If "
        "the next events of the reader were deleted, `truncated` names the first stored one.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "data": {"type": "string"}},
                },
                "example": 'id: 1\ndata: {"type":"queued","seq":1,"run_id":"run_1","attempt":0,'
                '"at":"2026-01-31T12:00:00.000000Z","status":"queued"}\n\n',
            }
        },
    }
}


@router.get("/{run_id}/stream", response_class=Response, responses={**answers(404), **_STREAM})
async def stream_run(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    last_event_id: Annotated[
        str | None, Header(description="The number of the last event that the reader has received.")
    ] = None,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_SEQ, description="Like Last-Event-ID, for clients without headers.")
    ] = None,
) -> Response:
    """Follow a run: stored events after the given number, then live events until the run has ended."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    number = after or 0
    if last_event_id:
        if _NUMBER.fullmatch(last_event_id) is None:
            raise ImpossibleEvent(f"Last-Event-ID {last_event_id[:40]!r} is not an event number.")
        number = int(last_event_id)
    if number > standing.last_seq:
        raise ImpossibleEvent(f"Run {run_id} has {standing.last_seq} events; {number} does not exist.")
    return EventStream(await parts.follow(principal, run_id, number))
