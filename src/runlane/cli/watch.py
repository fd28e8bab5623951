"""The watch of `runlane dev`: definitions are synced when the process starts and whenever a file changes.

What is wrong is told and nothing is changed, so that a half-written file harms nobody; whatever it is, the watch goes
on, and looks again at the next change. A database that is away for a moment is asked again at the next look.
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
_LOOK_SECONDS = 0.5
_TOLD = 20

Sight = tuple[tuple[str, int, int], ...]


class Watch:
    """Follows a folder. Without the folder it waits for one; a folder that goes away changes nothing."""

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
        self._seen: Sight | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, then go on looking."""
        await self._look()
        self._task = asyncio.create_task(self._run(), name="runlane-watch")

    async def stop(self) -> None:
        """Stop looking. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        sight = await asyncio.to_thread(_sight, self._directory)
        if sight is None or sight == self._seen:
            return
        try:
            await self._sync()
        except Unavailable as error:
            log.warning("definitions_not_synced", error=str(error))
            return
        except InvalidDefinitions as error:
            for place, message in error.problems[:_TOLD]:
                log.error("definition_wrong", place=place, problem=message)  # noqa: TRY400 - no traceback helps here
            log.error("definitions_refused", errors=len(error.problems), kept="what was synced before")  # noqa: TRY400
        except Conflict as error:
            log.error("definitions_refused", problem=str(error))  # noqa: TRY400
        except Exception:
            log.exception("definitions_not_synced")
        self._seen = sight

    async def _sync(self) -> None:
        loaded = await asyncio.to_thread(parse_directory, self._directory)
        report = await sync_definitions(
            self._database,
            DEFAULT_TENANT,
            loaded,
            actor=ACTOR,
            # The folder decides what is in a database of its own. A shared one keeps what others brought or still use.
            remove_missing=self._owns_database,
            take_over=self._owns_database,
            source=self._source,
            tasks=self._tasks,
            environment=self._environment,
        )
        for problem in report.warnings[:_TOLD]:
            log.warning("definition_odd", place=str(problem.location), problem=problem.message)
        if report.changes or self._seen is None:
            changed = {
                change: [outcome.key for outcome in report.of(change)] for change in ("added", "changed", "removed")
            }
            log.info("definitions_synced", **changed, unchanged=len(report.of("unchanged")))


def _sight(directory: Path) -> Sight | None:
    """What the folder looks like: its files with their times and sizes; None if it is not there."""
    found: list[tuple[str, int, int]] = []
    try:
        for folder in directory.iterdir():
            if folder.is_dir() and not folder.name.startswith("."):
                for file in folder.iterdir():
                    if file.suffix == ".json":
                        facts = file.stat(follow_symlinks=True)
                        found.append((str(file), facts.st_mtime_ns, facts.st_size))
    except OSError:
        # It is not there, or is being changed right now; the next look sees what came of it.
        return None
    return tuple(sorted(found))
