"""Runs on a server or in a database, behind the same methods and values, so that the output is the same for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from getpass import getuser
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from runlane.cli.backend import open_app, open_client
from runlane.cli.options import NEWEST_RUN
from runlane.domain.events import Event, LiveType
from runlane.domain.ids import is_run_id_prefix, is_whole_run_id
from runlane.domain.run import Accepted, Run, Status
from runlane.errors import InvalidRequest, NotFound, RunNotFound

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.domain.views import LiveEvent
    from runlane.domain.wait import Question
    from runlane.store.sql.database import Database

T = TypeVar("T")

# How often the database is polled for new events. A server pushes them.
POLL_SECONDS = 0.2
PAGE = 1000
# How many of the runs that match an ambiguous prefix are listed.
_SHOWN_MATCHES = 3

RunAction = Literal["cancel", "retry", "approve", "release"]


def with_runs(url: str | None, api_key: str | None, work: Callable[[RunBackend], Awaitable[T]]) -> T:
    """Call the function with the runs of the server or the database that a command acts on."""

    async def call() -> T:
        async with open_runs(url, api_key) as runs:
            return await work(runs)

    return asyncio.run(call())


@asynccontextmanager
async def open_runs(url: str | None, api_key: str | None) -> AsyncGenerator[RunBackend]:
    """Open the server at this URL; without one, that of a running `runlane dev` here, or the database."""
    from runlane.cli.target import check_exists, server_or_database

    url, api_key = server_or_database(url, api_key)
    if url is not None:
        async with open_client(url, api_key) as client:
            yield ServerRuns(client)
        return
    from runlane.settings import load_settings
    from runlane.store.sql.migrate import open_ready

    settings = load_settings()
    check_exists(settings)
    database = await open_ready(settings)
    try:
        yield DatabaseRuns(database)
    finally:
        await database.close()


async def find_run_id(runs: RunBackend, given: str) -> str:
    """Return the id of the run that a command was given: a whole id, a unique prefix of one, or NEWEST_RUN."""
    if given == NEWEST_RUN:
        newest = await runs.ids(None, 1)
        if not newest:
            raise NotFound("--last: there are no runs yet. Start one: runlane run NAME")
        return newest[0]
    if is_whole_run_id(given) or not is_run_id_prefix(given):
        return given
    found = await runs.ids(given, _SHOWN_MATCHES + 1)
    # A server that does not support prefixes returns its newest runs, and no command may change those.
    if not found or not all(run_id.startswith(given) for run_id in found):
        raise RunNotFound(given)
    if len(found) > 1:
        more = " and more" if len(found) > _SHOWN_MATCHES else ""
        raise InvalidRequest(
            f'"{given}" is the beginning of several run ids: {", ".join(found[:_SHOWN_MATCHES])}{more}. '
            "Give more characters of the id."
        )
    return found[0]


class ServerRuns:
    """Runs of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, run_id: str) -> Run:
        """Return a run with its input and result."""
        return await self._client.get(run_id)

    async def list(
        self, statuses: Sequence[str], filters: Mapping[str, str | None], before: str | None, limit: int
    ) -> Sequence[Run]:
        """Return the newest runs that match."""
        return await _first(self._client.list(status=statuses, **filters, cursor=before, page=limit), limit)

    async def ids(self, prefix: str | None, limit: int) -> Sequence[str]:
        """Return the newest ids with this prefix, or of all runs."""
        return [run.id for run in await _first(self._client.list(id_prefix=prefix, page=limit), limit)]

    async def attempts(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        return [asdict(attempt) for attempt in await self._client.attempts(run_id)]

    async def steps(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the recorded steps of a run."""
        return [asdict(step) for step in await self._client.steps(run_id)]

    async def events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """Return stored events after a number."""
        return await self._client.events(run_id, after, limit)

    def stream(self, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Yield the events of a run until it has ended."""
        return self._client.stream(run_id, after)

    async def change(self, run_id: str, action: RunAction) -> Status:
        return await getattr(self._client, action)(run_id)

    async def set_priority(self, run_id: str, priority: int) -> Status:
        return await self._client.set_priority(run_id, priority)

    async def waits(self, run_id: str) -> Sequence[Question]:
        """Return what a run waits for."""
        return await self._client.waits(run_id)

    async def inbox(self, limit: int) -> Sequence[Question]:
        """Return the open questions of all runs, oldest first."""
        return await _first(self._client.inbox(page=limit), limit)

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, step: str | None) -> Status:
        """Answer a question of a run."""
        return await self._client.resume(run_id, response, step=step)

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        return await self._client.send_event(run_id, name, data)

    async def fork(self, run_id: str, path: str, state: Mapping[str, Any]) -> Accepted:
        """Start a new run at a recorded step of this one."""
        return await self._client.fork(run_id, path, state)


class DatabaseRuns:
    """Runs in the database itself. What changes runs and notifies other processes is loaded only for a change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run_id: str) -> Run:
        from runlane.queries import get_run

        return await get_run(self._database, run_id)

    async def list(
        self, statuses: Sequence[str], filters: Mapping[str, str | None], before: str | None, limit: int
    ) -> Sequence[Run]:
        from runlane.store.queue.runs import list_runs

        return await list_runs(self._database, statuses=statuses, **filters, before=before, limit=limit)

    async def ids(self, prefix: str | None, limit: int) -> Sequence[str]:
        from runlane.store.queue.search import RunFilter, search_runs

        found = await search_runs(self._database, RunFilter(id_prefix=prefix), limit=limit)
        return [run.id for run in found.runs]

    async def attempts(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        from runlane.queries import get_attempts

        return [asdict(attempt) for attempt in await get_attempts(self._database, run_id)]

    async def steps(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        from runlane.queries import get_steps

        return [asdict(step) for step in await get_steps(self._database, run_id)]

    async def events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        from runlane.queries import get_events

        return await get_events(self._database, run_id, after, limit)

    async def stream(self, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
        from runlane.store.queue.search import find_standing

        while True:
            # The run is read before its events, so all events up to its last_seq are read in this round.
            run = await find_standing(self._database, run_id)
            for event in await self.events(run_id, after, PAGE):
                if event.seq != after + 1:
                    from runlane.domain.views import LiveEvent

                    yield LiveEvent(run_id, LiveType.TRUNCATED, 0, {"first_seq": event.seq})
                after = event.seq
                yield event
            if after >= run.last_seq and run.status.terminal:
                return
            if after >= run.last_seq:
                await asyncio.sleep(POLL_SECONDS)

    async def change(self, run_id: str, action: RunAction) -> Status:
        async with open_app() as app:
            return await getattr(app, action)(run_id)

    async def set_priority(self, run_id: str, priority: int) -> Status:
        async with open_app() as app:
            return await app.set_priority(run_id, priority)

    async def waits(self, run_id: str) -> Sequence[Question]:
        from runlane.queries import get_waits

        return await get_waits(self._database, run_id)

    async def inbox(self, limit: int) -> Sequence[Question]:
        from runlane.queries import get_inbox

        return (await get_inbox(self._database, limit=limit)).questions

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, step: str | None) -> Status:
        async with open_app() as app:
            return await app.resume(run_id, response, step=step, answered_by=getuser())

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        async with open_app() as app:
            return await app.send_event(run_id, name, data, sent_by=getuser())

    async def fork(self, run_id: str, path: str, state: Mapping[str, Any]) -> Accepted:
        async with open_app() as app:
            return await app.fork(run_id, path, state)


RunBackend = ServerRuns | DatabaseRuns


async def _first(items: AsyncGenerator[T], limit: int) -> list[T]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found
