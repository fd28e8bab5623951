"""An app that executes its runs inside a test, with its own database, a worker and the background services.

It works in every event loop: in `asyncio.run`, in the loop of a test framework, or in the thread of `app.blocking`. The
fixtures of `runlane.testing.pytest_plugin` use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

from runlane.app import App
from runlane.domain.run import Run
from runlane.domain.wait import Question
from runlane.settings import Settings
from runlane.testing.clock import DatabaseClock
from runlane.worker.worker import Worker

WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.02


class RunningApp:
    """Configures and connects an app, with one worker and the background services.

    The end of the block undoes all of it.
    """

    def __init__(
        self, app: App, settings: Settings, *, concurrency: int = 10, clock: DatabaseClock | None = None
    ) -> None:
        self.app = app
        self._settings = settings
        self._clock = clock
        self._concurrency = concurrency
        self._worker: Worker | None = None
        self._open = AsyncExitStack()

    @property
    def worker(self) -> Worker:
        """The worker that executes the runs."""
        if self._worker is None:
            raise RuntimeError('The app has no worker yet. Use "async with RunningApp(app, settings)".')
        return self._worker

    async def start(self) -> Self:
        """Configure and connect the app, and start its worker. Raise ConfigurationError if it is already connected."""
        self.app.configure(self._settings)
        try:
            if self._clock is not None:
                await self._open.enter_async_context(self._clock)
            await self._open.enter_async_context(self.app)
            worker = self._worker = await self.app.worker(concurrency=self._concurrency)
            await worker.start()
            self._open.push_async_callback(worker.stop, 0.0)
            for service in await self.app.maintenance_services():
                service.start()
                self._open.push_async_callback(service.stop)
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop the worker and the services, and close the app. Runs that have not ended stay in the database."""
        await self._open.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def clock(self) -> DatabaseClock:
        """The clock of the database, which tests may advance."""
        if self._clock is None:
            raise RuntimeError("The app has no clock. Use RunningApp(app, settings, clock=DatabaseClock(settings)).")
        return self._clock

    async def run(
        self,
        task: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        *,
        timeout: float = WAIT_SECONDS,
        **options: Any,
    ) -> Run:
        """Enqueue a run of a task, wait for its end and return it. The options are those of `app.enqueue`."""
        accepted = await self.app.enqueue(task, input, **options)
        return await self.app.wait(accepted.run_id, timeout)

    async def question(self, run_id: str, *, step: str | None = None, timeout: float = WAIT_SECONDS) -> Question:
        """Wait for an open question of a run and return it. `step` is the id or path of the step that asks."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    # The run is read before the questions, so that a question of a run that ends meanwhile is not
                    # missed.
                    run = await self.app.get(run_id)
                    for question in await self.app.waits(run_id):
                        fits = step is None or step in (question.path, question.step_id)
                        if question.kind == "human" and question.answered_at_us is None and fits:
                            return question
                    if run.status.terminal:
                        raise AssertionError(f"Run {run_id} ended as {run.status} and did not ask. Error: {run.error}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            asking = "a question" if step is None else f'a question of step "{step}"'
            raise TimeoutError(f"Run {run_id} did not ask {asking} within {timeout:g} s.") from None

    async def answer(
        self,
        run_id: str,
        response: Mapping[str, Any] | str,
        *,
        step: str | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> Question:
        """Wait for an open question of a run, answer it, and return it."""
        question = await self.question(run_id, step=step, timeout=timeout)
        await self.app.resume(run_id, response, step=question.path, answered_by="test")
        return question
