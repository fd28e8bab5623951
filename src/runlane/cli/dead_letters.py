"""`runlane dead-letters`: the runs that failed for good, and their handling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from runlane.cli.bulk import DryRun, Rate, Wait, print_outcome, selection
from runlane.cli.failure_backend import with_failures
from runlane.cli.json_input import read_object
from runlane.cli.options import ApiKey, Json, Limit, TargetName, Url, duration
from runlane.cli.output import format_time, print_json, print_result, print_rows, shorten
from runlane.cli.terminal import write_line
from runlane.domain.bulk import BulkJob, BulkPreview
from runlane.domain.dead_letter import LetterState
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest, nearest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runlane.cli.failure_backend import BulkBackend, LetterBackend
    from runlane.domain.dead_letter import DeadLetterGroup, DeadLetterSummary

app = typer.Typer()

Runs = Annotated[list[str] | None, typer.Argument(help="Ids of runs, instead of a filter.", metavar="[RUN]...")]
State = Annotated[
    list[str] | None,
    typer.Option(help="Only these states: open, acknowledged, retrying, resolved, discarded. May be repeated."),
]
LaneName = Annotated[str | None, typer.Option("--lane", help="Only runs in this lane.")]
Code = Annotated[str | None, typer.Option(help="Only this error code of a step, or exception type.")]
Print = Annotated[str | None, typer.Option("--fingerprint", help="Only this cause; see: runlane dead-letters groups.")]
StepName = Annotated[str | None, typer.Option("--step", help="Only runs that failed at this step.")]
AssignedTo = Annotated[str | None, typer.Option(help="Only those that are assigned to this person.")]
TextPart = Annotated[str | None, typer.Option("--text", help="Only those whose message, run or task contains this.")]
Note = Annotated[str | None, typer.Option(help="The reason, stored with the dead letter.")]


def _filters(
    state: list[str] | None,
    task: str | None,
    lane: str | None,
    code: str | None,
    fingerprint: str | None,
    step: str | None,
    assigned_to: str | None,
    text: str | None,
) -> dict[str, Any]:
    states = [item.value for item in LetterState]
    for given in state or ():
        if given not in states:
            raise InvalidRequest(
                f'"{given}" is not a valid state{nearest(given, states)}. States: {", ".join(states)}.'
            )
    found = {
        "state": state, "target": task, "lane": lane, "code": code, "fingerprint": fingerprint, "step": step,
        "assigned_to": assigned_to, "text": text,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


@app.command(name="list")
def list_letters(
    state: State = None,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    fingerprint: Print = None,
    step: StepName = None,
    assigned_to: AssignedTo = None,
    text: TextPart = None,
    limit: Limit = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List dead letters that are open or acknowledged, the latest death first; --state selects others."""
    filters = _filters(state, task, lane, code, fingerprint, step, assigned_to, text)
    print_rows(
        with_failures(url, api_key, lambda letters, _: _first(letters, filters, limit)),
        ["run", "task", "state", "died", "times", "step", "assigned to", "error"],
        _cells,
        empty="No dead letters.",
        json=json,
        to_dict=to_dict,
    )


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="The run.", metavar="RUN")], url: Url = None, api_key: ApiKey = None
) -> None:
    """Show a dead letter as JSON, with the input, every attempt and traceback, and the last steps."""
    print_json(to_dict(with_failures(url, api_key, lambda letters, _: letters.get(run))))


@app.command()
def groups(
    state: State = None,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    step: StepName = None,
    assigned_to: AssignedTo = None,
    text: TextPart = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of entries.")] = 20,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Group dead letters by their cause, the largest group first."""
    filters = _filters(state, task, lane, code, None, step, assigned_to, text)

    async def work(letters: LetterBackend, bulk: BulkBackend) -> Sequence[DeadLetterGroup]:
        return await letters.groups(limit=limit, **filters)

    print_rows(
        with_failures(url, api_key, work),
        ["fingerprint", "count", "code", "tasks", "versions", "first", "last", "14 days", "message", "sample"],
        lambda group: [
            group.fingerprint, group.count, group.code, ",".join(group.targets),
            ",".join(item.version for item in group.versions if item.version), format_time(group.first_failed_at_us),
            format_time(group.last_died_at_us), " ".join(map(str, group.daily)), shorten(group.sample.message, 80),
            group.sample.run_id,
        ],
        empty="No dead letters.",
        json=json,
        to_dict=to_dict,
    )  # fmt: skip


@app.command()
def retry(
    runs: Runs = None,
    kind: Annotated[str, typer.Option(help="resume, restart or fork.")] = "resume",
    from_step: Annotated[
        str | None, typer.Option("--from", help="For fork: path of a step. Default: the failed step.")
    ] = None,
    set_state: Annotated[
        str | None, typer.Option("--set-state", help="For fork: changes of the state as a JSON object; @FILE, -.")
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Use the current versions, if the recorded steps match them.")
    ] = False,
    delay: Annotated[float, duration("The delay of the first start.")] = 0.0,
    spread: Annotated[float, duration("The time over which the starts are spread, such as 15m.")] = 0.0,
    lower_priority: Annotated[int, typer.Option(help="Lower the priority by this many points.")] = 10,
    force: Annotated[
        bool, typer.Option("--force", help="Include runs that have failed for good five times or more.")
    ] = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    state: State = None,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    fingerprint: Print = None,
    step: StepName = None,
    assigned_to: AssignedTo = None,
    text: TextPart = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Retry a dead letter, or all that match as a bulk job: resume, restart as a new run, or fork at a step."""
    filters = _filters(state, task, lane, code, fingerprint, step, assigned_to, text)
    options: dict[str, Any] = {
        "kind": kind, "delay_seconds": delay, "lower_priority": lower_priority, "latest": latest or None,
        "from_step": from_step, "state": read_object(set_state, "--set-state", "the changes of the state") or None,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    if runs is not None and len(runs) == 1 and not (filters or dry_run or force or spread):
        run_id = runs[0]
        new_id = with_failures(url, api_key, lambda letters, _: letters.retry(run_id, **options))
        print_result({"run_id": run_id, "retried_as": new_id}, f"{run_id}: retrying as {new_id}", json=json)
        return
    options |= {"spread_seconds": spread, "force": force}
    _bulk("retry", filters, runs, options, url, api_key, rate=rate, dry_run=dry_run, wait=wait, json=json)


@app.command()
def discard(
    runs: Runs = None,
    note: Note = None,
    release: Annotated[bool, typer.Option("--release", help="Unblock the runs behind its ordering key.")] = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    state: State = None,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    fingerprint: Print = None,
    step: StepName = None,
    text: TextPart = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Discard a dead letter, or all that match. The runs stay failed."""
    filters = _filters(state, task, lane, code, fingerprint, step, None, text)
    if runs is not None and len(runs) == 1 and not (filters or dry_run):
        _print_letter(url, api_key, lambda letters: letters.discard(runs[0], note, release=release), json=json)
        return
    options = {"note": note, "release": release}
    _bulk("discard", filters, runs, options, url, api_key, dry_run=dry_run, wait=wait, json=json)


@app.command()
def ack(
    runs: Runs = None,
    note: Note = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    fingerprint: Print = None,
    step: StepName = None,
    text: TextPart = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Acknowledge a dead letter, or all that match: they are still listed but no longer counted."""
    filters = _filters(None, task, lane, code, fingerprint, step, None, text)
    if runs is not None and len(runs) == 1 and not (filters or dry_run):
        _print_letter(url, api_key, lambda letters: letters.acknowledge(runs[0], note), json=json)
        return
    _bulk("acknowledge", filters, runs, {"note": note}, url, api_key, dry_run=dry_run, wait=wait, json=json)


@app.command()
def assign(
    runs: Annotated[list[str], typer.Argument(help="The runs.", metavar="RUN...")],
    to: Annotated[str | None, typer.Option(help="The person; without it, the assignment is removed.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Assign dead letters to a person."""
    for run_id in runs:
        _print_letter(url, api_key, _assignment(run_id, to), json=json)


@app.command()
def export(
    state: State = None,
    task: TargetName = None,
    lane: LaneName = None,
    code: Code = None,
    fingerprint: Print = None,
    text: TextPart = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Print every matching dead letter with its input, error and attempts, one JSON object per line."""
    filters = _filters(state, task, lane, code, fingerprint, None, None, text)

    async def work(letters: LetterBackend, bulk: BulkBackend) -> None:
        async for letter in letters.list(page=100, **filters):
            whole = to_dict(await letters.get(letter.run_id))
            write_line(orjson.dumps(whole, option=orjson.OPT_NON_STR_KEYS, default=str).decode())

    with_failures(url, api_key, work)


async def _first(letters: LetterBackend, filters: dict[str, Any], limit: int) -> list[DeadLetterSummary]:
    from runlane.cli.run_backend import first

    return await first(letters.list(page=limit, **filters), limit)


def _assignment(run_id: str, to: str | None) -> Callable[[LetterBackend], Awaitable[DeadLetterSummary]]:
    return lambda letters: letters.assign(run_id, to)


def _print_letter(
    url: str | None,
    api_key: str | None,
    change: Callable[[LetterBackend], Awaitable[DeadLetterSummary]],
    *,
    json: bool,
) -> None:
    letter = with_failures(url, api_key, lambda letters, _: change(letters))
    shown = f"{letter.run_id}: {letter.state.value}"
    if letter.assigned_to is not None:
        shown += f", assigned to {letter.assigned_to}"
    print_result(to_dict(letter), shown, json=json)


def _bulk(
    action: Any,
    filters: dict[str, Any],
    runs: list[str] | None,
    options: dict[str, Any],
    url: str | None,
    api_key: str | None,
    *,
    dry_run: bool,
    wait: bool,
    json: bool,
    rate: float | None = None,
) -> None:
    chosen = selection(filters, runs)
    chosen["options"] = {name: value for name, value in options.items() if value is not None and value is not False}

    async def work(letters: LetterBackend, bulk: BulkBackend) -> BulkPreview | BulkJob:
        if dry_run:
            return await letters.preview(action, **chosen)
        job = await letters.bulk(action, rate=rate, **chosen)
        return await bulk.wait(job.id) if wait else job

    print_outcome(with_failures(url, api_key, work), json=json)


def _cells(letter: DeadLetterSummary) -> list[Any]:
    return [
        letter.run_id, letter.target, letter.state.value, format_time(letter.died_at_us), letter.times_died,
        letter.last_step, letter.assigned_to, shorten(f"{letter.code}: {letter.message}", 120),
    ]  # fmt: skip
