"""`runlane memory` for runs on whole memories: re-index, export, import and purge them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_app
from runlane.cli.json_input import read_json_file
from runlane.cli.memory import Key, MemoryId
from runlane.cli.memory_operations import app
from runlane.cli.options import ApiKey, Json, Tenant, Url, moment_of
from runlane.cli.output import print_json, print_result
from runlane.domain.memory import MemoryExport
from runlane.domain.memory_archive import ExportRecords, import_of
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.wire import from_json, to_dict
from runlane.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client
    from runlane.client.memory import MemoryCalls
    from runlane.domain.events import Event
    from runlane.domain.run import Accepted
    from runlane.resources import Resources

_EVENTS = 1000


def _started(
    url: str | None,
    api_key: str | None,
    tenant: str | None,
    ask: Callable[[MemoryCalls], Awaitable[str]],
    start: Callable[[Resources, str], Awaitable[Accepted]],
    *,
    json: bool,
) -> None:
    """Start a run on a server, or in the database of the settings, and print its id."""

    async def on_server(client: Client) -> str:
        return await ask(client.memory_of(tenant))

    async def on_app(own: App) -> str:
        return (await start(await own.connect(), tenant or DEFAULT_TENANT)).run_id

    run_id = on_server_or_app(url, api_key, on_server, on_app)
    print_result({"run_id": run_id}, f"Started: {run_id}", json=json)


@app.command(name="reindex")
def reindex(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Start a run that recomputes all embeddings of a memory."""

    async def start(connection: Resources, owner: str) -> Accepted:
        from runlane.submit.memory_runs import start_reindex

        return await start_reindex(connection, owner, memory_id)

    _started(url, api_key, tenant, lambda memory: memory.reindex(memory_id), start, json=json)


@app.command(name="start-export")
def start_export(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Start a run that exports a memory of any size to the run's log."""

    async def start(connection: Resources, owner: str) -> Accepted:
        from runlane.submit.memory_runs import start_export

        return await start_export(connection, owner, memory_id, actor=audit_actor())

    _started(url, api_key, tenant, lambda memory: memory.start_export(memory_id), start, json=json)


@app.command(name="read-export")
def read_export(
    run_id: Annotated[str, typer.Argument(help="Id of the export run.", metavar="RUN")],
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Print the output of an export run, as JSON that `import` accepts."""

    async def on_server(client: Client) -> MemoryExport:
        return await client.memory.read_export(run_id)

    async def on_app(own: App) -> MemoryExport:
        records, after = ExportRecords(), 0
        while events := await own.events(run_id, after, _EVENTS):
            _collect(records, events)
            after = events[-1].seq
        exported = records.exported()
        if exported is None:
            raise NotFound(f"The run {run_id} has written no export. See its status: runlane runs show {run_id}")
        return from_json(MemoryExport, exported)

    print_json(to_dict(on_server_or_app(url, api_key, on_server, on_app)))


def _collect(records: ExportRecords, events: Sequence[Event]) -> None:
    for event in events:
        if event.type == "log":
            records.add(event.data["message"], event.data.get("fields"))


@app.command(name="import")
def import_memory(
    memory_id: MemoryId,
    exported: Annotated[
        str, typer.Argument(help="A file that `export` or `read-export` printed; - reads stdin.", metavar="FILE")
    ],
    key: Key = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start runs that import the entries and fragments of an exported memory, in their order."""
    try:
        given = import_of(from_json(MemoryExport, read_json_file(exported)))
    except ValueError:
        raise InvalidRequest(
            f"{exported} is not the export of one memory. Make one: runlane memory export MEMORY"
        ) from None

    async def on_server(client: Client) -> list[str]:
        return list(await client.memory_of(tenant).start_import(memory_id, given, idempotency_key=key))

    async def on_app(own: App) -> list[str]:
        from runlane.submit.memory_runs import start_import

        connection, owner, started = await own.connect(), tenant or DEFAULT_TENANT, list[str]()
        for number, piece in enumerate(given.parts()):
            keyed = None if key is None else f"{key}.{number}"
            accepted = await start_import(connection, owner, memory_id, piece, actor=audit_actor(), key=keyed)
            started.append(accepted.run_id)
        return started

    started = on_server_or_app(url, api_key, on_server, on_app)
    print_result({"run_ids": started}, f"Started: {', '.join(started)}", json=json)


@app.command(name="purge")
def purge(
    memory_id: MemoryId,
    before: Annotated[str | None, typer.Option(help="Only entries before this time (RFC 3339). Default: all.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a run that deletes the content of a memory's entries. Fragments are kept."""
    before_us = None if before is None else moment_of(before, "--before")

    async def start(connection: Resources, owner: str) -> Accepted:
        from runlane.submit.memory_runs import start_purge

        return await start_purge(connection, owner, memory_id, before_us, actor=audit_actor())

    _started(url, api_key, tenant, lambda memory: memory.start_purge(memory_id, before_us=before_us), start, json=json)
