"""`runlane schedules`: runs that start by themselves."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from runlane.cli.backend import open_app, open_client
from runlane.cli.json_input import read_object
from runlane.cli.options import ApiKey, DryRun, Json, Limit, Tenant, Url, duration
from runlane.cli.output import format_time, print_json, print_result, print_rows
from runlane.cli.terminal import write_line
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runlane.cli.database_schedules import DatabaseSchedules
    from runlane.client.schedules import ScheduleCalls
    from runlane.domain.firing import Firing
    from runlane.domain.schedule import Schedule, UpcomingSlot

    Backend = ScheduleCalls | DatabaseSchedules

T = TypeVar("T")

app = typer.Typer()

ScheduleId = Annotated[str, typer.Argument(help="The schedule.", metavar="SCHEDULE")]
Cron = Annotated[
    list[str] | None,
    typer.Option(help="A cron expression with five fields, such as '0 9 * * MON-FRI'. May be repeated."),
]
Every = Annotated[list[float] | None, duration("A period, such as 90s, 15m or 1d. May be repeated.")]
At = Annotated[list[str] | None, typer.Option(help="One moment, such as 2026-01-31T12:00:00Z. May be repeated.")]
Zone = Annotated[str | None, typer.Option(help="The IANA time zone of cron expressions. Default: UTC.")]
Overlap = Annotated[
    str | None, typer.Option(help="While a run is open: skip, queue_one, queue_all, cancel_previous or allow.")
]
Settings = Annotated[
    str | None, typer.Option("--settings", help="Further settings as JSON; @FILE reads a file, - reads stdin.")
]
Count = Annotated[int, typer.Option(min=1, max=100, help="How many slots.")]


def _with(url: str | None, api_key: str | None, work: Callable[[Backend], Awaitable[T]], *, creates: bool = False) -> T:
    from runlane.cli.target import check_exists, server_or_database

    address, key = server_or_database(url, api_key)

    async def on_server(server: str) -> T:
        async with open_client(server, key) as client:
            return await work(client.schedules)

    async def on_database() -> T:
        from runlane.cli.database_schedules import DatabaseSchedules

        async with open_app() as own:
            return await work(DatabaseSchedules(await own.schedules()))

    if address is not None:
        return asyncio.run(on_server(address))
    from runlane.settings import load_settings

    if not creates:
        check_exists(load_settings())
    return asyncio.run(on_database())


@app.command(name="list")
def list_schedules(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the schedules with their next slots."""

    async def work(backend: Backend) -> Sequence[Schedule]:
        return [schedule async for schedule in backend.list(tenant=tenant)]

    print_rows(
        _with(url, api_key, work),
        ["schedule", "state", "target", "times", "next", "started", "overlap"],
        lambda row: [
            row.id, row.status, f"{row.target['kind']} {row.target['name']}", row.description,
            format_time(row.next_slot_us), row.fired, row.overlap,
        ],
        empty="No schedules. Create one: runlane schedules create NAME --task TASK --cron '0 9 * * *'",
        json=json,
    )  # fmt: skip


@app.command()
def show(
    schedule: ScheduleId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show a schedule."""
    found = _with(url, api_key, lambda backend: backend.get(schedule, tenant=tenant))
    if json:
        print_json(asdict(found))
        return
    lines = {
        "schedule": found.id,
        "state": found.status if found.paused_reason is None else f"paused by {found.paused_by}: {found.paused_reason}",
        "target": f"{found.target['kind']} {found.target['name']}",
        "times": found.description,
        "next": format_time(found.next_slot_us),
        "due": format_time(found.next_due_at_us),
        "overlap": found.overlap,
        "catch-up": found.catch_up,
        "started": found.fired,
        "version": found.version,
        "source": found.source,
        "settings": found.settings,
    }
    for name, value in lines.items():
        write_line(f"{name}: {value}")


@app.command()
def create(
    schedule: ScheduleId,
    task: Annotated[str | None, typer.Option(help="Start runs of this task.")] = None,
    orchestration: Annotated[str | None, typer.Option(help="Start runs of this orchestration.")] = None,
    agent: Annotated[str | None, typer.Option(help="Start runs of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="With --agent: post to this chat session.")] = None,
    message: Annotated[str | None, typer.Option(help="The message of its runs.")] = None,
    given: Annotated[
        str | None, typer.Option("--input", help="The input as JSON; @FILE reads a file, - reads stdin.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    zone: Zone = None,
    overlap: Overlap = None,
    settings: Settings = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a schedule. Name what it starts and give --cron, --every or --at."""
    body = _settings(cron, every, at, zone, overlap, settings)
    body |= {"id": schedule}
    target = _target(task, orchestration, agent, session)
    if target is not None:
        body["target"] = target
    if message is not None:
        body["message"] = message
    if given is not None:
        body["input"] = read_object(given, "--input", "the arguments by name")
    created = _with(url, api_key, lambda backend: backend.create(body, tenant=tenant), creates=True)
    _print_written(created, "created", json=json)


@app.command(name="set")
def set_schedule(
    schedule: ScheduleId,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    zone: Zone = None,
    overlap: Overlap = None,
    settings: Settings = None,
    version: Annotated[int | None, typer.Option(help="Only if the schedule has this version.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change settings of a schedule. New times apply to later slots only."""
    fields = _settings(cron, every, at, zone, overlap, settings)
    if not fields:
        raise InvalidRequest("Nothing to change. See: runlane schedules set --help")
    changed = _with(url, api_key, lambda backend: backend.set(schedule, fields, version=version, tenant=tenant))
    _print_written(changed, "changed", json=json)


@app.command()
def pause(
    schedule: ScheduleId,
    reason: Annotated[str, typer.Option(help="The reason, for other people.")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Pause a schedule: no run starts until it is resumed."""
    done = _with(url, api_key, lambda backend: backend.pause(schedule, reason, tenant=tenant))
    print_result(asdict(done), f"{done.id}: paused.", json=json)


@app.command()
def resume(
    schedule: ScheduleId,
    catch_up: Annotated[str, typer.Option(help="Which slots of the pause to start: none, latest or all.")] = "none",
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Resume a schedule. The slots during the pause are recorded as missed unless --catch-up starts them."""
    chosen: Any = _one_of("--catch-up", catch_up, ("none", "latest", "all"))
    done, firings = _with(url, api_key, lambda backend: backend.resume(schedule, catch_up=chosen, tenant=tenant))
    value = {"schedule": asdict(done), "firings": [asdict(firing) for firing in firings]}
    print_result(value, f"{done.id}: resumed; next slot {format_time(done.next_slot_us)}.", json=json)


@app.command()
def trigger(
    schedule: ScheduleId,
    given: Annotated[
        str | None,
        typer.Option("--input", help="Input that replaces the schedule's; @FILE reads a file, - reads stdin."),
    ] = None,
    overlap: Overlap = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a run of a schedule now, even of a paused one."""
    arguments = None if given is None else read_object(given, "--input", "the arguments by name")
    chosen: Any = _overlap(overlap, "allow")
    firing = _with(
        url, api_key, lambda backend: backend.trigger(schedule, input=arguments, overlap=chosen, tenant=tenant)
    )
    print_result(asdict(firing), _describe(firing), json=json)


@app.command()
def backfill(
    schedule: ScheduleId,
    from_at: Annotated[str, typer.Option("--from", help="The first moment, such as 2026-01-31T00:00:00Z.")],
    to_at: Annotated[str, typer.Option("--to", help="The last moment; not in the future.")],
    overlap: Overlap = None,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start runs for past slots that started no run; by default, one after another."""
    chosen: Any = _overlap(overlap, "queue_all")
    done = _with(
        url,
        api_key,
        lambda backend: backend.backfill(schedule, from_at, to_at, overlap=chosen, dry_run=dry_run, tenant=tenant),
    )
    _print_firings(done.firings, json=json)


@app.command(name="next")
def next_slots(
    schedule: ScheduleId,
    count: Count = 10,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show the next slots of a schedule."""
    _print_slots(_with(url, api_key, lambda backend: backend.next(schedule, count, tenant=tenant)), json=json)


@app.command()
def preview(
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    zone: Zone = None,
    count: Count = 10,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Explain times in words and show their next slots, without storing anything."""
    timing = _settings(cron, every, at, zone, None, None)
    found = _with(url, api_key, lambda backend: backend.preview(timing, count, tenant=tenant), creates=True)
    if json:
        print_json(asdict(found))
        return
    write_line(found.description)
    _print_slots(found.next, json=False)
    for warning in found.warnings:
        write_line(f"Warning: {warning}", err=True)


@app.command()
def firings(
    schedule: ScheduleId,
    limit: Limit = 50,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show the firings of a schedule: the decision about each slot, newest first."""
    found = _with(url, api_key, lambda backend: backend.firings(schedule, limit=limit, tenant=tenant))
    _print_firings(found, json=json)


@app.command()
def delete(
    schedule: ScheduleId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a schedule and its firings. Its runs stay."""
    done = _with(url, api_key, lambda backend: backend.delete(schedule, tenant=tenant))
    print_result({"deleted": asdict(done)}, f"{done.id}: deleted.", json=json)


def _settings(
    cron: list[str] | None,
    every: list[float] | None,
    at: list[str] | None,
    zone: str | None,
    overlap: str | None,
    settings: str | None,
) -> dict[str, Any]:
    """Return the settings that are given as JSON, overridden by those of the other options."""
    body = read_object(settings, "--settings", "settings of the schedule")
    spec: list[dict[str, Any]] = [{"cron": text} for text in cron or ()]
    spec += [{"every_seconds": seconds} for seconds in every or ()]
    spec += [{"at": moment} for moment in at or ()]
    given = {"spec": spec or None, "zone": zone, "overlap": overlap}
    return body | {name: value for name, value in given.items() if value is not None}


def _target(
    task: str | None, orchestration: str | None, agent: str | None, session: str | None
) -> dict[str, Any] | None:
    named = {"task": task, "orchestration": orchestration, "agent": agent}
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) > 1 or (session is not None and agent is None):
        raise InvalidRequest("Give one of --task, --orchestration and --agent; --session belongs to --agent.")
    if not given:
        return None
    kind, name = given[0]
    return {"kind": kind, "name": name} if session is None else {"kind": "chat", "name": name, "session_id": session}


def _overlap(given: str | None, default: str) -> str:
    known = ("skip", "queue_one", "queue_all", "cancel_previous", "allow")
    return default if given is None else _one_of("--overlap", given, known)


def _one_of(option: str, given: str, known: Sequence[str]) -> str:
    if given not in known:
        raise InvalidRequest(f"{option} {given!r} must be one of {', '.join(known)}.")
    return given


def _print_written(schedule: Schedule, verb: str, *, json: bool) -> None:
    line = f"{schedule.id}: {verb}; {schedule.description}; next slot {format_time(schedule.next_slot_us)}."
    print_result(asdict(schedule), line, json=json)
    for warning in schedule.warnings:
        write_line(f"Warning: {warning}", err=True)


def _print_slots(slots: Sequence[UpcomingSlot], *, json: bool) -> None:
    print_rows(
        slots,
        ["slot", "due", "local"],
        lambda row: [format_time(row.slot_us), format_time(row.due_at_us), row.local],
        empty="No further slots.",
        json=json,
    )


def _print_firings(found: Sequence[Firing], *, json: bool) -> None:
    print_rows(
        found,
        ["slot", "kind", "outcome", "count", "reason", "run", "decided"],
        lambda row: [
            format_time(row.slot_us), row.kind.value, row.outcome.value, row.count, row.detail or row.reason,
            row.run_id, format_time(row.decided_at_us),
        ],
        empty="No firings.",
        json=json,
    )  # fmt: skip


def _describe(firing: Firing) -> str:
    if firing.run_id is not None:
        return f"{firing.outcome.value}: {firing.run_id}"
    return f"{firing.outcome.value}: {firing.detail or firing.reason}"
