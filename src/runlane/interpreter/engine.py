"""The engine: how fibers move through the steps, which steps are open, which events follow, how failures propagate.

Moves are made one at a time from a stack, and a step never calls the next one, so that neither a long run nor a long
loop grows the call stack. Everything follows from the definition and the outcomes: the engine has no clock, no
randomness and no I/O.
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
from runlane.domain.backoff import growing_seconds
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

# The maximum nesting of steps (branches, loops, orchestrations).
MAX_INSIDE: Final = 32
# The maximum number of moves for one outcome. Only empty loops and orchestrations that start themselves reach it.
MAX_MOVES: Final = 20_000


class Engine:
    """The execution of one run of an orchestration."""

    def __init__(self, library: Library, root: Scope) -> None:
        self.library = library
        self.root = root
        self.end: OrchestrationEnd | None = None
        self.open: dict[str, OpenStep] = {}
        self.events: list[StepEvent] = []
        self.serial = 0
        # Steps whose max_iterations was reached. By id, so that a long loop does not fill the memory.
        self.limits: dict[str, None] = {}
        self._moves: list[tuple[Fiber, str | None, bool]] = []

    def run(self) -> None:
        """Make all queued moves, until a step has to be performed."""
        made = 0
        while self._moves and self.end is None:
            made += 1
            if made > MAX_MOVES:
                message = (
                    f"One outcome led through more than {MAX_MOVES} steps at once. Check for a loop that does nothing."
                )
                self.stop(Failed(NO_PROGRESS, message))
                return
            fiber, target, by_order = self._moves.pop()
            if not fiber.closed:
                self._move(fiber, target, by_order)

    def enforce_limits(self, scope: Scope) -> None:
        """Fail this orchestration, or one around it, if it has reached a limit and still has steps to perform."""
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
        """Fail the run as a whole."""
        self._fail_fiber(self.root.fiber, error, None)

    def go(self, fiber: Fiber, target: str | None, *, by_order: bool = False) -> None:
        """Queue the move of a fiber to a step, or to its end. The last queued move is made first."""
        self._moves.append((fiber, target, by_order))

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
        """Open a pending step."""
        if serial is None:
            self.serial += 1
            serial = self.serial
        fiber = frame.fiber
        pending = PendingStep(path, fiber.scope.orchestration, frame.step, fiber.layer.view, part, tries, delay)
        frame.leaf = self.open[path] = OpenStep(frame, serial, pending)
        for scope in fiber.scope.outward():
            scope.open += 1
            scope.open_conditions += part != "step"

    def store(self, frame: AnyFrame, output: Any, size: int | None = None) -> None:
        """Write a step's output to the state."""
        fiber, step = frame.fiber, frame.step
        key = output_key(step)
        if key is None:
            return
        outputs = fiber.outputs
        size = fiber.layer.write(key, output, size=size, gathered=outputs is not None)
        if isinstance(step, HumanStep) and key != HUMAN_RESPONSE:
            fiber.layer.write(HUMAN_RESPONSE, output, size=size)
        if outputs is not None:
            outputs[step.id] = [output, size]

    def emit(self, frame: AnyFrame, event: str, **data: Any) -> None:
        """Add an event."""
        self._emit(event, frame.step.id, frame.path, data)

    def emit_complete(self, frame: AnyFrame, output: Any) -> None:
        """Emit the completion of a step that the machine itself executed."""
        self.emit(frame, EventType.STEP_COMPLETE, step_name=frame.step.title, step_type=frame.step.type)
        self.events[-1] = replace(self.events[-1], output=output)

    def leave(self, frame: AnyFrame, output: Any, leaving: str | None = None) -> None:
        """Complete a step: continue with the next one, or with the target of a fiber that left it."""
        fiber = frame.fiber
        fiber.frame = None
        if frame.step.type not in STEERING:
            fiber.output = output
        if leaving == END:
            self._finish(fiber, END)
        elif leaving is not None:
            self.go(fiber, leaving)
        else:
            target, by_order = fiber.after(frame.step)
            self.go(fiber, target, by_order=by_order)

    def take_route(self, frame: AnyFrame, target: str | None) -> None:
        """Complete a step that has chosen the route."""
        frame.fiber.frame = None
        self.go(frame.fiber, target)

    def drop_fiber(self, fiber: Fiber) -> None:
        """Drop a fiber, its open steps and its writes."""
        fiber.closed = True
        if fiber.frame is not None:
            self._drop(fiber.frame)
        if fiber.owner is not None and fiber.layer is not fiber.owner.fiber.layer:
            fiber.layer.discard()

    def complete(self, leaf: OpenStep, outcome: Done | Failed, again: bool | None = None) -> None:
        """Process the outcome of an open step; `again` is the recorded decision about a retry, if known."""
        frame = leaf.frame
        if isinstance(outcome, Failed):
            if again is None:
                again = _is_retried(frame.step.retry, outcome, leaf.pending.tries)
            if again:
                self._retry(leaf, outcome)
                return
        self._close(leaf)
        if leaf.pending.part == "step":
            for scope in frame.fiber.scope.outward():
                scope.turns += 1
        if isinstance(outcome, Failed):
            self.fail(frame, outcome, retried=True)
            return
        try:
            frame.settled(self, outcome)
        except StateRejected as refused:
            self.fail(frame, refused.failed)

    def fail(self, frame: AnyFrame, error: Failed, *, source: str | None = None, retried: bool = False) -> None:
        """Handle the failure of a step, or of a step inside it: by its retry, its on_error, or the step around it.

        `source` is the step inside that failed first; its event has been emitted. The end of a nested orchestration is
        emitted as well, since it has begun as a step.
        """
        fiber, step = frame.fiber, frame.step
        self._drop(frame)
        if not retried and _is_retried(step.retry, error, frame.tries):
            fiber.delay = delay = _delay(step.retry, frame.tries + 1)
            self._emit_retry(frame, error, frame.tries + 1, delay)
            self._enter(fiber, step, tries=frame.tries + 1)
            return
        if source is None:
            self.emit(frame, EventType.STEP_ERROR, code=error.code, error=error.message, **_spent(error))
        elif isinstance(frame, NestedFrame):
            self.emit(frame, EventType.STEP_ERROR, code=error.code, error=error.message)
        self._take_failure(fiber, step, error, source or step.id)

    def _take_failure(self, fiber: Fiber, step: Step, error: Failed, source: str) -> None:
        """Go to the step's on_error, or fail the fiber."""
        if step.on_error is not None:
            try:
                fiber.layer.write("error", {"step_id": source, "code": error.code, "message": error.message})
            except StateRejected as refused:
                error = refused.failed
            else:
                self.go(fiber, step.on_error)
                return
        self._fail_fiber(fiber, error, source)

    def _fail_fiber(self, fiber: Fiber, error: Failed, source: str | None) -> None:
        owner = fiber.owner
        if owner is not None:
            # A nested orchestration has its own ids, so outside of it, the failed step is the step that runs it.
            self.fail(owner, error, source=owner.step.id if isinstance(owner, NestedFrame) else source)
            return
        if fiber.frame is not None:
            self._drop(fiber.frame)
        self.end = OrchestrationEnd(EndStatus.FAILED, None, dict(fiber.layer.values), error, source)

    def _retry(self, leaf: OpenStep, error: Failed) -> None:
        tries = leaf.pending.tries + 1
        frame, pending = leaf.frame, leaf.pending
        delay = _delay(frame.step.retry, tries)
        leaf.pending = PendingStep(
            pending.path, pending.orchestration, pending.step, pending.state, pending.part, tries, delay
        )
        self._emit_retry(frame, error, tries, delay)

    def _emit_retry(self, frame: AnyFrame, error: Failed, tries: int, delay: float) -> None:
        self.emit(frame, EventType.STEP_RETRY, tries=tries, delay_seconds=delay, error=error.message, **_spent(error))

    def _move(self, fiber: Fiber, target: str | None, by_order: bool) -> None:
        passed: set[str] = set()
        while target is not None and (fiber.bound or target not in fiber.stops):
            if fiber.bound and target not in fiber.order:
                self._finish(fiber, target)
                return
            step = fiber.scope.steps.get(target)
            if step is None:
                message = f'A route leads to "{target}", which does not exist in {fiber.scope.orchestration.title}.'
                self._emit(EventType.STEP_ERROR, target, fiber.path(target), {"code": UNKNOWN_STEP, "error": message})
                self._fail_fiber(fiber, Failed(UNKNOWN_STEP, message), target)
                return
            if fiber.arrive(step, by_order=by_order):
                self._enter(fiber, step)
                return
            self._reach_limit(fiber, step)
            if step.on_limit == "fail":
                self._fail_at_limit(fiber, step)
                return
            if target in passed:
                # All routes around a step at its limit lead back to it, so no other step remains.
                break
            passed.add(target)
            target, by_order = fiber.after(step)
        self._finish(fiber, None)

    def _reach_limit(self, fiber: Fiber, step: Step) -> None:
        self.limits[step.id] = None
        data = {"iterations": step.max_iterations, "max_iterations": step.max_iterations, "on_limit": step.on_limit}
        self._emit(EventType.LOOP_LIMIT_REACHED, step.id, fiber.path(step.id), data)

    def _fail_at_limit(self, fiber: Fiber, step: Step) -> None:
        """Fail the execution that would exceed the limit, under a path of its own."""
        error = Failed(
            LOOP_LIMIT,
            f'A route leads back to "{step.id}", which has been executed {step.max_iterations} times; its '
            f"max_iterations is {step.max_iterations}. Raise it, set on_limit to continue, or set on_error.",
        )
        path = fiber.visit(step)
        self._emit(EventType.STEP_ERROR, step.id, path, {"code": error.code, "error": error.message})
        self._take_failure(fiber, step, error, step.id)

    def _enter(self, fiber: Fiber, step: Step, tries: int = 0) -> None:
        path = fiber.visit(step)
        if isinstance(step, EndStep):
            self._emit(EventType.ORCHESTRATION_END, step.id, path, {})
            self._finish(fiber, END)
            return
        frame = self._frame(fiber, step, path)
        fiber.frame = frame
        frame.tries = tries
        frame.delay, fiber.delay = fiber.delay, 0.0
        try:
            if not isinstance(frame, LeafFrame):
                _check_nesting(frame)
            frame.begin(self)
        except StateRejected as refused:
            self.fail(frame, refused.failed)

    def _frame(self, fiber: Fiber, step: Step, path: str) -> AnyFrame:
        match step:
            case ParallelStep():
                return ParallelFrame(fiber, step, path)
            case LoopStep():
                return LoopFrame(fiber, step, path) if step.for_each is None else ForEachFrame(fiber, step, path)
            case OrchestrationStep() | AgentStep() if self.library.nested_in(step) is not None:
                return NestedFrame(fiber, step, path)
            case _:
                return LeafFrame(fiber, step, path)

    def _finish(self, fiber: Fiber, leaving: str | None) -> None:
        fiber.closed = True
        owner = fiber.owner
        if owner is None:
            self.end = OrchestrationEnd(
                EndStatus.COMPLETED, fiber.output, dict(fiber.layer.values), loop_limits=tuple(self.limits)
            )
            return
        try:
            owner.ended(self, fiber, leaving)
        except StateRejected as refused:
            self.fail(owner, refused.failed)

    def _drop(self, frame: AnyFrame) -> None:
        if frame.leaf is not None:
            self._close(frame.leaf)
        for fiber in list(frame.fibers()):
            self.drop_fiber(fiber)
        if frame.shelf is not None:
            frame.shelf.discard()
        frame.fiber.frame = None

    def _close(self, leaf: OpenStep) -> None:
        del self.open[leaf.pending.path]
        leaf.frame.leaf = None
        for scope in leaf.frame.fiber.scope.outward():
            scope.open -= 1
            scope.open_conditions -= leaf.pending.part != "step"

    def _emit(self, event: str, step_id: str, path: str, data: dict[str, Any]) -> None:
        self.events.append(StepEvent(event, {"orch_step_id": step_id, **data, "path": path}))

    def load_scope(self, scope: Scope, data: dict[str, Any]) -> None:
        """Restore a scope from its dump."""
        scope.turns = data["turns"]
        scope.cost = data["cost"]
        scope.layer.load(data["state"])
        self.load_fiber(scope.fiber, data["line"])

    def load_fiber(self, fiber: Fiber, data: dict[str, Any]) -> None:
        """Restore a fiber and its frame from its dump."""
        fiber.load(data)
        saved = data["frame"]
        if saved is not None:
            fiber.frame = self._frame(fiber, fiber.scope.steps[saved["step"]], saved["path"])
            fiber.frame.load(self, saved)


def _check_nesting(frame: AnyFrame) -> None:
    inside = list(frame.fiber.around())
    if len(inside) >= MAX_INSIDE:
        raise StateRejected(NESTING_LIMIT, f"Steps are nested more than {MAX_INSIDE} levels deep.")
    for outer in inside:
        if outer.fiber.scope is frame.fiber.scope and outer.step.id == frame.step.id:
            raise StateRejected(
                BAD_ROUTE,
                f'A route inside "{frame.step.id}" leads back to it before it has ended. Route to where its '
                "branches or rounds end, and go back from there.",
            )


def _is_retried(retry: StepRetry | None, error: Failed, tries: int) -> bool:
    return retry is not None and retry.allows(error.code, tries, retryable=error.retryable)


def _spent(error: Failed) -> dict[str, Any]:
    """Return the cost of a failed try, if it has any."""
    spent = {"cost_usd": error.cost_usd or None, "tokens": error.tokens or None}
    return {name: value for name, value in spent.items() if value is not None}


def _delay(retry: StepRetry | None, failures: int) -> float:
    if retry is None:
        return 0.0
    return growing_seconds(failures, retry.backoff_seconds, retry.max_backoff_seconds)
