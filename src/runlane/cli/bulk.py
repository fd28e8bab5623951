"""`runlane bulk`: change many runs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.failure_backend import print_job, print_preview, with_failures
from runlane.cli.options import ApiKey, Json, Limit, TargetName, Url, duration
from runlane.cli.output import format_time, print_rows
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
from runlane.domain.bulk import BulkJob, BulkPreview
from runlane.domain.tags import check_tags
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.cli.failure_backend import BulkBackend, LetterBackend
    from runlane.domain.bulk import BulkItem

app = typer.Typer()

JobId = Annotated[str, typer.Argument(help="The id of the job.", metavar="JOB")]
Rate = Annotated[float | None, typer.Option(help="At most this many runs per second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the runs that would be changed.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended.")]
_ACTIONS = ("cancel", "retry", "priority", "lane", "tag")


@app.command(name="list")
def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state: running, completed, stopped.")] = None,
    limit: Limit = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List bulk jobs with their progress, newest first."""

    async def work(letters: LetterBackend, bulk: BulkBackend) -> list[BulkJob]:
        from runlane.cli.run_backend import first

        return await first(bulk.list(state=state, page=limit), limit)

    print_rows(
        with_failures(url, api_key, work),
        ["job", "action", "state", "total", "changed", "refused", "created", "by"],
        lambda job: [
            job.id, job.action.value, job.state.value, job.total, job.changed, job.refused,
            format_time(job.created_at_us), job.created_by,
        ],
        empty="No bulk jobs.",
        json=json,
        to_dict=to_dict,
    )  # fmt: skip


@app.command()
def show(job: JobId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show the progress of a bulk job."""
    print_job(with_failures(url, api_key, lambda _, bulk: bulk.get(job)), json=json)


@app.command()
def items(
    job: JobId,
    state: Annotated[str | None, typer.Option(help="Only runs in this state: pending, changed, refused.")] = None,
    limit: Limit = 100,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the runs of a bulk job, with the reason for each refused run."""

    async def work(letters: LetterBackend, bulk: BulkBackend) -> list[BulkItem]:
        from runlane.cli.run_backend import first

        return await first(bulk.items(job, state=state, page=limit), limit)

    print_rows(
        with_failures(url, api_key, work),
        ["no", "run", "state", "new run", "reason"],
        lambda item: [item.no, item.run_id, item.state.value, item.new_run_id, item.reason],
        empty="No runs.",
        json=json,
        to_dict=to_dict,
    )


@app.command()
def stop(job: JobId, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Stop a bulk job. When the command returns, no further run is changed."""
    print_job(with_failures(url, api_key, lambda _, bulk: bulk.stop(job)), json=json)


@app.command()
def start(
    action: Annotated[str, typer.Argument(help="cancel, retry, priority, lane or tag.", metavar="ACTION")],
    run: Annotated[list[str] | None, typer.Option(help="A run, instead of a filter. May be repeated.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only runs in this state. May be repeated.")] = None,
    task: TargetName = None,
    lane: Annotated[str | None, typer.Option(help="Only runs in this lane.")] = None,
    key: Annotated[str | None, typer.Option(help="Only runs with this ordering key.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only runs with this tag. May be repeated.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only runs that this schedule started.")] = None,
    text: Annotated[str | None, typer.Option(help="Only runs whose id, task, key or note contains this.")] = None,
    parent: Parent = None,
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
    priority: Annotated[int | None, typer.Option(help="For priority: the new priority.")] = None,
    to: Annotated[str | None, typer.Option(help="For lane: the lane to move them to.", metavar="LANE")] = None,
    add: Annotated[list[str] | None, typer.Option(help="For tag: a tag to add. May be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="For tag: a tag to remove. May be repeated.")] = None,
    delay: Annotated[float | None, duration("For retry: the delay before the first start.")] = None,
    spread: Annotated[float | None, duration("For retry: the period over which the starts are spread.")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="For retry: use the current versions.")] = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Cancel or retry many runs, or change their priority, lane or tags; each run once, even if processes die."""
    if action not in _ACTIONS:
        raise InvalidRequest(f'"{action}" is not a bulk action. Actions: {", ".join(_ACTIONS)}.')
    filters = {"status": status, "target": task, "lane": lane, "ordering_key": key, "text": text}
    filters |= {"tags": check_tags(tag or ()), "schedule_id": schedule, "parent": parent, "worker": worker}
    filters |= {"forked_from": forked_from}
    filters |= {"session": session, "error_code": error, "roots": roots or None, "definition": definition}
    filters |= {"min_duration_seconds": longer, "max_duration_seconds": shorter}
    filters |= {"min_cost_usd": min_cost, "max_cost_usd": max_cost}
    given: dict[str, Any] = {
        "priority": priority, "lane": to, "delay_seconds": delay, "spread_seconds": spread, "latest": latest or None,
        "add": add or None, "remove": remove or None,
    }  # fmt: skip
    chosen = selection(filters, run)
    chosen["options"] = {name: value for name, value in given.items() if value is not None}

    async def work(letters: LetterBackend, bulk: BulkBackend) -> BulkPreview | BulkJob:
        name: Any = action
        if dry_run:
            return await bulk.preview(name, **chosen)
        job = await bulk.create(name, rate=rate, **chosen)
        return await bulk.wait(job.id) if wait else job

    print_outcome(with_failures(url, api_key, work), json=json)


def selection(filters: dict[str, Any], runs: list[str] | None) -> dict[str, Any]:
    """Return the arguments that select what a bulk job changes: those of a filter, or these runs."""
    # Zero is a bound and therefore a filter; an empty list filters nothing.
    wanted = {name: value for name, value in filters.items() if value or value == 0}
    if bool(wanted) == bool(runs):
        raise InvalidRequest("Name either runs or a filter. See --help for the filters.")
    return {"run_ids": runs} if runs else {"filter": wanted}


def print_outcome(outcome: BulkPreview | BulkJob, *, json: bool) -> None:
    """Print what a bulk job would change, or its progress."""
    if isinstance(outcome, BulkPreview):
        print_preview(outcome, json=json)
    else:
        print_job(outcome, json=json)
