"""The heartbeat: a thread that renews the worker's lease and, if it cannot, stops the worker's runs.

It has its own event loop and its own connection, so that user code which blocks the worker's loop cannot stop the
heartbeat. The lease is counted from the time at which a renewal was sent, on the monotonic clock, less a margin. A
failed renewal does not count. When the lease ends, or the database reports that the worker was declared lost, the
worker's runs are stopped and it registers again under a new id.

A worker whose event loop is stuck is not alive, even if this thread runs: its lease is abandoned, so that its runs are
requeued, and it registers again only when the loop responds. If it never does, `on_stuck` decides about the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from runlane.domain.ids import new_id
from runlane.domain.maintenance import MaintenanceService
from runlane.errors import ConfigurationError, RunlaneError, Unavailable
from runlane.failpoints import failpoint
from runlane.observability.outage import outage
from runlane.observability.process_usage import PYTHON, UsageMeter
from runlane.settings import Settings
from runlane.store.queue.liveness_lock import LivenessConnection, open_line
from runlane.store.queue.workers import Interrupt, register, renew, sign_off
from runlane.version import VERSION
from runlane.worker.health import HealthServer, WorkerHealth
from runlane.worker.maintenance_survey import HeartbeatSurvey
from runlane.worker.stall import LoopWatch, stall_limit

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.1


def fence_margin(lease_seconds: float) -> float:
    """Return how many seconds before the end of its lease a worker stops its runs."""
    return max(0.5, lease_seconds * 0.15)


@dataclass(slots=True)
class Registration:
    """A worker under one id, until it stops or is lost. `deadline` is on the monotonic clock."""

    worker_id: str
    deadline: float
    lost: bool = False

    def may_work(self) -> bool:
        """Whether the lease covers this moment."""
        return not self.lost and time.monotonic() < self.deadline


class Heartbeat:
    """Runs in its own thread from start() to stop(). Callbacks arrive in the worker's event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        lanes: Sequence[str],
        targets: Sequence[str],
        capacity: int,
        health: WorkerHealth,
        on_registered: Callable[[Registration], None],
        on_lost: Callable[[Registration], None],
        on_interrupts: Callable[[Registration, Sequence[Interrupt]], None],
        on_stuck: Callable[[], None],
        on_survey: Callable[[Collection[MaintenanceService], int | None], None],
        on_drain: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._on_drain = on_drain
        # Whether an operator drains the worker: as last read here, and as last passed to the worker's event loop.
        self._drain_read = self._drain_passed = False
        self._survey = HeartbeatSurvey(settings.silence_seconds, settings.heartbeat_seconds)
        self._on_survey = on_survey
        self._lanes = lanes
        self._targets = targets
        self._capacity = capacity
        self._health = health
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_interrupts = on_interrupts
        self._on_stuck = on_stuck
        self._health_address: str | None = None
        self._usage = UsageMeter()
        self._worker_loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._worker_loop, health, stall_limit(settings))
        self._stop = threading.Event()
        self._registered = False
        self._wake: asyncio.Event | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._first: asyncio.Future[None] = self._worker_loop.create_future()
        self._ended: asyncio.Future[None] = self._worker_loop.create_future()
        self._thread = threading.Thread(target=self._run, name="runlane-liveness", daemon=True)

    async def start(self) -> None:
        """Return when the worker is registered; raise what prevented it."""
        self._thread.start()
        await self._first

    async def stop(self) -> None:
        """Sign off and end. Safe to call twice."""
        self._stop.set()
        self.check_now()
        if self._thread.is_alive():
            await asyncio.shield(self._ended)

    def check_now(self) -> None:
        """Renew at once, because the worker may have been declared lost."""
        if self._own_loop is not None and self._wake is not None:
            # The thread may end, and close its loop, at any moment; then there is nothing to check.
            with contextlib.suppress(RuntimeError):
                self._own_loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not isinstance(error, RunlaneError):
                log.exception("liveness_ended")
            self._call_in_worker_loop(_fail_future, self._first, error)
        finally:
            self._call_in_worker_loop(_finish_future, self._ended)

    async def _main(self) -> None:
        self._own_loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        server = HealthServer(self._settings, self._health)
        await server.start()
        self._health_address = server.address
        try:
            while not self._stop.is_set():
                try:
                    await self._wait_for_worker_loop()
                    if not self._stop.is_set():
                        await self._register_and_renew()
                except Exception as error:
                    if not self._registered:
                        raise
                    # Any error may be temporary; without this thread the worker would run and do nothing.
                    if isinstance(error, Unavailable):
                        outage.failed("a registration", _describe_error(error))
                    else:
                        log.warning("worker_cannot_register", error=_describe_error(error))
                    await self._pause(1.0)
        finally:
            await server.stop()

    async def _wait_for_worker_loop(self) -> None:
        """Wait until a stuck event loop responds, because until then claimed runs would not be executed."""
        if not self._health.stalled:
            return
        while self._watch.stalled and not self._stop.is_set():
            self._watch.ping()
            await self._pause(self._settings.heartbeat_seconds)
            if self._watch.hopeless:
                log.error("worker_stuck", silent_seconds=round(self._watch.silent_seconds(), 1))
                self._on_stuck()
                # If the process continues, report again after another period.
                await self._pause(self._watch.stall_seconds)
        self._health.stalled = False
        log.info("worker_recovered")

    async def _register_and_renew(self) -> None:
        """Register, and renew the lease until stop or loss."""
        worker_id = new_id("wrk")
        sent = time.monotonic()
        line = await open_line(self._settings, worker_id)
        try:
            await register(
                line.database,
                worker_id=worker_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=VERSION,
                lanes=self._lanes,
                capacity=self._capacity,
                has_lock=line.has_lock,
                lease_seconds=self._settings.lease_seconds,
                targets=self._targets,
                health_address=self._health_address,
                python=PYTHON,
            )
            failpoint("register.committed")
            registration = Registration(worker_id, self._deadline(sent))
            self._watch.restart()
            self._health.begin(registration.may_work, worker_id)
            self._call_in_worker_loop(self._on_registered, registration)
            self._call_in_worker_loop(_finish_future, self._first)
            log.info("worker_online", worker_id=worker_id, again=self._registered)
            self._registered = True
            await self._renew_until_end(line, registration)
        finally:
            await line.close()

    async def _renew_until_end(self, line: LivenessConnection, registration: Registration) -> None:
        pause = self._settings.heartbeat_seconds
        while not self._stop.is_set():
            if registration.lost:
                # The worker abandoned this registration: close at once, so that the reaper finds the lock free.
                return
            left = registration.deadline - time.monotonic()
            if left <= 0:
                self._lose(registration, "its lease could not be renewed in time")
                return
            self._watch.ping()
            await self._pause(min(pause, left))
            if self._stop.is_set() or registration.lost:
                continue
            if self._watch.stalled:
                self._abandon_stalled(registration)
                return
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(0.05, registration.deadline - sent)):
                    interrupts = await renew(
                        line.database,
                        registration.worker_id,
                        self._settings.lease_seconds,
                        self._health.active(),
                        self._usage.sample(),
                        self._survey.job(),
                        self._note_drain,
                    )
                    # The lock is taken after the renewal, which may have had to reconnect.
                    await line.hold()
            except Exception as error:  # noqa: BLE001 - after any error the lease was not renewed
                self._survey.failed()
                if isinstance(error, (Unavailable, TimeoutError)):
                    outage.failed("a heartbeat", _describe_error(error))
                else:
                    log.warning("heartbeat_failed", worker_id=registration.worker_id, error=_describe_error(error))
                pause = _RETRY_SECONDS
                continue
            if interrupts is None:
                self._lose(registration, "it was declared lost")
                return
            outage.succeeded()
            pause = self._settings.heartbeat_seconds
            registration.deadline = self._deadline(sent)
            if self._drain_read != self._drain_passed:
                self._drain_passed = self._drain_read
                self._call_in_worker_loop(self._on_drain, self._drain_passed)
            if interrupts:
                self._call_in_worker_loop(self._on_interrupts, registration, interrupts)
            self._report_survey()
        await self._sign_off(line, registration)

    def _report_survey(self) -> None:
        latest = self._survey.latest
        if latest is not None:
            self._call_in_worker_loop(self._on_survey, latest.due, latest.processes)
        elif self._survey.left_to_others:
            self._call_in_worker_loop(self._on_survey, (), None)

    def _note_drain(self, wanted: bool) -> None:
        self._drain_read = wanted

    async def _sign_off(self, line: LivenessConnection, registration: Registration) -> None:
        try:
            async with asyncio.timeout(self._settings.database_timeout_seconds):
                offline = await sign_off(line.database, registration.worker_id)
        except Exception as error:  # noqa: BLE001 - then the reaper does it
            log.warning("sign_off_failed", worker_id=registration.worker_id, error=_describe_error(error))
        else:
            failpoint("sign_off.committed")
            log.info("worker_offline", worker_id=registration.worker_id, clean=offline)

    def _lose(self, registration: Registration, reason: str) -> None:
        registration.lost = True
        log.error("worker_lost", worker_id=registration.worker_id, reason=reason)
        self._call_in_worker_loop(self._on_lost, registration)

    def _abandon_stalled(self, registration: Registration) -> None:
        self._health.stalled = True
        log.error(
            "worker_stalled",
            worker_id=registration.worker_id,
            silent_seconds=round(self._watch.silent_seconds(), 1),
            stall_seconds=self._watch.stall_seconds,
            stack=self._watch.stack(),
        )
        self._lose(registration, "its event loop is blocked")

    def _deadline(self, sent: float) -> float:
        return sent + self._settings.lease_seconds - fence_margin(self._settings.lease_seconds)

    async def _pause(self, seconds: float) -> None:
        assert self._wake is not None  # noqa: S101 - set before anything here runs
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
            self._wake.clear()
        except TimeoutError:
            pass

    def _call_in_worker_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            log.debug("worker_loop_closed")


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"


def _finish_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail_future(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(
            error if isinstance(error, Exception) else ConfigurationError(f"The liveness thread ended: {error!r}")
        )
