"""Context: the interface of a task to its run.

Async code awaits its methods; in the thread of a plain function, a method returns when its work is done. Writes go
through the fence and are durable when the call returns.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CodeType
from typing import Any, TypeVar

import orjson

from runlane.domain.events import Delta, EventType
from runlane.domain.firing import ScheduledSlot
from runlane.domain.text import clean_text, dump_fields, dump_json, load_json
from runlane.errors import Fail, Interrupted
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import RecordEntry
from runlane.worker.context_call import ContextCall
from runlane.worker.run_host import RunHost

T = TypeVar("T")

MAX_LOG_CHARACTERS = 64 * 1024
# Progress is for people: within this time only the newest value is stored.
PROGRESS_SECONDS = 0.5


class _Done:
    """The return value of a call from a thread: the work is done, but awaiting it is harmless."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class Context:
    """Given to a task as its first argument."""

    def __init__(self, claimed: Claimed, host: RunHost, loop: asyncio.AbstractEventLoop) -> None:
        self._claimed = claimed
        self._host = host
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._interruption: Interrupted | None = None
        self._not_awaited: str | None = None
        self._last_progress_at = -math.inf
        self._next_progress: tuple[float, str | None] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._claimed.run_id

    @property
    def attempt(self) -> int:
        """1 for the first claim of the run, increased by each later one. A sink may use it as a fencing token."""
        return self._claimed.attempt

    @property
    def tenant(self) -> str:
        """The tenant of the run."""
        return self._claimed.tenant

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the run: pass it to other systems so that they act once."""
        return self._claimed.run_id

    @property
    def schedule(self) -> ScheduledSlot | None:
        """The schedule and the slot that the run was started for; None if no schedule started it."""
        return None if self._claimed.origin is None else ScheduledSlot.of(load_json(self._claimed.origin))

    @property
    def saved(self) -> Any:
        """The last checkpoint of an earlier attempt, or None."""
        return None if self._claimed.saved is None else load_json(self._claimed.saved)

    @property
    def cancelled(self) -> bool:
        """True when the task should stop: the run was cancelled, timed out, or moved to another worker."""
        return self._interruption is not None

    def log(self, message: str, **fields: Any) -> Awaitable[None]:
        """Write a line to the stream of the run. Message and fields are cut at 64 k characters each."""
        line: dict[str, Any] = {"message": clean_text(str(message), MAX_LOG_CHARACTERS)}
        if fields:
            line["fields"] = orjson.Fragment(dump_fields(fields, MAX_LOG_CHARACTERS))
        data = dump_json(line)
        return self._submit(lambda: self._record(self._entry(EventType.LOG, data)), "ctx.log()")

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Store a value for the next attempt, which finds it in `saved`. Also a point where the run can be stopped."""
        entry = self._entry(EventType.CHECKPOINT, "{}")
        entry.checkpoint = self._checkpoint_text(value)
        return self._submit(lambda: self._record(entry), "ctx.checkpoint()")

    def progress(self, fraction: float, note: str | None = None) -> Awaitable[None]:
        """Report how far the run is, from 0 to 1.

        Cheap to call often: only the newest value of each half second is stored.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress({fraction!r}): the fraction must be between 0 and 1.")
        if note is not None and not isinstance(note, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"progress({fraction!r}, {note!r}): the note must be a string. For n of m, pass the fraction n / m."
            )
        value = (float(fraction), None if note is None else clean_text(note, 1000))
        return self._submit(lambda: self._progress(value), "ctx.progress()")

    def secret(self, name: str) -> Any:
        """Return the value of a secret of the run's tenant: `await ctx.secret("NAME")`, or in a thread without await.

        The value is a string. It is redacted in everything that the run stores or emits; pass it only where it is
        needed nevertheless. Never store it: a later attempt reads the then current value.
        """
        tenant = self._claimed.tenant
        if threading.get_ident() == self._loop_thread:
            return self._call(lambda: self._host.secret(tenant, name), "ctx.secret()")
        return asyncio.run_coroutine_threadsafe(self._host.secret(tenant, name), self._loop).result()

    def interrupt(self, interruption: Interrupted) -> None:
        """Make every later call raise this. Called by the worker."""
        self._interruption = interruption

    def take_progress(self) -> tuple[float | None, str | None]:
        """Return the last progress if it is not stored yet; the end of the attempt stores it. Called by the worker."""
        value, self._next_progress = self._next_progress, None
        return value or (None, None)

    def check_awaited(self) -> None:
        """Raise Fail if a call was dropped without being awaited, since its write is lost. Called by the worker."""
        if self._not_awaited is not None:
            call = self._not_awaited.partition("(")[0]
            raise Fail(
                f"{self._not_awaited} was called without await, so it did nothing. Write await {call}(...), or make "
                "the task a plain function."
            )

    def _checkpoint_text(self, value: Any) -> str:
        text = dump_json(value)
        size = len(text.encode())
        if size > self._host.max_result_bytes:
            raise Fail(
                f"The checkpoint has {size} bytes as JSON; at most {self._host.max_result_bytes} are allowed "
                "(RUNLANE_MAX_RESULT_BYTES). Store the data elsewhere and keep a reference."
            )
        return text

    def _submit(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> Awaitable[None]:
        if threading.get_ident() == self._loop_thread:
            return self._call(make, name)
        if self._interruption is not None:
            raise self._interruption
        asyncio.run_coroutine_threadsafe(make(), self._loop).result()
        return _Done()

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], name: str) -> ContextCall[T]:
        self.check_awaited()
        return ContextCall(make, name, _caller(), self._note_dropped)

    def _note_dropped(self, call: str) -> None:
        self._not_awaited = self._not_awaited or call

    async def _record(self, entry: RecordEntry) -> None:
        if self._interruption is not None:
            raise self._interruption
        await self._host.record(entry)
        if self._interruption is not None:
            raise self._interruption

    async def _progress(self, value: tuple[float, str | None]) -> None:
        if self._interruption is not None:
            raise self._interruption
        data = dump_json({"progress": value[0], "note": value[1]})
        self._host.send_delta(Delta(self.run_id, self.attempt, "progress", data))
        if self._next_progress is not None:
            self._next_progress = value
            return
        wait = self._last_progress_at + PROGRESS_SECONDS - time.monotonic()
        if wait > 0:
            self._next_progress = value
            self._loop.call_later(wait, self._flush_progress)
            return
        self._last_progress_at = time.monotonic()
        await self._host.record(self._progress_entry(value))

    def _flush_progress(self) -> None:
        fraction, note = self.take_progress()
        if fraction is None or self._interruption is not None:
            return
        self._last_progress_at = time.monotonic()
        flushing = self._loop.create_task(self._host.record(self._progress_entry((fraction, note))))
        # Not awaited: if the run has ended meanwhile, the fence rejects the write, as intended.
        flushing.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _entry(self, kind: EventType, data: str) -> RecordEntry:
        claimed = self._claimed
        return RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, events=[(kind.value, data)])

    def _progress_entry(self, value: tuple[float, str | None]) -> RecordEntry:
        claimed = self._claimed
        return RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, progress=value[0], progress_note=value[1])


def _caller() -> tuple[CodeType, int] | None:
    """Return where the task calls its context: the first frame outside of this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("runlane."):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno)
