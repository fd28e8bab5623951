"""Commands that look at the database or change it, without an app. Each loads what it needs and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from runlane.cli.answers import step_cells
from runlane.cli.either import with_either
from runlane.cli.show import clock, print_json, print_table, span
from runlane.cli.source import RunSource, find_run_id, open_source
from runlane.cli.target import check_exists, refuse_url
from runlane.cli.terminal import write_line
from runlane.domain.events import Event
from runlane.domain.run import AGENT, ORCHESTRATION, Run, Status
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest, nearest
from runlane.settings import load_settings

if TYPE_CHECKING:
    from runlane.client import Client, Question, WorkerInfo
    from runlane.domain.lane import Lane
    from runlane.store.queue.workers import WorkerRow
    from runlane.store.sql.database import Database

T = TypeVar("T")

_PAGE = 1000
_SHOWN_EVENTS = 10_000


def _with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    from runlane.cli.own import own_app

    async def run() -> T:
        async with own_app() as app:
            return await work(await app.database())

    return asyncio.run(run())


def _with_source(url: str | None, api_key: str | None, work: Callable[[RunSource], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_source(url, api_key) as source:
            return await work(source)

    return asyncio.run(run())


_USE_DATABASE = "Set RUNLANE_DATABASE_URL to the server's database, or unset RUNLANE_URL."


def upgrade_database(*, json: bool) -> None:
    """`runlane db upgrade`."""
    refuse_url("db upgrade", _USE_DATABASE)
    from runlane.store.sql.migrate import upgrade

    settings = load_settings()
    before, now = asyncio.run(upgrade(settings))
    if json:
        print_json({"before": before, "now": now})
    elif before == now:
        write_line(f"{settings.shown_database}: schema {now}, nothing to do.")
    else:
        write_line(f"{settings.shown_database}: schema {before or 'none'} -> {now}.")


def show_revision(*, json: bool) -> None:
    """`runlane db current`."""
    refuse_url("db current", _USE_DATABASE)
    from runlane.store.sql.database import open_database
    from runlane.store.sql.migrate import read_version
    from runlane.store.sql.migrations import HEAD

    settings = load_settings()

    async def read() -> str | None:
        if settings.sqlite_path is not None and not settings.sqlite_path.exists():
            return None
        database = await open_database(settings, 2)
        try:
            return await read_version(database)
        finally:
            await database.close()

    version = asyncio.run(read())
    if json:
        print_json({"database": version, "code": HEAD})
    else:
        write_line(f"{settings.shown_database}: schema {version or 'none'}; this version needs {HEAD}.")


def show_workers(*, gone: bool, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane workers`."""

    async def on_database(database: Database) -> Sequence[WorkerInfo | WorkerRow]:
        from runlane.store.queue.workers import list_workers

        return await list_workers(database, gone_too=gone)

    async def on_server(client: Client) -> Sequence[WorkerInfo | WorkerRow]:
        return await client.workers(gone=gone)

    rows = with_either(url, api_key, on_server, on_database)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["worker", "status", "host", "pid", "active", "capacity", "lanes", "heartbeat", "version"],
        [
            [row.id, row.status, row.host, row.pid, row.active, row.capacity, ",".join(row.lanes),
             clock(row.heartbeat_at_us), row.version]
            for row in rows
        ],
        "No workers. Start one: runlane worker module:app",
    )  # fmt: skip


def show_lanes(*, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane lanes list`."""

    async def on_database(database: Database) -> Sequence[Lane]:
        from runlane.store.queue.lanes import list_lanes

        return await list_lanes(database)

    rows = with_either(url, api_key, lambda client: client.lanes(), on_database)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["lane", "state", "max_slots", "running", "queued", "oldest", "poll_ms", "kinds assigned"],
        [
            [row.name, "enabled" if row.enabled else "disabled", "no cap" if row.max_slots is None else row.max_slots,
             row.running, row.queued, clock(row.oldest_queued_at_us), row.poll_interval_ms, ",".join(row.kinds) or "-"]
            for row in rows
        ],
        "No lanes.",
    )  # fmt: skip


def change_lane(
    name: str,
    *,
    max_slots: int | None,
    uncapped: bool,
    enabled: bool | None,
    poll_interval_ms: int | None,
    kinds: str | None,
    create: bool,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> None:
    """`runlane lanes set`."""
    from runlane.store.queue.lanes import LaneChange, move_kinds, set_lane

    if uncapped and max_slots is not None:
        raise InvalidRequest("--uncapped and --max-slots contradict each other. Give one of them.")
    wanted = [kind.strip() for kind in (kinds or "").split(",") if kind.strip()]
    change = LaneChange(enabled=enabled, max_slots=max_slots, uncapped=uncapped, poll_interval_ms=poll_interval_ms)
    if change == LaneChange() and not wanted and not create:
        raise InvalidRequest("Nothing to change. See: runlane lanes set --help")

    async def on_database(database: Database) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        before, now = await set_lane(database, name, change, create=create)
        moved = await move_kinds(database, wanted, name) if wanted else 0
        changed = {
            field: {"old": None if before is None else before[field], "new": now[field]}
            for field in ("enabled", "max_slots", "poll_interval_ms")
            if before is None or bool(before[field] != now[field])
        }
        return now, changed, moved

    async def on_server(client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
        if create or wanted:
            raise InvalidRequest(
                "A server cannot do --create or --kinds. Run the command on its database: unset RUNLANE_URL and set "
                "RUNLANE_DATABASE_URL."
            )
        given = {"enabled": enabled, "max_slots": max_slots, "poll_interval_ms": poll_interval_ms}
        fields = {field: value for field, value in given.items() if value is not None}
        lane, changed = await client.admin.set_lane(name, {**fields, **({"max_slots": None} if uncapped else {})})
        now = {"enabled": lane.enabled, "max_slots": lane.max_slots, "poll_interval_ms": lane.poll_interval_ms}
        return now, changed, 0

    now, changed, moved = with_either(url, api_key, on_server, on_database, creates=True)
    if json:
        print_json({"lane": now, "changed": changed, "moved_runs": moved})
        return
    for field, values in changed.items():
        write_line(f"{name}: {field} {values['old']} -> {values['new']}")
    if wanted:
        write_line(f"{name}: now takes {', '.join(wanted)}; {moved} waiting runs moved here.")
    if not changed and not wanted:
        write_line(f"{name}: nothing changed.")


def show_runs(
    *,
    statuses: Sequence[str],
    lane: str | None,
    task: str | None,
    key: str | None,
    before: str | None,
    limit: int,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> None:
    """`runlane runs list`."""
    states = [state.value for state in Status]
    for status in statuses:
        if status not in states:
            raise InvalidRequest(f'No state "{status}"{nearest(status, states)}. States: {", ".join(states)}.')
    filters = {"lane": lane, "target": task, "ordering_key": key}
    rows = _with_source(url, api_key, lambda source: source.list(statuses, filters, before, limit))
    if json:
        print_json([{**asdict(row), "tries": row.tries} for row in rows])
        return
    print_table(
        ["run", "task", "status", "lane", "attempt", "accepted", "took", "key"],
        [
            [row.id, row.target, row.status, row.lane, row.tries, clock(row.accepted_at_us),
             span(row.started_at_us, row.ended_at_us), row.ordering_key]
            for row in rows
        ],
        "No runs.",
    )  # fmt: skip


def show_run(given: str, *, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs show`."""

    async def work(source: RunSource) -> dict[str, Any]:
        run_id = await find_run_id(source, given)
        run = await source.get(run_id)
        whole = asdict(run)
        # The plan is internal, and `waits` has what the run waits for.
        del whole["plan"], whole["waiting_for"]
        return {
            **whole,
            "tries": run.tries,
            "attempts": await source.attempts(run_id),
            "waits": [asdict(wait) for wait in await _waits(source, run)],
            "steps": await source.steps(run_id),
            "events": [asdict(event) for event in await _all_events(source, run)],
        }

    run = _with_source(url, api_key, work)
    if json:
        print_json(run)
        return
    for field in ("id", "target", "lane", "status", "priority"):
        write_line(f"{field:>14}  {run[field]}")
    write_line(f"{'attempt':>14}  {run['tries']}")
    for field in ("failures", "losses", "max_attempts"):
        write_line(f"{field:>14}  {run[field]}")
    for field in (
        "accepted_at_us",
        "due_at_us",
        "started_at_us",
        "claimed_at_us",
        "ended_at_us",
        "cancel_requested_at_us",
    ):
        if run[field] is not None:
            write_line(f"{field.removesuffix('_us').removesuffix('_at'):>14}  {clock(run[field])}")
    for field in ("ordering_key", "blocked_by", "worker_id", "progress", "progress_note"):
        if run[field] is not None:
            write_line(f"{field:>14}  {run[field]}")
    for field in ("input", "result"):
        if run[field] is not None:
            write_line(f"{field:>14}  {dump_json(run[field])}")
    if run["state"] is not None:
        write_line(f"{'state':>14}  {dump_json(run['state'])}")
    if run["definition"] is not None:
        write_line(f"{'definition':>14}  {run['definition']}")
    if run["forked_from"] is not None:
        write_line(f"{'forked from':>14}  {run['forked_from']['run_id']} at {run['forked_from']['from_step']}")
    if run["parent"] is not None:
        write_line(f"{'parent':>14}  {run['parent']['run_id']} at {run['parent']['path']}")
    for child in run["children"] or ():
        write_line(f"{'child':>14}  {child['run_id']}  {child['status']}  {child['target']}  at {child['path']}")
    if run["error"]:
        write_line(f"{'error':>14}  {run['error'].get('type')}: {run['error'].get('message')}")
    for attempt in run["attempts"]:
        error: dict[str, Any] = attempt["error"] or {}
        took = span(attempt["started_at_us"], attempt["ended_at_us"])
        told = f"  {error.get('type')}: {error.get('message')}" if error else ""
        write_line(
            f"{'execution':>14}  {attempt['attempt']}  {attempt['outcome']}  {took}  {attempt['worker_id']}{told}"
        )
    for wait in run["waits"]:
        since = f"since {clock(wait['opened_at_us'])}"
        write_line(f"{'waits for':>14}  {wait['kind']}  {wait['path']}  {since}  {wait['prompt'] or wait['name']}")
    if run["target"].startswith((ORCHESTRATION, AGENT)):
        for step in run["steps"]:
            write_line(f"{'step':>14}  {'  '.join('-' if cell is None else str(cell) for cell in step_cells(step))}")
    for event in run["events"]:
        data = dump_json(event["data"]) if event["data"] else ""
        write_line(f"{event['seq']:>14}  {clock(event['at_us'])}  {event['type']}  {data}".rstrip())


async def _waits(source: RunSource, run: Run) -> Sequence[Question]:
    return () if not run.has_steps or run.status.terminal else await source.waits(run.id)


def show_dead_letters(run_id: str | None, *, limit: int, json: bool) -> None:
    """`runlane dead-letters`."""
    from runlane.store.queue.dead_letters import list_dead_letters, read_dead_letter

    refuse_url("dead-letters", "List failed runs of a server: runlane runs list --status failed. Or unset RUNLANE_URL.")
    check_exists(load_settings())
    if run_id is not None:
        letter = _with_database(lambda database: read_dead_letter(database, run_id))
        if letter is None:
            raise InvalidRequest(f"Run {run_id} has no dead letter. List them: runlane dead-letters")
        print_json(letter)
        return
    letters = _with_database(lambda database: list_dead_letters(database, limit))
    if json:
        print_json(letters)
        return
    print_table(
        ["run", "task", "lane", "died", "attempts", "error"],
        [
            [letter["run_id"], letter["target"], letter["lane"], clock(letter["died_at_us"]), len(letter["attempts"]),
             f"{letter['error'].get('type')}: {letter['error'].get('message')}"[:120]]
            for letter in letters
        ],
        "No dead letters.",
    )  # fmt: skip


def change_run(given: str, verb: str, *, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs cancel|retry|approve|release`."""

    async def work(source: RunSource) -> tuple[str, Status]:
        run_id = await find_run_id(source, given)
        return run_id, await source.change(run_id, verb)

    _print_change(*_with_source(url, api_key, work), json=json)


def change_priority(given: str, priority: int, *, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs priority`."""

    async def work(source: RunSource) -> tuple[str, Status]:
        run_id = await find_run_id(source, given)
        return run_id, await source.set_priority(run_id, priority)

    _print_change(*_with_source(url, api_key, work), json=json)


async def _all_events(source: RunSource, run: Run) -> list[Event]:
    """What a person can still read; the stream has the rest."""
    found: list[Event] = []
    while len(found) < _SHOWN_EVENTS:
        page = await source.events(run.id, found[-1].seq if found else 0, _PAGE)
        found += page
        if len(page) < _PAGE:
            break
    return found


def _print_change(run_id: str, status: Status, *, json: bool) -> None:
    if json:
        print_json({"run_id": run_id, "status": status})
    else:
        write_line(f"{run_id}: {status}")
