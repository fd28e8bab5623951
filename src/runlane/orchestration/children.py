"""Orchestrations that a run calls as tools: separate runs, started once, whose end is awaited without a worker slot.

They are announced before they are started, so that a cancel of the run reaches them even if a worker dies. A parent
without a worker is woken when they end; it also polls from time to time, in case the wake-up was lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

import structlog

from runlane.domain.run import Run, Status
from runlane.domain.tenant import scoped_key
from runlane.domain.text import load_json
from runlane.errors import RunlaneError
from runlane.failpoints import failpoint
from runlane.interpreter.failure import StepFailed
from runlane.orchestration.retry_unavailable import retry_unavailable
from runlane.store.orchestration.children import announce_child, child_is_seen
from runlane.store.queue.claim import Claimed
from runlane.store.queue.runs import find_run
from runlane.store.sql.database import Database
from runlane.templates.template import text_of
from runlane.tools.caller import ToolPending

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.05
_HOLD_SECONDS: Final = 10.0
_MAX_LATER_SECONDS: Final = 60.0
_MICROSECONDS: Final = 1_000_000
# The pause of an attempt that may start no child; it is stopped within a heartbeat.
_STOPPED_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A child run to start. `key` is the same in every attempt; `pins` are the parent's versions.

    `depth` is the number of triggers that led to the parent, so that a loop of triggers through child runs ends, too.
    """

    orchestration: str
    message: str
    input: Mapping[str, Any]
    tenant: str
    key: str
    pins: Mapping[str, str]
    parent: str
    path: str
    depth: int = 0


StartChild = Callable[[ChildRequest], Awaitable[str]]


class ChildRuns:
    """The child runs of one run."""

    def __init__(self, claimed: Claimed, database: Database, start: StartChild) -> None:
        self._claimed = claimed
        self._database = database
        self._start = start

    async def call(self, orchestration: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Return the result of the child run. Raises ToolPending if it takes longer than a worker slot may be held."""
        claimed = self._claimed
        pins: dict[str, str] = load_json(claimed.plan)["pins"] if claimed.plan else {}
        given = arguments.get("input")
        request = ChildRequest(
            orchestration,
            text_of(arguments.get("message", "")),
            cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {},
            claimed.tenant,
            # Keys are bounded; the name of the call may be longer.
            f"child:{sha256(key.encode()).hexdigest()}",
            pins,
            claimed.run_id,
            key.removeprefix(f"{claimed.run_id}/"),
            0 if claimed.origin is None else load_json(claimed.origin).get("depth", 0),
        )
        stored_key = scoped_key(claimed.tenant, request.key)
        await self._announce(stored_key, request.path)
        failpoint("child.announced")
        try:
            run_id = await self._start(request)
        except RunlaneError as error:
            raise StepFailed(error.code, f"The orchestration {orchestration} could not be started: {error}") from error
        failpoint("child.started")
        run = await self._end_of(orchestration, run_id)
        await retry_unavailable(lambda: child_is_seen(self._database, stored_key))
        if run.status is Status.COMPLETED:
            return run.result
        why = (run.error or {}).get("message", "")
        raise StepFailed("orchestration_failed", f"The orchestration {orchestration} {run.status}: {why}")

    async def _announce(self, stored_key: str, path: str) -> None:
        claimed = self._claimed
        while True:
            if await retry_unavailable(
                lambda: announce_child(self._database, claimed.run_id, claimed.attempt, stored_key, path)
            ):
                return
            # The run is cancelled or has moved to another worker; this attempt is about to be stopped.
            await asyncio.sleep(_STOPPED_SECONDS)

    async def _end_of(self, orchestration: str, run_id: str) -> Run:
        pause, waited = _LOOK_SECONDS, 0.0
        while True:
            run = await retry_unavailable(lambda: find_run(self._database, run_id))
            if run.status.terminal:
                return run
            if waited >= _HOLD_SECONDS:
                later = _later_seconds(time.time() - run.accepted_at_us / _MICROSECONDS)
                raise ToolPending(f"Run {run_id} of {orchestration} is {run.status}.", later)
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 1.5, 0.5)


def _later_seconds(age_seconds: float) -> float:
    # The pause grows with the age of the child run, which may wait for a person for days.
    return min(max(_HOLD_SECONDS / 5, age_seconds / 5), _MAX_LATER_SECONDS)
