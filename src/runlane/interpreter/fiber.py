"""A fiber: a sequence of steps.

An orchestration has a main fiber; each branch of a parallel step, each round of a loop and each item of a list is a
fiber too. A fiber has its position, the routes back that it has taken, and the prefix of its steps' paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from runlane.definitions.schema.step import Step

if TYPE_CHECKING:
    from runlane.interpreter.frame import AnyFrame
    from runlane.interpreter.scope import Scope
    from runlane.interpreter.state import Layer

# The exit of a fiber that reached an `end` step. Ids contain no slash, so it is not the id of a step.
END: Final = "/end"


class Fiber:
    """One fiber of control.

    `order` lists the steps that follow each other regardless of their `next_step_id`. A `bound` fiber has no other
    steps and ends when a route leads elsewhere. Other fibers end at `stops`, where the branches around them join.
    """

    __slots__ = (
        "backs",
        "bound",
        "closed",
        "delay",
        "frame",
        "index",
        "layer",
        "order",
        "output",
        "outputs",
        "owner",
        "position",
        "prefix",
        "scope",
        "stops",
        "trail",
        "visits",
    )

    def __init__(
        self,
        scope: Scope,
        layer: Layer,
        prefix: str,
        owner: AnyFrame | None,
        *,
        index: int = 0,
        order: tuple[str, ...] = (),
        bound: bool = False,
        stops: frozenset[str] = frozenset(),
        gathers: bool = False,
    ) -> None:
        self.scope = scope
        self.layer = layer
        self.prefix = prefix
        self.owner = owner
        self.index = index
        self.order = order
        self.bound = bound
        self.stops = stops
        self.frame: AnyFrame | None = None
        self.output: Any = None
        self.closed = False
        # The delay of the first pending step, if the fiber belongs to something that is retried.
        self.delay = 0.0
        # Per step of a collecting loop: [output, size] of this round.
        self.outputs: dict[str, list[Any]] | None = {} if gathers else None
        self.position = -1
        self.visits: dict[str, int] = {}
        # The steps of this pass, in order. A route to one of them leads back, and the pass is cut there.
        self.trail: dict[str, None] = {}
        self.backs: dict[str, int] = {}

    def first(self) -> str | None:
        """Return the first step of a fiber with an order."""
        return self.order[0] if self.order else None

    def after(self, step: Step) -> tuple[str | None, bool]:
        """Return the default next step, and whether it follows by the fiber's order."""
        if self.position < 0:
            return step.next_step_id, False
        following = self.position + 1
        return (self.order[following], True) if following < len(self.order) else (None, False)

    def arrive(self, step: Step, *, by_order: bool) -> bool:
        """Move to a step. Return False if the routes back to it have reached its limit."""
        key = step.id
        if by_order:
            self.position += 1
        else:
            self.position = self.order.index(key) if key in self.order else -1
        if key not in self.trail:
            self.trail[key] = None
        elif not by_order:
            # Not limited, because a person decides how often work is sent back.
            if step.type != "human":
                backs = self.backs.get(key, 0) + 1
                # The first execution counts, too.
                if backs >= step.max_iterations:
                    return False
                self.backs[key] = backs
            while next(reversed(self.trail)) != key:
                self.trail.popitem()
        return True

    def visit(self, step: Step) -> str:
        """Count another execution of a step and return its path."""
        self.visits[step.id] = self.visits.get(step.id, 0) + 1
        return self.path(step.id)

    def path(self, step_id: str) -> str:
        """Return the path of the last execution of a step."""
        times = self.visits.get(step_id, 1)
        return f"{self.prefix}{step_id}" if times == 1 else f"{self.prefix}{step_id}~{times}"

    def around(self) -> Iterator[AnyFrame]:
        """Yield the steps around this fiber, innermost first."""
        owner = self.owner
        while owner is not None:
            yield owner
            owner = owner.fiber.owner

    def dump(self) -> dict[str, Any]:
        """Return the fiber as JSON; its state only if it has its own layer, which its owner determines."""
        return {
            "index": self.index,
            "position": self.position,
            "visits": dict(self.visits),
            "trail": list(self.trail),
            "backs": dict(self.backs),
            "output": self.output,
            "outputs": None if self.outputs is None else {key: list(pair) for key, pair in self.outputs.items()},
            "frame": None if self.frame is None else self.frame.dump(),
        }

    def load(self, data: dict[str, Any]) -> None:
        """Restore a dump, without the frame."""
        self.position = data["position"]
        self.visits = dict(data["visits"])
        self.trail = dict.fromkeys(data["trail"])
        self.backs = dict(data["backs"])
        self.output = data["output"]
        self.outputs = None if data["outputs"] is None else dict(data["outputs"])
