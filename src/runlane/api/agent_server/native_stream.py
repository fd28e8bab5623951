"""Follow a run of an agent or orchestration in the way LangGraph's clients follow a graph.

A question ends the stream of a run, as an interrupt ends the stream of a graph, although the run is only paused and
continues with the answer. The stream of a thread continues after the question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import orjson

from runlane.api.agent_server.frames import GraphEncoding, control_frame
from runlane.api.agent_server.native_fold import INTERRUPT, NativeFold
from runlane.api.agent_server.native_questions import interrupts_of
from runlane.api.agent_server.run_stream import end_frames, final_values
from runlane.api.error_responses import ImpossibleEvent
from runlane.api.openai.questions import open_questions
from runlane.api.services import Services
from runlane.api.tail import Follower
from runlane.domain.access import Principal
from runlane.domain.events import EventType
from runlane.domain.graph import ThreadRunStatus
from runlane.domain.native_thread import MESSAGES, ThreadMessage
from runlane.domain.run import Status
from runlane.domain.text import load_json
from runlane.domain.thread import Thread, ThreadRun
from runlane.errors import RunlaneError
from runlane.store.queue.events import read_positions
from runlane.store.queue.runs import find_run
from runlane.store.sql.database import Database
from runlane.store.threads.native_runs import messages_before
from runlane.store.threads.thread_runs import RunResult, read_result

_DATA: Final = b"data: "
_CURSOR: Final = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,10}))?")


@dataclass(frozen=True, slots=True)
class NativePosition:
    """The position of a reader: after this event, with N characters of the message that was open then."""

    seq: int = 0
    characters: int = 0

    @classmethod
    def parse(cls, text: str | None, last_seq: int) -> NativePosition:
        """Return the position of an event id. `-1` and an empty id are the position before the first event."""
        if not text or text in ("-1", "-"):
            return cls()
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ImpossibleEvent(f"Last-Event-ID {text[:40]!r} is not an event number. Use -1 for everything.")
        if int(found[1]) > last_seq:
            raise ImpossibleEvent(f"The run has {last_seq} events; {text} does not exist.")
        return cls(int(found[1]), int(found[2] or 0))


class NativeRunFollower:
    """One reader of one run, with the interface of Follower. `ends_at_questions` is False for streams of threads."""

    def __init__(
        self,
        database: Database,
        follower: Follower,
        fold: NativeFold,
        encoding: GraphEncoding,
        position: NativePosition,
        *,
        ends_at_questions: bool = True,
        numbers_text: bool = True,
    ) -> None:
        self._database = database
        self._follower = follower
        self._fold = fold
        self._encoding = encoding
        self._position = position
        self._ends_at_questions = ends_at_questions
        self._numbers_text = numbers_text
        self._seq = 0
        self._paused = False
        self._ended = False
        self._asked: list[dict[str, Any]] | None = None

    @property
    def ended(self) -> bool:
        """True when the stream has ended and all events were returned."""
        return self._ended or (self._follower.ended and not self._follower.complete)

    @property
    def complete(self) -> bool:
        """Whether the stream ended because its run has ended or asks a question."""
        return self._ended

    @property
    def refusal(self) -> RunlaneError | None:
        """The reason why the reader's access was revoked, if it was."""
        return self._follower.refusal

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending; empty after the timeout or when the stream has ended."""
        out = [self._frames(event) for event in _events(await self._follower.next(timeout_seconds))]
        if self._paused:
            waits = await open_questions(self._database, self._fold.run_id, self._seq)
            if waits:
                self._asked = interrupts_of(waits)
                out.append(self._encoding.frames(self._fold.asked(self._asked), str(self._seq)))
                self._paused = False
                if self._ends_at_questions:
                    self._ended = True
                    out.append(_end(self._fold.run_id))
        if self._follower.ended and self._follower.complete and not self._ended:
            out.append(await end_frames(partial(read_result, self._database), self._fold.run_id))
            self._ended = True
        return b"".join(out)

    def final(self, found: RunResult) -> Any:
        """Return the values after the run with its open questions, or its error if it failed."""
        if found.status is Status.FAILED:
            return final_values(found, None)
        return self._fold.values if self._asked is None else {**self._fold.values, INTERRUPT: self._asked}

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._follower.when_closed(call)

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked."""
        self._follower.revoke(why)

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._follower.close()

    def _frames(self, event: dict[str, Any]) -> bytes:
        if "seq" not in event:
            found = self._fold.live(event)
            number = f"{self._seq}.{self._fold.open_characters}" if self._numbers_text else str(self._seq)
            return self._encoding.frames(found, number) if self._seq >= self._position.seq else b""
        self._seq = event["seq"]
        self._paused = event["type"] == EventType.PAUSED
        found = self._fold.stored(event)
        if self._seq == self._position.seq:
            self._fold.skip = self._position.characters
        return self._encoding.frames(found, str(self._seq)) if self._seq > self._position.seq else b""


def _end(run_id: str) -> bytes:
    return control_frame("end", {"run_id": run_id, "status": ThreadRunStatus.SUCCESS.value})


def _events(frames: bytes) -> Iterator[dict[str, Any]]:
    for line in frames.split(b"\n"):
        if line.startswith(_DATA):
            yield orjson.loads(line[len(_DATA) :])


async def native_fold(database: Database, thread: Thread, run: ThreadRun) -> NativeFold:
    """Return the state of the thread before a run."""
    found = await find_run(database, run.id)
    count = await messages_before(database, thread.key, run.ordinal)
    values = cast("Mapping[str, Any]", thread.values or {})
    messages: Sequence[ThreadMessage] = list(values.get(MESSAGES) or ())[:count]
    given = found.input if isinstance(found.input, dict) else load_json("{}")
    return NativeFold(run.id, found.target, messages, given.get("message", ""))


async def follow_native(
    parts: Services,
    principal: Principal,
    thread: Thread,
    run: ThreadRun,
    modes: Sequence[str],
    last_event_id: str | None,
) -> NativeRunFollower:
    """Return a reader of a run after an event."""
    positions = await read_positions(parts.database, [run.id])
    position = NativePosition.parse(last_event_id, positions[0].last_seq if positions else 0)
    fold = await native_fold(parts.database, thread, run)
    follower = await parts.follow(principal, run.id, 0)
    return NativeRunFollower(parts.database, follower, fold, GraphEncoding(modes), position)
