"""A scope: one orchestration while it runs, as the run itself or as a step of another one.

Each scope has a state of its own and the guards of its own definition. What happens in a nested scope counts in all
scopes around it, so that the run as a whole keeps to its limits whatever it is made of.
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

# Money is counted in whole units: sums of floats would depend on the order in which branches finish.
UNITS_PER_USD: Final = 1_000_000_000


def units(usd: float | None) -> int:
    """An amount of money in whole units."""
    return round(usd * UNITS_PER_USD) if usd else 0


class Library:
    """The orchestrations that a run pins, and which agents are orchestrations."""

    __slots__ = ("_steps", "agents", "orchestrations")

    def __init__(self, orchestrations: Mapping[str, Orchestration], agents: Mapping[str, str]) -> None:
        self.orchestrations = orchestrations
        self.agents = agents
        self._steps: dict[str, dict[str, Step]] = {}

    def steps(self, orchestration: Orchestration) -> Mapping[str, Step]:
        """The steps by id."""
        known = self._steps.get(orchestration.id)
        if known is None:
            known = self._steps[orchestration.id] = {step.id: step for step in orchestration.steps}
        return known

    def nested_in(self, step: Step) -> str | None:
        """The id of the orchestration that a step runs, if it runs one."""
        if isinstance(step, OrchestrationStep):
            return step.orchestration_id
        return self.agents.get(step.agent_id) if isinstance(step, AgentStep) else None


class Scope:
    """One running orchestration: its state, its main fiber, and what has been spent in it."""

    __slots__ = ("asking", "cap", "cost", "depth", "fiber", "frame", "layer", "open", "orchestration", "steps", "turns")

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
        # Todos that are open in this scope and those nested in it; `asking` are the conditions and lists among them.
        self.open = 0
        self.asking = 0
        self.fiber = Fiber(self, self.layer, prefix, frame)

    def outward(self) -> Iterator[Scope]:
        """This scope and all around it, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.frame.fiber.scope if scope.frame is not None else None

    @property
    def over_budget(self) -> bool:
        """Whether more has been spent than is allowed."""
        # Where a person is asked for more, the calls themselves wait for the answer.
        return self.cap is not None and self.cost > self.cap and self.orchestration.on_cap == "fail"

    def exceeded(self) -> Failed | None:
        """The guard that forbids what would have to be performed next."""
        if self.fiber.closed:
            return None
        title, limit = self.orchestration.title, self.orchestration.max_total_turns
        if self.turns >= limit and self.open > self.asking:
            return Failed(
                TURN_LIMIT,
                f'"{title}" has performed {self.turns} steps and would go on; its max_total_turns is {limit}. Raise '
                "it if that many steps are intended.",
            )
        if self.over_budget and self.open:
            return Failed(
                COST_LIMIT,
                f'"{title}" has cost {self.cost / UNITS_PER_USD:.6g} USD and would go on; its max_total_cost_usd is '
                f"{self.orchestration.max_total_cost_usd:.6g}.",
            )
        return None

    def dump(self) -> dict[str, Any]:
        """The scope as JSON."""
        return {
            "orchestration": self.orchestration.id,
            "turns": self.turns,
            "cost": self.cost,
            "state": self.layer.dump(),
            "line": self.fiber.dump(),
        }
