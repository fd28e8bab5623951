"""Follow a run for a client: progress while it runs, and its state at the end of the wait.

A run does not depend on the call that started it. It is stored before the first progress notification, which contains
its id, so a client that lost its connection finds the run by its id. A wait ends when the run has ended, when it asks a
person a question, or at the timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from runlane import queries
from runlane.api.mcp.tool import CallContext, ToolAnswer
from runlane.api.tail import Follower
from runlane.domain.events import EventType, LiveType
from runlane.domain.run import Run, Status
from runlane.domain.wire import to_dict
from runlane.templates.template import text_of

_DATA: Final = b"data: "
_SHOWN: Final = 200
# Pieces of a model's answer are not reported, because each token would be a notification.
_TEXT: Final = frozenset({LiveType.TEXT, LiveType.THINKING, LiveType.ARGUMENTS})
_STEP: Final = 0.001


class RunProgress:
    """Reports the events of a run. The progress number increases with each notification, as the protocol requires."""

    def __init__(self, caller: CallContext) -> None:
        self._report = caller.report
        self._sent = -1.0

    async def accepted(self, run_id: str, status: Status) -> None:
        """Report the id of the run, which a client needs to find it again."""
        await self._send(0.0, f"Run {run_id} is {status.value}.")

    async def add(self, frames: bytes) -> bool:
        """Report the last of these events. Return whether the run may wait for a person."""
        paused, last = False, None
        for event in _events(frames):
            paused = paused or event["type"] in (EventType.PAUSED, EventType.HUMAN_INPUT_REQUIRED)
            if event["type"] not in _TEXT:
                last = event
        if last is not None:
            await self._send(float(last.get("seq", 0)), _line(last))
        return paused

    async def _send(self, number: float, message: str) -> None:
        self._sent = max(number, self._sent + _STEP)
        await self._report(self._sent, message)


async def follow_run(caller: CallContext, run_id: str, after: int, wait_seconds: float) -> Run:
    """Report events after a number, and return the run at the end of the wait.

    The caller has checked the access to the run.
    """
    parts, progress = caller.parts, RunProgress(caller)
    run = await queries.get_run(parts.database, run_id)
    await progress.accepted(run_id, run.status)
    if run.status.terminal or asks_person(run) or wait_seconds <= 0:
        return run
    follower = await parts.follow(caller.principal, run_id, min(after, run.last_seq))
    try:
        async with asyncio.timeout(wait_seconds):
            await _until_it_matters(caller, follower, progress, run_id)
    except TimeoutError:
        pass
    finally:
        follower.close()
    if follower.refusal is not None:
        raise follower.refusal
    return await queries.get_run(parts.database, run_id)


async def _until_it_matters(caller: CallContext, follower: Follower, progress: RunProgress, run_id: str) -> None:
    while not follower.ended:
        # The caller bounds the wait.
        paused = await progress.add(await follower.next(60.0))
        if paused and asks_person(await queries.get_run(caller.parts.database, run_id)):
            return


def asks_person(run: Run) -> bool:
    """Return whether the run waits for the answer of a person."""
    return any(question.kind == "human" and question.answered_at_us is None for question in run.waiting_for)


def run_answer(run: Run, **more: Any) -> ToolAnswer:
    """Return the state of a run for a model: its id, and its result, its error or the waits that are open."""
    value: dict[str, Any] = {
        "run_id": run.id,
        "status": run.status.value,
        "target": run.target,
        "last_seq": run.last_seq,
    }
    value |= more
    if run.status is Status.COMPLETED:
        value["result"] = run.result
        return ToolAnswer(value, text=text_of(run.result))
    if run.status is Status.FAILED:
        value["error"] = (
            {name: run.error[name] for name in ("code", "type", "message") if name in run.error} if run.error else {}
        )
        message = value["error"].get("message", "")
        return ToolAnswer(value, failed=True, text=f"Run {run.id} failed: {message}")
    if run.status is Status.CANCELLED:
        return ToolAnswer(value, failed=True, text=f"Run {run.id} was cancelled.")
    if asks_person(run):
        questions = [to_dict(item) for item in run.waiting_for if item.kind == "human" and item.answered_at_us is None]
        value["questions"] = questions
        first = questions[0]["prompt"] or "It needs an answer."
        value["hint"] = f"Run {run.id} waits for an answer of a person: {first} Answer with answer_run."
    else:
        value["progress"], value["progress_note"] = run.progress, run.progress_note
        value["hint"] = f"Run {run.id} has not ended. Call follow_run with its run_id to wait for its result."
    return ToolAnswer(value)


def _events(frames: bytes) -> Iterator[Mapping[str, Any]]:
    for line in frames.split(b"\n"):
        if line.startswith(_DATA):
            yield orjson.loads(line[len(_DATA) :])


def _line(event: Mapping[str, Any]) -> str:
    """Return an event as a line for people."""
    if event["type"] == LiveType.PROGRESS:
        fraction, note = event.get("progress"), event.get("note")
        done = f"{fraction:.0%}" if isinstance(fraction, float | int) else ""
        return " ".join(part for part in (done, note) if part)[:_SHOWN]
    about = next((event[name] for name in ("message", "path", "status", "prompt", "tool") if event.get(name)), "")
    return f"{event['type']}: {about}"[:_SHOWN] if isinstance(about, str) and about else str(event["type"])
