"""The execution of one claimed run: call the function, turn what happens into the end of the attempt, store it.

An interruption has a reason: cancel, time-out, hand-back, or a lost lease. Async code is interrupted at once; a plain
function learns of it at its next call to its context. Code that does not stop in time is left alone and its run ends
without it: the fence refuses whatever it still tries to write.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import traceback
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import structlog

from runlane.domain.backoff import backoff_seconds
from runlane.domain.events import EventType
from runlane.domain.run import Status
from runlane.domain.task import Task
from runlane.domain.text import clean_text, dump_json, load_json
from runlane.errors import Fail, LeaseLost, Retry, RunCancelled
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish, Recorded, RecordEntry
from runlane.store.queue.redaction import redacted
from runlane.worker.context import Context
from runlane.worker.run_host import RunHost, WorkerHost

log = structlog.get_logger(__name__)

MAX_TRACEBACK_CHARACTERS = 32 * 1024
MAX_MESSAGE_CHARACTERS = 8 * 1024


class StopReason(StrEnum):
    """Why a run is stopped in the middle."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    HAND_BACK = "hand_back"
    LOST = "lost"


class Host(WorkerHost, Protocol):
    """The worker, as an execution sees it."""

    def interrupt(self, execution: Execution, reason: StopReason) -> None:
        """Interrupt an execution and see that it stops."""
        ...


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended, and what is written together with its end."""

    finish: Finish
    last_words: RecordEntry


class RunExecutor(Protocol):
    """What executes runs that are not one function."""

    async def run(self, claimed: Claimed, context: Context, host: RunHost) -> AttemptEnd:
        """Execute an attempt. Whatever it raises is the attempt's failure."""
        ...

    async def warm_up(self) -> None:
        """Load what is likely to be needed, before it is."""
        ...

    async def close(self) -> None:
        """Let go of what it uses."""
        ...


class Execution:
    """One attempt in this worker."""

    __slots__ = (
        "_calling",
        "_context",
        "_finish",
        "_host",
        "_job",
        "_last_words",
        "_reason",
        "_status",
        "_worker",
        "abandoned",
        "claimed",
        "ending",
        "task",
    )

    def __init__(self, claimed: Claimed, job: Task | RunExecutor, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self.claimed = claimed
        self._job = job
        self._last_words: RecordEntry | None = None
        self._worker = host
        self._host = RunHost(host)
        self._context = Context(claimed, self._host, loop)
        self._calling = False
        self._reason: StopReason | None = None
        self._finish: Finish | None = None
        self._status: Status | None = None
        self.ending = False
        self.abandoned = False
        self.task: asyncio.Task[None] | None = None

    @property
    def _interruptible(self) -> bool:
        return not isinstance(self._job, Task) or self._job.is_async

    @property
    def _timeout_seconds(self) -> float | None:
        return self._job.timeout_seconds if isinstance(self._job, Task) else None

    @property
    def reason(self) -> StopReason | None:
        """Why it was interrupted, if it was."""
        return self._reason

    @property
    def has_ended(self) -> bool:
        """Whether its run has ended with it."""
        return self._status is not None and self._status.terminal

    async def run(self) -> None:
        """Call the function and store how it ended."""
        timeout = self._timeout_seconds
        loop = asyncio.get_running_loop()
        timer = None if timeout is None else loop.call_later(timeout, self._worker.interrupt, self, StopReason.TIMEOUT)
        try:
            finish = await self._call()
        finally:
            if timer is not None:
                timer.cancel()
        if finish is not None and not self.abandoned:
            await self._store(finish)

    def interrupt(self, reason: StopReason) -> bool:
        """Stop the function; False when there is nothing to stop. The first reason counts, but a lost lease outdoes it.

        A function that has returned is not interrupted any more: how it ended is on its way to the database.
        """
        if self.abandoned or ((self.ending or self._reason is not None) and reason is not StopReason.LOST):
            return False
        self._reason = reason
        self._context.interrupt(
            LeaseLost(f"Run {self.claimed.run_id} is no longer this worker's.")
            if reason is StopReason.LOST
            else RunCancelled(f"Run {self.claimed.run_id} is stopped: {reason.value}.")
        )
        self.nudge()
        return True

    def nudge(self) -> None:
        """Interrupt async code; again, in case it swallowed the first time. A thread cannot be interrupted.

        Only the function is: its end must be stored whoever interrupts, and a task that is cancelled before its first
        step would never come to free its slot.
        """
        if self._calling and self._interruptible and self.task is not None:
            self.task.cancel()

    def abandon(self) -> Finish | None:
        """Give up on code that does not stop; how its run ends now."""
        self.abandoned = True
        return self._interrupted()

    async def _store(self, finish: Finish) -> None:
        self.ending = True
        while True:
            try:
                await self.end(finish)
            except asyncio.CancelledError:
                # A late cancellation by user code. If the first try was stored after all, the fence refuses this one.
                if self._reason is StopReason.LOST:
                    raise
            else:
                return

    async def end(self, finish: Finish) -> Recorded | None:
        """Store the end of the attempt; None when the run is not ours any more."""
        claimed = self.claimed
        progress, note = self._context.take_progress()
        last = self._last_words or RecordEntry(claimed.run_id, claimed.attempt, claimed.lane)
        entry = replace(
            last,
            ordering_key=claimed.ordering_key,
            events=[*last.events, *_closing_events(finish)],
            progress=progress,
            progress_note=note,
            finish=finish,
        )
        entry = redacted(entry, self._host.redactor)
        try:
            recorded = await self._host.record(entry)
        except LeaseLost:
            log.info("run_lost", run_id=claimed.run_id, attempt=claimed.attempt)
            return None
        self._finish, self._status = entry.finish, recorded.status
        return recorded

    @property
    def log_event(self) -> str:
        """The name of the log line about its end: a run that pauses or is retried has not ended."""
        if self._status is None:
            return "run_given_up"
        return "run_ended" if self._status.terminal else f"run_{self._status.value}"

    def log_fields(self) -> dict[str, str]:
        """How it ended, for a log line."""
        if self._finish is None or self._status is None:
            return {"outcome": "given up"}
        told = {"outcome": self._finish.outcome.value, "status": self._status.value}
        if self._finish.error is not None:
            error = load_json(self._finish.error)
            told["error"] = f"{error['type']}: {error['message']}"
            if "traceback" in error:
                told["exception"] = error["traceback"]
        return told

    async def _call(self) -> Finish | None:
        if self._reason is not None:
            return self._interrupted()
        self._calling = True
        try:
            return await self._outcome()
        finally:
            self._calling = False

    async def _outcome(self) -> Finish | None:
        job = self._job
        try:
            if not isinstance(job, Task):
                return await self._run_program(job)
            arguments = job.load(self.claimed.input)
            if job.is_async:
                value = await job.function(self._context, **arguments)
            else:
                value = await self._call_in_thread(job, arguments)
                if inspect.isawaitable(value):
                    value = await value
            if self._reason is None:
                self._context.check_awaited()
        except Retry as retry:
            return self._put_back(retry)
        except Fail as error:
            return self._dead(error)
        except BaseException as error:  # noqa: BLE001 - the run's own failure, whatever it is: nobody else would end it
            if self._reason is not None:
                return self._interrupted()
            if isinstance(error, asyncio.CancelledError):
                # The function cancelled itself, or a library did inside it.
                return self._failed(RuntimeError("The task was cancelled from inside."))
            # An interruption that nobody asked for is a failure too; if the lease is lost, the fence refuses this.
            return self._failed(error)
        if self._reason is not None and job.is_async:
            return self._interrupted()
        return self._completed(value)

    async def _run_program(self, program: RunExecutor) -> Finish | None:
        ending = await program.run(self.claimed, self._context, self._host)
        if self._reason is not None:
            return self._interrupted()
        self._last_words = ending.last_words
        return ending.finish

    async def _call_in_thread(self, task: Task, arguments: dict[str, Any]) -> Any:
        function, context = task.function, self._context
        return await self._host.call_in_thread(lambda: function(context, **arguments))

    def _completed(self, value: Any) -> Finish:
        try:
            text = dump_json(value)
        except TypeError as error:
            return self._dead(Fail(f"The result cannot be stored: {error}"))
        size = len(text.encode())
        if size > self._host.max_result_bytes:
            return self._dead(
                Fail(
                    f"The result has {size} bytes as JSON; at most {self._host.max_result_bytes} are allowed "
                    "(RUNLANE_MAX_RESULT_BYTES). Store the data elsewhere and return a reference."
                )
            )
        return Finish(AttemptOutcome.COMPLETED, Status.COMPLETED, result=text)

    def _failed(self, error: BaseException) -> Finish:
        claimed = self.claimed
        failures = claimed.failures + 1
        text = _error_text(error)
        if failures >= claimed.max_attempts:
            return Finish(AttemptOutcome.FAILED, Status.FAILED, error=text)
        wait = backoff_seconds(failures, random.random())  # noqa: S311 - spreads retries, guards nothing
        return Finish(AttemptOutcome.FAILED, Status.SCHEDULED, error=text, delay_us=int(wait * 1_000_000))

    def _dead(self, error: Fail) -> Finish:
        return Finish(AttemptOutcome.FAILED, Status.FAILED, error=_error_text(error))

    def _put_back(self, retry: Retry) -> Finish:
        text = dump_json({"type": "Retry", "message": clean_text(retry.reason, MAX_MESSAGE_CHARACTERS)})
        if retry.after_seconds <= 0:
            return Finish(AttemptOutcome.RETRY_LATER, Status.QUEUED, error=text)
        delay_us = int(retry.after_seconds * 1_000_000)
        return Finish(AttemptOutcome.RETRY_LATER, Status.SCHEDULED, error=text, delay_us=delay_us)

    def _interrupted(self) -> Finish | None:
        match self._reason:
            case StopReason.CANCEL:
                return Finish(AttemptOutcome.CANCELLED, Status.CANCELLED)
            case StopReason.HAND_BACK:
                return Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED)
            case StopReason.TIMEOUT:
                seconds = self._timeout_seconds or 0
                return self._failed(TimeoutError(f"The attempt took longer than its {seconds:g} s."))
            case StopReason.LOST | None:
                return None


def _closing_events(finish: Finish) -> list[tuple[str, str]]:
    # Nested: an error has a type of its own, which must not hide the event's where both are fields of one object.
    data = f'{{"error":{finish.error}}}' if finish.error else "{}"
    match finish.outcome:
        case AttemptOutcome.FAILED:
            return [(EventType.ATTEMPT_FAILED.value, data)]
        case AttemptOutcome.RETRY_LATER:
            return [(EventType.RETRY_LATER.value, data)]
        case AttemptOutcome.HANDED_BACK:
            return [(EventType.HANDED_BACK.value, "{}")]
        case _:
            return []


def _error_text(error: BaseException) -> str:
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an exception whose own text cannot be made
        lines = f"{type(error).__name__} (its traceback cannot be shown)"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001
        message = "(its message cannot be shown)"
    if len(lines) > MAX_TRACEBACK_CHARACTERS:
        lines = f"{lines[: MAX_TRACEBACK_CHARACTERS // 2]}\n…\n{lines[-MAX_TRACEBACK_CHARACTERS // 2 :]}"
    return dump_json(
        {
            "type": type(error).__name__,
            "message": clean_text(message, MAX_MESSAGE_CHARACTERS),
            "traceback": clean_text(lines),
        }
    )
