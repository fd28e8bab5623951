"""A loop over the items of a list, with bounded concurrency.

The outcome is the same as if the items had been processed one after the other, each from the state before the loop:
results are merged in the order of the items, and when a route of an item leaves the loop, later items are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from runlane.definitions.schema.step import LoopStep
from runlane.domain.events import EventType
from runlane.interpreter.collect import LoopOutputs
from runlane.interpreter.fiber import Fiber
from runlane.interpreter.frame import Frame
from runlane.interpreter.state import WRONG_TYPE, Layer, StateRejected, measure
from runlane.interpreter.values import Done

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine

_OWN_KEYS: Final = frozenset({"item", "index"})


class ForEachFrame(Frame[LoopStep]):
    """The items of one execution.

    Items below `taken` have been merged into `held` and `collected`; those below `started` are running, or `finished`
    and wait for an earlier item. `count` shrinks when a route of an item leaves the loop.
    """

    __slots__ = ("collected", "count", "finished", "held", "items", "running", "started", "taken")

    def __init__(self, fiber: Fiber, step: LoopStep, path: str) -> None:
        super().__init__(fiber, step, path)
        shelf = self.shelf = Layer(fiber.layer.schema, account=fiber.layer)
        # Items must not read each other's writes, so merged values stay apart from the state until the end.
        self.held = Layer(fiber.layer.schema, account=shelf)
        self.collected = LoopOutputs(fiber, step.loop_step_ids, shelf) if step.collect else None
        self.items: list[Any] | None = None
        self.count = 0
        self.started = 0
        self.taken = 0
        self.running: dict[int, Fiber] = {}
        self.finished: dict[int, tuple[Fiber, str | None]] = {}

    def begin(self, engine: Engine) -> None:
        """Open the list expression."""
        engine.open_leaf(self, f"{self.path}?", "items", delay=self.delay)

    def settled(self, engine: Engine, done: Done) -> None:
        """Start the first items once the list is available."""
        if not isinstance(done.output, list):
            raise StateRejected(
                WRONG_TYPE,
                f"for_each must return a list, not {type(done.output).__name__}. Change the expression.",
            )
        items = self.items = cast("list[Any]", done.output)
        self.held.reserve(measure(items))
        self.count = len(items)
        if self.count == 0:
            self._close(engine, None, None)
        else:
            self._start_more(engine)

    def ended(self, engine: Engine, fiber: Fiber, leaving: str | None) -> None:
        """Merge the next items in order; then start the next item, or end the loop."""
        del self.running[fiber.index]
        self.finished[fiber.index] = (fiber, leaving)
        if leaving is not None:
            self._cut(engine, fiber.index + 1)
        while self.taken in self.finished:
            fiber, leaving = self.finished.pop(self.taken)
            self._take(fiber)
        if self.taken == self.count:
            self._close(engine, fiber.output, leaving)
        else:
            self._start_more(engine)

    def fibers(self) -> Iterable[Fiber]:
        """Return the running items."""
        return self.running.values()

    def _start_more(self, engine: Engine) -> None:
        fresh: list[Fiber] = []
        while self.started < self.count and len(self.running) < self.step.max_concurrency:
            fiber = self.running[self.started] = self._fiber(self.started)
            self.started += 1
            fresh.append(fiber)
            fiber.layer.put("item", (self.items or [])[fiber.index], 0)
            fiber.layer.put("index", fiber.index, 0)
            engine.emit(self, EventType.LOOP_ITERATION, iteration=fiber.index + 1, total=self.count)
        for fiber in reversed(fresh):
            engine.go(fiber, fiber.first(), by_order=True)

    def _cut(self, engine: Engine, count: int) -> None:
        self.count = self.started = count
        for index in [index for index in self.running if index >= count]:
            engine.drop_fiber(self.running.pop(index))
        for index in [index for index in self.finished if index >= count]:
            self.finished.pop(index)[0].layer.discard()

    def _take(self, fiber: Fiber) -> None:
        self.taken += 1
        own = _OWN_KEYS
        if self.collected is not None and fiber.outputs is not None:
            own |= self.collected.keys
        self.held.merge(fiber.layer, leaving_out=own)
        if self.collected is not None and fiber.outputs is not None:
            self.collected.add(fiber.index + 1, fiber.outputs)

    def _close(self, engine: Engine, last: Any, leaving: str | None) -> None:
        self.fiber.layer.merge(self.held)
        output, size = last, None
        if self.collected is not None:
            output, size = self.collected.close(self.fiber.layer)
        engine.store(self, output, size)
        engine.emit(self, EventType.LOOP_COMPLETE, iterations_completed=self.taken - (leaving is not None))
        engine.leave(self, output, leaving)

    def _fiber(self, index: int) -> Fiber:
        around = self.fiber
        return Fiber(
            around.scope,
            Layer(around.layer.schema, outer=around.layer, account=self.shelf),
            f"{self.path}/{index + 1}/",
            self,
            index=index,
            order=tuple(self.step.loop_step_ids),
            bound=True,
            stops=around.stops,
            gathers=self.collected is not None,
        )

    def details(self) -> dict[str, Any]:
        """Return the list, each running item with its layer, and the merged results."""
        return {
            "items": self.items,
            "count": self.count,
            "started": self.started,
            "taken": self.taken,
            "held": self.held.dump(),
            "collected": None if self.collected is None else self.collected.dump(),
            "running": [{**fiber.dump(), "state": fiber.layer.dump()} for fiber in self.running.values()],
            "finished": [
                {**fiber.dump(), "state": fiber.layer.dump(), "leaving": leaving}
                for fiber, leaving in self.finished.values()
            ],
        }

    def load(self, engine: Engine, data: dict[str, Any]) -> None:
        """Restore a dump."""
        super().load(engine, data)
        self.items = data["items"]
        if self.items is not None:
            self.held.count(measure(self.items))
        self.count = data["count"]
        self.started = data["started"]
        self.taken = data["taken"]
        self.held.load(data["held"])
        if self.collected is not None:
            self.collected.load(data["collected"])
        for saved in data["running"]:
            fiber = self.running[saved["index"]] = self._fiber(saved["index"])
            fiber.layer.load(saved["state"])
            engine.load_fiber(fiber, saved)
        for saved in data["finished"]:
            fiber = self._fiber(saved["index"])
            fiber.layer.load(saved["state"])
            engine.load_fiber(fiber, saved)
            self.finished[fiber.index] = (fiber, saved["leaving"])
