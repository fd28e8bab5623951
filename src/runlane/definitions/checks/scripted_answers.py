"""Checks of scripted models: the agent, or the orchestration under a step id or script name, must contain answers."""

from __future__ import annotations

from collections.abc import Iterator

from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, LlmStep, Step, ToolStep
from runlane.definitions.scope import DefinitionScope
from runlane.settings import SCRIPTED


def check_answers(orchestration: Orchestration, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    """Report steps whose scripted model has no answers."""
    for step in orchestration.steps:
        for field, name, agent in _models(step, scope):
            prefix, _, script = name.partition(":")
            if prefix != SCRIPTED or script.endswith(".json"):
                continue
            here = location.at(step=step.id, field=field)
            if script and script not in orchestration.answers:
                problems.warn(
                    here,
                    f'The model "{name}" has no answers{near(script, orchestration.answers)}. Add '
                    f'"answers": {{"{script}": [...]}} to the orchestration. Its scripts: '
                    f"{listing(sorted(orchestration.answers))}.",
                )
            elif not script and step.id not in orchestration.answers and not (agent is not None and agent.answers):
                problems.warn(
                    here,
                    f'The model "scripted" has no answers for this step. Add "answers": {{"{step.id}": [...]}} to the '
                    "orchestration, or answers to the step's agent.",
                )


def check_agent_answers(agent: Agent, scope: DefinitionScope, location: Location, problems: Problems) -> None:
    """Report an agent with a scripted model and without answers, unless a step that may have answers uses it."""
    names = {agent.model, agent.provider}
    if SCRIPTED not in names or agent.answers or (agent.model or SCRIPTED) != SCRIPTED:
        return
    steps = (step for known in scope.orchestrations.values() for step in known.steps)
    if not any(getattr(step, "agent_id", None) == agent.id for step in steps):
        problems.warn(
            location.at(field="answers"), 'The model "scripted" has no answers. Add a list of answers to the agent.'
        )


def _models(step: Step, scope: DefinitionScope) -> Iterator[tuple[str, str, Agent | None]]:
    """Yield the models of a step and of its agent, with the field that names them."""
    if not isinstance(step, (LlmStep, AgentStep, ToolStep, EvaluatorStep)):
        return
    if isinstance(step, ToolStep) and step.arguments is not None:
        # This step does not call a model.
        return
    agent = None if isinstance(step, LlmStep) else scope.agents.get(step.agent_id or "")
    if step.model is not None:
        yield "model", step.model, agent
    elif agent is not None and agent.model is not None:
        yield "agent_id", agent.model, agent
    for name in step.fallback_models:
        yield "fallback_models", name, agent
