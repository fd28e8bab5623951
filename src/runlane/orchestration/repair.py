"""Check whether the recorded steps of a run match other versions of its definitions.

The records are replayed on both versions side by side. The new version must reach the step of each record at the same
place, with the same type, and must be able to continue with its outcome. Pure: it reads nothing and has no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlane.definitions.schema.definition import Definition, Orchestration
from runlane.definitions.schema.step import LoopStep, ParallelStep, Step
from runlane.interpreter.machine import Machine
from runlane.interpreter.state import StateRejected
from runlane.interpreter.values import EndStatus, PendingStep
from runlane.orchestration.agent_run import root_of
from runlane.orchestration.pinned import PinnedDefinitions
from runlane.orchestration.replay import apply_record, restore
from runlane.store.orchestration.steps import StepOutcome, StepRecord

_APPLIED = frozenset({StepOutcome.DONE, StepOutcome.HANDLED, StepOutcome.RETRYING})
_SHOWN = 3


class Misfit(NamedTuple):
    """A recorded step that does not match: its path, its id and the reason."""

    path: str
    step_id: str
    reason: str


def find_misfit(
    target: str,
    request: Mapping[str, Any],
    plan: Mapping[str, Any],
    old: Mapping[str, Definition],
    new: Mapping[str, Definition],
    records: Sequence[StepRecord],
) -> Misfit | None:
    """Return the first recorded step that does not match the new versions, or None.

    `records` are all records of the run in order, without snapshots. `plan` contains the state changes of forks.
    """
    before, after = _start(target, request, old), _start(target, request, new)
    edits = [(edit["no"], edit["state"]) for edit in plan.get("fork", {}).get("edits", [])]
    for record in records:
        while edits and edits[0][0] <= (record.no or 0):
            state = edits.pop(0)[1]
            before = before.with_state({**before.state, **state})
            try:
                after = after.with_state({**after.state, **state})
            except StateRejected as refused:
                return Misfit(record.path, record.step_id, f"The state at this step: {refused.failed.message}")
        misfit = _apply(before, after, record, new)
        if misfit is not None:
            return misfit
    return None


def _start(target: str, request: Mapping[str, Any], definitions: Mapping[str, Definition]) -> Machine:
    pinned = PinnedDefinitions.of(definitions)
    root = root_of(target, request, pinned)
    machine, _ = restore(root, request, {}, [*pinned.orchestrations.values(), *pinned.agents.values(), root], ())
    return machine


def _apply(before: Machine, after: Machine, record: StepRecord, new: Mapping[str, Definition]) -> Misfit | None:
    """Apply a record to both machines; return the reason why the second one rejects it, or None."""
    was = _pending(before, record.path)
    if record.outcome in _APPLIED and was is not None:
        now = _pending(after, record.path)
        reason = _missing(was, after, record, new) if now is None else _changed(was, now, record)
        if reason is not None:
            return Misfit(record.path, record.step_id, reason)
    apply_record(before, record)
    apply_record(after, record)
    failed = after.end is not None and after.end.status is EndStatus.FAILED
    if failed and (before.end is None or before.end.status is not EndStatus.FAILED):
        error = None if after.end is None else after.end.error
        return Misfit(record.path, record.step_id, f"Its outcome fails there: {'' if error is None else error.message}")
    return None


def _pending(machine: Machine, path: str) -> PendingStep | None:
    return next((step for step in machine.pending_steps() if step.path == path), None)


def _changed(was: PendingStep, now: PendingStep, record: StepRecord) -> str | None:
    if was.step.type != now.step.type:
        return f'The step "{was.step.id}" was of type {was.step.type} and is of type {now.step.type} now.'
    if was.part != now.part:
        return f'The step "{was.step.id}" was performed for its {was.part}, and now for its {now.part}.'
    return None


def _missing(was: PendingStep, after: Machine, record: StepRecord, new: Mapping[str, Definition]) -> str:
    """Return the reason why the new version does not reach a step at this place."""
    orchestrations = {item.id: item for item in new.values() if isinstance(item, Orchestration)}
    around = orchestrations.get(was.orchestration.id)
    if around is None and not any(was.orchestration.id == step.orchestration.id for step in after.pending_steps()):
        return f'The orchestration "{was.orchestration.id}" is not used any more.'
    steps = {step.id: step for step in (around or was.orchestration).steps}
    found = steps.get(was.step.id)
    if found is None:
        return f'The step "{was.step.id}" does not exist any more.'
    if found.type != was.step.type:
        return f'The step "{was.step.id}" was of type {was.step.type} and is of type {found.type} now.'
    container = _changed_container(was, steps)
    return container or f'The step "{was.step.id}" is not reached here; {_next_of(after)}.'


def _changed_container(was: PendingStep, steps: Mapping[str, Step]) -> str | None:
    """Return how the branches or rounds around a step have changed."""
    for old in was.orchestration.steps:
        new = steps.get(old.id)
        if new is None or f"{old.id}/" not in was.path:
            continue
        if old.type != new.type:
            return f'The step "{old.id}" around it was of type {old.type} and is of type {new.type} now.'
        if isinstance(old, ParallelStep) and isinstance(new, ParallelStep):
            if old.parallel_branches != new.parallel_branches:
                return f'The branches of the step "{old.id}" have changed.'
        elif isinstance(old, LoopStep) and isinstance(new, LoopStep) and old.loop_step_ids != new.loop_step_ids:
            return f'The body of the loop "{old.id}" has changed.'
    return None


def _next_of(after: Machine) -> str:
    if after.end is not None:
        return "the current version has ended before"
    names = [step.path for step in after.pending_steps()]
    more = ", …" if len(names) > _SHOWN else ""
    return f"the current version continues with {', '.join(names[:_SHOWN])}{more}"
