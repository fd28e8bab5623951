"""`runlane lanes`: lanes and their settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import changes, format_time, print_changes, print_json, print_rows, split_names
from runlane.cli.terminal import write_line
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runlane.client import Client
    from runlane.domain.lane import Lane
    from runlane.store.sql.database import Database

app = typer.Typer()

_SETTINGS = ("enabled", "max_slots", "poll_interval_ms")


@app.command(name="list")
def list_lanes(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the lanes with their running and queued runs."""

    async def on_database(database: Database) -> Sequence[Lane]:
        from runlane.store.queue.lanes import list_lanes

        return await list_lanes(database)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.lanes(), on_database),
        ["lane", "state", "max_slots", "running", "queued", "oldest", "poll_ms", "kinds assigned"],
        lambda lane: [
            lane.name,
            "enabled" if lane.enabled else "disabled",
            "no cap" if lane.max_slots is None else lane.max_slots,
            lane.running,
            lane.queued,
            format_time(lane.oldest_queued_at_us),
            lane.poll_interval_ms,
            ",".join(lane.kinds) or "-",
        ],
        empty="No lanes.",
        json=json,
    )


@app.command(name="set")
def set_lane(
    name: Annotated[str, typer.Argument(help="The lane.")],
    max_slots: Annotated[
        int | None, typer.Option(help="Maximum number of concurrent runs in the cluster; 0 pauses the lane.")
    ] = None,
    uncapped: Annotated[bool, typer.Option("--uncapped", help="Remove the cap.")] = False,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="A disabled lane starts no more runs.")
    ] = None,
    poll_interval_ms: Annotated[int | None, typer.Option(help="How often idle workers poll without a wake-up.")] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Send these kinds of runs (task names, comma-separated) to this lane.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the lane if it does not exist.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change a lane during operation. When the command returns, no claim uses the old settings any more."""
    if uncapped and max_slots is not None:
        raise InvalidRequest("--uncapped and --max-slots contradict each other. Give one of them.")
    tasks = split_names(kinds)
    given: dict[str, Any] = {"enabled": enabled, "max_slots": max_slots, "poll_interval_ms": poll_interval_ms}
    fields = {field: value for field, value in given.items() if value is not None}
    if not (fields or uncapped or tasks or create):
        raise InvalidRequest("Nothing to change. See: runlane lanes set --help")

    async def on_server(client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        if create or tasks:
            raise InvalidRequest(
                "A server does not support --create and --kinds. Run the command on its database: unset RUNLANE_URL "
                "and set RUNLANE_DATABASE_URL."
            )
        lane, changed = await client.admin.set_lane(name, {**fields, **({"max_slots": None} if uncapped else {})})
        settings = asdict(lane)
        return {field: settings[field] for field in _SETTINGS}, changed, 0

    async def on_database(database: Database) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        from runlane.store.queue.lanes import LaneChange, move_kinds, set_lane

        before, after = await set_lane(database, name, LaneChange(**given, uncapped=uncapped), create=create)
        moved = await move_kinds(database, tasks, name) if tasks else 0
        new = {field: after[field] for field in _SETTINGS}
        old = {field: before[field] for field in _SETTINGS} if before else None
        changed = changes(old, new) if old else {field: {"old": None, "new": new[field]} for field in new}
        return after, changed, moved

    lane, changed, moved = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"lane": lane, "changed": changed, "moved_runs": moved})
        return
    if changed or not tasks:
        print_changes(name, changed)
    if tasks:
        write_line(f"{name}: takes {', '.join(tasks)} from now on; {moved} waiting runs moved here.")
