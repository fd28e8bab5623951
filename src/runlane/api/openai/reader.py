"""Read the answer of a run: live as frames of a stream, until its end, or in its current state.

The reader follows the run like every reader of events. It ends when the run ends or asks a person a question, because
then the client must continue the conversation. If a run waits for something else, the stream stays open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson

from runlane.api.openai.errors import ServerStopping
from runlane.api.openai.fold import AnswerFold, Piece
from runlane.api.openai.ids import AnswerId
from runlane.api.openai.questions import open_questions, question_text
from runlane.api.sse_encoding import line_json
from runlane.api.tail import Follower
from runlane.domain.run import Run, Status
from runlane.errors import RunlaneError
from runlane.store.orchestration.waits import Wait
from runlane.store.queue.events import read_page
from runlane.store.queue.runs import find_run
from runlane.store.sql.database import Database
from runlane.templates.template import text_of

_PAGE: Final = 500
_DATA: Final = b"data: "
_NO_DETAILS: Final[Mapping[str, Any]] = {"code": "failed", "message": "The run failed."}


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer: the status of its run, or PAUSED for the questions at this event."""

    status: Status
    code: str = ""
    message: str = ""
    question_at: AnswerId | None = None
    questions: tuple[Wait, ...] = ()
    result: Any = None


class Subject(NamedTuple):
    """The answer that is read, and the values that every format of it contains."""

    id: AnswerId
    agent: str
    created: int
    session_id: str | None
    tags: tuple[str, ...]

    @classmethod
    def of(cls, run: Run, after: int = 0) -> Subject:
        """Return the answer of a run, or its part after an event."""
        chat: Mapping[str, Any] = (run.plan or {}).get("chat") or {}
        created = run.accepted_at_us // 1_000_000
        return cls(AnswerId(run.id, after), run.agent or "", created, chat.get("session_id"), run.tags)


class ResumePoint(NamedTuple):
    """The position of a client: after this event and, if a message was open then, after N characters of the message."""

    seq: int = 0
    open_characters: int | None = None


class Renderer(Protocol):
    """Encodes an answer as frames. `asks_in_text` is true if a question becomes a message of the answer."""

    asks_in_text: bool

    def begin(self) -> bytes: ...

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes: ...

    def event(self, event: Mapping[str, Any]) -> bytes: ...

    def end(self, fold: AnswerFold, ending: Ending) -> bytes: ...

    def broken(self, error: RunlaneError) -> bytes: ...


class Silent:
    """Encodes nothing, for an answer that is returned as a whole."""

    asks_in_text = True

    def begin(self) -> bytes:
        return b""

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes:
        return b""

    def event(self, event: Mapping[str, Any]) -> bytes:
        return b""

    def end(self, fold: AnswerFold, ending: Ending) -> bytes:
        return b""

    def broken(self, error: RunlaneError) -> bytes:
        return b""


class AnswerReader:
    """One reader of one answer, with the interface of StreamFollower."""

    # The renderer adds the last frame, so the stream adds none.
    complete = False

    def __init__(
        self,
        database: Database,
        follower: Follower,
        subject: Subject,
        renderer: Renderer,
        resume: ResumePoint | None = None,
    ) -> None:
        self._database = database
        self._follower = follower
        self._subject = subject
        self._renderer = renderer
        self._resume = resume
        self._out: list[bytes] = [renderer.begin()]
        self._unchecked = False
        self.fold = AnswerFold(seq=subject.id.after)
        self.ending: Ending | None = None
        self.refusal: RunlaneError | None = None
        self.failure: RunlaneError | None = None
        self._continue_open()

    @property
    def ended(self) -> bool:
        """True when the answer has ended or cannot be read further, and all frames were returned."""
        return (self.ending is not None or self.failure is not None) and not self._out

    async def next(self, timeout_seconds: float) -> bytes:
        """Return the pending frames; empty after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while not any(self._out) and self.ending is None and self.failure is None:
            left = deadline - time.monotonic()
            # A cancelled call has read events after which the end was not checked.
            if not self._unchecked:
                self._add(await self._follower.next(max(0.0, left)))
            self._unchecked = True
            await self._check_end()
            self._unchecked = False
            if left <= 0:
                break
        waiting = b"".join(self._out)
        self._out.clear()
        return waiting

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._follower.close()

    def _add(self, frames: bytes) -> None:
        for event in _events(frames):
            pieces = self.fold.add(event)
            self._out += [self._renderer.piece(piece, self.fold.seq, live="seq" not in event) for piece in pieces]
            self._out.append(self._renderer.event(event))
            self._continue_open()

    def _continue_open(self) -> None:
        if self._resume is not None and self.fold.seq >= self._resume.seq:
            if self._resume.open_characters is not None and self.fold.seq == self._resume.seq:
                self.fold.resume_open(self._resume.open_characters)
            self._resume = None

    async def _check_end(self) -> None:
        outcome, follower = self.fold.outcome, self._follower
        if outcome is not None and (follower.ended or outcome.status is Status.PAUSED):
            self.ending, last = await find_ending(self._database, self._subject.id.run_id, self.fold)
            if self.ending is not None and (not self.ending.questions or self._renderer.asks_in_text):
                pieces = self.fold.add_text(last)
                self._out += [self._renderer.piece(piece, self.fold.seq, live=False) for piece in pieces]
        if self.ending is not None:
            self._out.append(self._renderer.end(self.fold, self.ending))
        elif follower.ended:
            self.failure = follower.refusal or ServerStopping(
                f"This server is stopping. The run {self._subject.id.run_id} continues; read its answer by its id."
            )
            self._out.append(self._renderer.broken(self.failure))


async def read_now(database: Database, subject: Subject) -> tuple[AnswerFold, Ending | None]:
    """Return the current answer, without waiting."""
    fold, run_id = AnswerFold(seq=subject.id.after), subject.id.run_id
    while lines := await read_page(database, run_id, fold.seq, _PAGE):
        fold.truncated = fold.truncated or lines[0].seq != fold.seq + 1
        for line in lines:
            exhaust(fold.add(orjson.loads(line_json(run_id, line))))
    if fold.outcome is None:
        return fold, None
    ending, last = await find_ending(database, run_id, fold)
    exhaust(fold.add_text(last))
    return fold, ending


async def find_ending(database: Database, run_id: str, fold: AnswerFold) -> tuple[Ending | None, str]:
    """Return how the answer ends, and the last message if no event contains it. None if the run has not ended."""
    outcome = fold.outcome
    if outcome is None:
        return None, ""
    if outcome.status is Status.PAUSED:
        waits = await open_questions(database, run_id, fold.seq)
        if not waits:
            return None, ""
        at = AnswerId(run_id, fold.seq)
        return Ending(Status.PAUSED, question_at=at, questions=waits), question_text(waits[0])
    if outcome.status is Status.COMPLETED:
        if fold.texts or not fold.truncated:
            return Ending(Status.COMPLETED, result=outcome.result), ""
        # The events with the text are no longer stored; the result is.
        result = (await find_run(database, run_id)).result
        return Ending(Status.COMPLETED, result=result), text_of(result)
    if outcome.status is Status.CANCELLED:
        return Ending(Status.CANCELLED, "cancelled", f"The run {run_id} was cancelled."), ""
    error = outcome.error or (await find_run(database, run_id)).error or _NO_DETAILS
    code = str(error.get("code") or error.get("type") or "failed")
    return Ending(Status.FAILED, code, f"The run {run_id} failed: {error.get('message', '')}"), ""


def exhaust(pieces: Iterable[Piece]) -> None:
    """Apply changes that are not sent to a reader."""
    for _ in pieces:
        pass


def _events(frames: bytes) -> Iterator[dict[str, Any]]:
    for line in frames.split(b"\n"):
        if line.startswith(_DATA):
            yield orjson.loads(line[len(_DATA) :])
