"""Work: one step in the hands of its performer, and what it knows of the run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from runlane.definitions.schema.definition import Agent
from runlane.definitions.schema.step import LoopStep, Step
from runlane.errors import nearest
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import PendingStep
from runlane.llm.models import ModelContext
from runlane.steps.services import RunServices
from runlane.templates.template import RenderBudget, fill, render_value, size_of

S_co = TypeVar("S_co", bound=Step, covariant=True)


class StepContext(Generic[S_co]):
    """What a performer works with."""

    def __init__(self, todo: PendingStep, tools: RunServices) -> None:
        self.todo = todo
        self.tools = tools

    @property
    def step(self) -> S_co:
        """The step, of the type that the performer is for."""
        return cast("S_co", self.todo.step)

    @property
    def cost_usd(self) -> float | None:
        """What the step has cost so far, in all its tries."""
        return self.tools.journal.cost_usd

    @property
    def tokens(self) -> int:
        """What it has used so far, in all its tries."""
        return self.tools.journal.tokens

    async def emit(self, type_: str, **data: Any) -> None:
        """Write an event of this step."""
        about = {"orch_step_id": self.todo.step.id, "step_name": self.todo.step.title, "path": self.todo.path}
        await self.tools.emit(type_, about | data)

    def note(self, type_: str, **data: Any) -> None:
        """Write an event of this step in one commit with what the journal keeps next."""
        about = {"orch_step_id": self.todo.step.id, "step_name": self.todo.step.title, "path": self.todo.path}
        self.tools.note(type_, about | data)

    def budget(self) -> RenderBudget:
        """Return the bytes that one rendered value of the step may have."""
        return RenderBudget(self.tools.max_step_bytes)

    async def render(self, template: str, budget: RenderBudget | None = None) -> str:
        """Fill a template from the state. Its size is checked, and has room, before the text is built."""
        filled = fill(template, self.todo.state, budget or self.budget())
        await self.tools.room.take(filled.size)
        return filled.text()

    async def render_value(self, value: Any) -> Any:
        """Fill the templates within a value from the state."""
        budget = self.budget()
        filled = render_value(value, self.todo.state, budget)
        await self.tools.room.take(budget.used)
        return filled

    def check_output(self, output: Any) -> None:
        """Raise StepFailed if the output is too large to be kept."""
        size = size_of(output)
        if size > self.tools.max_step_bytes:
            raise StepFailed(
                "output_too_large",
                f'The output of step "{self.step.id}" has {size} bytes; at most {self.tools.max_step_bytes} are '
                "allowed (RUNLANE_MAX_STEP_BYTES). Store large values elsewhere and return a reference.",
            )

    def agent(self, agent_id: str | None) -> Agent | None:
        """The agent of this id."""
        if agent_id is None:
            return None
        agent = self.tools.agents.get(agent_id)
        if agent is None:
            raise StepFailed(
                "unknown_agent",
                f'There is no agent "{agent_id}" here{nearest(agent_id, self.tools.agents)}. Define it and sync.',
            )
        return agent

    def scene(self, agent: Agent | None) -> ModelContext:
        """Where a model is asked."""
        return ModelContext(self.todo.orchestration, agent, self.todo.step.id, self.tools.tenant, self.tools.redactor)


def visits_before(todo: PendingStep) -> int:
    """How often the step was executed before within its orchestration, as its path tells: later visits and rounds.

    Rounds of a loop within another one are only told apart if the inner one has a fixed number of them.
    """
    steps = {step.id: step for step in todo.orchestration.steps}
    *around, own = todo.path.rpartition(">")[2].split("/")
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
