"""The dead letters and bulk jobs of a database for commands, with the verbs of a Client.

A command that creates a bulk job also executes it, together with the other running processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.bus import Bus
from runlane.cli.backend import audit_actor
from runlane.domain.bulk import BulkActionName, BulkItem, BulkJob, BulkPreview, BulkState, ItemState
from runlane.domain.dead_letter import UNHANDLED, DeadLetter, DeadLetterGroup, DeadLetterSummary, LetterState
from runlane.domain.run import Status
from runlane.errors import InvalidRequest
from runlane.failures.actions import ACTIONS
from runlane.failures.bulk_runner import BulkRunner
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry
from runlane.failures.requests import BulkChange, create_bulk, preview_bulk
from runlane.resources import Resources
from runlane.store.failures import handling, letters
from runlane.store.failures.bulk_items import list_items
from runlane.store.failures.bulk_jobs import list_jobs, read_job, stop_job
from runlane.store.failures.letter_groups import group_letters
from runlane.store.failures.letters import LetterFilter, LetterNotFound
from runlane.store.queue.search import RunFilter
from runlane.store.sql.database import Database

_WAIT_SECONDS = 3600.0
# Fields of a filter that have another name in requests.
_FIELDS = {"worker": "worker_id", "session": "session_id", "roots": "roots_only"}
_LETTER_ACTIONS = {
    "retry": BulkActionName.REPLAY,
    "discard": BulkActionName.DISCARD,
    "acknowledge": BulkActionName.ACKNOWLEDGE,
    "assign": BulkActionName.ASSIGN,
}


class DatabaseLetters:
    """Dead letters as `Client.dead_letters` has them."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._database = resources.database

    async def list(self, *, page: int = 100, **filters: Any) -> AsyncGenerator[DeadLetterSummary]:
        """Yield dead letters, the latest death first."""
        cursor: str | None = None
        while True:
            found = await letters.list_letters(self._database, letter_filter(filters), cursor=cursor, limit=page)
            for letter in found.dead_letters:
                yield letter
            cursor = found.next_cursor
            if cursor is None:
                return

    async def groups(self, *, limit: int = 50, **filters: Any) -> Sequence[DeadLetterGroup]:
        """Return dead letters by their cause."""
        return (await group_letters(self._database, letter_filter(filters), limit=limit)).groups

    async def get(self, run_id: str) -> DeadLetter:
        """Return a dead letter with everything about it."""
        letter = await letters.read_letter(self._database, run_id)
        if letter is None:
            raise LetterNotFound(run_id)
        return letter

    async def retry(self, run_id: str, **options: Any) -> str:
        """Retry a dead letter; return the id of the run that repeats it."""
        how = LetterRetry(**options)
        change = await retry_letter(self._database, run_id, how, actor=audit_actor())
        self._resources.publish_change(change)
        return change.new_run_id or run_id

    async def discard(self, run_id: str, note: str | None = None, *, release: bool = False) -> DeadLetterSummary:
        """Discard a dead letter."""
        letter, change = await handling.discard(self._database, run_id, note=note, release=release, actor=audit_actor())
        if change is not None:
            self._resources.publish_change(change)
        return letter

    async def acknowledge(self, run_id: str, note: str | None = None) -> DeadLetterSummary:
        """Acknowledge an open dead letter."""
        return await handling.acknowledge(self._database, run_id, note=note, actor=audit_actor())

    async def assign(self, run_id: str, to: str | None) -> DeadLetterSummary:
        """Assign a dead letter to a person."""
        return await handling.assign(self._database, run_id, to, actor=audit_actor())

    async def bulk(self, action: str, *, rate: float | None = None, **selection: Any) -> BulkJob:
        """Create a bulk job."""
        created = await create_bulk(self._database, self._request(action, rate=rate, **selection))
        return await read_job(self._database, created.id)

    async def preview(self, action: str, **selection: Any) -> BulkPreview:
        """Return the exact number of dead letters that a bulk job would change."""
        return await preview_bulk(self._database, self._request(action, **selection))

    def _request(
        self,
        action: str,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        rate: float | None = None,
    ) -> BulkChange:
        selection = None if filter is None else letter_filter(filter)
        return BulkChange(
            _LETTER_ACTIONS[action],
            selection,
            tuple(run_ids or ()),
            options or {},
            rate,
            None if selection is None else selection.tenant,
            audit_actor(),
            filter or {},
        )


class DatabaseBulk:
    """Bulk jobs as `Client.bulk` has them."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def create(self, action: str, *, rate: float | None = None, **selection: Any) -> BulkJob:
        """Create a job."""
        created = await create_bulk(self._database, self._request(action, rate=rate, **selection))
        return await read_job(self._database, created.id)

    async def preview(self, action: str, **selection: Any) -> BulkPreview:
        """Return the exact number of runs that a job would change."""
        return await preview_bulk(self._database, self._request(action, **selection))

    async def list(self, *, state: str | None = None, page: int = 100) -> AsyncGenerator[BulkJob]:
        """Yield jobs, newest first."""
        before: str | None = None
        wanted = None if state is None else BulkState(state)
        while True:
            found = await list_jobs(self._database, state=wanted, before=before, limit=page)
            for job in found.jobs:
                yield job
            before = found.next_cursor
            if before is None:
                return

    async def get(self, job_id: str) -> BulkJob:
        """Return a job."""
        return await read_job(self._database, job_id)

    async def items(self, job_id: str, *, state: str | None = None, page: int = 1000) -> AsyncGenerator[BulkItem]:
        """Yield the runs of a job."""
        await read_job(self._database, job_id)
        after = 0
        wanted = None if state is None else ItemState(state)
        while True:
            found = await list_items(self._database, job_id, state=wanted, after=after, limit=page)
            for item in found.items:
                yield item
            if found.next_cursor is None:
                return
            after = int(found.next_cursor)

    async def stop(self, job_id: str) -> BulkJob:
        """Stop a job."""
        return await stop_job(self._database, job_id, actor=audit_actor())

    async def wait(self, job_id: str) -> BulkJob:
        """Make the changes of the job, unless another process does; return it once it has ended."""
        processor = BulkRunner(self._database, self._bus)
        while True:
            job = await processor.finish_within(job_id, _WAIT_SECONDS)
            if job.state is not BulkState.RUNNING:
                return job
            await asyncio.sleep(0)

    def _request(
        self,
        action: str,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        rate: float | None = None,
    ) -> BulkChange:
        name = BulkActionName(action)
        selection = None
        if filter is not None:
            possible = ACTIONS[name].statuses or frozenset[Status]()
            given = [Status(status) for status in filter.get("status") or possible]
            statuses = tuple(status for status in Status if status in possible and status in given)
            if not statuses:
                raise InvalidRequest(f"No run with one of these statuses can be changed by the action {action}.")
            selection = RunFilter(statuses=statuses, **_fields_of(filter))
        return BulkChange(name, selection, tuple(run_ids or ()), options or {}, rate, None, audit_actor(), filter or {})


def _fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filter of a request as fields of a RunFilter, without the statuses."""
    fields = {_FIELDS.get(name, name): value for name, value in given.items() if name != "status"}
    for bound in ("min", "max"):
        seconds = fields.pop(f"{bound}_duration_seconds", None)
        if seconds is not None:
            fields[f"{bound}_duration_us"] = round(seconds * 1_000_000)
    return fields


def letter_filter(given: Mapping[str, Any]) -> LetterFilter:
    """Return the filter that options of a command describe."""
    fields = {name: value for name, value in given.items() if value is not None and name != "state"}
    states = tuple(LetterState(state) for state in given.get("state") or UNHANDLED)
    return LetterFilter(states, **fields)
