"""The claim loop of a worker: claim whenever a slot is free and a run may be ready.

Between claims it waits for a bell or for the poll interval. Errors are retried; only stop() ends the loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection

import structlog

from runlane.bus import Bus
from runlane.domain.run import GRAPH
from runlane.errors import Unavailable
from runlane.failpoints import failpoint
from runlane.observability.outage import outage
from runlane.store.queue.claim import Claimed, ClaimOutcome, claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.workers import owned_runs
from runlane.store.sql.database import CommitInDoubt, Database, Session
from runlane.worker.change_watch import ChangeWatch
from runlane.worker.executions import Executions
from runlane.worker.health import WorkerHealth
from runlane.worker.heartbeat import Registration

log = structlog.get_logger(__name__)

# The poll interval while bells of other processes arrive. It finds the runs whose bell was lost.
RELAXED_POLL_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_NOTHING = ClaimOutcome((), alive=True, again=True)


class ClaimLoop:
    """Claims runs and starts their execution. `registration` returns the current registration of the worker, if any."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        executions: Executions,
        health: WorkerHealth,
        *,
        lanes: Collection[str] | None,
        targets: Collection[str],
        registration: Callable[[], Registration | None],
        abandon_registration: Callable[[str], None],
    ) -> None:
        self._database = database
        self._bus = bus
        self._executions = executions
        self._health = health
        self._memory = LaneMemory(only=None if lanes is None else frozenset(lanes))
        self._targets = targets
        self._registration = registration
        self._abandon_registration = abandon_registration
        self._listener = bus.listen(self._memory.only)
        self._is_waiting = False
        self._claimed_at = float("-inf")
        self._watch: ChangeWatch | None = None
        if database.dialect == "sqlite":
            self._watch = ChangeWatch(
                database,
                wake=self._listener.wake,
                is_idle=lambda: self._is_waiting,
                last_claim=lambda: self._claimed_at,
            )
        self._may_claim = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        # How many runs may still be claimed; None without a bound.
        self._left: int | None = None
        self._ends_when_idle = False
        # Set when the loop has claimed as many runs as it may and they have ended, or when no run was ready.
        self.finished = asyncio.Event()

    def bound(self, max_runs: int | None, *, ends_when_idle: bool) -> None:
        """Set `finished` after this many runs, or when no run is ready and none is executed."""
        self._left = max_runs
        self._ends_when_idle = ends_when_idle

    @property
    def lanes(self) -> frozenset[str] | None:
        """The lanes that the worker serves; None for all."""
        return self._memory.only

    @property
    def running(self) -> bool:
        """Whether the loop was started and has not been stopped."""
        return self._task is not None

    def start(self) -> None:
        """Start to claim."""
        self._task = asyncio.create_task(self._run(), name="runlane-claims")
        if self._watch is not None:
            self._watch.start()

    async def stop(self) -> None:
        """End the loop after the claim in progress."""
        self._stopping = True
        if self._watch is not None:
            await self._watch.stop()
        for event in (self._may_claim, self._executions.slot_free):
            event.set()
        self._listener.wake()
        if self._task is not None:
            await self._task
            self._task = None

    def serve(self, graphs: Collection[str]) -> None:
        """Claim runs of these graphs from now on, instead of those given earlier."""
        self._targets = frozenset({*(name for name in self._targets if not name.startswith(GRAPH)), *graphs})

    def close(self) -> None:
        """Unsubscribe from the bus."""
        self._listener.close()

    def resume(self) -> None:
        """Claim under a new registration."""
        self._may_claim.set()

    def pause(self) -> None:
        """Claim nothing until resume()."""
        self._may_claim.clear()

    def execution_ended(self, claimed: Claimed) -> None:
        """Claim soon if a cap may have kept ready runs waiting, despite free slots, until this run ended."""
        memory = self._memory
        if (
            claimed.lane in memory.capped
            or claimed.tenant in memory.capped_tenants
            or claimed.max_neighbors is not None
        ):
            # The loop may be waiting for a bell that no other process rings. If this worker is full, another one may
            # start a run.
            self._listener.wake()
            self._bus.ring({claimed.lane})

    async def _run(self) -> None:
        while not self._stopping:
            self._health.claim_loop_turned_at = time.monotonic()
            slots = self._executions.free_slots()
            if self._left is not None:
                slots = min(slots, self._left)
            if slots <= 0:
                if self._left == 0 and not self._executions.active:
                    self.finished.set()
                self._executions.slot_free.clear()
                await _wait(self._executions.slot_free, 1.0)
                continue
            if not self._may_claim.is_set():
                await _wait(self._may_claim, 1.0)
                continue
            try:
                outcome = await self._claim(slots)
            except Unavailable as error:
                outage.failed("a claim", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception:
                # Claimed runs that are not executed would wait forever under this registration.
                log.exception("claim_failed")
                self._abandon_registration("a claim failed in an unexpected way")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not outcome.alive:
                # A renewal that arrives later changes nothing: a lease that has expired once stays expired.
                self._abandon_registration("the database reports that its lease has expired")
            elif not outcome.claims and not outcome.again:
                if self._ends_when_idle and not self._executions.active:
                    self.finished.set()
                # Waiting for a bell is not a stall, however long the poll interval is.
                poll_seconds = self._poll_seconds()
                self._health.claim_loop_turned_at = time.monotonic() + poll_seconds
                self._is_waiting = True
                await self._listener.wait(self._memory.names, poll_seconds)
                self._is_waiting = False

    def _poll_seconds(self) -> float:
        if not self._bus.reaches_others:
            return self._memory.poll_seconds
        return max(self._memory.poll_seconds, RELAXED_POLL_SECONDS) * (0.9 + 0.2 * random.random())  # noqa: S311 - jitter

    async def _claim(self, slots: int) -> ClaimOutcome:
        registration = self._registration()
        if registration is None or not registration.may_work():
            self._may_claim.clear()
            self._abandon_registration("its lease could not be renewed in time")
            return _NOTHING

        outcome = _NOTHING
        load = self._executions.load()

        async def work(session: Session) -> None:
            nonlocal outcome
            outcome = await claim(session, registration.worker_id, self._targets, slots, self._memory, load)
            if outcome.claims:
                failpoint("claim.before_commit")

        try:
            await self._database.transact(work)
        except CommitInDoubt as doubt:
            outcome = await self._resolve(doubt, registration, outcome)
        if outcome.claims:
            self._claimed_at = time.monotonic()
            failpoint("claim.committed")
        if registration is not self._registration():
            return _NOTHING
        # Sending a message delays the start of a run, and executing a step delays the messages behind it. The first
        # step of a graph computes for longer than a message takes, so its readers are notified first.
        graphs = [claimed.notice for claimed in outcome.claims if claimed.target.startswith(GRAPH)]
        others = [claimed.notice for claimed in outcome.claims if not claimed.target.startswith(GRAPH)]
        self._bus.publish(graphs)
        for claimed in outcome.claims:
            self._executions.start(claimed)
        self._bus.publish(others)
        if self._left is not None:
            self._left -= len(outcome.claims)
        if len(outcome.claims) == slots:
            # More runs may be ready than one worker can take, so this claim, not each accept, wakes the next worker.
            self._bus.ring({claimed.lane for claimed in outcome.claims})
        return outcome

    async def _resolve(self, doubt: CommitInDoubt, registration: Registration, outcome: ClaimOutcome) -> ClaimOutcome:
        """Return the claims that were committed before the connection broke; unexecuted, they would wait forever."""
        while doubt.mark is not None and registration.may_work():
            try:
                if not await self._database.was_committed(doubt.mark):
                    return _NOTHING
                # After a crash another worker may have made the same claim, even under the same attempt number.
                owned = await owned_runs(self._database, registration.worker_id)
                claims = [claimed for claimed in outcome.claims if (claimed.run_id, claimed.attempt) in owned]
                return ClaimOutcome(claims, alive=True, again=True)
            except Unavailable:
                await asyncio.sleep(_RETRY_SECONDS)
        if doubt.mark is not None and registration is self._registration():
            self._abandon_registration("the outcome of a claim could not be determined in time")
        return _NOTHING


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    except TimeoutError:
        pass
