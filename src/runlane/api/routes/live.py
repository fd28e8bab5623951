"""Live hints for pages about changes, as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Header, Query, Request
from starlette.responses import Response

from runlane.api.auth import RunsRead
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.services import parts_of
from runlane.api.sse import EventStream

router = RawRouter(tags=["dashboard"])

_FRAMES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The first frame has the type `hello`, the others `hints`. Each hint has a `topic`, the "
        "`tenant` if it concerns one, and the `ids` of a few records. After the topic `all`, read everything again.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "data": {"type": "string"}},
                },
                "example": 'id: 0192f3-7\ndata: {"type":"hints","live":true,"hints":[{"topic":"runs",'
                '"tenant":"default","ids":["run_1"]}]}\n\n',
            }
        },
    }
}


@router.get("/live", response_class=Response, responses={**answers(429), **_FRAMES})
async def stream_hints(
    request: Request,
    principal: RunsRead,
    last_event_id: Annotated[str | None, Header(max_length=100, description="The id of the last frame.")] = None,
    after: Annotated[
        str | None, Query(max_length=100, description="Like Last-Event-ID, for clients without headers.")
    ] = None,
) -> Response:
    """Follow changes in the caller's tenant, at most four frames per second. Frames contain no data of records."""
    return EventStream(parts_of(request).follow_live(principal, last_event_id or after))
