"""Chat completions: an answer as one object, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from runlane.api.openai.errors import error_body
from runlane.api.openai.fold import AnswerFold, Piece, PieceKind
from runlane.api.openai.ids import COMPLETION
from runlane.api.openai.questions import with_mark
from runlane.api.openai.reader import Ending, Subject
from runlane.domain.run import Status
from runlane.errors import RunlaneError

# Separates the messages of several model turns.
_SEPARATOR: Final = "\n\n"
_AGAIN: Final = "\n\n[The answer was interrupted and begins again.]\n\n"
_DONE: Final = b"data: [DONE]\n\n"


def completion(subject: Subject, fold: AnswerFold, ending: Ending) -> dict[str, Any]:
    """Return the completion of an answer that has ended."""
    content = _SEPARATOR.join(fold.texts)
    if ending.question_at is not None:
        content = with_mark(content, ending.question_at)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {**_head(subject, "chat.completion"), "choices": [choice], "usage": usage(fold)}


def usage(fold: AnswerFold) -> dict[str, Any] | None:
    """Return the tokens of all model calls; None if their events are no longer stored."""
    if fold.truncated:
        return None
    total = fold.tokens_in + fold.tokens_out
    return {"prompt_tokens": fold.tokens_in, "completion_tokens": fold.tokens_out, "total_tokens": total}


class ChunkRenderer:
    """Encode an answer as chunks of a chat completion."""

    asks_in_text = True

    def __init__(self, subject: Subject, *, include_usage: bool) -> None:
        self._head = _head(subject, "chat.completion.chunk")
        self._include_usage = include_usage
        self._sent = False
        self._withdrawn = False

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes:
        if piece.kind is PieceKind.WITHDRAWN:
            self._withdrawn = True
        if piece.kind is PieceKind.OPENED and self._sent:
            between = _AGAIN if self._withdrawn else _SEPARATOR
            self._withdrawn = False
            return self._chunk({"content": between})
        if piece.kind is not PieceKind.TEXT:
            return b""
        self._sent = True
        return self._chunk({"content": piece.text})

    def event(self, event: Mapping[str, Any]) -> bytes:
        return b""

    def end(self, fold: AnswerFold, ending: Ending) -> bytes:
        if ending.status in (Status.FAILED, Status.CANCELLED):
            return _frame(error_body(500, ending.message, ending.code))
        frames = [self._chunk({}, "stop")]
        if ending.question_at is not None:
            frames.insert(0, self._chunk({"content": with_mark("", ending.question_at)}))
        if self._include_usage:
            frames.append(_frame({**self._head, "choices": [], "usage": usage(fold)}))
        return b"".join([*frames, _DONE])

    def broken(self, error: RunlaneError) -> bytes:
        return _frame(error_body(error.http_status, str(error), error.code))

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        more = {"usage": None} if self._include_usage else {}
        return _frame({**self._head, "choices": [choice], **more})


def _head(subject: Subject, kind: str) -> dict[str, Any]:
    return {
        "id": subject.id.text(COMPLETION),
        "object": kind,
        "created": subject.created,
        "model": subject.agent,
    }


def _frame(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
