"""Send the answer of a run, as a stream or as a whole when the run has ended."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from starlette.responses import Response

from runlane.api.openai.errors import RunEnded
from runlane.api.openai.fold import AnswerFold
from runlane.api.openai.reader import AnswerReader, Ending, Renderer, ResumePoint, Silent, Subject
from runlane.api.services import parts_of
from runlane.api.sse import EventStream
from runlane.domain.access import Principal
from runlane.domain.run import Status

# The interval of the check whether the client has disconnected.
_CHECK_SECONDS = 5.0


async def stream_answer(
    request: Request,
    principal: Principal,
    subject: Subject,
    renderer: Renderer,
    headers: Mapping[str, str],
    resume: ResumePoint | None = None,
) -> Response:
    """Return the stream of an answer. The stream ends with the answer; a disconnect does not stop the run."""
    parts = parts_of(request)
    follower = await parts.follow(principal, subject.id.run_id, subject.id.after)
    return EventStream(AnswerReader(parts.database, follower, subject, renderer, resume), headers)


async def whole_answer(request: Request, principal: Principal, subject: Subject) -> tuple[AnswerFold, Ending] | None:
    """Wait for the end of an answer and return it; None if the client has disconnected."""
    parts = parts_of(request)
    follower = await parts.follow(principal, subject.id.run_id, subject.id.after)
    reader = AnswerReader(parts.database, follower, subject, Silent())
    try:
        while not reader.ended:
            await reader.next(_CHECK_SECONDS)
            if await request.is_disconnected():
                return None
    finally:
        reader.close()
    if reader.ending is None:
        raise reader.failure or RuntimeError("The reader has ended without an answer.")
    return reader.fold, reader.ending


def require_answer(ending: Ending) -> None:
    """Raise RunEnded if the run has failed or was cancelled."""
    if ending.status in (Status.FAILED, Status.CANCELLED):
        raise RunEnded(ending.code, ending.message)
