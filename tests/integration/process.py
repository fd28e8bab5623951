"""One process of the system, in the test's event loop: an App, workers, maintenance services."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from runlane import App, Event, Run
from runlane.maintenance.service import PeriodicService
from runlane.settings import Settings
from runlane.worker.worker import Worker
from tests.harness import Store

END_SECONDS = 60


class Process:
    """An app with workers and maintenance services; a test starts it after it has registered its tasks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.app = App(settings)
        self.workers: list[Worker] = []
        self.duties: list[PeriodicService] = []

    async def start(self, concurrency: int = 20, lanes: Collection[str] | None = None) -> Worker:
        worker = await self.app.worker(lanes, concurrency)
        self.workers.append(worker)
        await worker.start()
        if not self.duties:
            self.duties = await self.app.maintenance_services()
            for duty in self.duties:
                duty.start()
        return worker

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop(0.1)
        for duty in self.duties:
            await duty.stop()
        await self.app.close()

    async def run(self, task: str, arguments: dict[str, Any] | None = None, **options: Any) -> Run:
        """Enqueue a task and wait for the end of its run."""
        return await self.end((await self.app.enqueue(task, arguments, **options)).run_id)

    async def end(self, run_id: str) -> Run:
        return await self.app.wait(run_id, END_SECONDS)

    async def events(self, run_id: str) -> list[Event]:
        return list(await self.app.events(run_id))

    async def types(self, run_id: str) -> list[str]:
        return [event.type for event in await self.events(run_id)]

    async def store(self) -> Store:
        return Store(self.settings, await self.app.database())
