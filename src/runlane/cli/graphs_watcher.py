"""Reload the graphs of `runlane dev` whenever a Python file of the project or the configuration file changes.

Runs in progress finish with the graphs that they began with. A file with an error is logged and reported by
`runlane doctor`; the next change of a file loads the graphs again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from runlane.cli.graphs import report_file
from runlane.errors import ConfigurationError, Unavailable
from runlane.graphs.config_file import GraphsFile, read_graphs_file

if TYPE_CHECKING:
    from runlane.worker.worker import Worker

log = structlog.get_logger(__name__)

_CHECK_SECONDS: Final = 0.5
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_MAX_FILES: Final = 5000

# Path, modification time and size of each file.
ProjectState = tuple[tuple[str, int, int], ...]


class GraphsWatcher:
    """Watches the folders of a configuration file. `start` assumes that the current files are already loaded."""

    def __init__(self, worker: Worker, file: GraphsFile) -> None:
        self._worker = worker
        self._file = file
        self._loaded: ProjectState = ()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch in the background."""
        self._loaded = await asyncio.to_thread(_project_state, self._file)
        self._task = asyncio.create_task(self._run(), name="runlane-watch-graphs")

    async def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            state = await asyncio.to_thread(_project_state, self._file)
            if state == self._loaded:
                continue
            try:
                await self._reload()
            except Unavailable as error:
                log.warning("graphs_not_reloaded", error=str(error))
                continue
            except ConfigurationError as error:
                log.error("graphs_not_reloaded", problem=str(error))  # noqa: TRY400 - no traceback helps here
            except Exception:
                log.exception("graphs_not_reloaded")
            self._loaded = state

    async def _reload(self) -> None:
        file = await asyncio.to_thread(read_graphs_file, self._file.path)
        file.activate()
        if file.unsupported != self._file.unsupported:
            report_file(file)
        self._file = file
        errors = await self._worker.reload_graphs(file.graphs, (file.path.parent, *file.folders))
        loaded = [source.id for source in file.graphs if source.id not in errors]
        log.info("graphs_reloaded", graphs=loaded, failed=sorted(errors))


def _project_state(file: GraphsFile) -> ProjectState:
    """Return the Python files of the project and its configuration file, with their times and sizes."""
    found: dict[str, tuple[str, int, int]] = {}
    for path in (file.path, *(path for folder in (file.path.parent, *file.folders) for path in _modules(folder))):
        try:
            facts = path.stat()
        except OSError:
            continue
        found[str(path)] = (str(path), facts.st_mtime_ns, facts.st_size)
        if len(found) >= _MAX_FILES:
            break
    return tuple(sorted(found.values()))


def _modules(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        yield from (Path(place, name) for name in files if name.endswith(".py"))
