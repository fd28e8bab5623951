"""Fold the events of a run into the messages of its answer.

Each turn of the agent's own model is a message. Turns of agents that it calls as tools are not. A live piece extends
the open message. The stored event contains the whole text and closes the message. After a takeover the model may write
the same text again: text that begins with the sent text continues the message; different text withdraws the message and
starts a new message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from runlane.domain.events import EventType, LiveType
from runlane.domain.run import Status
from runlane.templates.template import text_of

# The step of an agent's run, and the answers of its own model turns.
_PATH: Final = "answer"
_TURN: Final = re.compile(r"[0-9]+/model/[0-9]+")


class PieceKind(Enum):
    """The change of a message."""

    OPENED = auto()
    TEXT = auto()
    CLOSED = auto()
    WITHDRAWN = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """A change of a message. `index` is the number of the message, `text` its new text; the whole text if it is closed.

    `end` is the number of characters of the message that have been sent.
    """

    kind: PieceKind
    index: int
    text: str = ""
    end: int = 0


@dataclass(slots=True)
class _Open:
    """The message that is being written.

    `sent` is the text that the client has; `skip` is what it had before it reconnected.
    """

    index: int
    sent: str = ""
    skip: int = 0


@dataclass(frozen=True, slots=True)
class AnswerOutcome:
    """The end or the pause of a run."""

    status: Status
    result: Any = None
    error: Mapping[str, Any] | None = None


@dataclass(slots=True)
class AnswerFold:
    """The closed messages of the answer so far. `outcome` is set if the run has ended or is paused."""

    texts: list[str] = field(default_factory=list[str])
    tokens_in: int = 0
    tokens_out: int = 0
    seq: int = 0
    truncated: bool = False
    started: bool = False
    outcome: AnswerOutcome | None = None
    _attempt: int = 0
    _count: int = 0
    _open: _Open | None = None
    _live: str = ""
    _answer: str | None = None
    _result: Any = None
    _error: Mapping[str, Any] | None = None

    def resume_open(self, skip: int) -> None:
        """Continue a message of which the client has received this many characters."""
        if self._open is None:
            self._open = _Open(self._count, skip=skip)
            self._count += 1

    def add(self, event: Mapping[str, Any]) -> Iterator[Piece]:
        """Add an event and yield the resulting changes."""
        kind = event["type"]
        if "seq" not in event:
            if kind == LiveType.TRUNCATED:
                self.truncated = True
            elif kind == LiveType.TEXT:
                yield from self._add_live(event)
            return
        self.seq, self._attempt, self.outcome = event["seq"], max(self._attempt, event["attempt"]), None
        if kind == EventType.MODEL_RESPONSE:
            self.tokens_in += event["tokens_in"]
            self.tokens_out += event["tokens_out"]
            if is_own_turn(event):
                yield from self._close(event["text"])
        elif kind == EventType.DONE:
            yield from self._end(Status(event["status"]))
        elif kind == EventType.PAUSED:
            self.outcome = AnswerOutcome(Status.PAUSED)
        else:
            self._note(kind, event)

    def add_text(self, text: str) -> Iterator[Piece]:
        """Add a whole message that is not a model turn: a question, or a result that differs from every turn."""
        if text:
            yield from self._close(text)

    def _note(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == EventType.FINAL and "path" not in event:
            self._result = event["response"]
        elif kind in (EventType.ORCHESTRATION_COMPLETE, EventType.ATTEMPT_FAILED) and event.get("error"):
            self._error = event["error"]
        elif kind == EventType.PICKED_UP:
            self.started = True

    def _end(self, status: Status) -> Iterator[Piece]:
        if status is Status.COMPLETED and self._result is not None:
            text = text_of(self._result)
            if text and (not self.texts or self.texts[-1] != text):
                yield from self._close(text)
        self.outcome = AnswerOutcome(status, self._result, self._error)

    def _add_live(self, event: Mapping[str, Any]) -> Iterator[Piece]:
        # A lower attempt belongs to a worker that has lost the run.
        if not is_own_turn(event) or event["attempt"] < self._attempt:
            return
        if event["offset"] == 0:
            self._answer, self._live = event["answer"], ""
        if event["answer"] != self._answer or event["offset"] > len(self._live):
            # An earlier piece is missing. The stored event contains the whole text.
            return
        self._live = self._live[: event["offset"]] + event["text"]
        yield from self._extend(self._live)

    def _extend(self, text: str) -> Iterator[Piece]:
        """Yield the part of the text that the client does not have. The text may still grow."""
        if not text:
            return
        message = self._open
        if message is not None and message.skip:
            if len(text) <= message.skip:
                return
            message.sent, message.skip = text[: message.skip], 0
        if message is not None and message.sent.startswith(text):
            return
        if message is not None and not text.startswith(message.sent):
            yield Piece(PieceKind.WITHDRAWN, message.index, message.sent)
            message = None
        if message is None:
            message = self._open = _Open(self._count)
            self._count += 1
            yield Piece(PieceKind.OPENED, message.index)
        new, message.sent = text[len(message.sent) :], text
        yield Piece(PieceKind.TEXT, message.index, new, len(text))

    def _close(self, text: str) -> Iterator[Piece]:
        message, self._live, self._answer = self._open, "", None
        if message is not None and max(len(message.sent), message.skip) > len(text):
            # The client has received more than the stored text.
            yield Piece(PieceKind.WITHDRAWN, message.index, message.sent)
            self._open = None
        if not text:
            return
        yield from self._extend(text)
        if self._open is not None:
            yield Piece(PieceKind.CLOSED, self._open.index, text)
            self._open = None
        self.texts.append(text)


def is_own_turn(event: Mapping[str, Any]) -> bool:
    """Return whether an event belongs to a model turn of the agent itself."""
    return event.get("path") == _PATH and _TURN.fullmatch(event.get("answer", "")) is not None
