"""Outputs of the rounds of a loop, collected as lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runlane.definitions.schema.step import HumanStep, Step
from runlane.interpreter.state import Layer

if TYPE_CHECKING:
    from runlane.interpreter.fiber import Fiber

HUMAN_RESPONSE: Final = "human_response"

# The bytes of {"iteration":..., "agent":"...", "result":...} without the agent's name and the result.
_ENTRY_BYTES: Final = 48


def output_key(step: Step) -> str | None:
    """Return the state key of a step's output."""
    return step.output_key or (HUMAN_RESPONSE if isinstance(step, HumanStep) else None)


class LoopOutputs:
    """The outputs of each step of a loop's body, by round. Their bytes count in `shelf`, as in `Frame`."""

    __slots__ = ("_shelf", "_steps", "entries", "keys", "sizes")

    def __init__(self, fiber: Fiber, body: list[str], shelf: Layer) -> None:
        self._shelf = shelf
        known = (fiber.scope.steps.get(step_id) for step_id in dict.fromkeys(body))
        self._steps = {step.id: step for step in known if step is not None and output_key(step) is not None}
        self.keys = frozenset(key for step in self._steps.values() if (key := output_key(step)) is not None)
        self.entries: dict[str, list[dict[str, Any]]] = {step_id: [] for step_id in self._steps}
        self.sizes: dict[str, int] = dict.fromkeys(self._steps, 0)

    def add(self, iteration: int, outputs: Mapping[str, list[Any]]) -> None:
        """Add one round's outputs, each as [output, size]."""
        for step_id, (output, size) in outputs.items():
            step = self._steps[step_id]
            agent = getattr(step, "agent_id", None) or step.title
            whole = size + len(agent) + _ENTRY_BYTES
            self._shelf.reserve(whole)
            self.entries[step_id].append({"iteration": iteration, "agent": agent, "result": output})
            self.sizes[step_id] += whole

    def close(self, layer: Layer) -> tuple[dict[str, Any], int]:
        """Replace the single values of the rounds by the lists; return the loop's own output and its size."""
        self._shelf.discard()
        by_key: dict[str, list[str]] = {}
        by_title: dict[str, list[dict[str, Any]]] = {}
        for step_id, step in self._steps.items():
            by_key.setdefault(output_key(step) or "", []).append(step_id)
            by_title[step.title if step.title not in by_title else step_id] = self.entries[step_id]
        for key, step_ids in by_key.items():
            rounds = [entry for step_id in step_ids for entry in self.entries[step_id]]
            if len(step_ids) > 1:
                rounds.sort(key=lambda entry: entry["iteration"])
            layer.put(key, rounds, sum(self.sizes[step_id] for step_id in step_ids))
        return by_title, sum(self.sizes.values()) + sum(map(len, by_title))

    def dump(self) -> dict[str, Any]:
        """Return the lists as JSON."""
        return {"entries": {key: list(kept) for key, kept in self.entries.items()}, "sizes": dict(self.sizes)}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a dump."""
        self.entries = {key: list(kept) for key, kept in data["entries"].items()}
        self.sizes = dict(data["sizes"])
        self._shelf.count(sum(self.sizes.values()))
