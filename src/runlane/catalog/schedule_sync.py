"""The schedules of a sync: stored, changed and removed together with the other definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from runlane.definitions.loader import LoadedDefinitions
from runlane.domain.schedule import ScheduleSettings
from runlane.store.schedules.synced import schedules_lock, settle_schedules_of_files
from runlane.store.sql.database import Database, Session


class _DryRun(Exception):
    """Rolls a transaction back."""


@dataclass(frozen=True, slots=True)
class ScheduleChanges:
    """The schedules that a sync contains, those of them that are new or differ, and those that it removes."""

    given: Sequence[ScheduleSettings] = ()
    changed: Collection[str] = ()
    removed: Collection[str] = ()
    take_over: bool = False

    def locks(self, tenant: str) -> list[int]:
        """Return the locks that the transaction takes before it locks rows."""
        return [schedules_lock(tenant)] if self.given or self.removed else []

    async def settle(self, session: Session, tenant: str, actor: str) -> None:
        """Store the changes."""
        if self.given or self.removed:
            await settle_schedules_of_files(
                session, tenant, self.given, self.changed, self.removed, actor=actor, take_over=self.take_over
            )

    async def check(self, database: Database, tenant: str) -> None:
        """Raise what storing them would raise, and store nothing."""

        async def work(session: Session) -> None:
            await session.lock(exclusive=self.locks(tenant))
            await self.settle(session, tenant, "dry run")
            raise _DryRun

        if self.given or self.removed:
            with contextlib.suppress(_DryRun):
                await database.transact(work)


def schedule_changes(
    loaded: LoadedDefinitions, changed: Collection[str], removed: Iterable[tuple[str, ...]], *, take_over: bool
) -> ScheduleChanges:
    """Return the changes of a sync: its schedules, and those among the definitions that it removes."""
    given = [parsed.definition for parsed in loaded.definitions if isinstance(parsed.definition, ScheduleSettings)]
    return ScheduleChanges(given, changed, [name for kind, name in removed if kind == "schedule"], take_over)
