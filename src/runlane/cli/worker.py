"""`runlane worker`: a process that executes runs until a signal, then drains."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.options import AppPath, Concurrency, Graphs, Lanes

if TYPE_CHECKING:
    from runlane.app import App


def worker(
    app: AppPath = None,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
    graphs: Graphs = None,
    max_runs: Annotated[
        int | None, typer.Option(min=1, help="Exit after this many runs, for workers that are started as jobs.")
    ] = None,
    idle_exit: Annotated[
        bool, typer.Option("--idle-exit", help="Exit as soon as no run is ready and none is executed.")
    ] = False,
) -> None:
    """Execute runs until SIGTERM, then drain; a second signal ends the grace period."""
    from runlane.cli.logs import configure_logs

    # Called before the other imports, because it decides what structlog loads.
    configure_logs(dev=False)
    from runlane.app import App
    from runlane.cli.app_loader import find_app
    from runlane.cli.graphs import add_graphs
    from runlane.cli.process import lane_names, run_process
    from runlane.cli.target import refuse_url

    refuse_url("worker", "Set RUNLANE_DATABASE_URL to the server's database, or unset RUNLANE_URL.")
    loaded = App() if app is None else find_app(app)
    add_graphs(loaded, graphs)
    run_process(_execute(loaded, lane_names(lanes), concurrency, _Bound(max_runs, idle_exit)))


@dataclass(frozen=True, slots=True)
class _Bound:
    """When the worker ends by itself: after this many runs, or when it is idle."""

    max_runs: int | None
    when_idle: bool


async def _execute(app: App, lanes: list[str] | None, concurrency: int | None, bound: _Bound) -> bool:
    """Execute runs until a signal, or until the worker has reached its bound. Return whether code is stuck."""
    import structlog

    from runlane.cli.process import SECOND_SIGNAL, end_stuck_process, handle_signals
    from runlane.cli.service_manager import ServiceManager
    from runlane.observability.tracing import start_tracing, stop_tracing
    from runlane.worker.deletion_cost import deletion_cost

    log = structlog.get_logger(__name__)
    stopping = asyncio.Event()
    worker = None
    manager = ServiceManager()

    def stop() -> None:
        manager.stopping()
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
        worker.bound(bound.max_runs, ends_when_idle=bound.when_idle)
        services = await app.maintenance_services()
        cost = deletion_cost(app.settings, lambda: worker.active)
        try:
            await worker.start()
            for service in services:
                service.start()
            if cost is not None:
                cost.start()
            manager.ready()
            # A worker whose event loop is blocked ends itself; the watchdog ends a process that fails to do so.
            manager.start_watchdog(lambda: not worker.health.stalled)
            await _first_of(stopping, worker.finished)
        finally:
            await worker.stop()
            if cost is not None:
                await cost.stop()
            manager.close()
            for service in services:
                await service.stop()
            stop_tracing()
        return worker.has_stuck_code


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
