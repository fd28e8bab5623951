"""Follow a run of a thread: the events of its graph, then its result.

The reader uses the tail like any reader of runs. The result is read once, when the log is complete: the frame `error`
for a failed run, then the frame `end` in any case.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from runlane.api.agent_server.frames import GraphEncoding, control_frame
from runlane.api.error_responses import ImpossibleEvent
from runlane.api.services import Services
from runlane.api.tail import Follower
from runlane.domain.access import Principal
from runlane.domain.graph import run_status
from runlane.domain.run import Status
from runlane.errors import RunlaneError, RunNotFound
from runlane.store.queue.events import read_positions
from runlane.store.sql.shared_reads import SharedReads
from runlane.store.threads.thread_runs import RunResult

_NUMBER: Final = re.compile(r"[0-9]{1,10}")


class RunFollower:
    """One reader of one run of a thread, with the interface of Follower."""

    __slots__ = ("_ended", "_follower", "_results", "_run_id")

    def __init__(self, results: SharedReads[str, RunResult], run_id: str, follower: Follower) -> None:
        self._results = results
        self._run_id = run_id
        self._follower = follower
        self._ended = False

    @property
    def ended(self) -> bool:
        """True when the run has ended and all events were returned."""
        return self._ended or (self._follower.ended and not self._follower.complete)

    @property
    def complete(self) -> bool:
        """Whether the stream ended because its run did."""
        return self._follower.complete

    @property
    def refusal(self) -> RunlaneError | None:
        """The reason why the reader's access was revoked, if it was."""
        return self._follower.refusal

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending; empty after the timeout or when the stream has ended."""
        waiting = await self._follower.next(timeout_seconds)
        if self._follower.ended and self._follower.complete and not self._ended:
            waiting += await end_frames(self._results.get, self._run_id)
            self._ended = True
        return waiting

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._follower.when_closed(call)

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked."""
        self._follower.revoke(why)

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._follower.close()


async def end_frames(read: Callable[[str], Awaitable[RunResult]], run_id: str) -> bytes:
    """Return the last frames of a run that has ended."""
    try:
        found = await read(run_id)
    except RunNotFound:
        return control_frame("end", None)
    failure = b"" if found.error is None else control_frame("error", wire_error(found))
    return failure + control_frame("end", {"run_id": run_id, "status": run_status(found.status).value})


def wire_error(found: RunResult) -> dict[str, Any]:
    """Return the error of a failed run in the form that LangGraph's clients expect."""
    error = found.error or {}
    return {"error": error.get("type", "Error"), "message": error.get("message", "")}


async def follow_run(
    parts: Services, principal: Principal, run_id: str, modes: Sequence[str], last_event_id: str | None
) -> RunFollower:
    """Return a reader of a run after an event. `-1` and an empty id are the position before the first event."""
    after = await _position(parts, run_id, last_event_id)
    encoding = GraphEncoding(modes, after)
    return RunFollower(parts.results, run_id, await parts.follow(principal, run_id, encoding.reads_after, encoding))


def follow_new_run(parts: Services, principal: Principal, run_id: str, modes: Sequence[str]) -> RunFollower:
    """Return a reader of a run that this request has accepted."""
    return RunFollower(parts.results, run_id, parts.follow_new(principal, run_id, GraphEncoding(modes, 0)))


async def _position(parts: Services, run_id: str, last_event_id: str | None) -> int:
    if not last_event_id or last_event_id in ("-1", "-"):
        return 0
    if _NUMBER.fullmatch(last_event_id) is None:
        raise ImpossibleEvent(f"Last-Event-ID {last_event_id[:40]!r} is not an event number. Use -1 for everything.")
    positions = await read_positions(parts.database, [run_id])
    if not positions:
        raise RunNotFound(run_id)
    if int(last_event_id) > positions[0].last_seq:
        raise ImpossibleEvent(f"Run {run_id} has {positions[0].last_seq} events; {last_event_id} does not exist.")
    return int(last_event_id)


def final_values(found: RunResult, values: Any) -> Any:
    """Return the response body for a client that waited for a run: its values, or its error."""
    if found.status is Status.FAILED:
        return {"__error__": wire_error(found)}
    if found.result is not None:
        return found.result
    return {} if values is None else values
