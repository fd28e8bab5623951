"""`runlane admin`: what the whole cluster does at one moment."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_json, print_result, print_rows, split_names
from runlane.cli.terminal import write_line
from runlane.domain.text import counted
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runlane.client import Client
    from runlane.domain.scaling import Demand
    from runlane.domain.views import WorkerInfo
    from runlane.store.sql.database import Database

app = typer.Typer()

_SHOWN = 200


@app.callback()
def _group() -> None:
    pass


@app.command()
def workers(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show slots, running runs and queue depth, read in one snapshot."""

    async def on_database(database: Database) -> Mapping[str, Any]:
        from runlane.store.queue.overview import overview_body, read_overview

        return overview_body(await read_overview(database, None, (), _SHOWN))

    found = on_server_or_database(url, api_key, lambda client: client.admin.overview(), on_database)
    if json:
        print_json(dict(found))
        return
    write_line(
        f"{found['slots_in_use']} of {counted(found['total_slots'], 'slot')} in use, {found['running_count']} running, "
        f"{found['total_queued']} queued"
    )
    for lane in found["lanes"]:
        slots = "no cap" if lane["max_slots"] is None else counted(lane["max_slots"], "slot")
        write_line(f"  lane {lane['name']}: {slots if lane['enabled'] else 'disabled'}")
    for run in found["running_jobs"]:
        write_line(f"  running {run['job_id']} {run['job_type']} on {run['claimed_by']} since {run['claimed_at']}")
    for kind in found["queued_by_type"]:
        write_line(f"  queued {kind['job_type']}: {kind['count']}, oldest {kind['oldest']}")


@app.command()
def scaling(
    lanes: Annotated[str | None, typer.Option(help="The lanes of a pool of workers, comma-separated.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="The slots of one worker.")] = 1,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show the number of slots that running and ready runs need."""
    names = split_names(lanes)

    async def on_server(client: Client) -> Demand:
        return await client.scaling(names, concurrency=concurrency)

    async def on_database(database: Database) -> Demand:
        from runlane.store.queue.scaling import read_demand

        return await read_demand(database, names or None, concurrency)

    found = on_server_or_database(url, api_key, on_server, on_database)
    if json:
        print_json(asdict(found))
        return
    print_rows(
        found.lanes,
        ["lane", "running", "queued", "startable", "oldest_s", "stopped", "lane_cap", "tenant_cap"],
        lambda lane: [
            lane.lane,
            lane.running,
            lane.queued,
            lane.startable,
            lane.oldest_seconds,
            lane.blocked["stopped"],
            lane.blocked["lane_cap"],
            lane.blocked["tenant_cap"],
        ],
        empty="No lanes.",
        json=False,
    )
    workers = counted(found.wanted_workers, "worker")
    write_line(f"{counted(found.wanted_slots, 'slot')}, {workers} with {counted(concurrency, 'slot')} each")


@app.command()
def drain(
    worker: Annotated[
        str | None, typer.Argument(help="Id of the worker; see: runlane workers", metavar="WORKER")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Every worker of this version, instead of one worker.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it claim runs again.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Drain a worker, or all workers of a version: they finish their runs, claim no more and keep running."""
    if worker is not None and version is None:
        found = _drain_worker(worker, url, api_key, draining=not cancel)
        running = counted(found.active, "run")
        print_result(to_dict(found), f"{found.id}: {found.status}, {running} in progress.", json=json)
        return
    if version is None or worker is not None:
        raise InvalidRequest("Name either a worker or --version. See: runlane workers")
    changed = _drain_version(version, url, api_key, draining=not cancel)
    print_rows(
        changed,
        ["worker", "status", "host", "active"],
        lambda row: [row.id, row.status, row.host, row.active],
        empty=f'No live worker of the version "{version}" {"is draining" if cancel else "claims runs"}.',
        json=json,
    )


def _drain_worker(worker: str, url: str | None, api_key: str | None, *, draining: bool) -> WorkerInfo:
    async def on_server(client: Client) -> WorkerInfo:
        return await (client.admin.drain_worker(worker) if draining else client.admin.resume_worker(worker))

    async def on_database(database: Database) -> WorkerInfo:
        from runlane.domain.tenant import DEFAULT_TENANT
        from runlane.store.queue.worker_drain import set_draining

        return await set_draining(database, worker, draining=draining, actor="local", tenant=DEFAULT_TENANT)

    return on_server_or_database(url, api_key, on_server, on_database)


def _drain_version(version: str, url: str | None, api_key: str | None, *, draining: bool) -> Sequence[WorkerInfo]:
    async def on_server(client: Client) -> Sequence[WorkerInfo]:
        return await (client.admin.drain_version(version) if draining else client.admin.resume_version(version))

    async def on_database(database: Database) -> Sequence[WorkerInfo]:
        from runlane.domain.tenant import DEFAULT_TENANT
        from runlane.store.queue.worker_drain import set_draining_of_version

        return await set_draining_of_version(database, version, draining=draining, actor="local", tenant=DEFAULT_TENANT)

    return on_server_or_database(url, api_key, on_server, on_database)
