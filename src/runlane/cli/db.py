"""`runlane db`: the schema and the size of the database."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_json, print_result, print_rows
from runlane.cli.terminal import write_line
from runlane.domain.text import counted

if TYPE_CHECKING:
    from runlane.domain.database_size import DatabaseSize
    from runlane.store.recovery import Recovery
    from runlane.store.sql.database import Database

app = typer.Typer()

_USE_DATABASE = "Set RUNLANE_DATABASE_URL to the server's database, or unset RUNLANE_URL."


@app.command()
def upgrade(json: Json = False) -> None:
    """Upgrade the schema to the revision of this version. Safe to repeat, and while older workers run."""
    from runlane.cli.target import refuse_url
    from runlane.settings import load_settings
    from runlane.store.sql.migrate import upgrade

    refuse_url("db upgrade", _USE_DATABASE)
    settings = load_settings().for_migrations()
    before, now = asyncio.run(upgrade(settings))
    if json:
        print_json({"before": before, "now": now})
    elif before == now:
        write_line(f"{settings.shown_database}: schema {now}, nothing to do.")
    else:
        write_line(f"{settings.shown_database}: schema {before or 'none'} -> {now}.")


@app.command()
def current(json: Json = False) -> None:
    """Show the revision of the schema and the one that this version needs."""
    from runlane.cli.target import refuse_url
    from runlane.settings import load_settings
    from runlane.store.sql.database import open_database
    from runlane.store.sql.migrate import read_version
    from runlane.store.sql.migrations import HEAD

    refuse_url("db current", _USE_DATABASE)
    settings = load_settings().for_migrations()

    async def read() -> str | None:
        if settings.sqlite_path is not None and not settings.sqlite_path.exists():
            return None
        database = await open_database(settings, 2)
        try:
            return await read_version(database)
        finally:
            await database.close()

    version = asyncio.run(read())
    print_result(
        {"database": version, "code": HEAD},
        f"{settings.shown_database}: schema {version or 'none'}; this version needs {HEAD}.",
        json=json,
    )


@app.command()
def size(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show the size of the database, and of its tables with their indexes, the largest first."""

    async def on_database(database: Database) -> DatabaseSize:
        from runlane.store.sql.table_sizes import read_sizes

        return await read_sizes(database)

    found = on_server_or_database(url, api_key, lambda client: client.admin.database_size(), on_database)
    if json:
        print_json(asdict(found))
        return
    write_line(f"{found.dialect}: {_megabytes(found.bytes)}")
    if found.tables is None:
        write_line(found.note or "")
        return
    print_rows(
        found.tables,
        ["table", "size", "rows"],
        lambda table: [table.name, _megabytes(table.bytes), table.rows],
        empty="",
        json=False,
    )


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"


class CatchUpChoice(StrEnum):
    """What happens to slots of schedules that passed since the backup."""

    NONE = "none"
    POLICY = "policy"


class DeliveryChoice(StrEnum):
    """What happens to webhook messages that were not delivered at the time of the backup."""

    HOLD = "hold"
    SEND = "send"


@app.command()
def recovered(
    catch_up: Annotated[
        CatchUpChoice,
        typer.Option(help="none records past slots as missed; policy applies each schedule's own catch-up."),
    ] = CatchUpChoice.NONE,
    webhooks: Annotated[
        DeliveryChoice,
        typer.Option(help="hold marks undelivered messages as failed, so that you can replay them; send sends them."),
    ] = DeliveryChoice.HOLD,
    hold_lanes: Annotated[
        bool, typer.Option("--hold-lanes", help="Hold every lane, so that no run starts before you release it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would change, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Prepare a restored database before its processes start. Safe to repeat.

    By default no schedule fires for the past and no webhook message of the backup is sent. Runs that had not ended at
    the time of the backup continue; with --hold-lanes they wait.
    """
    from runlane.cli.target import refuse_url
    from runlane.settings import load_settings
    from runlane.store.recovery import recover
    from runlane.store.sql.migrate import open_ready

    refuse_url("db recovered", _USE_DATABASE)
    settings = load_settings()

    async def run() -> Recovery:
        database = await open_ready(settings, 2)
        try:
            return await recover(
                database,
                skip_slots=catch_up is CatchUpChoice.NONE,
                stop_deliveries=webhooks is DeliveryChoice.HOLD,
                hold_lanes=hold_lanes,
                dry_run=dry_run,
                actor="local",
            )
        finally:
            await database.close()

    result = asyncio.run(run())
    if json:
        print_json({"dry_run": dry_run, **asdict(result)})
    else:
        _print_recovery(result, settings.shown_database, dry_run=dry_run)


def _print_recovery(result: Recovery, shown: str, *, dry_run: bool) -> None:
    write_line(f"{shown}: {'would change' if dry_run else 'changed'}")
    slots, deliveries = counted(result.missed_slots, "slot"), counted(result.deliveries, "delivery", "deliveries")
    write_line(f"  schedules   {slots} of {counted(result.schedules, 'schedule')} recorded as missed")
    write_line(f"  webhooks    {deliveries} ended; send again with: runlane webhooks replay")
    write_line(f"  lanes       {len(result.held_lanes)} are held; release them with: runlane lanes release")
    write_line(f"  runs        {result.continuing} were queued or running and continue where the backup has them")
