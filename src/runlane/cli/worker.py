"""`runlane worker`: a process that executes runs until a signal, then drains."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from runlane.cli.options import AppPath, Concurrency, Graphs, Lanes

if TYPE_CHECKING:
    from runlane.app import App


def worker(app: AppPath = None, lanes: Lanes = None, concurrency: Concurrency = None, graphs: Graphs = None) -> None:
    """Execute runs until SIGTERM, then drain; a second signal ends the grace period."""
    from runlane.cli.logs import configure_logs

    # Before the other imports, because it decides what structlog loads.
    configure_logs(dev=False)
    from runlane.app import App
    from runlane.cli.app_loader import find_app
    from runlane.cli.graphs import add_graphs
    from runlane.cli.process import lane_names, run_process
    from runlane.cli.target import refuse_url

    refuse_url("worker", "Set RUNLANE_DATABASE_URL to the server's database, or unset RUNLANE_URL.")
    loaded = App() if app is None else find_app(app)
    add_graphs(loaded, graphs)
    run_process(_execute(loaded, lane_names(lanes), concurrency))


async def _execute(app: App, lanes: list[str] | None, concurrency: int | None) -> bool:
    """Execute runs until a signal. Return whether code is stuck in a thread."""
    import structlog

    from runlane.cli.process import SECOND_SIGNAL, end_stuck_process, handle_signals
    from runlane.observability.tracing import start_tracing, stop_tracing

    log = structlog.get_logger(__name__)
    stopping = asyncio.Event()
    worker = None

    def stop() -> None:
        active = 0 if worker is None else worker.active
        hint = {"hint": SECOND_SIGNAL} if active else {}
        log.info("stopping", grace_seconds=app.settings.grace_seconds, active=active, **hint)
        stopping.set()

    def stop_now() -> None:
        if worker is None:
            os._exit(130)
        log.info("stopping_now")
        worker.hurry()

    handle_signals(stop, stop_now)
    start_tracing(app.settings, "runlane-worker")
    async with app:
        worker = await app.worker(lanes, concurrency)
        worker.on_stuck = end_stuck_process
        services = await app.maintenance_services()
        try:
            await worker.start()
            for service in services:
                service.start()
            await stopping.wait()
        finally:
            await worker.stop()
            for service in services:
                await service.stop()
            stop_tracing()
        return worker.has_stuck_code
