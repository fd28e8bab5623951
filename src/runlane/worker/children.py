"""Orchestrations that a run calls as tools: runs of their own, started once and waited for without holding a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

from runlane.agents.tools import StillAtWork
from runlane.errors import RunlaneError
from runlane.model.run import Status
from runlane.model.template import text_of
from runlane.model.text import load_json
from runlane.steps.failure import StepFailed
from runlane.store.claim import Claimed
from runlane.store.database import Database
from runlane.store.runs import find_run
from runlane.worker.patience import patiently

_LOOK_SECONDS: Final = 0.05
_HOLD_SECONDS: Final = 10.0
_MAX_LATER_SECONDS: Final = 60.0
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ChildWish:
    """A run that another one wants. `key` is the same whenever it wants it again; `pins` are its own versions."""

    orchestration: str
    message: str
    input: Mapping[str, Any]
    tenant: str
    key: str
    pins: Mapping[str, str]
    parent: str
    path: str


StartChild = Callable[[ChildWish], Awaitable[str]]


class Children:
    """The orchestrations that one run calls."""

    def __init__(self, claimed: Claimed, database: Database, start: StartChild) -> None:
        self._claimed = claimed
        self._database = database
        self._start = start

    async def call(self, orchestration: str, arguments: Mapping[str, Any], key: str) -> Any:
        """The result of the run; StillAtWork if it takes so long that one should come again later."""
        claimed = self._claimed
        pins: dict[str, str] = load_json(claimed.plan)["pins"] if claimed.plan else {}
        given = arguments.get("input")
        wish = ChildWish(
            orchestration,
            text_of(arguments.get("message", "")),
            cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {},
            claimed.tenant,
            # Keys are short; the call's own name may not be.
            f"child:{sha256(key.encode()).hexdigest()}",
            pins,
            claimed.run_id,
            key,
        )
        try:
            run_id = await self._start(wish)
        except RunlaneError as error:
            raise StepFailed(error.code, f"The orchestration {orchestration} could not be started: {error}") from error
        return await self._wait_for(orchestration, run_id)

    async def _wait_for(self, orchestration: str, run_id: str) -> Any:
        pause, waited = _LOOK_SECONDS, 0.0
        while True:
            run = await patiently(lambda: find_run(self._database, run_id))
            if run.status is Status.COMPLETED:
                return run.result
            if run.status.terminal:
                why = (run.error or {}).get("message", "")
                raise StepFailed("orchestration_failed", f"The orchestration {orchestration} {run.status}: {why}")
            if waited >= _HOLD_SECONDS:
                # The longer it has taken, the longer it will: a run that waits for a person may do so for days.
                age = time.time() - run.accepted_at_us / _MICROSECONDS
                later = min(max(_HOLD_SECONDS / 5, age / 5), _MAX_LATER_SECONDS)
                raise StillAtWork(f"Run {run_id} of {orchestration} is {run.status}.", later)
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 1.5, 0.5)
