"""The runs of a database for commands, with the verbs of a Client."""

from __future__ import annotations

from collections.abc import Mapping
from getpass import getuser
from typing import Any

from runlane.cli.backend import audit_actor, open_app
from runlane.domain.run import Accepted, Status
from runlane.operators.run_tagger import RunTagger
from runlane.store.sql.database import Database


class DatabaseRuns(RunTagger):
    """Reads and tags runs in the database alone. Other changes open an app, which notifies other processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def database(self) -> Database:
        """Return the open database."""
        return self._database

    async def cancel(self, run_id: str) -> Status:
        """Cancel a run."""
        async with open_app() as app:
            return await app.cancel(run_id)

    async def retry(self, run_id: str, *, latest: bool = False) -> Status:
        """Retry a failed run."""
        async with open_app() as app:
            return await app.retry(run_id, latest=latest, actor=audit_actor())

    async def approve(self, run_id: str) -> Status:
        """Approve a held run."""
        async with open_app() as app:
            return await app.approve(run_id)

    async def release(self, run_id: str) -> Status:
        """Unblock the runs behind a failed run."""
        async with open_app() as app:
            return await app.release(run_id)

    async def set_priority(self, run_id: str, priority: int) -> Status:
        """Change the priority of a waiting run."""
        async with open_app() as app:
            return await app.set_priority(run_id, priority)

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, *, step: str | None) -> Status:
        """Answer a question of a run."""
        async with open_app() as app:
            return await app.resume(run_id, response, step=step, answered_by=getuser())

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        """Send a run an event."""
        async with open_app() as app:
            return await app.send_event(run_id, name, data, sent_by=getuser())

    async def fork(self, run_id: str, from_step: str, state: Mapping[str, Any], *, latest: bool = False) -> Accepted:
        """Start a new run at a recorded step of this one."""
        async with open_app() as app:
            return await app.fork(run_id, from_step, state, latest=latest, actor=audit_actor())
