"""A step that somebody else performs: the machine asks, stores the output, and goes where it leads."""

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

    def begin(self, walk: Engine) -> None:
        """Ask for it."""
        walk.open_leaf(self, self.path, "step", delay=self.delay)

    def settled(self, walk: Engine, done: Done) -> None:
        """Take its output, and the way that it chose."""
        way = chosen(self.step, done)
        if way is None:
            walk.store(self, done.output)
            if isinstance(self.step, MergeStep):
                walk.emit(
                    self,
                    EventType.MERGE_COMPLETE,
                    input_count=len(self.step.input_keys),
                    strategy=self.step.merge_strategy,
                )
            walk.leave(self, done.output)
            return
        if way.stored:
            walk.store(self, way.output)
        if way.event is not None:
            walk.emit(self, way.event, **way.data)
        walk.turn(self, way.target)
