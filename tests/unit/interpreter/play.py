"""Short forms for orchestrations, and a driver that takes a machine through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from runlane.definitions.schema.definition import Orchestration
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Done, EndStatus, Failed, OrchestrationEnd, Outcome, PendingStep, StepEvent

StepData = dict[str, Any]


def orchestration(*steps: StepData, **fields: Any) -> Orchestration:
    """Return an orchestration of these steps, called main unless `id` is given."""
    return Orchestration.model_validate({"id": "main", "steps": list(steps), **fields})


def say(step_id: str, following: str | None = None, **fields: Any) -> StepData:
    """Return a print step, the simplest that is performed. It writes to the key of its own name."""
    return {
        "id": step_id,
        "type": "print",
        "print_content": "",
        "next_step_id": following,
        "output_key": step_id,
        **fields,
    }


def parallel(step_id: str, branches: list[list[str]], following: str | None = None, **fields: Any) -> StepData:
    return {"id": step_id, "type": "parallel", "parallel_branches": branches, "next_step_id": following, **fields}


def loop(step_id: str, body: list[str], following: str | None = None, **fields: Any) -> StepData:
    return {"id": step_id, "type": "loop", "loop_step_ids": body, "next_step_id": following, **fields}


def if_else(step_id: str, yes: str | None = None, no: str | None = None, **fields: Any) -> StepData:
    return {
        "id": step_id,
        "type": "if_else",
        "if_condition": "True",
        "if_true_step_id": yes,
        "if_false_step_id": no,
        **fields,
    }


def nested(step_id: str, orchestration_id: str, following: str | None = None, **fields: Any) -> StepData:
    return {
        "id": step_id,
        "type": "orchestration",
        "orchestration_id": orchestration_id,
        "next_step_id": following,
        **fields,
    }


def failed(code: str = "model_error", message: str = "It broke.", *, retryable: bool = False) -> Failed:
    return Failed(code, message, retryable)


class Play:
    """A machine, the events so far, and the records of completed steps."""

    def __init__(
        self,
        *orchestrations: Orchestration,
        state: Mapping[str, Any] | None = None,
        agents: Mapping[str, str] | None = None,
    ) -> None:
        self.library = {each.id: each for each in orchestrations}
        self.machine = Machine.start(self.library, orchestrations[0].id, state or {}, agents)
        self.facts: list[StepEvent] = list(self.machine.opening)
        self.records: list[tuple[str, Outcome]] = []

    def settle(self, path: str, outcome: Outcome) -> list[StepEvent]:
        """Complete a step that must be open."""
        assert path in self.open, f"{path} is not open; open are {self.open}"
        self.records.append((path, outcome))
        facts = self.machine.complete(path, outcome)
        self.facts += facts
        return facts

    def do(self, path: str, output: Any = None, route: str | None = None, **fields: Any) -> list[StepEvent]:
        return self.settle(path, Done(output, route, **fields))

    def do_all(self, *paths: str) -> None:
        """Complete each with an output that contains its path."""
        for path in paths:
            self.do(path, f"<{path}>")

    def fail(self, path: str, code: str = "model_error", *, retryable: bool = False) -> list[StepEvent]:
        return self.settle(path, failed(code, retryable=retryable))

    def finish(self, answer: Callable[[PendingStep], Outcome] | None = None, limit: int = 10_000) -> OrchestrationEnd:
        """Complete the first open step until the run has ended."""
        for _ in range(limit):
            if self.machine.end is not None:
                return self.machine.end
            pending = self.machine.pending_steps()[0]
            self.settle(pending.path, Done(f"<{pending.path}>") if answer is None else answer(pending))
        raise AssertionError(f"The run has not ended after {limit} steps.")

    @property
    def open(self) -> list[str]:
        return [pending.path for pending in self.machine.pending_steps()]

    @property
    def end(self) -> OrchestrationEnd:
        assert self.machine.end is not None, f"The run has not ended: {self.open} are open"
        return self.machine.end

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.machine.state)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the completed steps, in order."""
        return [path for path, _ in self.records]

    def pending(self, path: str) -> PendingStep:
        return next(pending for pending in self.machine.pending_steps() if pending.path == path)

    def emitted(self, event: str) -> list[dict[str, Any]]:
        return [dict(fact.data) for fact in self.facts if fact.type == event]

    def completed(self) -> dict[str, Any]:
        """Return the final state of a run that must be completed."""
        assert self.end.status is EndStatus.COMPLETED, self.end
        return dict(self.end.state)

    def error(self) -> Failed:
        """Return the error of a run that must have failed."""
        assert self.end.status is EndStatus.FAILED, self.end
        assert self.end.error is not None
        return self.end.error


def through_json(machine: Machine, library: Mapping[str, Orchestration]) -> Machine:
    """Return a machine restored from the JSON of the cursor."""
    return Machine.restore(library, orjson.loads(orjson.dumps(machine.cursor())))
