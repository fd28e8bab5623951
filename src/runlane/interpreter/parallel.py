"""A parallel step: concurrent branches, each with its own writes, that join.

The writes are merged in the order of the branches once all of them are done, so the outcome does not depend on their
speed. If a branch fails, the step fails at once, because the work of the others would be discarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from runlane.definitions.schema.step import ParallelStep
from runlane.domain.events import EventType
from runlane.interpreter.fiber import END, Fiber
from runlane.interpreter.frame import Frame
from runlane.interpreter.state import Layer

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine


class ParallelFrame(Frame[ParallelStep]):
    """The branches of one execution. `ending`: one of them reached an `end` step."""

    __slots__ = ("ending", "finished", "running", "started", "stops")

    def __init__(self, fiber: Fiber, step: ParallelStep, path: str) -> None:
        super().__init__(fiber, step, path)
        self.shelf = Layer(fiber.layer.schema, account=fiber.layer)
        self.started = 0
        self.running: dict[int, Fiber] = {}
        self.finished: dict[int, Fiber] = {}
        self.ending = False
        # The branches join at the step after the parallel step, or where an enclosing branch ends.
        self.stops = fiber.stops | {join for join in (step.next_step_id, fiber.after(step)[0]) if join is not None}

    def begin(self, engine: Engine) -> None:
        """Start the first branches, up to the concurrency limit."""
        engine.emit(self, EventType.PARALLEL_START, branch_count=len(self.step.parallel_branches))
        self._start_more(engine, self.delay)

    def ended(self, engine: Engine, fiber: Fiber, leaving: str | None) -> None:
        """Start the next branch, or join after the last one."""
        self.finished[fiber.index] = self.running.pop(fiber.index)
        self.ending = self.ending or leaving == END
        self._start_more(engine)
        if not self.running:
            self._join(engine)

    def fibers(self) -> Iterable[Fiber]:
        """Return the running branches."""
        return self.running.values()

    def _start_more(self, engine: Engine, delay: float = 0.0) -> None:
        branches = self.step.parallel_branches
        limit = self.step.max_concurrency or len(branches)
        fresh: list[Fiber] = []
        while self.started < len(branches) and len(self.running) < limit:
            fiber = self._fiber(self.started)
            fiber.delay = delay
            self.running[fiber.index] = fiber
            self.started += 1
            fresh.append(fiber)
            engine.emit(self, EventType.BRANCH_START, branch_index=fiber.index, branch_count=len(branches))
        for fiber in reversed(fresh):
            branch = branches[fiber.index]
            engine.go(fiber, branch[0] if branch else None, by_order=bool(fiber.order))

    def _join(self, engine: Engine) -> None:
        outputs: list[Any] = []
        for index in range(self.started):
            branch = self.finished[index]
            self.fiber.layer.merge(branch.layer)
            outputs.append(branch.output)
        engine.store(self, outputs)
        engine.emit(self, EventType.PARALLEL_COMPLETE, branch_count=self.started)
        engine.leave(self, outputs, END if self.ending else None)

    def _fiber(self, index: int) -> Fiber:
        around = self.fiber
        branch = self.step.parallel_branches[index]
        return Fiber(
            around.scope,
            Layer(around.layer.schema, outer=around.layer, account=self.shelf),
            f"{self.path}/{index}/",
            self,
            index=index,
            # A single id is the first step of a branch, which follows its routes; several ids are the branch itself.
            order=tuple(branch) if len(branch) > 1 else (),
            stops=self.stops,
        )

    def details(self) -> dict[str, Any]:
        """Return each branch with its layer."""
        return {
            "started": self.started,
            "ending": self.ending,
            "running": [{**fiber.dump(), "state": fiber.layer.dump()} for fiber in self.running.values()],
            "finished": [
                {"index": fiber.index, "output": fiber.output, "state": fiber.layer.dump()}
                for fiber in self.finished.values()
            ],
        }

    def load(self, engine: Engine, data: dict[str, Any]) -> None:
        """Restore a dump."""
        super().load(engine, data)
        self.started = data["started"]
        self.ending = data["ending"]
        for saved in data["running"]:
            fiber = self.running[saved["index"]] = self._fiber(saved["index"])
            fiber.layer.load(saved["state"])
            engine.load_fiber(fiber, saved)
        for saved in data["finished"]:
            fiber = self.finished[saved["index"]] = self._fiber(saved["index"])
            fiber.layer.load(saved["state"])
            fiber.output = saved["output"]
