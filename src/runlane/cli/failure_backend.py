"""Dead letters and bulk jobs on a server or in a database, behind the same methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from runlane.cli.backend import open_app, open_client
from runlane.cli.output import print_json
from runlane.cli.terminal import write_line
from runlane.domain.bulk import BulkJob, BulkPreview
from runlane.domain.wire import to_dict

if TYPE_CHECKING:
    from runlane.cli.database_failures import DatabaseBulk, DatabaseLetters
    from runlane.client.failures import BulkJobs, DeadLetters

    LetterBackend = DeadLetters | DatabaseLetters
    BulkBackend = BulkJobs | DatabaseBulk

T = TypeVar("T")


def with_failures(
    url: str | None, api_key: str | None, work: Callable[[LetterBackend, BulkBackend], Awaitable[T]]
) -> T:
    """Call the function with the dead letters and bulk jobs of the server or the database that a command acts on."""

    async def call() -> T:
        from runlane.cli.target import check_exists, server_or_database

        server, key = server_or_database(url, api_key)
        if server is not None:
            async with open_client(server, key) as client:
                return await work(client.dead_letters, client.bulk)
        from runlane.cli.database_failures import DatabaseBulk, DatabaseLetters
        from runlane.cli.logs import configure_logs
        from runlane.settings import load_settings

        check_exists(load_settings())
        # The command may work on a bulk job, which logs; stdout is for the result.
        configure_logs(dev=False, quiet=True)
        async with open_app() as app:
            resources = await app.connect()
            return await work(DatabaseLetters(resources), DatabaseBulk(resources.database, resources.bus))

    return asyncio.run(call())


def print_preview(preview: BulkPreview, *, json: bool) -> None:
    """Print what a bulk job would change."""
    if json:
        print_json(to_dict(preview))
        return
    write_line(f"{preview.total} would be changed.")
    for run_id in preview.run_ids:
        write_line(run_id)


def print_job(job: BulkJob, *, json: bool) -> None:
    """Print the progress of a bulk job."""
    if json:
        print_json(to_dict(job))
        return
    write_line(
        f"{job.id}: {job.action.value} {job.state.value}, {job.changed} of {job.total} changed, {job.refused} refused"
    )
    if job.refused:
        write_line(f"See why: runlane bulk items {job.id} --state refused")
