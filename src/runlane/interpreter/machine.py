"""The step machine: what an orchestration does next, given what has happened.

It is told outcomes and says what may be performed now. It does nothing itself and knows no time, so the same outcomes
in the same order always make the same machine: a worker that takes over settles what was recorded and goes on from
there. See docs/explanation/interpreter.md for the rules.
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
    """What an orchestration may cost, and what it has cost so far."""

    orchestration_id: str
    limit_usd: float
    spent_usd: float
    on_cap: OnCap


class Machine:
    """One run of an orchestration.

    `opening` are the facts that follow from the start itself; a restored machine has none. `end` is set once nothing
    is left to do.
    """

    def __init__(self, walk: Engine, tokens: int = 0) -> None:
        self._walk = walk
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
        """A run before its first step.

        `library` has every orchestration that the run pins, by id, and `agent_orchestrations` says which agents are
        orchestrations. `state` goes on top of the definition's defaults.
        """
        pinned = Library(library, dict(agent_orchestrations or {}))
        root = Scope(pinned, library[orchestration_id], None, "")
        walk = Engine(pinned, root)
        machine = cls(walk)
        try:
            root.layer.fill({**defaults(root.orchestration), **state})
        except StateRejected as refused:
            walk.stop(refused.failed)
        else:
            walk.go(root.line, root.orchestration.entry)
            walk.run()
        machine.opening = machine._take_facts()
        return machine

    @classmethod
    def restore(cls, library: Mapping[str, Orchestration], cursor: Mapping[str, Any]) -> Machine:
        """The machine whose cursor this is."""
        if cursor["version"] != _CURSOR_VERSION:
            raise ValueError(f"A cursor of version {cursor['version']}; this code reads version {_CURSOR_VERSION}.")
        pinned = Library(library, dict(cursor["agents"]))
        saved = cursor["root"]
        root = Scope(pinned, library[saved["orchestration"]], None, "")
        walk = Engine(pinned, root)
        walk.load_scope(root, saved)
        walk.open = dict(sorted(walk.open.items(), key=lambda entry: entry[1].serial))
        walk.serial = cursor["serial"]
        walk.limits = dict.fromkeys(cursor.get("limits", ()))
        walk.end = _load_end(cursor["end"], root.layer.values)
        return cls(walk, cursor["tokens"])

    def with_state(self, state: Mapping[str, Any]) -> Machine:
        """This machine with another state of the run; what branches and nested orchestrations have stays theirs.

        Raises StateRejected if a changed value does not fit its declared type, or if the state is too large.
        """
        now = self._walk.root.layer
        layer = Layer(now.schema, limit=now.limit)
        layer.reserve(now.total - sum(now.sizes.values()))
        for key, value in state.items():
            if key in now.values and now.values[key] == value:
                # A list that a loop has collected need not be of its key's type; it stays as it is.
                layer.put(key, value, measure(value))
            else:
                layer.write(key, value)
        cursor = self.cursor()
        cursor["root"]["state"] = layer.dump()
        return Machine.restore(self._walk.library.orchestrations, cursor)

    def cursor(self) -> dict[str, Any]:
        """The machine as JSON. It shares values with the machine, none of which changes, but nothing else."""
        walk = self._walk
        return {
            "version": _CURSOR_VERSION,
            "agents": dict(walk.library.agents),
            "serial": walk.serial,
            "tokens": self._tokens,
            "limits": list(walk.limits),
            "root": walk.root.dump(),
            "end": _dump_end(walk.end),
        }

    def pending_steps(self) -> list[PendingStep]:
        """Everything that may be performed now, in the order in which it became possible."""
        return [leaf.pending for leaf in self._walk.open.values()]

    def complete(self, path: str, outcome: Outcome, *, again: bool | None = None) -> list[StepEvent]:
        """Take the outcome of a todo, move on, and return the facts that follow from it.

        Outputs must be plain JSON values, as they are recorded. An outcome that comes too late, for something that
        is no longer needed, changes nothing but the totals. `again` is for replays: whether the todo was tried again
        after this failure. Without it, the step's `retry` decides.
        """
        walk = self._walk
        leaf = walk.open.get(path)
        scope = self.charge(path, outcome.cost_usd, outcome.tokens)
        if leaf is not None:
            walk.complete(leaf, outcome, again)
            walk.run()
        walk.keep_limits(scope)
        return self._take_facts()

    def charge(self, path: str, cost_usd: float | None, tokens: int) -> Scope:
        """Count what was spent on a todo, without an outcome; the orchestration that it is part of."""
        leaf = self._walk.open.get(path)
        scope = self._walk.root if leaf is None else leaf.frame.line.scope
        cost = units(cost_usd)
        for around in scope.outward():
            around.cost += cost
        self._tokens += tokens
        return scope

    @property
    def end(self) -> OrchestrationEnd | None:
        """How the run ended, if it has."""
        return self._walk.end

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the run itself, without what its branches have not merged yet."""
        return self._walk.root.layer.view

    @property
    def state_bytes(self) -> int:
        """The size of the state as JSON, with all that branches, loops and inner orchestrations hold of it."""
        return self._walk.root.layer.total

    @property
    def turns(self) -> int:
        """Steps that were performed, tries of one execution counted once."""
        return self._walk.root.turns

    @property
    def tokens(self) -> int:
        """Tokens of all outcomes."""
        return self._tokens

    @property
    def cost_usd(self) -> float:
        """Money spent by all outcomes."""
        return self._walk.root.cost / UNITS_PER_USD

    @property
    def over_budget(self) -> bool:
        """Whether the run has cost more than it may: then nothing more is to be called."""
        return self._walk.root.over_budget

    def budgets(self, path: str, unsettled: Mapping[str, float] | None = None) -> list[OrchestrationBudget]:
        """The bounds of what an open todo may cost: of each orchestration that it is in, the innermost first.

        `unsettled` is what open todos have spent that are not settled yet, by path.
        """
        leaf = self._walk.open.get(path)
        if leaf is None:
            return []
        return [
            OrchestrationBudget(
                scope.orchestration.id,
                scope.cap / UNITS_PER_USD,
                scope.cost / UNITS_PER_USD + self._spent_within(scope, unsettled or {}),
                scope.orchestration.on_cap,
            )
            for scope in leaf.frame.line.scope.outward()
            if scope.cap is not None
        ]

    def _spent_within(self, scope: Scope, unsettled: Mapping[str, float]) -> float:
        return sum(
            cost
            for path, cost in unsettled.items()
            if (leaf := self._walk.open.get(path)) is not None and scope in leaf.frame.line.scope.outward()
        )

    def _take_facts(self) -> list[StepEvent]:
        facts, self._walk.facts = self._walk.facts, []
        return facts


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
