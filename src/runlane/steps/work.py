"""Work: one step in the hands of its performer, with what its model calls have cost so far."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from runlane.agents.models import Message, Model, ModelReply, ModelRequest, Scene, ToolOffer
from runlane.errors import nearest
from runlane.interpreter.values import Todo
from runlane.model.definition import Agent
from runlane.model.step import LoopStep, Step
from runlane.steps.failure import StepFailed
from runlane.steps.tools import Tools

S_co = TypeVar("S_co", bound=Step, covariant=True)


class Work(Generic[S_co]):
    """What a performer works with."""

    def __init__(self, todo: Todo, tools: Tools) -> None:
        self.todo = todo
        self.tools = tools
        self.cost_usd: float | None = None
        self.tokens = 0

    @property
    def step(self) -> S_co:
        """The step, of the type that the performer is for."""
        return cast("S_co", self.todo.step)

    async def emit(self, type_: str, **data: Any) -> None:
        """Write an event of this step."""
        about = {"orch_step_id": self.todo.step.id, "step_name": self.todo.step.title, "path": self.todo.path}
        await self.tools.emit(type_, about | data)

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

    def model(self, name: str | None, agent: Agent | None) -> Asking[S_co]:
        """The model that a step is to ask: its own, the agent's or the default."""
        scene = Scene(self.todo.orchestration, agent, self.todo.step.id)
        full_name, model = self.tools.models.find(name, scene)
        return Asking(self, full_name, model, agent.system_prompt if agent is not None else "")


class Asking(Generic[S_co]):
    """A conversation with a model, one turn at a time."""

    def __init__(self, work: Work[S_co], name: str, model: Model, instructions: str) -> None:
        self._work = work
        self._name = name
        self._model = model
        self._instructions = instructions
        self.turn = 0

    async def ask(self, messages: list[Message], offers: tuple[ToolOffer, ...] = ()) -> ModelReply:
        """The next answer. Its cost is on the bill even if the step fails later."""
        work = self._work
        spent = work.cost_usd or 0.0
        if work.tools.budget_usd is not None and spent >= work.tools.budget_usd:
            raise StepFailed(
                "cost_limit",
                f"The run has spent its max_total_cost_usd ({spent:g} USD in this step). Raise it to go on.",
            )
        await work.emit("thinking", message=f"Asks {self._name}", turn=self.turn + 1)
        reply = await self._model.answer(
            ModelRequest(
                model=self._name,
                messages=tuple(messages),
                instructions=self._instructions,
                offers=offers,
                key=f"{work.todo.path}#{self.turn}",
                number=visits_before(work.todo) + work.todo.tries + self.turn,
            ),
            work.tools.delta,
        )
        self.turn += 1
        work.tokens += reply.tokens_in + reply.tokens_out
        if reply.cost_usd is not None:
            work.cost_usd = spent + reply.cost_usd
        return reply


def visits_before(todo: Todo) -> int:
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
