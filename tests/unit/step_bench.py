"""A bench for tests of steps: it performs one step with all services that the step may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from runlane import Context
from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent, Orchestration, Tool
from runlane.domain.task import make_task
from runlane.interpreter.values import Done, Failed, Outcome, Part, PendingStep
from runlane.llm.models import ModelDelta, ModelRegistry
from runlane.llm.scripted import scripted
from runlane.sandbox.sandbox import Sandbox, SandboxLimits
from runlane.steps.dispatch import RunServices, StepContext, StepWait, perform_step
from runlane.steps.run_services import ModelRetryPolicy


def _ship(ctx: Context, **order: Any) -> None:
    """Send it."""


def _count(ctx: Context, text: str, most: int = 10) -> None:
    """Count the words of a string,
    up to a number.

    This is for programmers.
    """


class Bench:
    """Performs steps and keeps the events that they emit."""

    def __init__(self) -> None:
        models = ModelRegistry()
        models.register("scripted", scripted())
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.deltas: list[str] = []
        self.task_calls: list[tuple[str, dict[str, Any], str]] = []
        self.task_result: Any = None
        self.services = RunServices(
            sandbox=Sandbox(SandboxLimits(condition_seconds=60, script_seconds=60)),
            models=models,
            tasks={"ship": make_task(_ship, "ship"), "count": make_task(_count, "count")},
            call_task=self._call_task,
            retry_policy=ModelRetryPolicy(tries=2, backoff_seconds=0.001),
        )
        self.own: dict[str, Any] = {
            "emit_event": self._emit,
            "note_event": self._note,
            "delta": self._add_delta,
        }

    def have(self, *, agents: list[Any] | None = None, tools: list[Any] | None = None, **more: Any) -> None:
        """Change what steps may use: of the run's services, or of each step's context."""
        if agents is not None:
            more["agents"] = {agent["id"]: Agent.model_validate(agent) for agent in agents}
        if tools is not None:
            more["tools"] = {tool["name"]: Tool.model_validate(tool) for tool in tools}
        known = {field.name for field in fields(RunServices)}
        self.services = replace(self.services, **{name: value for name, value in more.items() if name in known})
        self.own |= {name: value for name, value in more.items() if name not in known}

    def context(self, pending: PendingStep) -> StepContext[Any]:
        return StepContext(pending=pending, services=self.services, **self.own)

    def pending(
        self,
        step: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        *,
        others: list[Any] | None = None,
        answers: Mapping[str, list[Any]] | None = None,
        path: str | None = None,
        part: Part = "step",
        tries: int = 0,
    ) -> PendingStep:
        """Return the step as the machine would request it."""
        made = Orchestration.model_validate(
            {"id": "o", "steps": [{"id": "it", **step}, *(others or [])], "answers": dict(answers or {})}
        )
        return PendingStep(path or "it", made, made.steps[0], dict(state or {}), part, tries)

    async def perform(self, step: Mapping[str, Any], state: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Perform a step for the first time and return its outcome."""
        self.own["journal"] = Journal("run_1", more.get("path") or "it")
        return await perform_step(self.context(self.pending(step, state, **more)))

    async def done(self, step: Mapping[str, Any], state: Mapping[str, Any] | None = None, **more: Any) -> Done:
        """Perform a step that succeeds."""
        outcome: Outcome | StepWait = await self.perform(step, state, **more)
        assert isinstance(outcome, Done), outcome
        return outcome

    async def failed(self, step: Mapping[str, Any], state: Mapping[str, Any] | None = None, **more: Any) -> Failed:
        """Perform a step that fails."""
        outcome: Outcome | StepWait = await self.perform(step, state, **more)
        assert isinstance(outcome, Failed), outcome
        return outcome

    def emitted(self, type_: str) -> list[dict[str, Any]]:
        """Return the events of a type, without the fields that every event of a step has."""
        common = {"orch_step_id", "step_name", "path"}
        found = [data for kind, data in self.events if kind == type_]
        assert all(data.keys() >= common for data in found)
        return [{key: value for key, value in data.items() if key not in common} for data in found]

    async def _call_task(self, name: str, arguments: Mapping[str, Any], path: str) -> Any:
        self.task_calls.append((name, dict(arguments), path))
        if isinstance(self.task_result, BaseException):
            raise self.task_result
        return self.task_result

    async def _emit(self, type_: str, data: Mapping[str, Any]) -> None:
        self.events.append((type_, dict(data)))

    def _note(self, type_: str, data: Mapping[str, Any]) -> None:
        self.events.append((type_, dict(data)))

    def _add_delta(self, piece: ModelDelta) -> None:
        self.deltas.append(piece.text)
