"""A loop with sequential rounds: a number of times, or while a condition holds.

The rounds write to the state around the loop, so each reads the writes of the last one. Only the current round is kept,
and the outputs if the loop collects them, so a long loop that does not collect needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from runlane.definitions.schema.step import LoopStep
from runlane.domain.events import EventType
from runlane.interpreter.collect import LoopOutputs
from runlane.interpreter.fiber import Fiber
from runlane.interpreter.frame import Frame
from runlane.interpreter.state import Layer, StateRejected
from runlane.interpreter.values import Done

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine

ROUND_LIMIT: Final = "round_limit"


class LoopFrame(Frame[LoopStep]):
    """The rounds of one execution. `number` is the current one, from 1."""

    __slots__ = ("collected", "current", "last", "number")

    def __init__(self, fiber: Fiber, step: LoopStep, path: str) -> None:
        super().__init__(fiber, step, path)
        shelf = self.shelf = Layer(fiber.layer.schema, account=fiber.layer)
        self.collected = LoopOutputs(fiber, step.loop_step_ids, shelf) if step.collect else None
        self.number = 0
        self.current: Fiber | None = None
        self.last: Any = None

    def begin(self, engine: Engine) -> None:
        """Begin the first round, or evaluate the condition."""
        self._next(engine, self.delay)

    def settled(self, engine: Engine, done: Done) -> None:
        """Process the value of the condition."""
        if not done.output:
            self._close(engine, self.number, None)
            return
        if self.number >= self.step.max_rounds:
            raise StateRejected(
                ROUND_LIMIT,
                f"The condition still holds after {self.number} rounds, and max_rounds is {self.step.max_rounds}. "
                "Raise it if that many rounds are intended.",
            )
        self._start(engine)

    def ended(self, engine: Engine, fiber: Fiber, leaving: str | None) -> None:
        """Collect the outputs of the round; then begin the next one, or end the loop if a route left it."""
        self.current = None
        self.last = fiber.output
        if self.collected is not None and fiber.outputs is not None:
            self.collected.add(self.number, fiber.outputs)
        if leaving is None:
            self._next(engine)
        else:
            self._close(engine, self.number - 1, leaving)

    def fibers(self) -> Iterable[Fiber]:
        """Return the current round."""
        return () if self.current is None else (self.current,)

    def _next(self, engine: Engine, delay: float = 0.0) -> None:
        count = self.step.loop_count
        if count is None:
            engine.open_leaf(self, f"{self.path}/{self.number + 1}?", "condition", delay=delay)
        elif self.number < count:
            self._start(engine, delay)
        else:
            self._close(engine, self.number, None)

    def _start(self, engine: Engine, delay: float = 0.0) -> None:
        self.number += 1
        fiber = self.current = self._fiber()
        fiber.delay = delay
        engine.emit(self, EventType.LOOP_ITERATION, iteration=self.number, total=self.step.loop_count)
        engine.go(fiber, fiber.first(), by_order=True)

    def _close(self, engine: Engine, completed: int, leaving: str | None) -> None:
        output, size = self.last, None
        if self.collected is not None:
            output, size = self.collected.close(self.fiber.layer)
        engine.store(self, output, size)
        engine.emit(self, EventType.LOOP_COMPLETE, iterations_completed=completed)
        engine.leave(self, output, leaving)

    def _fiber(self) -> Fiber:
        around = self.fiber
        return Fiber(
            around.scope,
            around.layer,
            f"{self.path}/{self.number}/",
            self,
            index=self.number,
            order=tuple(self.step.loop_step_ids),
            bound=True,
            stops=around.stops,
            gathers=self.collected is not None,
        )

    def details(self) -> dict[str, Any]:
        """Return the current round, and the outputs of earlier ones."""
        return {
            "number": self.number,
            "last": self.last,
            "collected": None if self.collected is None else self.collected.dump(),
            "current": None if self.current is None else self.current.dump(),
        }

    def load(self, engine: Engine, data: dict[str, Any]) -> None:
        """Restore a dump."""
        super().load(engine, data)
        self.number = data["number"]
        self.last = data["last"]
        if self.collected is not None:
            self.collected.load(data["collected"])
        if data["current"] is not None:
            self.current = self._fiber()
            engine.load_fiber(self.current, data["current"])
