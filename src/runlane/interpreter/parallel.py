"""A parallel step: branches side by side, each with its own writes, that meet again.

The writes are merged in the order of the branches once all of them are done, so the outcome does not depend on which
was faster. A branch that fails fails the whole at once: the others' work would be thrown away anyway.
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
    """The branches of one execution. `ending`: one of them met an `end` step."""

    __slots__ = ("ending", "finished", "running", "started", "stops")

    def __init__(self, line: Fiber, step: ParallelStep, path: str) -> None:
        super().__init__(line, step, path)
        self.shelf = Layer(line.layer.schema, account=line.layer)
        self.started = 0
        self.running: dict[int, Fiber] = {}
        self.finished: dict[int, Fiber] = {}
        self.ending = False
        # The branches meet at what follows the parallel step; where a branch around them ends, they end too.
        self.stops = line.stops | {join for join in (step.next_step_id, line.after(step)[0]) if join is not None}

    def begin(self, walk: Engine) -> None:
        """Start as many branches as may run at a time."""
        walk.emit(self, EventType.PARALLEL_START, branch_count=len(self.step.parallel_branches))
        self._start_more(walk, self.delay)

    def ended(self, walk: Engine, line: Fiber, leaving: str | None) -> None:
        """Start the next branch, or join when it was the last."""
        self.finished[line.index] = self.running.pop(line.index)
        self.ending = self.ending or leaving == END
        self._start_more(walk)
        if not self.running:
            self._join(walk)

    def lines(self) -> Iterable[Fiber]:
        """The branches that run."""
        return self.running.values()

    def _start_more(self, walk: Engine, delay: float = 0.0) -> None:
        branches = self.step.parallel_branches
        limit = self.step.max_concurrency or len(branches)
        fresh: list[Fiber] = []
        while self.started < len(branches) and len(self.running) < limit:
            line = self._line(self.started)
            line.delay = delay
            self.running[line.index] = line
            self.started += 1
            fresh.append(line)
            walk.emit(self, EventType.BRANCH_START, branch_index=line.index, branch_count=len(branches))
        for line in reversed(fresh):
            branch = branches[line.index]
            walk.go(line, branch[0] if branch else None, by_order=bool(line.order))

    def _join(self, walk: Engine) -> None:
        outputs: list[Any] = []
        for index in range(self.started):
            branch = self.finished[index]
            self.line.layer.merge(branch.layer)
            outputs.append(branch.output)
        walk.store(self, outputs)
        walk.emit(self, EventType.PARALLEL_COMPLETE, branch_count=self.started)
        walk.leave(self, outputs, END if self.ending else None)

    def _line(self, index: int) -> Fiber:
        around = self.line
        branch = self.step.parallel_branches[index]
        return Fiber(
            around.scope,
            Layer(around.layer.schema, outer=around.layer, account=self.shelf),
            f"{self.path}/{index}/",
            self,
            index=index,
            # One id is where a branch begins and its steps' own ways are followed; several are the branch.
            order=tuple(branch) if len(branch) > 1 else (),
            stops=self.stops,
        )

    def details(self) -> dict[str, Any]:
        """Each branch with its layer."""
        return {
            "started": self.started,
            "ending": self.ending,
            "running": [{**line.dump(), "state": line.layer.dump()} for line in self.running.values()],
            "finished": [
                {"index": line.index, "output": line.output, "state": line.layer.dump()}
                for line in self.finished.values()
            ],
        }

    def load(self, walk: Engine, data: dict[str, Any]) -> None:
        """Become what was dumped."""
        super().load(walk, data)
        self.started = data["started"]
        self.ending = data["ending"]
        for saved in data["running"]:
            line = self.running[saved["index"]] = self._line(saved["index"])
            line.layer.load(saved["state"])
            walk.load_line(line, saved)
        for saved in data["finished"]:
            line = self.finished[saved["index"]] = self._line(saved["index"])
            line.layer.load(saved["state"])
            line.output = saved["output"]
