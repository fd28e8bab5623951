"""`runlane dev`: API, worker and services in one process, for one developer on one machine.

It serves without keys, executes every queued run, and makes the definitions of the database equal to a folder. That
is right for a file of the project and wrong for a database that other people use, so it refuses such a database.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.options import AppPath, Concurrency, Graphs, Lanes, NoUi, Port
from runlane.cli.terminal import write_line
from runlane.errors import ConfigurationError

if TYPE_CHECKING:
    from runlane.app import App
    from runlane.settings import Settings


def dev(
    app: AppPath = None,
    port: Port = None,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
    definitions: Annotated[
        Path | None,
        typer.Option(help="Sync this folder of definitions, and again after each change. Default: definitions."),
    ] = None,
    graphs: Graphs = None,
    shared_database: Annotated[
        bool,
        typer.Option(
            "--shared-database",
            help="Allow a database other than a file in this folder. This process will execute its runs.",
        ),
    ] = False,
    no_ui: NoUi = False,
    open_ui: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
) -> None:
    """Run API, worker and services in one process, with live logs; on a SQLite file by default.

    The API is open, without keys, to programs on this machine only.
    """
    from runlane.api.services import WorkerOptions
    from runlane.app import App
    from runlane.cli.app_loader import find_app
    from runlane.cli.graphs import add_graphs
    from runlane.cli.logs import configure_logs
    from runlane.cli.process import lane_names
    from runlane.cli.server_process import DEFAULT_HOST, ServerOptions, run_server
    from runlane.settings import DEFINITIONS_FOLDER

    worker = WorkerOptions(lane_names(lanes), concurrency, log_runs=True)
    configure_logs(dev=True)
    if definitions is not None and not definitions.is_dir():
        raise ConfigurationError(f"The folder {definitions} does not exist. Check --definitions.")
    # Definitions come from the user of this process, on their own machine.
    os.environ.setdefault("RUNLANE_MCP_STDIO", "true")
    loaded = App() if app is None else find_app(app)
    graphs_file = add_graphs(loaded, graphs)
    _check_database(loaded.settings, shared=shared_database)
    folder = definitions or loaded.settings.definitions_dir or DEFINITIONS_FOLDER
    options = ServerOptions(
        DEFAULT_HOST, port, worker, dev_folder=folder, graphs_file=graphs_file, ui=not no_ui, open_ui=open_ui
    )
    run_server(loaded, options)


def owns_database(settings: Settings) -> bool:
    """Return whether the database is a file of the current folder, the project."""
    path = settings.sqlite_path
    return path is not None and path.resolve().is_relative_to(Path.cwd().resolve())


def _check_database(settings: Settings, *, shared: bool) -> None:
    """Refuse a database that does not belong to the project, unless the flag allows it."""
    from runlane.settings import EMBEDDED_FILE

    if shared or owns_database(settings):
        return
    raise ConfigurationError(
        f"The database {settings.shown_database} is not a file of this folder, so other programs may use it, and "
        "runlane dev would execute their runs and serve their data without keys. Unset RUNLANE_DATABASE_URL to use "
        f"{EMBEDDED_FILE}, or pass --shared-database to use it nevertheless."
    )


def print_welcome(app: App, url: str, *, default_port_taken: bool, ui: bool) -> None:
    """Print the address of `runlane dev`, its tasks and its database."""
    from runlane.cli.target import URL_VARIABLE
    from runlane.settings import EMBEDDED_FILE

    database = app.settings.shown_database
    if default_port_taken:
        write_line(f"The default port 8765 is taken. This server is {url}; commands in this folder use it.")
    other_server = os.environ.get(URL_VARIABLE)
    if other_server:
        write_line(f"RUNLANE_URL is set: commands in such a shell use {other_server}, not this server.")
    names = ", ".join(sorted(app.tasks)) or "none"
    graphs = f"; graphs {', '.join(sorted(app.graphs))}" if app.graphs else ""
    write_line(f"Runlane dev: tasks {names}{graphs}; database {database}. Ctrl-C stops.")
    if ui:
        write_line(f"Dashboard on {url}/ui/")
    write_line(f"API on {url}, reference on {url}/docs")
    if not owns_database(app.settings):
        write_line(
            f"Shared database {database}: dev executes its runs and serves its data without keys to programs on this "
            "machine. It adds and changes definitions of this project and removes none."
        )
    if database == str(EMBEDDED_FILE):
        write_line("Enqueue from another process in this folder; list runs with: runlane runs list")
