"""The interface between a worker and an attempt of a run.

Everything that an attempt stores or publishes passes through RedactingHost, and so does every secret that it reads.
Each attempt is redacted with its own secrets only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from runlane.domain.events import Delta
from runlane.redaction import Redactor
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.queue.redaction import redacted, redacted_delta
from runlane.worker.open_answers import OpenAnswers


class RunHost(Protocol):
    """The services of a worker for the runs that it executes."""

    @property
    def max_result_bytes(self) -> int:
        """The largest result or checkpoint that is stored."""
        ...

    @property
    def handing_over(self) -> bool:
        """Whether runs of several steps should stop at the next boundary, because the worker is about to stop."""
        ...

    @property
    def open_answers(self) -> OpenAnswers:
        """The model answers that are being streamed."""
        ...

    def record(self, entry: RecordEntry) -> Coroutine[Any, Any, Recorded]:
        """Store an entry, or raise LeaseLost."""
        ...

    def send_delta(self, delta: Delta) -> None:
        """Publish a delta, which is not stored, to the followers of the run."""
        ...

    async def secret(self, tenant: str, name: str) -> str:
        """Return the value of a secret. Raise NotFound if it does not exist."""
        ...

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread."""
        ...


class RedactingHost:
    """The host of one attempt. `redactor` holds the secrets that the attempt has read."""

    __slots__ = ("_worker", "redactor")

    def __init__(self, worker: RunHost) -> None:
        self._worker = worker
        self.redactor = Redactor()

    @property
    def max_result_bytes(self) -> int:
        """The largest result or checkpoint that is stored."""
        return self._worker.max_result_bytes

    @property
    def handing_over(self) -> bool:
        """Whether runs of several steps should stop at the next boundary."""
        return self._worker.handing_over

    @property
    def open_answers(self) -> OpenAnswers:
        """The model answers that are being streamed."""
        return self._worker.open_answers

    def record(self, entry: RecordEntry) -> Coroutine[Any, Any, Recorded]:
        """Store a redacted entry, or raise LeaseLost."""
        return self._worker.record(redacted(entry, self.redactor))

    def send_delta(self, delta: Delta) -> None:
        """Publish a redacted delta."""
        self._worker.send_delta(redacted_delta(delta, self.redactor))

    async def secret(self, tenant: str, name: str) -> str:
        """Return the value of a secret, which is redacted from then on."""
        value = await self._worker.secret(tenant, name)
        self.redactor.learn(value)
        return value

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread."""
        return self._worker.call_in_thread(function)
