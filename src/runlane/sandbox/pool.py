"""The processes of the sandbox, shared between tenants.

A small pool of interpreter processes is started at first use and shared by all runs of a worker. The evaluations of one
tenant may use all processes except one, which stays free for other tenants. Scripts and tools may take minutes, while
conditions and expressions take milliseconds, so scripts and tools leave one more process free for conditions of any
tenant. With a single process, tenants take turns.

The pool is used from threads, because its event loop support sometimes aborts the interpreter at exit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from runlane.domain.text import dump_json
from runlane.fairness import FairQueue
from runlane.interpreter.failure import StepFailed
from runlane.settings import Settings

if TYPE_CHECKING:
    from pydantic_monty import Monty

MAX_PRINTED: Final = 64 * 1024
MAX_TOOL_SECONDS: Final = 300.0
STATE: Final = "_runlane_state"
ARGUMENTS: Final = "_runlane_arguments"
# The interpreter checks its time limit between instructions. If one instruction takes longer than this, its process is
# killed.
_GRACE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one evaluation, and the maximum number of concurrent evaluations."""

    condition_seconds: float = 2.0
    script_seconds: float = 10.0
    memory_bytes: int = 128 * 1024 * 1024
    output_bytes: int = 4 * 1024 * 1024
    processes: int = 4

    @classmethod
    def of(cls, settings: Settings) -> SandboxLimits:
        """Return the limits of the settings."""
        return cls(
            condition_seconds=settings.sandbox_condition_seconds,
            script_seconds=settings.sandbox_script_seconds,
            memory_bytes=settings.sandbox_memory_bytes,
            output_bytes=settings.sandbox_output_bytes,
            processes=settings.sandbox_processes,
        )


def stopped() -> StepFailed:
    """Return the failure for an evaluation that was stopped."""
    return StepFailed("sandbox_limit", "The evaluation was stopped.", retryable=True)


class SandboxPool:
    """Evaluates jobs in processes. Each tenant gets a fair share of the processes."""

    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits
        count = limits.processes
        # Long jobs pass two queues. A thread that has finished a job executes the next ready job.
        self._any: FairQueue[SandboxJob] = FairQueue(count, max(1, count - 1))
        self._long: FairQueue[SandboxJob] = FairQueue(max(1, count - 1), max(1, count - 2))
        self._turns = threading.Lock()
        self._pool: Monty | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()
        self._jobs: set[SandboxJob] = set()
        self._closed = False

    async def evaluate(self, tenant: str, job: SandboxJob) -> Any:
        """Return the value of the code. Raise MontyError, or StepFailed if no process is available."""
        if self._closed:
            raise stopped()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._limits.processes, thread_name_prefix="runlane-sandbox")
        answer = job.wait_for(tenant, asyncio.get_running_loop())
        self._jobs.add(job)
        with self._turns:
            (self._any if job.short else self._long).add(tenant, 1, job)
            ready = self._ready()
        self._begin(self._threads, ready)
        try:
            return await answer
        except asyncio.CancelledError:
            # A job that is still queued ends when its turn comes.
            job.kill()
            raise
        finally:
            self._jobs.discard(job)

    async def close(self) -> None:
        """Stop the processes. Evaluations in progress fail."""
        self._closed = True
        threads, self._threads = self._threads, None
        for job in tuple(self._jobs):
            job.kill()
        if threads is not None:
            await asyncio.to_thread(self._stop, threads)

    def _ready(self) -> list[SandboxJob]:
        """Return the jobs whose turn has come. The caller holds the lock."""
        for job in self._long.grant():
            self._any.add(job.tenant, 1, job)
        return self._any.grant()

    def _begin(self, threads: ThreadPoolExecutor, jobs: list[SandboxJob]) -> None:
        for job in jobs:
            threads.submit(self._work, threads, job)

    def _work(self, threads: ThreadPoolExecutor, job: SandboxJob) -> None:
        """Execute a job in this thread, then further jobs as long as one is ready."""
        ready = [job]
        while ready:
            job = ready.pop()
            try:
                job.finish(self._run(job), None)
            except BaseException as error:  # noqa: BLE001 - raised in the caller that awaits the job
                job.finish(None, error)
            with self._turns:
                self._any.release(job.tenant, 1)
                if not job.short:
                    self._long.release(job.tenant, 1)
                ready += self._ready()
            if len(ready) > 1:
                # After a shutdown, threads accept no jobs, so this thread executes the job.
                with suppress(RuntimeError):
                    while len(ready) > 1:
                        threads.submit(self._work, threads, ready[0])
                        del ready[0]

    def _stop(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown(wait=True)
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)

    def _run(self, job: SandboxJob) -> Any:
        job.check()
        inputs = job.inputs()
        with self._started().checkout(
            limits={"max_feed_duration_secs": job.seconds, "max_memory": self._limits.memory_bytes},
            # The time limit does not count sleeping time, so sleeping is not allowed.
            os_policy={"sleep": "call_host"},
        ) as session:
            job.begin(session.worker_pid)
            try:
                return session.feed_run(job.text, inputs=inputs, print_callback=job.take_print)
            finally:
                job.end()

    def _started(self) -> Monty:
        from pydantic_monty import Monty

        with self._starting:
            if self._pool is None:
                limits = self._limits
                longest = max(limits.condition_seconds, limits.script_seconds, MAX_TOOL_SECONDS)
                pool = Monty(
                    max_processes=limits.processes,
                    request_timeout=longest + 10,
                    feed_duration_limit_grace=_GRACE_SECONDS,
                )
                try:
                    pool.__enter__()
                except OSError as error:
                    raise StepFailed(
                        "sandbox_unavailable",
                        f"The sandbox cannot be started: {error}. Install pydantic-monty with its runtime.",
                        retryable=True,
                    ) from None
                self._pool = pool
            return self._pool


class SandboxJob:
    """One evaluation. Its process may be killed only while it executes this job.

    A `short` job has a limit of seconds, like conditions and expressions.
    """

    def __init__(
        self,
        text: str,
        seconds: float,
        bound_by: str,
        *,
        state: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        short: bool = False,
    ) -> None:
        self.text = text
        self.seconds = seconds
        self.bound_by = bound_by
        self.short = short
        self.tenant = ""
        self._state = state or {}
        self._arguments = arguments or {}
        self.lines = text.count("\n") - 1
        self.printed: list[str] = []
        self._printed_size = 0
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._killed = False

    def inputs(self) -> dict[str, str]:
        """Return the inputs of the code as JSON. They are created when the turn of the job has come, to save memory."""
        return {STATE: dump_json(self._state), ARGUMENTS: dump_json(self._arguments)}

    def wait_for(self, tenant: str, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Assign the job to a tenant, and return the future of its outcome."""
        self.tenant = tenant
        self._loop = loop
        self._answer: asyncio.Future[Any] = loop.create_future()
        return self._answer

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome in the event loop. Called from a thread."""

        def set_outcome() -> None:
            if self._answer.done():
                return
            if error is None:
                self._answer.set_result(value)
            else:
                self._answer.set_exception(error)

        # If the loop is closed, no caller waits for the outcome.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(set_outcome)

    def check(self) -> None:
        """Raise StepFailed if the job was stopped."""
        if self._killed:
            raise stopped()

    def begin(self, pid: int | None) -> None:
        with self._lock:
            self.check()
            self._pid = pid

    def end(self) -> None:
        with self._lock:
            self._pid = None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    def take_print(self, stream: str, text: str) -> None:
        """Collect printed text, up to a limit."""
        if stream == "stdout" and self._printed_size < MAX_PRINTED:
            self.printed.append(text[: MAX_PRINTED - self._printed_size])
            self._printed_size += len(text)
