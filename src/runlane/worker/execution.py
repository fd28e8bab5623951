"""The execution of one claimed run: call the function, map its outcome to the end of the attempt, store it.

An interruption has a reason: cancel, timeout, hand-back, or a lost lease. Async code is interrupted at once; in a plain
function the next call of its context raises. Code that does not stop in time is abandoned and its run ends without it:
the fence rejects its later writes.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import structlog

from runlane.domain.backoff import backoff_seconds
from runlane.domain.events import EventType
from runlane.domain.graph_registry import GraphSource
from runlane.domain.run import Status
from runlane.domain.task import Task
from runlane.domain.text import clean_text, dump_json, load_json
from runlane.errors import Fail, LeaseLost, Retry, RunCancelled
from runlane.observability import metrics
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish, Recorded, RecordEntry
from runlane.store.queue.redaction import redacted
from runlane.worker.context import Context
from runlane.worker.run_host import RedactingHost, RunHost

log = structlog.get_logger(__name__)

MAX_TRACEBACK_CHARACTERS = 32 * 1024
MAX_MESSAGE_CHARACTERS = 8 * 1024


class StopReason(StrEnum):
    """Why an execution is interrupted."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    HAND_BACK = "hand_back"
    LOST = "lost"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended, and the entry that is stored together with its end."""

    finish: Finish
    final_entry: RecordEntry


class RunExecutor(Protocol):
    """Executes runs that are not one function: orchestrations and agents."""

    async def run(self, claimed: Claimed, context: Context, host: RedactingHost) -> AttemptEnd:
        """Execute an attempt. An exception is the failure of the attempt."""
        ...

    async def warm_up(self) -> None:
        """Load in advance what is likely to be needed."""
        ...

    async def close(self) -> None:
        """Release its resources."""
        ...


class GraphRunExecutor(RunExecutor, Protocol):
    """Executes runs of graphs."""

    @property
    def targets(self) -> Collection[str]:
        """The targets of the runs that it can execute."""
        ...

    async def reload(self, sources: Collection[GraphSource], folders: Collection[Path]) -> Mapping[str, str]:
        """Load graphs again from changed modules of these folders. Return the errors of those that do not load."""
        ...


class Execution:
    """One attempt in this worker."""

    __slots__ = (
        "_began",
        "_calling",
        "_context",
        "_final_entry",
        "_finish",
        "_host",
        "_job",
        "_on_timeout",
        "_reason",
        "_status",
        "abandoned",
        "claimed",
        "ending",
        "stale_minutes",
        "task",
    )

    def __init__(
        self,
        claimed: Claimed,
        job: Task | RunExecutor,
        host: RunHost,
        loop: asyncio.AbstractEventLoop,
        *,
        on_timeout: Callable[[Execution], None],
    ) -> None:
        self.claimed = claimed
        self._began = time.monotonic()
        self._job = job
        self._final_entry: RecordEntry | None = None
        self._on_timeout = on_timeout
        self._host = RedactingHost(host)
        self._context = Context(claimed, self._host, loop)
        self._calling = False
        self._reason: StopReason | None = None
        self._finish: Finish | None = None
        self._status: Status | None = None
        self.ending = False
        self.abandoned = False
        self.stale_minutes = 0
        self.task: asyncio.Task[None] | None = None

    @property
    def _interruptible(self) -> bool:
        return not isinstance(self._job, Task) or self._job.is_async

    @property
    def _timeout_seconds(self) -> float | None:
        return self._job.timeout_seconds if isinstance(self._job, Task) else None

    @property
    def reason(self) -> StopReason | None:
        """Why it was interrupted, or None."""
        return self._reason

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended with this attempt."""
        return self._status is not None and self._status.terminal

    async def run(self) -> None:
        """Call the function and store its outcome."""
        timeout = self._timeout_seconds
        loop = asyncio.get_running_loop()
        timer = None if timeout is None else loop.call_later(timeout, self._on_timeout, self)
        try:
            finish = await self._call()
        finally:
            if timer is not None:
                timer.cancel()
        if finish is not None and not self.abandoned:
            await self._store(finish)

    def interrupt(self, reason: StopReason) -> bool:
        """Stop the function; return False if it can no longer be stopped.

        The first reason counts, but a lost lease overrides it. A function that has returned is not interrupted, because
        its end is being stored.
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
        """Interrupt async code, again if it swallowed the first interruption. A thread cannot be interrupted.

        Only the function is interrupted: its end must always be stored, and an asyncio task that is cancelled before
        its first step would never free its slot.
        """
        if self._calling and self._interruptible and self.task is not None:
            self.task.cancel()

    def abandon(self) -> Finish | None:
        """Abandon code that does not stop, and return the end of its run."""
        self.abandoned = True
        return self._interrupted()

    async def _store(self, finish: Finish) -> None:
        self.ending = True
        while True:
            try:
                await self.end(finish)
            except asyncio.CancelledError:
                # User code has cancelled its task late. If the first try was stored after all, the fence rejects this
                # one.
                if self._reason is StopReason.LOST:
                    raise
            else:
                return

    async def end(self, finish: Finish) -> Recorded | None:
        """Store the end of the attempt; return None if the run belongs to another worker."""
        claimed = self.claimed
        progress, note = self._context.take_progress()
        entry = RecordEntry(claimed.run_id, claimed.attempt, claimed.lane)
        if self._final_entry is not None:
            entry = replace(self._final_entry, events=[*self._final_entry.events])
        entry.events += _closing_events(finish)
        entry.ordering_key, entry.progress, entry.progress_note = claimed.ordering_key, progress, note
        entry.finish = finish
        entry = redacted(entry, self._host.redactor)
        try:
            recorded = await self._host.record(entry)
        except LeaseLost:
            log.info("run_lost", run_id=claimed.run_id, attempt=claimed.attempt)
            return None
        self._finish, self._status = entry.finish, recorded.status
        self._count(finish, recorded.status)
        return recorded

    def _count(self, finish: Finish, status: Status) -> None:
        claimed = self.claimed
        metrics.ATTEMPTS.add(finish.outcome.value)
        if status.terminal:
            metrics.RUNS_ENDED.add(claimed.target, status.value)
            # The time up to the claim is by the database's clock, the time from then on by this process's clock.
            waited = (claimed.claimed_at_us - claimed.accepted_at_us) / 1_000_000
            metrics.RUN_DURATION_SECONDS.observe(waited + time.monotonic() - self._began, claimed.target)

    @property
    def log_event(self) -> str:
        """The name of the log event of its end: a run that pauses or is retried has not ended."""
        if self._status is None:
            return "run_abandoned"
        return "run_ended" if self._status.terminal else f"run_{self._status.value}"

    def log_fields(self) -> dict[str, str]:
        """Return the outcome as fields of a log line."""
        if self._finish is None or self._status is None:
            return {"outcome": "abandoned"}
        fields = {"outcome": self._finish.outcome.value, "status": self._status.value}
        if self._finish.error is not None:
            error = load_json(self._finish.error)
            fields["error"] = f"{error['type']}: {error['message']}"
            if "traceback" in error:
                fields["exception"] = error["traceback"]
        return fields

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
                return await self._run_executor(job)
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
        except BaseException as error:  # noqa: BLE001 - any exception fails the run, which nothing else would end
            if self._reason is not None:
                return self._interrupted()
            if isinstance(error, asyncio.CancelledError):
                # The function cancelled itself, or a library inside it did.
                return self._failed(RuntimeError("The task was cancelled from inside."))
            # An interruption that was not requested is a failure too; if the lease is lost, the fence rejects it.
            return self._failed(error)
        if self._reason is not None and job.is_async:
            return self._interrupted()
        return self._completed(value)

    async def _run_executor(self, executor: RunExecutor) -> Finish | None:
        ending = await executor.run(self.claimed, self._context, self._host)
        if self._reason is not None:
            # A stopped graph still stores the state in which it left its thread.
            if ending.final_entry.graph is not None:
                self._final_entry = ending.final_entry
            return self._interrupted()
        self._final_entry = ending.final_entry
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
        text = error_text(error)
        if failures >= claimed.max_attempts:
            return Finish(AttemptOutcome.FAILED, Status.FAILED, error=text)
        wait = backoff_seconds(failures, random.random())  # noqa: S311 - jitter
        return Finish(AttemptOutcome.FAILED, Status.SCHEDULED, error=text, delay_us=int(wait * 1_000_000))

    def _dead(self, error: Fail) -> Finish:
        return Finish(AttemptOutcome.FAILED, Status.FAILED, error=error_text(error))

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
            case StopReason.STALE:
                minutes = self.stale_minutes
                return self._failed(TimeoutError(f"The attempt was without progress for {minutes} minutes."))
            case StopReason.LOST | None:
                return None


def _closing_events(finish: Finish) -> list[tuple[str, str]]:
    # Nested, because in a flat object the `type` of the error would hide the `type` of the event.
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


def error_text(error: BaseException) -> str:
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an exception that cannot be formatted
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
