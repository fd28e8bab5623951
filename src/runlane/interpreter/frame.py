"""A frame: one execution of a step that has begun and not ended.

The position of a fiber is a frame. A step that the worker performs has an open pending step; a step that the machine
executes itself has fibers inside and is notified when each of them ends.
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
    """A pending step and the frame that awaits its outcome. `serial` numbers all opened steps."""

    __slots__ = ("frame", "pending", "serial")

    def __init__(self, frame: AnyFrame, serial: int, pending: PendingStep) -> None:
        self.frame = frame
        self.serial = serial
        self.pending = pending

    def dump(self) -> dict[str, Any]:
        """Return the open step as JSON."""
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

    `tries` counts earlier executions that failed; the first pending steps are due after `delay` seconds. All bytes
    that the frame keeps besides the state of its fiber count in the layer `shelf`, if the frame has one.
    """

    __slots__ = ("delay", "fiber", "leaf", "path", "shelf", "step", "tries")

    def __init__(self, fiber: Fiber, step: S, path: str) -> None:
        self.fiber = fiber
        self.step = step
        self.path = path
        self.tries = 0
        self.delay = 0.0
        self.leaf: OpenStep | None = None
        self.shelf: Layer | None = None

    @abstractmethod
    def begin(self, engine: Engine) -> None:
        """Begin when the fiber reaches the step."""

    def settled(self, engine: Engine, done: Done) -> None:
        """Continue after the frame's own pending step was performed."""
        raise NotImplementedError

    def ended(self, engine: Engine, fiber: Fiber, leaving: str | None) -> None:
        """Handle the end of an inner fiber. `leaving`: None at its last step, the id of an outer step, or END."""
        raise NotImplementedError

    def fibers(self) -> Iterable[Fiber]:
        """Return the open fibers inside."""
        return ()

    def dump(self) -> dict[str, Any]:
        """Return the frame as JSON."""
        leaf = None if self.leaf is None else self.leaf.dump()
        return {"step": self.step.id, "path": self.path, "tries": self.tries, "leaf": leaf, **self.details()}

    def details(self) -> dict[str, Any]:
        """Return the additional state of this kind of frame."""
        return {}

    def load(self, engine: Engine, data: dict[str, Any]) -> None:
        """Restore a dump."""
        self.tries = data["tries"]
        leaf = data["leaf"]
        if leaf is not None:
            part: Part = leaf["part"]
            engine.open_leaf(self, leaf["path"], part, tries=leaf["tries"], delay=leaf["delay"], serial=leaf["serial"])


AnyFrame = Frame[Any]
