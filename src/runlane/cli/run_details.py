"""What `runlane runs show` prints of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from runlane.cli.output import format_cell, format_span, format_time, shorten
from runlane.cli.run_backend import PAGE, find_run_id
from runlane.cli.terminal import write_line
from runlane.domain.run import AGENT, ORCHESTRATION
from runlane.domain.text import counted, dump_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runlane.cli.run_backend import RunBackend
    from runlane.domain.events import Event
    from runlane.domain.views import Step

# As many events as a person can read; the stream has the others.
_MAX_EVENTS: Final = 10_000
_MAX_OUTPUT: Final = 80
_TIMES: Final = ("accepted", "due", "started", "claimed", "ended", "cancel_requested")


async def read_details(runs: RunBackend, given: str) -> dict[str, Any]:
    """Return everything about a run that `runs show` prints."""
    run_id = await find_run_id(runs, given)
    run = await runs.get(run_id)
    fields = asdict(run)
    # A server returns no more of the plan than the three values below.
    del fields["plan"], fields["waiting_for"]
    waits = await runs.waits(run.id) if run.has_steps and not run.status.terminal else ()
    return {
        **fields,
        "tries": run.tries,
        "attempts": [asdict(attempt) for attempt in await runs.attempts(run_id)],
        "definition": run.definition,
        "forked_from": run.forked_from,
        "parent": run.parent,
        "waits": [asdict(wait) for wait in waits],
        "steps": await runs.steps(run_id),
        "events": [asdict(event) for event in await _read_events(runs, run_id)],
    }


async def _read_events(runs: RunBackend, run_id: str) -> list[Event]:
    found: list[Event] = []
    while len(found) < _MAX_EVENTS:
        page = await runs.events(run_id, found[-1].seq if found else 0, PAGE)
        found += page
        if len(page) < PAGE:
            break
    return found


def print_details(run: Mapping[str, Any]) -> None:
    """Print a run for people."""
    for label, text in (*_fields(run), *_relations(run), *_history(run)):
        write_line(f"{label:>14}  {text}")


def _fields(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field in ("id", "target", "lane", "status", "priority"):
        yield field, run[field]
    yield "attempt", run["tries"]
    for field in ("failures", "losses", "max_attempts"):
        yield field, run[field]
    for field in _TIMES:
        if run[f"{field}_at_us"] is not None:
            yield field, format_time(run[f"{field}_at_us"])
    for field in ("ordering_key", "blocked_by", "worker_id", "progress", "progress_note", "session_id", "trace_id"):
        if run[field] is not None:
            yield field, run[field]
    if run["tags"]:
        yield "tags", " ".join(run["tags"])
    for field in ("input", "result", "state"):
        if run[field] is not None:
            yield field, dump_json(run[field])


def _relations(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if run["definition"] is not None:
        yield "definition", run["definition"]
    if run["forked_from"] is not None:
        yield "forked from", f"{run['forked_from']['run_id']} at {run['forked_from']['from_step']}"
    if run["parent"] is not None:
        yield "parent", f"{run['parent']['run_id']} at {run['parent']['path']}"
    for child in run["children"] or ():
        yield "child", f"{child['run_id']}  {child['status']}  {child['target']}  at {child['path']}"
    if run["after"]:
        ended = [f"{parent} {status}" for parent, status in run["after"]["runs"].items() if status is not None]
        yield "after", "  ".join([f"{run['after']['on']} of {counted(len(run['after']['runs']), 'run')}", *ended[:10]])
    if run["waiting_reason"]:
        yield "waits", "  ".join([run["waiting_reason"]["message"], *run["waiting_reason"]["runs"]])
    if run["origin"]:
        yield "origin", dump_json(run["origin"])
    if run["error"]:
        yield "error", _describe_error(run["error"])


def _history(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for attempt in run["attempts"]:
        took = format_span(attempt["started_at_us"], attempt["ended_at_us"])
        error = f"  {_describe_error(attempt['error'])}" if attempt["error"] else ""
        yield "execution", f"{attempt['attempt']}  {attempt['outcome']}  {took}  {attempt['worker_id']}{error}"
    for wait in run["waits"]:
        since = f"since {format_time(wait['opened_at_us'])}"
        yield "waits for", f"{wait['kind']}  {wait['path']}  {since}  {wait['prompt'] or wait['name']}"
    if run["target"].startswith((ORCHESTRATION, AGENT)):
        for step in run["steps"]:
            yield "step", "  ".join(format_cell(cell) for cell in step_cells(step))
    for event in run["events"]:
        data = dump_json(event["data"]) if event["data"] else ""
        yield event["seq"], f"{format_time(event['at_us'])}  {event['type']}  {data}".rstrip()


def step_cells(step: Step) -> list[Any]:
    """Return the cells of a recorded step in a table."""
    outcome = _describe_error(step.error, "code") if step.error else dump_json(step.output)
    route = f"-> {step.route}  " if step.route else ""
    cost = None if step.cost_usd is None else f"${step.cost_usd:.4f}"
    took = None if step.duration_us is None else format_span(0, step.duration_us)
    came_to = route + shorten(outcome, _MAX_OUTPUT)
    return [step.path, step.kind, step.outcome, took, step.tries, cost, step.tokens, came_to]


def _describe_error(error: Mapping[str, Any], kind: str = "type") -> str:
    return f"{error.get(kind)}: {error.get('message')}"
