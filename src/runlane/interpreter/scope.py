"""A scope: one orchestration while it runs, as the run itself or as a step of another one.

Each scope has a state of its own and the limits of its own definition. A nested scope also counts in every enclosing
scope, so that the limits of the whole run hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import AgentStep, OrchestrationStep, Step
from runlane.interpreter.fiber import Fiber
from runlane.interpreter.state import Layer
from runlane.interpreter.values import Failed

if TYPE_CHECKING:
    from runlane.interpreter.nested import NestedFrame

COST_LIMIT: Final = "cost_limit"
TURN_LIMIT: Final = "turn_limit"

# Money is counted in integers, because sums of floats would depend on the order in which branches finish.
UNITS_PER_USD: Final = 1_000_000_000


def units(usd: float | None) -> int:
    """Return an amount of money in integer units."""
    return round(usd * UNITS_PER_USD) if usd else 0


class Library:
    """The orchestrations that a run pins, and the agents that are orchestrations."""

    __slots__ = ("_steps", "agents", "orchestrations")

    def __init__(self, orchestrations: Mapping[str, Orchestration], agents: Mapping[str, str]) -> None:
        self.orchestrations = orchestrations
        self.agents = agents
        self._steps: dict[str, dict[str, Step]] = {}

    def steps(self, orchestration: Orchestration) -> Mapping[str, Step]:
        """Return the steps by id."""
        known = self._steps.get(orchestration.id)
        if known is None:
            known = self._steps[orchestration.id] = {step.id: step for step in orchestration.steps}
        return known

    def nested_in(self, step: Step) -> str | None:
        """Return the id of the orchestration that a step runs, or None."""
        if isinstance(step, OrchestrationStep):
            return step.orchestration_id
        return self.agents.get(step.agent_id) if isinstance(step, AgentStep) else None


class Scope:
    """One running orchestration: its state, its main fiber, and its cost."""

    __slots__ = (
        "cap",
        "cost",
        "depth",
        "fiber",
        "frame",
        "layer",
        "open",
        "open_conditions",
        "orchestration",
        "steps",
        "turns",
    )

    def __init__(self, library: Library, orchestration: Orchestration, frame: NestedFrame | None, prefix: str) -> None:
        around = frame.fiber.scope if frame is not None else None
        self.orchestration = orchestration
        self.steps = library.steps(orchestration)
        self.frame = frame
        self.depth = around.depth + 1 if around is not None else 0
        self.layer = Layer(
            orchestration.state_schema,
            account=frame.fiber.layer if frame is not None else None,
            limit=orchestration.max_state_bytes,
        )
        self.cap = None if orchestration.max_total_cost_usd is None else units(orchestration.max_total_cost_usd)
        self.turns = 0
        self.cost = 0
        # Pending steps in this scope and nested ones; `open_conditions` counts the conditions and lists among them.
        self.open = 0
        self.open_conditions = 0
        self.fiber = Fiber(self, self.layer, prefix, frame)

    def outward(self) -> Iterator[Scope]:
        """Yield this scope and all around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.frame.fiber.scope if scope.frame is not None else None

    @property
    def over_budget(self) -> bool:
        """Whether the cap is exceeded."""
        # If a person may raise the cap, the calls themselves wait for the answer.
        return self.cap is not None and self.cost > self.cap and self.orchestration.on_cap == "fail"

    def exceeded(self) -> Failed | None:
        """Return the failure of an exceeded limit that forbids the next step, or None."""
        if self.fiber.closed:
            return None
        title, limit = self.orchestration.title, self.orchestration.max_total_turns
        if self.turns >= limit and self.open > self.open_conditions:
            return Failed(
                TURN_LIMIT,
                f'"{title}" has performed {self.turns} steps and would continue; its max_total_turns is {limit}. Raise '
                "it if that many steps are intended.",
            )
        if self.over_budget and self.open:
            return Failed(
                COST_LIMIT,
                f'"{title}" has cost {self.cost / UNITS_PER_USD:.6g} USD and would continue; its max_total_cost_usd is '
                f"{self.orchestration.max_total_cost_usd:.6g}.",
            )
        return None

    def dump(self) -> dict[str, Any]:
        """Return the scope as JSON."""
        return {
            "orchestration": self.orchestration.id,
            "turns": self.turns,
            "cost": self.cost,
            "state": self.layer.dump(),
            "line": self.fiber.dump(),
        }
