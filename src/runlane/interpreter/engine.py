"""The walk through the steps: how lines move, what is open, what happened, and how failures travel.

Moves are made one at a time from a stack, never by one step calling the next, so that neither a long run nor a long
loop grows the call stack. Everything that happens follows from the definition and the outcomes: there is no clock,
no randomness and no I/O here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from runlane.definitions.schema.step import (
    AgentStep,
    EndStep,
    HumanStep,
    LoopStep,
    OrchestrationStep,
    ParallelStep,
    Step,
    StepRetry,
)
from runlane.domain.events import EventType
from runlane.interpreter.collect import HUMAN_RESPONSE, output_key
from runlane.interpreter.fiber import END, Fiber
from runlane.interpreter.for_each import ForEachFrame
from runlane.interpreter.frame import AnyFrame, OpenStep
from runlane.interpreter.leaf import LeafFrame
from runlane.interpreter.loop import LoopFrame
from runlane.interpreter.nested import NESTING_LIMIT, NestedFrame
from runlane.interpreter.parallel import ParallelFrame
from runlane.interpreter.routing import STEERING
from runlane.interpreter.scope import Library, Scope
from runlane.interpreter.state import StateRejected
from runlane.interpreter.values import Done, EndStatus, Failed, OrchestrationEnd, Part, PendingStep, StepEvent

BAD_ROUTE: Final = "bad_route"
LOOP_LIMIT: Final = "loop_limit"
NO_PROGRESS: Final = "no_progress"
UNKNOWN_STEP: Final = "unknown_step"

# Steps inside steps (branches, loops, orchestrations) at one time.
MAX_INSIDE: Final = 32
# Moves that one outcome may lead to. Only loops that do nothing and orchestrations that start themselves come near.
MAX_MOVES: Final = 20_000


class Engine:
    """One run's way through its orchestration."""

    def __init__(self, library: Library, root: Scope) -> None:
        self.library = library
        self.root = root
        self.end: OrchestrationEnd | None = None
        self.open: dict[str, OpenStep] = {}
        self.facts: list[StepEvent] = []
        self.serial = 0
        # Steps whose max_iterations was reached. By id, so that a long loop does not fill the memory.
        self.limits: dict[str, None] = {}
        self._moves: list[tuple[Fiber, str | None, bool]] = []

    def run(self) -> None:
        """Make all moves that wait, until something has to be performed."""
        made = 0
        while self._moves and self.end is None:
            made += 1
            if made > MAX_MOVES:
                message = f"One outcome led through more than {MAX_MOVES} steps at once. Does a loop do nothing?"
                self.stop(Failed(NO_PROGRESS, message))
                return
            line, target, by_order = self._moves.pop()
            if not line.closed:
                self._move(line, target, by_order)

    def keep_limits(self, scope: Scope) -> None:
        """Fail the orchestrations, this one and those around it, that may not perform what they would have to."""
        scopes = list(scope.outward())
        while self.end is None:
            exceeded = next(((around, error) for around in reversed(scopes) if (error := around.exceeded())), None)
            if exceeded is None:
                return
            around, error = exceeded
            if around.frame is None:
                self.stop(error)
            else:
                self.fail(around.frame, error)
                self.run()

    def stop(self, error: Failed) -> None:
        """Fail the run as a whole, whatever it is at."""
        self._fail_line(self.root.line, error, None)

    def go(self, line: Fiber, target: str | None, *, by_order: bool = False) -> None:
        """Lead a line to a step, or to its end. The last line that is led is the first that moves."""
        self._moves.append((line, target, by_order))

    def open_leaf(
        self,
        frame: AnyFrame,
        path: str,
        part: Part,
        *,
        tries: int = 0,
        delay: float = 0.0,
        serial: int | None = None,
    ) -> None:
        """Ask for something to be performed."""
        if serial is None:
            self.serial += 1
            serial = self.serial
        line = frame.line
        pending = PendingStep(path, line.scope.orchestration, frame.step, line.layer.view, part, tries, delay)
        frame.leaf = self.open[path] = OpenStep(frame, serial, pending)
        for scope in line.scope.outward():
            scope.open += 1
            scope.asking += part != "step"

    def store(self, frame: AnyFrame, output: Any, size: int | None = None) -> None:
        """Write a step's output where it belongs."""
        line, step = frame.line, frame.step
        key = output_key(step)
        if key is None:
            return
        outputs = line.outputs
        size = line.layer.write(key, output, size=size, gathered=outputs is not None)
        if isinstance(step, HumanStep) and key != HUMAN_RESPONSE:
            line.layer.write(HUMAN_RESPONSE, output, size=size)
        if outputs is not None:
            outputs[step.id] = [output, size]

    def emit(self, frame: AnyFrame, event: str, **data: Any) -> None:
        """An event follows."""
        self._tell(event, frame.step.id, frame.path, data)

    def emit_complete(self, frame: AnyFrame, output: Any) -> None:
        """A step is done that nobody performed."""
        self.emit(frame, EventType.STEP_COMPLETE, step_name=frame.step.title, step_type=frame.step.type)
        self.facts[-1] = replace(self.facts[-1], output=output)

    def leave(self, frame: AnyFrame, output: Any, leaving: str | None = None) -> None:
        """A step is done: on to what follows it, or out with a line that left it."""
        line = frame.line
        line.frame = None
        if frame.step.type not in STEERING:
            line.output = output
        if leaving == END:
            self._finish(line, END)
        elif leaving is not None:
            self.go(line, leaving)
        else:
            target, by_order = line.after(frame.step)
            self.go(line, target, by_order=by_order)

    def turn(self, frame: AnyFrame, target: str | None) -> None:
        """A step is done and has chosen the way."""
        frame.line.frame = None
        self.go(frame.line, target)

    def drop_line(self, line: Fiber) -> None:
        """Forget a line, what it is at, and what it has written."""
        line.closed = True
        if line.frame is not None:
            self._drop(line.frame)
        if line.owner is not None and line.layer is not line.owner.line.layer:
            line.layer.discard()

    def complete(self, leaf: OpenStep, outcome: Done | Failed, again: bool | None = None) -> None:
        """Take the outcome of an open todo; `again` is what its retry decided, if that is known."""
        frame = leaf.frame
        if isinstance(outcome, Failed):
            if again is None:
                again = _again(frame.step.retry, outcome, leaf.pending.tries)
            if again:
                self._try_again(leaf, outcome)
                return
        self._close(leaf)
        if leaf.pending.part == "step":
            for scope in frame.line.scope.outward():
                scope.turns += 1
        if isinstance(outcome, Failed):
            self.fail(frame, outcome, retried=True)
            return
        try:
            frame.settled(self, outcome)
        except StateRejected as refused:
            self.fail(frame, refused.failed)

    def fail(self, frame: AnyFrame, error: Failed, *, source: str | None = None, retried: bool = False) -> None:
        """A step failed, or what is inside it: then its retry, its on_error, or what is around it.

        `source` is the step inside that failed first; its event has been told. An inner orchestration has begun as a
        step of its own, so its end is told as well.
        """
        line, step = frame.line, frame.step
        self._drop(frame)
        if not retried and _again(step.retry, error, frame.tries):
            line.delay = delay = _delay(step.retry, frame.tries + 1)
            self._tell_retry(frame, error, frame.tries + 1, delay)
            self._enter(line, step, tries=frame.tries + 1)
            return
        if source is None:
            self.emit(frame, EventType.STEP_ERROR, code=error.code, error=error.message, **_spent(error))
        elif isinstance(frame, NestedFrame):
            self.emit(frame, EventType.STEP_ERROR, code=error.code, error=error.message)
        self._take_failure(line, step, error, source or step.id)

    def _take_failure(self, line: Fiber, step: Step, error: Failed, source: str) -> None:
        """Go to the step's on_error, or fail the line."""
        if step.on_error is not None:
            try:
                line.layer.write("error", {"step_id": source, "code": error.code, "message": error.message})
            except StateRejected as refused:
                error = refused.failed
            else:
                self.go(line, step.on_error)
                return
        self._fail_line(line, error, source)

    def _fail_line(self, line: Fiber, error: Failed, source: str | None) -> None:
        owner = line.owner
        if owner is not None:
            # An inner orchestration has ids of its own, so out here it is the step that runs it which failed.
            self.fail(owner, error, source=owner.step.id if isinstance(owner, NestedFrame) else source)
            return
        if line.frame is not None:
            self._drop(line.frame)
        self.end = OrchestrationEnd(EndStatus.FAILED, None, dict(line.layer.values), error, source)

    def _try_again(self, leaf: OpenStep, error: Failed) -> None:
        tries = leaf.pending.tries + 1
        frame, pending = leaf.frame, leaf.pending
        delay = _delay(frame.step.retry, tries)
        leaf.pending = PendingStep(
            pending.path, pending.orchestration, pending.step, pending.state, pending.part, tries, delay
        )
        self._tell_retry(frame, error, tries, delay)

    def _tell_retry(self, frame: AnyFrame, error: Failed, tries: int, delay: float) -> None:
        self.emit(frame, EventType.STEP_RETRY, tries=tries, delay_seconds=delay, error=error.message, **_spent(error))

    def _move(self, line: Fiber, target: str | None, by_order: bool) -> None:
        passed: set[str] = set()
        while target is not None and (line.bound or target not in line.stops):
            if line.bound and target not in line.order:
                self._finish(line, target)
                return
            step = line.scope.steps.get(target)
            if step is None:
                message = f'A way leads to "{target}", and there is no such step in {line.scope.orchestration.title}.'
                self._tell(EventType.STEP_ERROR, target, line.path(target), {"code": UNKNOWN_STEP, "error": message})
                self._fail_line(line, Failed(UNKNOWN_STEP, message), target)
                return
            if line.arrive(step, by_order=by_order):
                self._enter(line, step)
                return
            self._reach_limit(line, step)
            if step.on_limit == "fail":
                self._refuse_way_back(line, step)
                return
            if target in passed:
                # Ways around a step at its limit lead to it again: there is nowhere to go.
                break
            passed.add(target)
            target, by_order = line.after(step)
        self._finish(line, None)

    def _reach_limit(self, line: Fiber, step: Step) -> None:
        self.limits[step.id] = None
        data = {"iterations": step.max_iterations, "max_iterations": step.max_iterations, "on_limit": step.on_limit}
        self._tell(EventType.LOOP_LIMIT_REACHED, step.id, line.path(step.id), data)

    def _refuse_way_back(self, line: Fiber, step: Step) -> None:
        """The execution that would be one too many fails, under a path of its own."""
        error = Failed(
            LOOP_LIMIT,
            f'A way leads back to "{step.id}", which has been executed {step.max_iterations} times; its max_iterations '
            f"is {step.max_iterations}. Raise it, set on_limit to continue, or give the step an on_error.",
        )
        path = line.visit(step)
        self._tell(EventType.STEP_ERROR, step.id, path, {"code": error.code, "error": error.message})
        self._take_failure(line, step, error, step.id)

    def _enter(self, line: Fiber, step: Step, tries: int = 0) -> None:
        path = line.visit(step)
        if isinstance(step, EndStep):
            self._tell(EventType.ORCHESTRATION_END, step.id, path, {})
            self._finish(line, END)
            return
        frame = self._frame(line, step, path)
        line.frame = frame
        frame.tries = tries
        frame.delay, line.delay = line.delay, 0.0
        try:
            if not isinstance(frame, LeafFrame):
                _check_nesting(frame)
            frame.begin(self)
        except StateRejected as refused:
            self.fail(frame, refused.failed)

    def _frame(self, line: Fiber, step: Step, path: str) -> AnyFrame:
        match step:
            case ParallelStep():
                return ParallelFrame(line, step, path)
            case LoopStep():
                return LoopFrame(line, step, path) if step.for_each is None else ForEachFrame(line, step, path)
            case OrchestrationStep() | AgentStep() if self.library.nested_in(step) is not None:
                return NestedFrame(line, step, path)
            case _:
                return LeafFrame(line, step, path)

    def _finish(self, line: Fiber, leaving: str | None) -> None:
        line.closed = True
        owner = line.owner
        if owner is None:
            self.end = OrchestrationEnd(
                EndStatus.COMPLETED, line.output, dict(line.layer.values), loop_limits=tuple(self.limits)
            )
            return
        try:
            owner.ended(self, line, leaving)
        except StateRejected as refused:
            self.fail(owner, refused.failed)

    def _drop(self, frame: AnyFrame) -> None:
        if frame.leaf is not None:
            self._close(frame.leaf)
        for line in list(frame.lines()):
            self.drop_line(line)
        if frame.shelf is not None:
            frame.shelf.discard()
        frame.line.frame = None

    def _close(self, leaf: OpenStep) -> None:
        del self.open[leaf.pending.path]
        leaf.frame.leaf = None
        for scope in leaf.frame.line.scope.outward():
            scope.open -= 1
            scope.asking -= leaf.pending.part != "step"

    def _tell(self, event: str, step_id: str, path: str, data: dict[str, Any]) -> None:
        self.facts.append(StepEvent(event, {"orch_step_id": step_id, **data, "path": path}))

    def load_scope(self, scope: Scope, data: dict[str, Any]) -> None:
        """Make a scope what was dumped."""
        scope.turns = data["turns"]
        scope.cost = data["cost"]
        scope.layer.load(data["state"])
        self.load_line(scope.line, data["line"])

    def load_line(self, line: Fiber, data: dict[str, Any]) -> None:
        """Make a line what was dumped, and what it is at."""
        line.load(data)
        saved = data["frame"]
        if saved is not None:
            line.frame = self._frame(line, line.scope.steps[saved["step"]], saved["path"])
            line.frame.load(self, saved)


def _check_nesting(frame: AnyFrame) -> None:
    inside = list(frame.line.around())
    if len(inside) >= MAX_INSIDE:
        raise StateRejected(NESTING_LIMIT, f"Steps are inside each other more than {MAX_INSIDE} deep.")
    for outer in inside:
        if outer.line.scope is frame.line.scope and outer.step.id == frame.step.id:
            raise StateRejected(
                BAD_ROUTE,
                f'A way inside "{frame.step.id}" leads back to it before it has ended. Let it lead to where its '
                "branches or rounds end, and go back from there.",
            )


def _again(retry: StepRetry | None, error: Failed, tries: int) -> bool:
    return retry is not None and retry.allows(error.code, tries, retryable=error.retryable)


def _spent(error: Failed) -> dict[str, Any]:
    """What a try has cost that failed, if it has cost anything."""
    spent = {"cost_usd": error.cost_usd or None, "tokens": error.tokens or None}
    return {name: value for name, value in spent.items() if value is not None}


def _delay(retry: StepRetry | None, failures: int) -> float:
    if retry is None:
        return 0.0
    # Beyond this power every wait is at its cap, and floats would end.
    return min(retry.max_backoff_seconds, retry.backoff_seconds * 2.0 ** min(failures - 1, 62))
