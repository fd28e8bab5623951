"""Runs on a server or in a database, behind the same methods and values, so that the output is the same for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from runlane.cli.backend import open_client
from runlane.cli.options import NEWEST_RUN
from runlane.domain.ids import is_run_id_prefix, is_whole_run_id
from runlane.errors import InvalidRequest, NotFound, RunNotFound

if TYPE_CHECKING:
    from runlane.cli.database_runs import DatabaseRuns
    from runlane.client import Client

    RunBackend = Client | DatabaseRuns

T = TypeVar("T")

PAGE = 1000
# How many of the runs that match an ambiguous prefix are listed.
_SHOWN_MATCHES = 3


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
            yield client
        return
    from runlane.cli.database_runs import DatabaseRuns
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
        newest = await first(runs.list(page=1), 1)
        if not newest:
            raise NotFound("--last: there are no runs yet. Start one: runlane run NAME")
        return newest[0].id
    if is_whole_run_id(given) or not is_run_id_prefix(given):
        return given
    most = _SHOWN_MATCHES + 1
    found = [run.id for run in await first(runs.list(id_prefix=given, page=most), most)]
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


async def first(items: AsyncGenerator[T], limit: int) -> list[T]:
    """Return the first values, and close the generator."""
    found: list[T] = []
    async with aclosing(items):
        async for item in items:
            found.append(item)
            if len(found) == limit:
                break
    return found
