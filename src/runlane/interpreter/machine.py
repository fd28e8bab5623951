"""The step machine: given the outcomes so far, it determines what an orchestration does next.

It is pure and has no clock, so the same outcomes in the same order always lead to the same state: a worker that takes
over replays the records and continues from there. docs/explanation/interpreter.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from runlane.definitions.schema.definition import OnCap, Orchestration
from runlane.interpreter.engine import Engine
from runlane.interpreter.scope import UNITS_PER_USD, Library, Scope, units
from runlane.interpreter.state import Layer, StateRejected, defaults, measure
from runlane.interpreter.values import EndStatus, Failed, OrchestrationEnd, Outcome, PendingStep, StepEvent

_CURSOR_VERSION: Final = 1


class OrchestrationBudget(NamedTuple):
    """The cap of an orchestration, and its cost so far."""

    orchestration_id: str
    limit_usd: float
    spent_usd: float
    on_cap: OnCap


class Machine:
    """One run of an orchestration.

    `opening` are the events of the start itself; a restored machine has none. `end` is set once nothing is left to do.
    """

    def __init__(self, engine: Engine, tokens: int = 0) -> None:
        self._engine = engine
        self._tokens = tokens
        self.opening: list[StepEvent] = []

    @classmethod
    def start(
        cls,
        library: Mapping[str, Orchestration],
        orchestration_id: str,
        state: Mapping[str, Any],
        agent_orchestrations: Mapping[str, str] | None = None,
    ) -> Machine:
        """Return the machine of a run before its first step.

        `library` has every orchestration that the run pins, by id, and `agent_orchestrations` names the agents that
        are orchestrations. `state` overrides the definition's defaults.
        """
        pinned = Library(library, dict(agent_orchestrations or {}))
        root = Scope(pinned, library[orchestration_id], None, "")
        engine = Engine(pinned, root)
        machine = cls(engine)
        try:
            root.layer.fill({**defaults(root.orchestration), **state})
        except StateRejected as refused:
            engine.stop(refused.failed)
        else:
            engine.go(root.fiber, root.orchestration.entry)
            engine.run()
        machine.opening = machine._take_events()
        return machine

    @classmethod
    def restore(cls, library: Mapping[str, Orchestration], cursor: Mapping[str, Any]) -> Machine:
        """Restore a machine from its cursor."""
        if cursor["version"] != _CURSOR_VERSION:
            raise ValueError(f"A cursor of version {cursor['version']}; this code reads version {_CURSOR_VERSION}.")
        pinned = Library(library, dict(cursor["agents"]))
        saved = cursor["root"]
        root = Scope(pinned, library[saved["orchestration"]], None, "")
        engine = Engine(pinned, root)
        engine.load_scope(root, saved)
        engine.open = dict(sorted(engine.open.items(), key=lambda entry: entry[1].serial))
        engine.serial = cursor["serial"]
        engine.limits = dict.fromkeys(cursor.get("limits", ()))
        engine.end = _load_end(cursor["end"], root.layer.values)
        return cls(engine, cursor["tokens"])

    def with_state(self, state: Mapping[str, Any]) -> Machine:
        """Return this machine with another state of the run; branches and nested orchestrations keep theirs.

        Raises StateRejected if a changed value does not match its declared type, or if the state is too large.
        """
        now = self._engine.root.layer
        layer = Layer(now.schema, limit=now.limit)
        layer.reserve(now.total - sum(now.sizes.values()))
        for key, value in state.items():
            if key in now.values and now.values[key] == value:
                # A list that a loop has collected need not match its key's type, so it is kept.
                layer.put(key, value, measure(value))
            else:
                layer.write(key, value)
        cursor = self.cursor()
        cursor["root"]["state"] = layer.dump()
        return Machine.restore(self._engine.library.orchestrations, cursor)

    def cursor(self) -> dict[str, Any]:
        """Return the machine as JSON, which shares only immutable values with the machine."""
        engine = self._engine
        return {
            "version": _CURSOR_VERSION,
            "agents": dict(engine.library.agents),
            "serial": engine.serial,
            "tokens": self._tokens,
            "limits": list(engine.limits),
            "root": engine.root.dump(),
            "end": _dump_end(engine.end),
        }

    def pending_steps(self) -> list[PendingStep]:
        """Return the steps that may be performed, in the order in which they were opened."""
        return [leaf.pending for leaf in self._engine.open.values()]

    def complete(self, path: str, outcome: Outcome, *, again: bool | None = None) -> list[StepEvent]:
        """Process the outcome of a pending step; return the events that follow.

        Outputs must be plain JSON values, as they are recorded. An outcome that arrives too late, for a step that
        was dropped, changes only the totals. `again` is for replays: whether the step was retried after this failure.
        Without it, the step's `retry` decides.
        """
        engine = self._engine
        leaf = engine.open.get(path)
        scope = self.charge(path, outcome.cost_usd, outcome.tokens)
        if leaf is not None:
            engine.complete(leaf, outcome, again)
            engine.run()
        engine.enforce_limits(scope)
        return self._take_events()

    def charge(self, path: str, cost_usd: float | None, tokens: int) -> Scope:
        """Count the cost of a pending step without an outcome; return its scope."""
        leaf = self._engine.open.get(path)
        scope = self._engine.root if leaf is None else leaf.frame.fiber.scope
        cost = units(cost_usd)
        for around in scope.outward():
            around.cost += cost
        self._tokens += tokens
        return scope

    @property
    def end(self) -> OrchestrationEnd | None:
        """How the run ended, or None."""
        return self._engine.end

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the run itself, without unmerged writes of its branches."""
        return self._engine.root.layer.view

    @property
    def state_bytes(self) -> int:
        """The size of the state as JSON, including that of branches, loops and nested orchestrations."""
        return self._engine.root.layer.total

    @property
    def turns(self) -> int:
        """The number of performed steps; retries of one execution count once."""
        return self._engine.root.turns

    @property
    def tokens(self) -> int:
        """The tokens of all outcomes."""
        return self._tokens

    @property
    def cost_usd(self) -> float:
        """The cost of all outcomes."""
        return self._engine.root.cost / UNITS_PER_USD

    @property
    def over_budget(self) -> bool:
        """Whether the run has exceeded its cap, so that no further calls are allowed."""
        return self._engine.root.over_budget

    def budgets(self, path: str, unsettled: Mapping[str, float] | None = None) -> list[OrchestrationBudget]:
        """Return the caps that apply to a pending step: of each orchestration around it, innermost first.

        `unsettled` is the cost of open pending steps that is not counted yet, by path.
        """
        leaf = self._engine.open.get(path)
        if leaf is None:
            return []
        return [
            OrchestrationBudget(
                scope.orchestration.id,
                scope.cap / UNITS_PER_USD,
                scope.cost / UNITS_PER_USD + self._spent_within(scope, unsettled or {}),
                scope.orchestration.on_cap,
            )
            for scope in leaf.frame.fiber.scope.outward()
            if scope.cap is not None
        ]

    def _spent_within(self, scope: Scope, unsettled: Mapping[str, float]) -> float:
        return sum(
            cost
            for path, cost in unsettled.items()
            if (leaf := self._engine.open.get(path)) is not None and scope in leaf.frame.fiber.scope.outward()
        )

    def _take_events(self) -> list[StepEvent]:
        events, self._engine.events = self._engine.events, []
        return events


def _dump_end(end: OrchestrationEnd | None) -> dict[str, Any] | None:
    if end is None:
        return None
    error = None if end.error is None else asdict(end.error)
    return {
        "status": end.status.value,
        "response": end.response,
        "error": error,
        "step": end.step_id,
        "limits": list(end.loop_limits),
    }


def _load_end(data: Mapping[str, Any] | None, state: Mapping[str, Any]) -> OrchestrationEnd | None:
    if data is None:
        return None
    error = None if data["error"] is None else Failed(**data["error"])
    limits = tuple(data.get("limits", ()))
    return OrchestrationEnd(EndStatus(data["status"]), data["response"], dict(state), error, data["step"], limits)
