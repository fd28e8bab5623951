"""Prompts: what a model is told. The task comes last, what it may need to know before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from runlane.definitions.schema.step import HumanStep, Step
from runlane.domain.text import utf8_size
from runlane.interpreter.values import PendingStep
from runlane.steps.context import StepContext
from runlane.steps.services import PreviousStep, RunServices
from runlane.templates.template import RenderBudget, fill, text_of

MAX_VALUE_CHARACTERS: Final = 5000
MAX_EARLIER_STEPS: Final = 50
HUMAN_KEY: Final = "human_response"


def message(state: Mapping[str, Any]) -> str:
    """The run's message."""
    return text_of(state.get("user_input", state.get("user_query", "")))


async def prompt(work: StepContext[Step], template: str | None, *, with_history: bool = False) -> str:
    """The task with the values that the step is given, what people answered and, if asked for, earlier outputs.

    The task is the template, filled, or else the run's message.
    """
    todo, budget = work.todo, work.budget()
    if template is None or not template.strip():
        wanted = [message(todo.state)]
        budget.add(utf8_size(wanted[0]))
    else:
        wanted = [*fill(template, todo.state, budget).parts]
    parts = [
        *_section("Values", _values(todo), budget),
        *_section("Answers of people", _answers(todo), budget),
        *(_section("Earlier steps", _earlier(work.tools), budget) if with_history else ()),
    ]
    await work.tools.room.take(budget.used)
    task = "".join(wanted)
    return "\n\n".join([*parts, "# Task", task]) if parts else task


def label(step: Step | PreviousStep) -> str:
    """How a step is called where its output stands."""
    if isinstance(step, PreviousStep):
        return f"{step.title} ({step.step_id})"
    return f"{step.title} ({step.id})"


def abridged(value: Any) -> str:
    """A value as text, cut if it is long; the cut is told."""
    text = text_of(value)
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}\n[abridged: {MAX_VALUE_CHARACTERS} of {len(text)} characters]"


def human_keys(todo: PendingStep) -> list[str]:
    """Where answers of people are in the state."""
    keys = [step.output_key or HUMAN_KEY for step in todo.orchestration.steps if isinstance(step, HumanStep)]
    return list(dict.fromkeys(keys))


def _values(todo: PendingStep) -> Iterator[tuple[str, Any]]:
    for key in todo.step.input_keys:
        if key in todo.state:
            yield key, todo.state[key]


def _answers(todo: PendingStep) -> Iterator[tuple[str, Any]]:
    for key in human_keys(todo):
        if key in todo.state and key not in todo.step.input_keys:
            yield key, todo.state[key]


def _earlier(tools: RunServices) -> Iterator[tuple[str, Any]]:
    for step in tools.history[-MAX_EARLIER_STEPS:]:
        yield label(step), step.output


def _section(title: str, values: Iterator[tuple[str, Any]], budget: RenderBudget) -> Iterator[str]:
    shown: list[str] = []
    for name, value in values:
        shown.append(f"## {name}\n{abridged(value)}")
        budget.add(utf8_size(shown[-1]))
    if shown:
        yield f"# {title}"
        yield from shown
