"""StepContext: a step and everything that belongs to this execution of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent
from runlane.definitions.schema.step import LoopStep, Step
from runlane.errors import nearest
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import PendingStep
from runlane.llm.models import Delta, ModelContext, ModelDelta
from runlane.steps.memory_budget import StepMemory, UnlimitedMemory
from runlane.steps.run_services import RunServices
from runlane.templates.template import RenderBudget, fill, render_value, size_of

S_co = TypeVar("S_co", bound=Step, covariant=True)
Emit = Callable[[str, Mapping[str, Any]], Awaitable[None]]
Note = Callable[[str, Mapping[str, Any]], None]
CheckBudget = Callable[[Agent | None, float | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PreviousStep:
    """A step that was performed earlier in this scope."""

    step_id: str
    title: str
    output: Any


async def _no_event(_type: str, _data: Mapping[str, Any], /) -> None: ...


async def _no_cap(_agent: Agent | None, _step_cap: float | None, /) -> None: ...


async def _no_warning(_model: str, /) -> str | None: ...


def _no_note(_type: str, _data: Mapping[str, Any], /) -> None: ...


def _no_delta(_piece: ModelDelta, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext(Generic[S_co]):
    """The context that a step performer receives.

    `emit_event` writes a durable event, `note_event` one that is stored together with the next row of the journal, and
    `delta` publishes a piece of an answer. `history` holds the earlier steps, the last one at the end. `check_budget`
    is called before each model call and raises if a cap is reached; `unpriced_warning` after a call of a model without
    a price, and returns a warning or None. `memory` reserves memory for what the step renders.
    """

    pending: PendingStep
    services: RunServices
    journal: Journal = field(default_factory=Journal)
    history: Sequence[PreviousStep] = ()
    emit_event: Emit = _no_event
    note_event: Note = _no_note
    delta: Delta = _no_delta
    check_budget: CheckBudget = _no_cap
    unpriced_warning: Callable[[str], Awaitable[str | None]] = _no_warning
    memory: StepMemory = field(default_factory=UnlimitedMemory)

    @property
    def step(self) -> S_co:
        """The step, checked to be of the performer's type."""
        return cast("S_co", self.pending.step)

    @property
    def cost_usd(self) -> float | None:
        """What all tries of the step have cost so far."""
        return self.journal.cost_usd

    @property
    def tokens(self) -> int:
        """The tokens that all tries of the step have used so far."""
        return self.journal.tokens

    async def emit(self, type_: str, **data: Any) -> None:
        """Write an event of this step."""
        await self.emit_event(type_, self._about | data)

    def note(self, type_: str, **data: Any) -> None:
        """Store an event of this step in one commit with the next row of the journal."""
        self.note_event(type_, self._about | data)

    @property
    def _about(self) -> dict[str, Any]:
        return {"orch_step_id": self.pending.step.id, "step_name": self.pending.step.title, "path": self.pending.path}

    def budget(self) -> RenderBudget:
        """Return the bytes that one rendered value of the step may have."""
        return RenderBudget(self.services.max_step_bytes)

    async def render(self, template: str, budget: RenderBudget | None = None) -> str:
        """Fill a template from the state. Its size is checked and reserved before the text is built."""
        filled = fill(template, self.pending.state, budget or self.budget())
        await self.memory.take(filled.size)
        return filled.text()

    async def render_value(self, value: Any) -> Any:
        """Fill the templates within a value from the state."""
        budget = self.budget()
        filled = render_value(value, self.pending.state, budget)
        await self.memory.take(budget.used)
        return filled

    def check_output(self, output: Any) -> None:
        """Raise StepFailed if the output is too large to be stored."""
        size = size_of(output)
        if size > self.services.max_step_bytes:
            raise StepFailed(
                "output_too_large",
                f'The output of step "{self.step.id}" has {size} bytes; at most {self.services.max_step_bytes} are '
                "allowed (RUNLANE_MAX_STEP_BYTES). Store large values elsewhere and return a reference.",
            )

    def agent(self, agent_id: str | None) -> Agent | None:
        """Return the agent of this id. Raise StepFailed if the run has not pinned it."""
        if agent_id is None:
            return None
        agent = self.services.agents.get(agent_id)
        if agent is None:
            raise StepFailed(
                "unknown_agent",
                f'The agent "{agent_id}" does not exist{nearest(agent_id, self.services.agents)}. Define it and sync.',
            )
        return agent

    def model_context(self, agent: Agent | None) -> ModelContext:
        """Return the context in which models are looked up."""
        return ModelContext(
            self.pending.orchestration, agent, self.pending.step.id, self.services.tenant, self.services.redactor
        )


def visits_before(pending: PendingStep) -> int:
    """Return how often the step was executed before within its orchestration, by the visits and rounds in its path.

    Rounds of a loop within another one are distinguished only if the inner one has a fixed number of them.
    """
    steps = {step.id: step for step in pending.orchestration.steps}
    *around, own = pending.path.rpartition(">")[2].split("/")
    before = 0
    for container, number in zip(around[::2], around[1::2], strict=False):
        step_id, visit = _visit(container)
        before += visit - 1
        step = steps.get(step_id)
        if isinstance(step, LoopStep) and number.isdecimal():
            before = before * (step.loop_count or 1) + int(number) - 1
    return before + _visit(own)[1] - 1


def _visit(part: str) -> tuple[str, int]:
    step_id, _, visit = part.partition("~")
    return step_id, int(visit) if visit.isdecimal() else 1
