"""Restore the position of a run from its records, and create the record of each finished step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from runlane.definitions.checks.placeholders import templates_of
from runlane.definitions.schema.definition import Agent, Definition, Orchestration
from runlane.definitions.schema.step import Step
from runlane.domain.events import EventType
from runlane.domain.text import dump_json, load_json
from runlane.errors import UnknownPlaceholder
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Done, Failed, Outcome, PendingStep, StepEvent
from runlane.store.orchestration.steps import SNAPSHOT_PATH, StepOutcome, StepRecord
from runlane.templates.template import look_up, placeholders_in

MAX_INPUT_CHARACTERS = 64 * 1024
_BOUNDS = frozenset({"turn_limit", "cost_limit"})
_FAILURES = frozenset({"step_error", EventType.STEP_RETRY})
_KNOWN_STEPS = 2000
_paths: dict[int, tuple[Step, tuple[str, ...]]] = {}


Remember = Callable[[str, str, str, Any], None]


def _ignore(_path: str, _step_id: str, _title: str, _output: Any) -> None: ...


class StateEdit(NamedTuple):
    """A change of a run's state, before the record with this number."""

    no: int
    state: Mapping[str, Any]


def replay(
    library: Mapping[str, Orchestration],
    root: str,
    state: Mapping[str, Any],
    agents: Mapping[str, str],
    records: Sequence[StepRecord],
    edits: Sequence[StateEdit],
    remember: Remember = _ignore,
) -> tuple[Machine, int]:
    """Return the machine after the records, and the number of the last record.

    `edits` is for forks: changes of the state, each before the records from a number on, in order. `remember` is called
    with the output of each step, in order.
    """
    pending = list(edits)
    if records and records[0].path == SNAPSHOT_PATH:
        machine, last = Machine.restore(library, load_json(records[0].output or "{}")), records[0].no or 0
        records, pending = records[1:], [edit for edit in pending if edit.no > last]
    else:
        machine, last = Machine.start(library, root, state, agents), 0
    for record in records:
        last = record.no or 0
        while pending and pending[0].no <= last:
            machine = _edited(machine, pending.pop(0))
        events = apply_record(machine, record)
        if record.outcome is StepOutcome.DONE and not was_refused(record.path, events):
            remember(record.path, record.step_id, record.step_id, output_of(record))
        remember_nested(events, remember)
    for edit in pending:
        # New records are numbered after all copied ones, even if the copy has gaps.
        machine, last = _edited(machine, edit), max(last, edit.no - 1)
    return machine, last


def restore(
    root: Orchestration,
    request: Mapping[str, Any],
    plan: Mapping[str, Any],
    pinned: Iterable[Definition],
    records: Sequence[StepRecord],
    remember: Remember = _ignore,
) -> tuple[Machine, int]:
    """Return the machine of a run and the number of its last record, from its request, its plan and its records."""
    definitions = list(pinned)
    library = {item.id: item for item in definitions if isinstance(item, Orchestration)}
    agents = {
        item.id: item.orchestration_id
        for item in definitions
        if isinstance(item, Agent) and item.orchestration_id is not None
    }
    message = request.get("message", "")
    given: Mapping[str, Any] = request.get("input") or {}
    state = {"user_input": message, "user_query": message, **given}
    edits = [StateEdit(edit["no"], edit["state"]) for edit in plan.get("fork", {}).get("edits", [])]
    return replay(library, root.id, state, agents, records, edits, remember)


def _edited(machine: Machine, edit: StateEdit) -> Machine:
    return machine.with_state({**machine.state, **edit.state})


def remember_nested(events: Sequence[StepEvent], remember: Remember) -> None:
    """Pass on the outputs of nested orchestrations that have ended."""
    for event in events:
        if event.type == "step_complete":
            remember(event.data["path"], event.data["orch_step_id"], event.data["step_name"], event.output)


def was_refused(path: str, events: Sequence[StepEvent]) -> bool:
    """Return whether a step failed because of its output: an expired wait, a wrong type, an unknown route."""
    return any(event.type in _FAILURES and event.data["path"] == path for event in events)


def apply_record(machine: Machine, record: StepRecord) -> list[StepEvent]:
    """Apply a record to the machine; return the step events that follow."""
    events: list[StepEvent] = []
    error: dict[str, Any] = load_json(record.error) if record.error else {}
    failed = Failed(error.get("code", "failed"), error.get("message", ""), bool(error.get("retryable")))
    match record.outcome:
        case StepOutcome.DONE:
            events = machine.complete(
                record.path, Done(output_of(record), record.route, record.cost_usd, record.tokens)
            )
        case StepOutcome.HANDLED:
            for _ in range(max(0, record.tries - 1)):
                machine.complete(record.path, failed, again=True)
            # The container of the step may be retried, under the same conditions as the first time.
            last = replace(failed, cost_usd=record.cost_usd, tokens=record.tokens)
            machine.complete(record.path, last, again=False)
        case StepOutcome.RETRYING:
            for _ in range(record.tries):
                machine.complete(record.path, failed, again=True)
            machine.charge(record.path, record.cost_usd, record.tokens)
        case StepOutcome.FAILED:
            # The step ended the run, which was then retried. The cost of the step remains counted.
            machine.charge(record.path, record.cost_usd, record.tokens)
        case StepOutcome.SNAPSHOT | StepOutcome.SAVED:
            # Snapshots and checkpoints are not replayed.
            pass
    return events


def output_of(record: StepRecord) -> Any:
    """Return the output of a recorded step."""
    return None if record.output is None else load_json(record.output)


def given_to(pending: PendingStep) -> dict[str, Any]:
    """Return the values that a step reads: its input keys by name, and the values of its placeholders by path."""
    state = pending.state
    given: dict[str, Any] = {key: state[key] for key in pending.step.input_keys if key in state}
    for path in _paths_in(pending.step) if pending.part == "step" else ():
        # A placeholder without a value is reported as the step's own error.
        with suppress(UnknownPlaceholder):
            given[path] = look_up(path, state)
    return given


def _paths_in(step: Step) -> tuple[str, ...]:
    """Return the placeholders of a step, cached because a loop may execute the same step thousands of times."""
    known = _paths.get(id(step))
    if known is not None and known[0] is step:
        return known[1]
    if len(_paths) >= _KNOWN_STEPS:
        _paths.clear()
    found = tuple(path for _, value in templates_of(step) for path in placeholders_in(value))
    _paths[id(step)] = (step, found)
    return found


def record_of(pending: PendingStep, outcome: Outcome, machine: Machine, no: int, seconds: float) -> StepRecord:
    """Return the record of a step after the machine has processed its outcome."""
    given = given_to(pending)
    text = dump_json(given) if given else None
    done = isinstance(outcome, Done)
    verdict = _verdict(machine, pending, outcome)
    failed = outcome if isinstance(outcome, Failed) else None
    if failed is None and verdict is StepOutcome.FAILED and machine.end is not None:
        failed = machine.end.error
    return StepRecord(
        path=pending.path,
        no=no,
        step_id=pending.step.id,
        kind=pending.step.type if pending.part == "step" else f"{pending.step.type} {pending.part}",
        outcome=verdict,
        output=dump_json(outcome.output) if done and outcome.output is not None else None,
        route=outcome.route if done else None,
        error=None if failed is None else dump_json(_error_of(failed)),
        tries=pending.tries if done else pending.tries + 1,
        input=text if text is None or len(text) <= MAX_INPUT_CHARACTERS else None,
        duration_us=int(seconds * 1_000_000),
        cost_usd=outcome.cost_usd,
        tokens=outcome.tokens,
    )


def _error_of(failed: Failed) -> dict[str, Any]:
    error: dict[str, Any] = {"code": failed.code, "message": failed.message}
    return {**error, "retryable": True} if failed.retryable else error


def _verdict(machine: Machine, pending: PendingStep, outcome: Outcome) -> StepOutcome:
    """Return the outcome to record. A step whose failure ended the run is performed again by a retry of the run."""
    if isinstance(outcome, Done):
        error = machine.end.error if machine.end is not None else None
        # A limit of the run stopped it after this step; the output of the step is paid for and is kept.
        return StepOutcome.DONE if error is None or error.code in _BOUNDS else StepOutcome.FAILED
    if machine.end is not None:
        return StepOutcome.FAILED
    again = any(other.path == pending.path for other in machine.pending_steps())
    return StepOutcome.RETRYING if again else StepOutcome.HANDLED
