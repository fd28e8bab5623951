"""Where a command finds runs: a server that is named by URL, or else the database that the settings name.

Both give the same values, so that what is printed does not depend on the way it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from getpass import getuser
from typing import TYPE_CHECKING, Any, Protocol

from runlane.cli.options import NEWEST_RUN
from runlane.cli.target import check_exists, server_or_database
from runlane.cli.terminal import write_line
from runlane.domain.events import Event
from runlane.domain.ids import is_run_id_prefix, is_whole_run_id
from runlane.domain.run import Accepted, Run, Status
from runlane.errors import InvalidRequest, NotFound, RunNotFound
from runlane.settings import load_settings

if TYPE_CHECKING:
    from runlane.client import Client, LiveEvent, Question
    from runlane.store.sql.database import Database

# How often the database is asked for news. A server is told of them instead.
POLL_SECONDS = 0.2
PAGE = 1000
# How many of the runs that an ambiguous prefix fits are listed.
_SHOWN_MATCHES = 3


class RunSource(Protocol):
    """Reads runs and changes them."""

    async def get(self, run_id: str) -> Run:
        """A run with its input and result."""
        ...

    async def list(
        self, statuses: Sequence[str], filters: Mapping[str, str | None], before: str | None, limit: int
    ) -> Sequence[Run]:
        """The newest runs that fit."""
        ...

    async def ids(self, prefix: str | None, limit: int) -> Sequence[str]:
        """Return the newest ids of runs with this prefix, or of all runs."""
        ...

    async def attempts(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Its attempts."""
        ...

    async def steps(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Its recorded steps."""
        ...

    async def events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """Its stored events after a number."""
        ...

    def stream(self, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
        """Its events until it has ended."""
        ...

    async def change(self, run_id: str, verb: str) -> Status:
        """Cancel, retry, approve or release it."""
        ...

    async def set_priority(self, run_id: str, priority: int) -> Status:
        """Move it forward or back."""
        ...

    async def waits(self, run_id: str) -> Sequence[Question]:
        """What it waits for."""
        ...

    async def inbox(self, limit: int) -> Sequence[Question]:
        """What waits for a person, oldest first."""
        ...

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, step: str | None) -> Status:
        """Answer what it asks."""
        ...

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        """Give it an event."""
        ...

    async def fork(self, run_id: str, path: str, state: Mapping[str, Any]) -> Accepted:
        """A new run from one of its steps."""
        ...


async def find_run_id(source: RunSource, given: str) -> str:
    """Return the id of the run that a command was given: a whole id, a unique prefix of one, or `--last`."""
    if given == NEWEST_RUN:
        newest = await source.ids(None, 1)
        if not newest:
            raise NotFound("There is no run yet, so --last names none. Start one: runlane run NAME")
        return newest[0]
    if is_whole_run_id(given) or not is_run_id_prefix(given):
        return given
    found = await source.ids(given, _SHOWN_MATCHES + 1)
    # A server that does not know prefixes answers with its newest runs, and no command may change those.
    if not found or not all(run_id.startswith(given) for run_id in found):
        raise RunNotFound(given)
    if len(found) > 1:
        more = " and more" if len(found) > _SHOWN_MATCHES else ""
        raise InvalidRequest(
            f'"{given}" is the beginning of several run ids: {", ".join(found[:_SHOWN_MATCHES])}{more}. '
            "Give more characters of the id."
        )
    return found[0]


def client_of(url: str, api_key: str | None) -> Client:
    """The server at this URL. Whoever waits for one that does not answer is told so."""
    from runlane.client import Client, RetryPolicy

    def waiting(why: str) -> None:
        write_line(f"{why}; trying on. If no server runs there, start one: runlane dev", err=True)

    return Client(url, api_key, retry_policy=RetryPolicy(waiting=waiting))


@asynccontextmanager
async def open_source(url: str | None, api_key: str | None) -> AsyncGenerator[RunSource]:
    """The server at this URL; without one, that of a running `runlane dev` here, or the database."""
    url, api_key = server_or_database(url, api_key)
    if url is not None:
        async with client_of(url, api_key) as client:
            yield _Server(client)
        return
    from runlane.store.sql.migrate import open_ready

    settings = load_settings()
    check_exists(settings)
    database = await open_ready(settings)
    try:
        yield _OwnDatabase(database)
    finally:
        await database.close()


class _Server:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, run_id: str) -> Run:
        return await self._client.get(run_id)

    async def list(
        self, statuses: Sequence[str], filters: Mapping[str, str | None], before: str | None, limit: int
    ) -> Sequence[Run]:
        return await self._first(self._client.list(status=statuses, **filters, cursor=before, page=limit), limit)

    async def ids(self, prefix: str | None, limit: int) -> Sequence[str]:
        runs = await self._first(self._client.list(id_prefix=prefix, page=limit), limit)
        return [run.id for run in runs]

    async def _first(self, runs: AsyncGenerator[Run], limit: int) -> Sequence[Run]:
        found: list[Run] = []
        async for run in runs:
            found.append(run)
            if len(found) == limit:
                break
        return found

    async def attempts(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        return [asdict(attempt) for attempt in await self._client.attempts(run_id)]

    async def steps(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        return [asdict(step) for step in await self._client.steps(run_id)]

    async def events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        return await self._client.events(run_id, after, limit)

    def stream(self, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
        return self._client.stream(run_id, after)

    async def change(self, run_id: str, verb: str) -> Status:
        match verb:
            case "cancel":
                return await self._client.cancel(run_id)
            case "retry":
                return await self._client.retry(run_id)
            case "approve":
                return await self._client.approve(run_id)
            case "release":
                return await self._client.release(run_id)
            case _:
                raise InvalidRequest(f'There is no change "{verb}" of a run.')

    async def set_priority(self, run_id: str, priority: int) -> Status:
        return await self._client.set_priority(run_id, priority)

    async def waits(self, run_id: str) -> Sequence[Question]:
        return await self._client.waits(run_id)

    async def inbox(self, limit: int) -> Sequence[Question]:
        found: list[Question] = []
        async for question in self._client.inbox(page=limit):
            found.append(question)
            if len(found) == limit:
                break
        return found

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, step: str | None) -> Status:
        return await self._client.resume(run_id, response, step=step)

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        return await self._client.send_event(run_id, name, data)

    async def fork(self, run_id: str, path: str, state: Mapping[str, Any]) -> Accepted:
        return await self._client.fork(run_id, path, state)


class _OwnDatabase:
    """Looks into the database itself. What changes runs, and tells others of it, is loaded only for a change."""

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
            # The run is read first, so that the events that it has by then are in the page.
            run = await find_standing(self._database, run_id)
            for event in await self.events(run_id, after, PAGE):
                if event.seq != after + 1:
                    from runlane.client import LiveEvent

                    yield LiveEvent(run_id, "truncated", 0, {"first_seq": event.seq})
                after = event.seq
                yield event
            if after >= run.last_seq and run.status.terminal:
                return
            if after >= run.last_seq:
                await asyncio.sleep(POLL_SECONDS)

    async def change(self, run_id: str, verb: str) -> Status:
        from runlane.cli.own import own_app

        async with own_app() as app:
            return await getattr(app, verb)(run_id)

    async def set_priority(self, run_id: str, priority: int) -> Status:
        from runlane.cli.own import own_app

        async with own_app() as app:
            return await app.set_priority(run_id, priority)

    async def waits(self, run_id: str) -> Sequence[Question]:
        from runlane.queries import get_waits

        return await get_waits(self._database, run_id)

    async def inbox(self, limit: int) -> Sequence[Question]:
        from runlane.queries import get_inbox

        return (await get_inbox(self._database, limit=limit)).questions

    async def resume(self, run_id: str, response: Mapping[str, Any] | str, step: str | None) -> Status:
        from runlane.cli.own import own_app

        async with own_app() as app:
            return await app.resume(run_id, response, step=step, answered_by=getuser())

    async def send_event(self, run_id: str, name: str, data: Any) -> Status:
        from runlane.cli.own import own_app

        async with own_app() as app:
            return await app.send_event(run_id, name, data, sent_by=getuser())

    async def fork(self, run_id: str, path: str, state: Mapping[str, Any]) -> Accepted:
        from runlane.cli.own import own_app

        async with own_app() as app:
            return await app.fork(run_id, path, state)
