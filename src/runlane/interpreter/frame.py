"""A frame: one execution of a step that has begun and not ended.

What a line is at is a frame. A step that somebody performs has an open todo; a step that the machine performs itself
has lines of its own inside, and learns from each how it ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runlane.definitions.schema.step import Step
from runlane.interpreter.values import Done, Part, PendingStep

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine
    from runlane.interpreter.fiber import Fiber
    from runlane.interpreter.state import Layer

S = TypeVar("S", bound=Step)


class OpenStep:
    """An open todo and the frame that awaits its outcome. `serial` is its place among all that were ever opened."""

    __slots__ = ("frame", "pending", "serial")

    def __init__(self, frame: AnyFrame, serial: int, pending: PendingStep) -> None:
        self.frame = frame
        self.serial = serial
        self.pending = pending

    def dump(self) -> dict[str, Any]:
        """The leaf as JSON."""
        pending = self.pending
        return {
            "path": pending.path,
            "part": pending.part,
            "tries": pending.tries,
            "delay": pending.delay_seconds,
            "serial": self.serial,
        }


class Frame(ABC, Generic[S]):
    """One execution of a step.

    `tries` counts earlier executions that failed and led to this one; the todos that it opens first are due after
    `delay` seconds. All bytes that it keeps beside its line's state count in `shelf`, if it has one.
    """

    __slots__ = ("delay", "leaf", "line", "path", "shelf", "step", "tries")

    def __init__(self, line: Fiber, step: S, path: str) -> None:
        self.line = line
        self.step = step
        self.path = path
        self.tries = 0
        self.delay = 0.0
        self.leaf: OpenStep | None = None
        self.shelf: Layer | None = None

    @abstractmethod
    def begin(self, walk: Engine) -> None:
        """The line has come to the step."""

    def settled(self, walk: Engine, done: Done) -> None:
        """The frame's own todo was performed."""
        raise NotImplementedError

    def ended(self, walk: Engine, line: Fiber, leaving: str | None) -> None:
        """A line inside ended: by itself (None), for a step outside (its id), or at an `end` step (END)."""
        raise NotImplementedError

    def lines(self) -> Iterable[Fiber]:
        """The lines inside that have not ended."""
        return ()

    def dump(self) -> dict[str, Any]:
        """The frame as JSON."""
        leaf = None if self.leaf is None else self.leaf.dump()
        return {"step": self.step.id, "path": self.path, "tries": self.tries, "leaf": leaf, **self.details()}

    def details(self) -> dict[str, Any]:
        """What else this kind of frame has to remember."""
        return {}

    def load(self, walk: Engine, data: dict[str, Any]) -> None:
        """Become what was dumped."""
        self.tries = data["tries"]
        leaf = data["leaf"]
        if leaf is not None:
            part: Part = leaf["part"]
            walk.open_leaf(self, leaf["path"], part, tries=leaf["tries"], delay=leaf["delay"], serial=leaf["serial"])


AnyFrame = Frame[Any]
