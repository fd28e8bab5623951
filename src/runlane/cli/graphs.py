"""The LangGraph graphs of a process, from the configuration file that a command names, or from the project's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from runlane.graphs.find_file import find_graphs_file

if TYPE_CHECKING:
    from runlane.app import App
    from runlane.graphs.config_file import GraphsFile

log = structlog.get_logger(__name__)


def add_graphs(app: App, given: Path | None, *, hosts: bool = True) -> GraphsFile | None:
    """Apply the configuration file to the app, and log the keys that have no effect.

    A server that hosts no graphs applies only the settings of servers: access, routes and defaults of threads.
    """
    path = given or app.settings.graphs_file or find_graphs_file(Path.cwd())
    if path is None:
        return None
    from runlane.graphs.config_file import read_graphs_file

    file = read_graphs_file(path)
    file.activate()
    for source in file.graphs if hosts else ():
        app.add_graph(source)
    app.graph_store = file.store
    app.agent_server = file.server
    report_file(file)
    return file


def report_file(file: GraphsFile) -> None:
    """Log the keys of a file that have no effect, and the packages that are not installed."""
    for item in file.unsupported:
        log.warning("graphs_file_key_ignored", file=str(file.path), key=item.key, fix=item.cure)
    for package in file.missing_packages:
        log.warning("package_not_installed", file=str(file.path), package=package, fix=f"pip install '{package}'")
