"""`runlane db`: the schema of the database."""

from __future__ import annotations

import asyncio

import typer

from runlane.cli.options import Json
from runlane.cli.output import print_json, print_result
from runlane.cli.terminal import write_line

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
