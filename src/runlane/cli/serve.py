"""`runlane serve`: the HTTP API, with or without a worker in the same process."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import AppPath, Concurrency, Graphs, Lanes, NoUi, Port


def serve(
    app: AppPath = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. 0.0.0.0 accepts requests from other machines and requires an API key."
        ),
    ] = "127.0.0.1",
    port: Port = None,
    worker: Annotated[bool, typer.Option("--worker", help="Also execute runs in this process.")] = False,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
    graphs: Graphs = None,
    no_ui: NoUi = False,
) -> None:
    """Serve the HTTP API and the dashboard until SIGTERM.

    Streams end first, so that readers reconnect elsewhere; then runs drain.
    """
    from runlane.cli.ports import bind, listen
    from runlane.cli.startup import StartupResponder

    # The port is bound before the other imports, which take most of the time of a start, so that probes are answered.
    bound = bind(host, port, dev=False)
    listen(bound, host)
    startup = StartupResponder(bound)
    startup.start()
    from runlane.cli.logs import configure_logs

    # Called before the other imports, because it decides what structlog loads.
    configure_logs(dev=False)
    from runlane.api.services import WorkerOptions
    from runlane.app import App
    from runlane.cli.app_loader import find_app
    from runlane.cli.graphs import add_graphs
    from runlane.cli.process import lane_names
    from runlane.cli.server_process import ServerOptions, run_server
    from runlane.cli.target import refuse_url

    refuse_url("serve", "Set RUNLANE_DATABASE_URL to the database to serve, or unset RUNLANE_URL.")
    options = WorkerOptions(lane_names(lanes), concurrency) if worker else None
    loaded = App() if app is None else find_app(app)
    add_graphs(loaded, graphs, hosts=worker)
    run_server(loaded, ServerOptions(host, port, options, ui=not no_ui, startup=startup))
