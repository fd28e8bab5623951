"""Send hints about changes to the servers that have open pages; without open pages, this costs nothing.

A server with open pages announces itself as a reader of HINTS_KEY every few seconds. While such an announcement counts,
the runs of published notices and the hints of other components are collected for a moment and sent as one message.
"""

from __future__ import annotations

import asyncio
from typing import Final

import orjson

from runlane.bus import Bus
from runlane.domain.events import Delta, Notice
from runlane.domain.hints import HINTS_KEY, Hint, HintSet, Topic

# How long an announcement counts, and how often it is repeated.
WANTED_SECONDS: Final = 15.0
ANNOUNCE_SECONDS: Final = 5.0
_COLLECT_SECONDS: Final = 0.05
_RUN_PREFIX: Final = "run_"
_DELTA_TYPE: Final = "hints"


class HintSender:
    """Sends the hints of one process over one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pending = HintSet()
        self._sending: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._end = bus.on_reader(self._on_reader)
        # A process that has just started may have missed an announcement.
        self._begin()

    def stop(self) -> None:
        """Stop. Safe to call twice."""
        self._end()
        for timer in (self._sending, self._expiry):
            if timer is not None:
                timer.cancel()
        self._cease()

    def _on_reader(self, run_id: str) -> None:
        if run_id == HINTS_KEY:
            self._begin()

    def _begin(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(WANTED_SECONDS, self._cease)
        self._bus.on_publish = self._on_publish
        self._bus.on_hint = self._on_hint

    def _cease(self) -> None:
        self._bus.on_publish = None
        self._bus.on_hint = None

    def _on_publish(self, notice: Notice) -> None:
        # Conversations and threads have notices, too; their runs have their own.
        if notice.run_id.startswith(_RUN_PREFIX):
            self._on_hint(Hint(Topic.RUNS, None, (notice.run_id,)))

    def _on_hint(self, hint: Hint) -> None:
        self._pending.add(hint)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().call_later(_COLLECT_SECONDS, self._send)

    def _send(self) -> None:
        self._sending = None
        data = orjson.dumps([list(hint) for hint in self._pending.take()]).decode()
        self._bus.send_delta(Delta(HINTS_KEY, 0, _DELTA_TYPE, data))


def read_hints(message: Notice | Delta) -> list[Hint]:
    """Return the hints of a message for HINTS_KEY. A notice means that some may have been missed."""
    if isinstance(message, Notice):
        return [Hint(Topic.ALL)]
    try:
        return [Hint(str(topic), tenant, tuple(ids)) for topic, tenant, ids in orjson.loads(message.data)]
    except (TypeError, ValueError):
        return [Hint(Topic.ALL)]
