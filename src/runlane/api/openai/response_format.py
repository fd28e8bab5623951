"""Responses: an answer as one object, or as a stream of numbered events that can be resumed by number.

A number consists of the number of the run's event from which a frame is derived, and a position after the event. The
position of live text is the number of characters sent. So a frame has the same number in every process, and a client
that resumes after a number receives the frames that follow. Numbers increase; they are not consecutive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from runlane.api.openai.errors import error_body
from runlane.api.openai.fold import AnswerFold, Piece, PieceKind
from runlane.api.openai.ids import RESPONSE
from runlane.api.openai.parameters import metadata_of
from runlane.api.openai.reader import Ending, ResumePoint, Subject
from runlane.domain.run import Status
from runlane.errors import RunlaneError

# Positions after an event: fixed positions for frames that are derived from it, then positions of live text.
_STRIDE: Final = 2**21
_WITHDRAWN, _ADDED, _PART_ADDED, _TEXT, _TEXT_DONE, _PART_DONE, _ITEM_DONE, _END = range(8)
_LIVE: Final = 64
_LAST: Final = _STRIDE - 1
MAX_NUMBER: Final = 2**31 * _STRIDE - 1
_STATUSES: Final = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.PAUSED: "incomplete",
}
_EVENTS: Final = {
    Status.COMPLETED: "response.completed",
    Status.FAILED: "response.failed",
    Status.CANCELLED: "response.failed",
    Status.PAUSED: "response.incomplete",
}


def response(subject: Subject, fold: AnswerFold, ending: Ending | None, previous: str | None = None) -> dict[str, Any]:
    """Return the current state of a response."""
    status = _STATUSES[ending.status] if ending is not None else "in_progress" if fold.started else "queued"
    failed = ending is not None and ending.status in (Status.FAILED, Status.CANCELLED)
    asked = ending is not None and ending.status is Status.PAUSED
    return {
        "id": subject.id.text(RESPONSE),
        "object": "response",
        "created_at": subject.created,
        "status": status,
        "error": {"code": ending.code, "message": ending.message} if ending is not None and failed else None,
        "incomplete_details": {"reason": "input_required"} if asked else None,
        "model": subject.agent,
        "output": [message(subject, index, text, "completed") for index, text in enumerate(fold.texts)],
        "conversation": None if subject.session_id is None else {"id": subject.session_id},
        "previous_response_id": previous,
        "instructions": None,
        "metadata": metadata_of(subject.tags),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if ending is None else _usage(fold),
    }


def message(subject: Subject, index: int, text: str | None, status: str) -> dict[str, Any]:
    """Return an output item. Without text, the item has no content yet."""
    content = [] if text is None else [_part(text)]
    return {
        "id": _item_id(subject, index),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def resume_point(number: int) -> ResumePoint:
    """Return the position of a client that has received the frames up to this number."""
    seq, position = divmod(number, _STRIDE)
    opened = position >= _LIVE + _ADDED
    return ResumePoint(seq, max(0, position - _LIVE - _TEXT) if opened else None)


class ResponseRenderer:
    """Encode an answer as numbered events. Events up to `after` are omitted."""

    asks_in_text = True

    def __init__(self, subject: Subject, previous: str | None = None, after: int = -1) -> None:
        self._subject = subject
        self._previous = previous
        self._after = after
        self._last = -1

    def begin(self) -> bytes:
        body = response(self._subject, AnswerFold(), None, self._previous)
        base = self._subject.id.after * _STRIDE
        created = self._frame("response.created", base, response=body)
        return created + self._frame("response.in_progress", base + 1, response={**body, "status": "in_progress"})

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes:
        base, index = seq * _STRIDE + (_LIVE if live else 0), piece.index
        place = {"item_id": _item_id(self._subject, index), "output_index": index, "content_index": 0}
        if piece.kind is PieceKind.OPENED:
            item = message(self._subject, index, None, "in_progress")
            added = self._frame("response.output_item.added", base + _ADDED, output_index=index, item=item)
            return added + self._frame("response.content_part.added", base + _PART_ADDED, part=_part(""), **place)
        if piece.kind is PieceKind.TEXT:
            number = min(base + _TEXT + piece.end, seq * _STRIDE + _LAST) if live else base + _TEXT
            return self._frame("response.output_text.delta", number, delta=piece.text, logprobs=[], **place)
        if piece.kind is PieceKind.WITHDRAWN:
            item = message(self._subject, index, piece.text, "incomplete")
            return self._frame("response.output_item.done", base + _WITHDRAWN, output_index=index, item=item)
        item = message(self._subject, index, piece.text, "completed")
        return (
            self._frame("response.output_text.done", base + _TEXT_DONE, text=piece.text, logprobs=[], **place)
            + self._frame("response.content_part.done", base + _PART_DONE, part=_part(piece.text), **place)
            + self._frame("response.output_item.done", base + _ITEM_DONE, output_index=index, item=item)
        )

    def event(self, event: Mapping[str, Any]) -> bytes:
        return b""

    def end(self, fold: AnswerFold, ending: Ending) -> bytes:
        body = response(self._subject, fold, ending, self._previous)
        return self._frame(_EVENTS[ending.status], fold.seq * _STRIDE + _END, response=body)

    def broken(self, error: RunlaneError) -> bytes:
        # Clients raise an error for this format. It has no number because the answer has not ended.
        return b"event: error\ndata: " + orjson.dumps(error_body(error.http_status, str(error), error.code)) + b"\n\n"

    def _frame(self, kind: str, number: int, **fields: Any) -> bytes:
        if number <= self._after:
            return b""
        self._last = max(number, self._last + 1)
        body = orjson.dumps({"type": kind, "sequence_number": self._last, **fields})
        return f"event: {kind}\ndata: ".encode() + body + b"\n\n"


def _item_id(subject: Subject, index: int) -> str:
    return f"msg_{subject.id.text('')}_{index}"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(fold: AnswerFold) -> dict[str, Any] | None:
    if fold.truncated:
        return None
    return {
        "input_tokens": fold.tokens_in,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": fold.tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": fold.tokens_in + fold.tokens_out,
    }
