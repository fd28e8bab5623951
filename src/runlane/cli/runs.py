"""`runlane runs`: list runs, show and follow them, change them, answer their questions."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.json_input import read_object, read_value
from runlane.cli.options import ApiKey, Before, Json, Last, Limit, RunCommand, RunId, TargetName, Timeout, Url
from runlane.cli.output import format_span, format_time, print_json, print_result, print_rows
from runlane.cli.run_backend import find_run_id, first, with_runs
from runlane.cli.run_options import (
    ChatSession,
    ErrorCode,
    ForkedFrom,
    Longer,
    MaxCost,
    MinCost,
    Parent,
    PinnedTo,
    Roots,
    Shorter,
    Worker,
)
from runlane.domain.run import Accepted, Status
from runlane.domain.tags import check_change, check_tags
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runlane.cli.run_backend import RunBackend
    from runlane.domain.views import Step

app = typer.Typer()

Latest = Annotated[bool, typer.Option("--latest", help="Use the current versions, if the recorded steps match them.")]


@app.command(name="list")
def list_runs(
    status: Annotated[list[str] | None, typer.Option(help="Only runs in this state. May be repeated.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only runs in this lane.")] = None,
    task: TargetName = None,
    key: Annotated[str | None, typer.Option(help="Only runs with this ordering key.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only runs with this tag. May be repeated.")] = None,
    parent: Parent = None,
    schedule: Annotated[str | None, typer.Option(help="Only runs that this schedule started.")] = None,
    forked_from: ForkedFrom = None,
    worker: Worker = None,
    session: ChatSession = None,
    error: ErrorCode = None,
    definition: PinnedTo = None,
    roots: Roots = False,
    longer: Longer = None,
    shorter: Shorter = None,
    min_cost: MinCost = None,
    max_cost: MaxCost = None,
    before: Before = None,
    limit: Limit = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List runs, newest first."""
    states = [state.value for state in Status]
    for given in status or ():
        if given not in states:
            raise InvalidRequest(
                f'"{given}" is not a valid state{nearest(given, states)}. States: {", ".join(states)}.'
            )
    filters: dict[str, Any] = {"status": status, "lane": lane, "target": task, "ordering_key": key}
    filters |= {"tag": check_tags(tag or ()) or None, "parent": parent, "schedule_id": schedule}
    filters |= {"forked_from": forked_from}
    filters |= {"worker": worker, "session": session, "error_code": error, "roots": roots, "definition": definition}
    filters |= {"min_duration_seconds": longer, "max_duration_seconds": shorter}
    filters |= {"min_cost_usd": min_cost, "max_cost_usd": max_cost}
    print_rows(
        with_runs(url, api_key, lambda runs: first(runs.list(**filters, cursor=before, page=limit), limit)),
        ["run", "task", "status", "lane", "attempt", "accepted", "took", "key", "tags"],
        lambda run: [
            run.id, run.target, run.status, run.lane, run.tries, format_time(run.accepted_at_us),
            format_span(run.started_at_us, run.ended_at_us), run.ordering_key, " ".join(run.tags) or None,
        ],
        empty="No runs.",
        json=json,
        to_dict=lambda run: {**asdict(run), "tries": run.tries},
    )  # fmt: skip


@app.command()
def count(
    lane: Annotated[str | None, typer.Option(help="Only runs in this lane.")] = None,
    task: TargetName = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Count the runs in each state, up to 1,000 of each."""
    print_rows(
        with_runs(url, api_key, lambda runs: runs.counts(lane=lane, target=task)),
        ["status", "runs"],
        lambda row: [row.status, row.count if row.exact else f"more than {row.count}"],
        empty="No runs.",
        json=json,
    )


@app.command(cls=RunCommand)
def show(
    run: RunId,
    start: Annotated[str | None, typer.Option(help="Show one start of a batch, with its part of the result.")] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show a run with its input, result, attempts and events."""
    from runlane.cli.run_details import print_details, read_details

    if start is not None:
        from runlane.domain.text import dump_json

        found = with_runs(url, api_key, lambda runs: runs.get_start(run, start))
        print_result(asdict(found), f"{found.status}: {dump_json(found.error or found.result)}", json=json)
        return
    details = with_runs(url, api_key, lambda runs: read_details(runs, run))
    if json:
        print_json(details)
    else:
        print_details(details)


@app.command(cls=RunCommand)
def tail(
    run: RunId,
    after: Annotated[int, typer.Option(min=0, help="Begin after this event.")] = 0,
    timeout: Timeout = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Follow a run until it ends. Exit codes: 0 completed, 1 failed, 3 cancelled, 4 timeout."""
    from runlane.cli.follow import follow_run

    raise typer.Exit(follow_run(run, after=after, timeout=timeout, url=url, api_key=api_key, json=json))


@app.command(cls=RunCommand)
def logs(
    run: RunId,
    since: Annotated[int, typer.Option(min=0, help="Begin at this index.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until the run has ended.")] = False,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Print the log of a run's task."""
    from runlane.cli.follow import print_logs

    print_logs(run, since=since, follow=follow, url=url, api_key=api_key, json=json)


@app.command(cls=RunCommand)
def cancel(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Cancel a run that has not ended."""
    _print_status(run, lambda runs, run_id: runs.cancel(run_id), url, api_key, json=json)


@app.command(cls=RunCommand)
def retry(
    run: RunId, latest: Latest = False, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Retry a failed run, with all its attempts available again."""
    _print_status(run, lambda runs, run_id: runs.retry(run_id, latest=latest), url, api_key, json=json)


@app.command(cls=RunCommand)
def approve(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Approve a held run, so that it may start."""
    _print_status(run, lambda runs, run_id: runs.approve(run_id), url, api_key, json=json)


@app.command(cls=RunCommand)
def release(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Unblock the runs queued behind a failed run that holds their ordering key."""
    _print_status(run, lambda runs, run_id: runs.release(run_id), url, api_key, json=json)


@app.command(cls=RunCommand, context_settings={"ignore_unknown_options": True})  # -5 is a priority, not an option
def priority(
    run: RunId,
    value: Annotated[int, typer.Argument(help="-100 to 100; higher values run earlier.", metavar="PRIORITY")],
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change the priority of a waiting run."""

    _print_status(run, lambda runs, run_id: runs.set_priority(run_id, value), url, api_key, json=json)


@app.command(cls=RunCommand)
def tag(
    run: RunId,
    add: Annotated[list[str] | None, typer.Option(help="Tag to add. May be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Tag to remove. May be repeated.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--set", help="Replace all tags by this one. May be repeated.")
    ] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change the tags of a run."""
    check_change(add or (), remove or (), only or None)

    async def work(runs: RunBackend) -> tuple[str, Sequence[str]]:
        run_id = await find_run_id(runs, run)
        return run_id, await runs.set_tags(run_id, only or None, add=add or (), remove=remove or ())

    run_id, tags = with_runs(url, api_key, work)
    print_result({"run_id": run_id, "tags": list(tags)}, f"{run_id}: {' '.join(tags) or 'no tags'}", json=json)


@app.command(cls=RunCommand)
def resume(
    run: RunId,
    answer: Annotated[
        str | None, typer.Option(help="The fields as a JSON object, or a string; @FILE reads a file, - reads stdin.")
    ] = None,
    field: Annotated[list[str] | None, typer.Option(help="One field as NAME=VALUE. May be repeated.")] = None,
    step: Annotated[str | None, typer.Option(help="Id or path of the step, if several questions are open.")] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Answer a question of a run. On a terminal, without --answer and --field, the command asks the question."""
    from runlane.cli.question_form import ask, choose_question, interruptible, parse_answer, parse_fields

    if answer is not None and field:
        raise InvalidRequest("--answer and --field contradict each other. Give one of them.")
    given = parse_fields(field) if field else {} if answer is None else parse_answer(answer)
    asks = answer is None and not field and sys.stdin.isatty() and sys.stdout.isatty()

    async def work(runs: RunBackend, run_id: str) -> Status:
        question = choose_question(await runs.waits(run_id), step) if asks else None
        if question is None:
            return await runs.resume(run_id, given, step=step)
        try:
            with interruptible():
                response = ask(question)
        except EOFError:
            raise InvalidRequest("No answer was given, so nothing was changed.") from None
        return await runs.resume(run_id, response, step=question.path)

    _print_status(run, work, url, api_key, json=json)


@app.command(cls=RunCommand)
def fork(
    run: RunId,
    from_step: Annotated[str, typer.Option("--from", help="Path of a recorded step; see: runlane runs steps.")],
    state: Annotated[
        str | None, typer.Option(help="Changes to the state as a JSON object; @FILE reads a file, - reads stdin.")
    ] = None,
    latest: Latest = False,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a new run at a recorded step of this run. Earlier steps are copied, not executed again."""
    edits = read_object(state, "--state", "the changes of the state")

    async def work(runs: RunBackend) -> Accepted:
        return await runs.fork(await find_run_id(runs, run), from_step, edits, latest=latest)

    accepted = with_runs(url, api_key, work)
    print_result(asdict(accepted), f"{accepted.run_id}: {accepted.status}", json=json)


@app.command(cls=RunCommand)
def send(
    run: RunId,
    event: Annotated[str, typer.Argument(help="The name that a step waits for.", metavar="EVENT")],
    data: Annotated[
        str | None, typer.Option(help="The step's output as JSON; @FILE reads a file, - reads stdin.")
    ] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Send a run an event that one of its steps waits for, or will wait for."""
    value = None if data is None else read_value(data, "--data")

    _print_status(run, lambda runs, run_id: runs.send_event(run_id, event, value), url, api_key, json=json)


@app.command(cls=RunCommand)
def steps(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the recorded steps of a run, in order."""
    from runlane.cli.run_details import step_cells

    async def work(runs: RunBackend) -> Sequence[Step]:
        run_id = await find_run_id(runs, run)
        await runs.get(run_id)
        return await runs.steps(run_id)

    print_rows(
        with_runs(url, api_key, work),
        ["step", "kind", "outcome", "took", "tries", "cost", "tokens", "came to"],
        step_cells,
        empty="No steps are recorded.",
        json=json,
    )


def _print_status(
    run: str,
    change: Callable[[RunBackend, str], Awaitable[Status]],
    url: str | None,
    api_key: str | None,
    *,
    json: bool,
) -> None:
    """Change a run and print its new status."""

    async def work(runs: RunBackend) -> tuple[str, Status]:
        run_id = await find_run_id(runs, run)
        return run_id, await change(runs, run_id)

    run_id, status = with_runs(url, api_key, work)
    print_result({"run_id": run_id, "status": status}, f"{run_id}: {status}", json=json)
