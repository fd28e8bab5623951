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
    """One step in the hands of its performer."""

    __slots__ = ()

    def begin(self, engine: Engine) -> None:
        """Ask for it."""
        engine.open_leaf(self, self.path, "step", delay=self.delay)

    def settled(self, engine: Engine, done: Done) -> None:
        """Take its output, and the way that it chose."""
        way = chosen(self.step, done)
        if way is None:
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
        if way.stored:
            engine.store(self, way.output)
        if way.event is not None:
            engine.emit(self, way.event, **way.data)
        engine.turn(self, way.target)
