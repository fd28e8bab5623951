"""The commands for workers, lanes, dead letters and the schema. Thin, like every command here."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import ApiKey, Url
from runlane.cli.show import Json

db = typer.Typer(help="The database's schema: upgrade it, look at it.", no_args_is_help=True)
lanes = typer.Typer(help="Lanes: slots in the cluster, and pauses.", no_args_is_help=True)


def workers(
    gone: Annotated[bool, typer.Option("--all", help="Also those that ended lately.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the workers."""
    from runlane.cli.operate import show_workers

    show_workers(gone=gone, url=url, api_key=api_key, json=json)


def dead_letters(
    run: Annotated[str | None, typer.Argument(help="Show this one whole.", metavar="RUN")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List runs that failed for good, or show one with its input, attempts and tracebacks."""
    from runlane.cli.operate import show_dead_letters

    show_dead_letters(run, limit=limit, json=json)


@db.command()
def upgrade(json: Json = False) -> None:
    """Bring the schema to what this version needs. Safe while old workers run, and to repeat."""
    from runlane.cli.operate import upgrade_database

    upgrade_database(json=json)


@db.command()
def current(json: Json = False) -> None:
    """Show the schema's revision and the one that this version needs."""
    from runlane.cli.operate import show_revision

    show_revision(json=json)


@lanes.command(name="list")
def list_lanes(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the lanes with what runs and waits in them."""
    from runlane.cli.operate import show_lanes

    show_lanes(url=url, api_key=api_key, json=json)


@lanes.command(name="set")
def set_lane(
    name: Annotated[str, typer.Argument(help="The lane.")],
    max_slots: Annotated[int | None, typer.Option(help="Runs at once in the whole cluster; 0 pauses the lane.")] = None,
    uncapped: Annotated[bool, typer.Option("--uncapped", help="Remove the cap.")] = False,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="A disabled lane starts nothing more.")
    ] = None,
    poll_interval_ms: Annotated[
        int | None, typer.Option(help="How often idle workers look without being called.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Send these kinds of runs (task names, comma-separated) here.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the lane if there is none of this name.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change a lane while everything runs. When this returns, no claim under the old settings is left."""
    from runlane.cli.operate import change_lane

    change_lane(
        name,
        max_slots=max_slots,
        uncapped=uncapped,
        enabled=enabled,
        poll_interval_ms=poll_interval_ms,
        kinds=kinds,
        create=create,
        url=url,
        api_key=api_key,
        json=json,
    )
