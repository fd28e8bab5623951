"""The worker as one attempt of a run sees it.

Everything that the attempt stores or publishes goes through here, and so does every secret that it gets: the one is
compared with the other, and with no secret of anybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from runlane.domain.events import Delta
from runlane.redaction import Redactor
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.queue.redaction import redacted, redacted_delta
from runlane.worker.context import AttemptHost
from runlane.worker.open_answers import OpenAnswers


class WorkerHost(AttemptHost, Protocol):
    """What a worker does for all its runs."""

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread."""
        ...


class RunHost:
    """A worker for one attempt. `redactor` knows the secrets that the attempt has used."""

    __slots__ = ("_worker", "redactor")

    def __init__(self, worker: WorkerHost) -> None:
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
        """The answers of models that are being streamed."""
        return self._worker.open_answers

    def record(self, entry: RecordEntry) -> Coroutine[Any, Any, Recorded]:
        """Store an entry, or raise LeaseLost."""
        return self._worker.record(redacted(entry, self.redactor))

    def send_delta(self, delta: Delta) -> None:
        """Tell whoever follows the run something that is not stored."""
        self._worker.send_delta(redacted_delta(delta, self.redactor))

    async def secret(self, tenant: str, name: str) -> str:
        """The value of a secret, from now on kept out of what the attempt stores and publishes."""
        value = await self._worker.secret(tenant, name)
        self.redactor.learn(value)
        return value

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread."""
        return self._worker.call_in_thread(function)
