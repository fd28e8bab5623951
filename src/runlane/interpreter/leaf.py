"""A step that the worker performs: the machine opens it, stores its output, and follows its route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runlane.definitions.schema.step import MergeStep, Step
from runlane.domain.events import EventType
from runlane.interpreter.frame import Frame
from runlane.interpreter.routing import chosen
from runlane.interpreter.values import Done

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine


class LeafFrame(Frame[Step]):
    """One step that a worker performs."""

    __slots__ = ()

    def begin(self, engine: Engine) -> None:
        """Open the step."""
        engine.open_leaf(self, self.path, "step", delay=self.delay)

    def settled(self, engine: Engine, done: Done) -> None:
        """Store its output and follow its route."""
        route = chosen(self.step, done)
        if route is None:
            engine.store(self, done.output)
            if isinstance(self.step, MergeStep):
                engine.emit(
                    self,
                    EventType.MERGE_COMPLETE,
                    input_count=len(self.step.input_keys),
                    strategy=self.step.merge_strategy,
                )
            engine.leave(self, done.output)
            return
        if route.stored:
            engine.store(self, route.output)
        if route.event is not None:
            engine.emit(self, route.event, **route.data)
        engine.take_route(self, route.target)
