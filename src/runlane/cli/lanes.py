"""`runlane lanes`: lanes and their settings."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import changes, format_time, print_changes, print_json, print_result, print_rows, split_names
from runlane.cli.terminal import write_line
from runlane.domain.text import counted
from runlane.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runlane.client import Client
    from runlane.domain.lane import Lane, LaneHold
    from runlane.store.sql.database import Database

app = typer.Typer()

_SETTINGS = ("enabled", "max_slots", "poll_interval_ms", "fair", "priority_seconds", "stale_timeout_minutes")
Enabled = Annotated[bool | None, typer.Option("--enable/--disable", help="A disabled lane starts no more runs.")]
Fair = Annotated[
    bool | None,
    typer.Option("--fair/--first-come", help="Start runs by fair shares of tenants, or by time of acceptance."),
]
PrioritySeconds = Annotated[
    int | None, typer.Option(help="Seconds by which a point of priority may delay other runs (600).")
]
StaleMinutes = Annotated[
    int | None, typer.Option(help="Interrupt and retry a run without progress for this long; 0 for never.")
]
LaneName = Annotated[str, typer.Argument(help="The lane.", metavar="NAME")]


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
            "disabled" if not lane.enabled else "held" if lane.held else "enabled",
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
    enabled: Enabled = None,
    poll_interval_ms: Annotated[int | None, typer.Option(help="How often idle workers poll without a wake-up.")] = None,
    fair: Fair = None,
    priority_seconds: PrioritySeconds = None,
    stale_timeout_minutes: StaleMinutes = None,
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
    unbounded = stale_timeout_minutes == 0
    given: dict[str, Any] = {
        "enabled": enabled,
        "max_slots": max_slots,
        "poll_interval_ms": poll_interval_ms,
        "fair": fair,
        "priority_seconds": priority_seconds,
        "stale_timeout_minutes": None if unbounded else stale_timeout_minutes,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    removed = {"max_slots": uncapped, "stale_timeout_minutes": unbounded}
    fields |= {field: None for field, is_removed in removed.items() if is_removed}
    if not (fields or tasks or create):
        raise InvalidRequest("Nothing to change. See: runlane lanes set --help")

    async def on_server(client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        return await _set_on_server(client, name, fields, tasks, create=create)

    async def on_database(database: Database) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        from runlane.store.queue.lanes import LaneChange, move_kinds, set_lane

        change = LaneChange(**given, uncapped=uncapped, unbounded=unbounded)
        before, after = await set_lane(database, name, change, create=create)
        moved = await move_kinds(database, tasks, name) if tasks else 0
        new = {field: after[field] for field in _SETTINGS}
        old = {field: before[field] for field in _SETTINGS} if before else None
        return after, changes(old, new) if old else _created(new), moved

    lane, changed, moved = on_server_or_database(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"lane": lane, "changed": changed, "moved_runs": moved})
        return
    if changed or not tasks:
        print_changes(name, changed)
    if tasks:
        write_line(f"{name}: takes {', '.join(tasks)} from now on; {counted(moved, 'waiting run')} moved here.")


def _created(new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of a new lane, as changes."""
    return {field: {"old": None, "new": value} for field, value in new.items() if value is not None}


async def _set_on_server(
    client: Client, name: str, fields: Mapping[str, Any], tasks: Sequence[str], *, create: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
    lane: Lane | None = None
    changed: Mapping[str, Any] = {}
    if create:
        with contextlib.suppress(Conflict):
            lane = await client.admin.create_lane(name, fields)
            changed = {field: {"old": None, "new": asdict(lane)[field]} for field in _SETTINGS}
    if lane is None and fields:
        lane, changed = await client.admin.set_lane(name, fields)
    moved = 0
    if tasks:
        lane, moved = await client.admin.assign_kinds(name, tasks)
    settings = {} if lane is None else asdict(lane)
    return {"name": name, **{field: settings[field] for field in _SETTINGS if field in settings}}, changed, moved


@app.command()
def unassign(
    name: LaneName,
    kinds: Annotated[str, typer.Argument(help="Kinds of runs, comma-separated.")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Remove the assignment of kinds of runs. New runs use the lane that their code names; waiting runs stay."""
    tasks = split_names(kinds)

    async def on_server(client: Client) -> None:
        for kind in tasks:
            await client.admin.unassign_kind(name, kind)

    async def on_database(database: Database) -> None:
        from runlane.store.queue.lanes import unassign_kinds

        await unassign_kinds(database, tasks, actor=audit_actor())

    on_server_or_database(url, api_key, on_server, on_database)
    print_result({"lane": name, "unassigned": tasks}, f"{name}: {', '.join(tasks)} no longer assigned.", json=json)


@app.command()
def delete(name: LaneName, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Delete a lane that no run uses."""

    async def on_server(client: Client) -> None:
        await client.admin.delete_lane(name)

    async def on_database(database: Database) -> None:
        from runlane.store.queue.lanes import delete_lane

        await delete_lane(database, name, actor=audit_actor())

    on_server_or_database(url, api_key, on_server, on_database)
    print_result({"deleted": name}, f"{name}: deleted.", json=json)


@app.command()
def holds(name: LaneName, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the active holds of a lane."""

    async def on_database(database: Database) -> Sequence[LaneHold]:
        from runlane.store.queue.lane_holds import list_holds

        return await list_holds(database, name)

    print_rows(
        on_server_or_database(url, api_key, lambda client: client.admin.holds(name), on_database),
        ["hold", "owner", "reason", "since", "until"],
        lambda row: [
            row.id,
            row.owner,
            row.reason,
            format_time(row.created_at_us),
            "released" if row.expires_at_us is None else format_time(row.expires_at_us),
        ],
        empty=f"{name}: no holds.",
        json=json,
    )


@app.command()
def hold(
    name: LaneName,
    reason: Annotated[str, typer.Option(help="The reason for the hold.")],
    owner: Annotated[str | None, typer.Option(help="The owner of the hold. Default: the current user.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes until the hold expires. Default: never.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Prevent a lane from starting runs until the hold is released.

    When the command returns, earlier claims have ended.
    """
    seconds = None if minutes is None else minutes * 60

    async def on_server(client: Client) -> LaneHold:
        return await client.admin.hold_lane(name, reason, owner=owner, expires_in_seconds=seconds)

    async def on_database(database: Database) -> LaneHold:
        from runlane.store.queue.lane_holds import hold_lane

        who = audit_actor()
        return await hold_lane(database, name, owner=owner or who, reason=reason, expires_in_seconds=seconds, actor=who)

    placed = on_server_or_database(url, api_key, on_server, on_database)
    print_result(asdict(placed), f"{name}: held. Release it: runlane lanes release {name} {placed.id}", json=json)


@app.command()
def release(
    name: LaneName,
    hold_id: Annotated[str, typer.Argument(help="The id of the hold.", metavar="HOLD")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Release one hold of a lane. Its other holds stay."""

    async def on_server(client: Client) -> LaneHold:
        return await client.admin.release_hold(name, hold_id)

    async def on_database(database: Database) -> LaneHold:
        from runlane.store.queue.lane_holds import release_hold

        return await release_hold(database, name, hold_id, actor=audit_actor())

    released = on_server_or_database(url, api_key, on_server, on_database)
    print_result({"released": asdict(released)}, f"{name}: the hold of {released.owner} is released.", json=json)
