"""Sync the definitions of `runlane dev` when the process starts and whenever a file changes.

Definitions with errors are logged and change nothing, so a half-written file is harmless. After any error the watcher
continues with the next change of a file; after an outage of the database, with the next check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import structlog

from runlane.catalog.sync import sync_definitions
from runlane.definitions.checks.environment import Environment
from runlane.definitions.loader import parse_directory
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import Conflict, InvalidDefinitions, Unavailable
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

ACTOR = "dev"
_CHECK_SECONDS = 0.5
_MAX_LOGGED = 20

# Path, modification time and size of each file.
FolderState = tuple[tuple[str, int, int], ...]


class DefinitionsWatcher:
    """Watches a folder, which may be created later. A folder that is deleted changes nothing."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        tasks: Collection[str],
        *,
        source: str,
        owns_database: bool,
        environment: Environment | None = None,
    ) -> None:
        self._database = database
        self._source = source
        self._owns_database = owns_database
        self._directory = directory
        self._tasks = list(tasks)
        self._environment = environment
        self._synced: FolderState | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Sync once, then watch in the background."""
        await self._check()
        self._task = asyncio.create_task(self._run(), name="runlane-watch")

    async def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._check()

    async def _check(self) -> None:
        state = await asyncio.to_thread(_folder_state, self._directory)
        if state is None or state == self._synced:
            return
        try:
            await self._sync()
        except Unavailable as error:
            log.warning("definitions_not_synced", error=str(error))
            return
        except InvalidDefinitions as error:
            for location, message in error.problems[:_MAX_LOGGED]:
                log.error("definition_wrong", place=location, problem=message)  # noqa: TRY400 - no traceback helps here
            log.error("definitions_refused", errors=len(error.problems), kept="what was synced before")  # noqa: TRY400
        except Conflict as error:
            log.error("definitions_refused", problem=str(error))  # noqa: TRY400
        except Exception:
            log.exception("definitions_not_synced")
        self._synced = state

    async def _sync(self) -> None:
        loaded = await asyncio.to_thread(parse_directory, self._directory)
        report = await sync_definitions(
            self._database,
            DEFAULT_TENANT,
            loaded,
            actor=ACTOR,
            # The project's own database has the definitions of the folder only. A shared one keeps those of others.
            remove_missing=self._owns_database,
            take_over=self._owns_database,
            source=self._source,
            tasks=self._tasks,
            environment=self._environment,
        )
        for problem in report.warnings[:_MAX_LOGGED]:
            log.warning("definition_odd", place=str(problem.location), problem=problem.message)
        if report.changes or self._synced is None:
            changed = {
                change: [outcome.key for outcome in report.of(change)] for change in ("added", "changed", "removed")
            }
            log.info("definitions_synced", **changed, unchanged=len(report.of("unchanged")))


def _folder_state(directory: Path) -> FolderState | None:
    """Return the files of the folder with their times and sizes; None if it does not exist."""
    found: list[tuple[str, int, int]] = []
    try:
        for folder in directory.iterdir():
            if folder.is_dir() and not folder.name.startswith("."):
                for file in folder.iterdir():
                    if file.suffix == ".json":
                        facts = file.stat(follow_symlinks=True)
                        found.append((str(file), facts.st_mtime_ns, facts.st_size))
    except OSError:
        # The folder does not exist, or is being changed; the next check reads it again.
        return None
    return tuple(sorted(found))
