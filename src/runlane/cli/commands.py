"""Every command and its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from runlane.cli import access, cluster, interact, mcp, secrets
from runlane.cli import definitions as authoring
from runlane.cli import limits as metering
from runlane.cli.options import ApiKey, Last, Port, RunCommand, RunId, ServerUrl, Timeout, Url, run_or_last
from runlane.cli.show import Json
from runlane.cli.terminal import write_line

# As somebody meets them: try it, write definitions, start and answer runs, operate, let others in.
_ORDER = (
    *("dev", "run", "chat", "inbox", "runs"),
    *("validate", "sync", "graph", "schema", "bundle", "tools", "mcp", "secrets"),
    *("worker", "serve", "db", "doctor", "workers", "lanes", "limits", "usage", "dead-letters"),
    *("keys", "roles", "tenants", "audit"),
)


class _InOrder(TyperGroup):
    """Lists the commands in the order of _ORDER, then the others."""

    def list_commands(self, ctx: object) -> list[str]:
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


cli = typer.Typer(
    name="runlane",
    cls=_InOrder,
    help="Runs tasks, orchestrations and agents durably: accepted means finished. Begin with: runlane dev. "
    "RUNLANE_DATABASE_URL selects Postgres; without it a SQLite file in .runlane/ is used.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # In a pipe nobody sees the colours, and loading what makes them takes half of the time of --help.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
)
runs = typer.Typer(help="Runs: look at them, cancel, retry, approve.", no_args_is_help=True)
cli.add_typer(cluster.db, name="db")
cli.add_typer(cluster.lanes, name="lanes")
cli.add_typer(metering.limits, name="limits")
cli.add_typer(runs, name="runs")
cli.add_typer(interact.of_people)
runs.add_typer(interact.of_runs)
cli.add_typer(access.keys, name="keys")
cli.add_typer(access.tenants, name="tenants")
cli.add_typer(access.roles, name="roles")
cli.add_typer(access.audit, name="audit")
cli.add_typer(secrets.secrets, name="secrets")
cli.add_typer(authoring.bundle, name="bundle")
cli.add_typer(mcp.mcp, name="mcp")
cli.command()(metering.usage)
cli.command()(cluster.workers)
cli.command(name="dead-letters", short_help="List runs that failed for good.")(cluster.dead_letters)
cli.add_typer(authoring.tools, name="tools")
cli.command(short_help="Check definitions; tell place and cure.")(authoring.validate)
cli.command(short_help="Bring a folder of definitions.")(authoring.sync)
cli.command(short_help="Draw an orchestration.")(authoring.graph)
cli.command(short_help="Print JSON Schema, for editors.")(authoring.schema)

AppPath = Annotated[
    str | None,
    typer.Argument(
        help="module:name of your App, such as shop.tasks:app. Orchestrations and agents need none.", metavar="APP"
    ),
]
Lanes = Annotated[str | None, typer.Option(help="Serve only these lanes, comma-separated. Default: all of them.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Runs at once in this process (RUNLANE_CONCURRENCY).")]


def _version(wanted: bool) -> None:
    if wanted:
        from runlane.version import VERSION

        write_line(VERSION)
        raise typer.Exit


@cli.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@cli.command(short_help="Run everything here, on a file, and tell it.")
def dev(
    app: AppPath = None,
    port: Port = None,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
    definitions: Annotated[
        Path | None,
        typer.Option(help="Sync this folder of definitions, and again whenever it changes. Default: definitions."),
    ] = None,
    shared_database: Annotated[
        bool,
        typer.Option(
            "--shared-database", help="Allow a database that is not a file of this folder. Its runs are executed here."
        ),
    ] = False,
) -> None:
    """Run everything in this process and tell what happens: API, worker and duties, on the embedded file by default.

    The API is open, without keys, to programs on this machine and to nobody else.
    """
    from runlane.api.services import WorkerOptions
    from runlane.cli.process import lane_names
    from runlane.cli.serve import DEFAULT_HOST, run_server

    wish = WorkerOptions(lane_names(lanes), concurrency, narrate=True)
    run_server(
        app,
        host=DEFAULT_HOST,
        port=port,
        wish=wish,
        dev=True,
        definitions=definitions,
        shared_database=shared_database,
    )


@cli.command(short_help="Serve the HTTP API until SIGTERM.")
def serve(
    app: AppPath = None,
    host: Annotated[
        str, typer.Option(help="0.0.0.0 to be reached from elsewhere; that needs an API key.")
    ] = "127.0.0.1",
    port: Port = None,
    worker: Annotated[bool, typer.Option("--worker", help="Execute runs in this process, too.")] = False,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
) -> None:
    """Serve the HTTP API until SIGTERM: streams end first, so that their readers go elsewhere, then runs drain."""
    from runlane.api.services import WorkerOptions
    from runlane.cli.process import lane_names
    from runlane.cli.serve import run_server

    wish = WorkerOptions(lane_names(lanes), concurrency) if worker else None
    run_server(app, host=host, port=port, wish=wish, dev=False)


@cli.command(short_help="Execute runs until SIGTERM, then drain.")
def worker(app: AppPath = None, lanes: Lanes = None, concurrency: Concurrency = None) -> None:
    """Execute runs until SIGTERM, then drain; a second signal ends the grace period."""
    from runlane.cli.process import run_worker

    run_worker(app, lanes, concurrency)


@cli.command(name="run")
def start(
    name: Annotated[str, typer.Argument(help="A task, an orchestration, or agent:AGENT.", metavar="NAME")],
    message: Annotated[
        str | None, typer.Option("--message", help="What to tell it. NAME is an orchestration then, or agent:AGENT.")
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="A task's arguments, or more of an orchestration's state, as a JSON object; @FILE reads a file, "
            "- reads stdin.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Watch it until it ends; its end is the exit code.")] = False,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher runs earlier.")] = 0,
    key: Annotated[str | None, typer.Option(help="Ordering key: runs with one key run one at a time.")] = None,
    delay: Annotated[float, typer.Option(min=0, help="Seconds to wait before it may start.")] = 0,
    hold: Annotated[bool, typer.Option("--hold", help="Wait for an approval.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key starts one run, however often it is sent.")
    ] = None,
    timeout: Timeout = None,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a run on a server. Exit codes with --follow: 0 completed, 1 failed, 3 cancelled, 4 timeout.

    On a terminal, what an orchestration asks a person is asked here.
    """
    from runlane.cli.follow import start_run

    code = start_run(
        name,
        message=message,
        given=given,
        follow=follow,
        priority=priority,
        key=key,
        delay=delay,
        hold=hold,
        idempotency_key=idempotency_key,
        timeout=timeout,
        url=url,
        api_key=api_key,
        json=json,
    )
    raise typer.Exit(code)


@cli.command(short_help="Find what is wrong, and its cure.")
def doctor(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Check settings, database, schema, Redis, clock, workers, lanes, secrets; say what to do. Exit code 1: broken."""
    from runlane.cli.doctor import examine

    raise typer.Exit(examine(url=url, api_key=api_key, json=json))


@runs.command(name="list")
def list_runs(
    status: Annotated[
        list[str] | None, typer.Option(help="Only runs in this state; give it several times for several.")
    ] = None,
    lane: Annotated[str | None, typer.Option()] = None,
    task: Annotated[str | None, typer.Option(help="Only runs of this task.")] = None,
    key: Annotated[str | None, typer.Option(help="Only runs with this ordering key.")] = None,
    before: Annotated[str | None, typer.Option(help="Continue after this id, the last of the page before.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List runs, newest first."""
    from runlane.cli.operate import show_runs

    show_runs(
        statuses=status or [],
        lane=lane,
        task=task,
        key=key,
        before=before,
        limit=limit,
        url=url,
        api_key=api_key,
        json=json,
    )


@runs.command(cls=RunCommand)
def show(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show a run with its input, result, attempts and events."""
    from runlane.cli.operate import show_run

    show_run(run_or_last(run, last), url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand)
def tail(
    run: RunId,
    after: Annotated[int, typer.Option(min=0, help="Begin after this event.")] = 0,
    timeout: Timeout = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Watch a run until it ends. Exit codes: 0 completed, 1 failed, 3 cancelled, 4 timeout."""
    from runlane.cli.follow import tail_run

    raise typer.Exit(
        tail_run(run_or_last(run, last), after=after, timeout=timeout, url=url, api_key=api_key, json=json)
    )


@runs.command(cls=RunCommand)
def logs(
    run: RunId,
    since: Annotated[int, typer.Option(min=0, help="Begin at this index.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run has ended.")] = False,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Print what a run's task logged."""
    from runlane.cli.follow import show_logs

    show_logs(run_or_last(run, last), since=since, follow=follow, url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand)
def cancel(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Cancel a run in any state. It never runs again."""
    from runlane.cli.operate import change_run

    change_run(run_or_last(run, last), "cancel", url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand)
def retry(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Give a failed run its attempts again."""
    from runlane.cli.operate import change_run

    change_run(run_or_last(run, last), "retry", url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand)
def approve(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Let a held run go."""
    from runlane.cli.operate import change_run

    change_run(run_or_last(run, last), "approve", url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand)
def release(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Let the runs behind a dead one go on that blocks its ordering key."""
    from runlane.cli.operate import change_run

    change_run(run_or_last(run, last), "release", url=url, api_key=api_key, json=json)


@runs.command(cls=RunCommand, context_settings={"ignore_unknown_options": True})  # -5 is a priority, not an option
def priority(
    run: RunId,
    value: Annotated[int, typer.Argument(help="-100 to 100; higher runs earlier.", metavar="PRIORITY")],
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Move a waiting run forward or back."""
    from runlane.cli.operate import change_priority

    change_priority(run_or_last(run, last), value, url=url, api_key=api_key, json=json)
