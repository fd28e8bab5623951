"""`runlane workers`: the registered workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import format_time, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.domain.views import WorkerInfo
    from runlane.store.sql.database import Database


def workers(
    gone: Annotated[bool, typer.Option("--all", help="Include workers that ended recently.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the workers."""

    async def on_database(database: Database) -> Sequence[WorkerInfo]:
        from runlane.store.queue.workers import list_workers

        return await list_workers(database, gone_too=gone)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.workers(gone=gone), on_database),
        [
            "worker", "status", "host", "pid", "active", "capacity", "lanes", "heartbeat", "memory", "cpu", "health",
            "version",
        ],
        lambda row: [
            row.id, row.status, row.host, row.pid, row.active, row.capacity, ",".join(row.lanes),
            format_time(row.heartbeat_at_us), _megabytes(row.memory_bytes), _percent(row.cpu_percent),
            row.health_address, row.version,
        ],
        empty="No workers. Start one: runlane worker module:app",
        json=json,
    )  # fmt: skip


def _megabytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 1_000_000:.0f} MB"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0f}%"
