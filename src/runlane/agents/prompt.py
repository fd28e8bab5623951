"""Prompts: the values, answers and outputs that a model may need, followed by the task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from runlane.definitions.schema.step import HumanStep, Step
from runlane.domain.text import utf8_size
from runlane.interpreter.values import PendingStep
from runlane.steps.context import PreviousStep, StepContext
from runlane.templates.template import RenderBudget, fill, text_of

MAX_VALUE_CHARACTERS: Final = 5000
MAX_EARLIER_STEPS: Final = 50
HUMAN_KEY: Final = "human_response"


def message(state: Mapping[str, Any]) -> str:
    """Return the run's message."""
    return text_of(state.get("user_input", state.get("user_query", "")))


async def prompt(context: StepContext[Step], template: str | None, *, with_history: bool = False) -> str:
    """Return the task with the step's input values, the answers of people and, if requested, earlier outputs.

    The task is the rendered template, or else the run's message.
    """
    pending, budget = context.pending, context.budget()
    if template is None or not template.strip():
        wanted = [message(pending.state)]
        budget.add(utf8_size(wanted[0]))
    else:
        wanted = [*fill(template, pending.state, budget).parts]
    parts = [
        *_section("Values", _values(pending), budget),
        *_section("Answers of people", _answers(pending), budget),
        *(_section("Earlier steps", _earlier(context.history), budget) if with_history else ()),
    ]
    await context.memory.take(budget.used)
    task = "".join(wanted)
    return "\n\n".join([*parts, "# Task", task]) if parts else task


def label(step: Step | PreviousStep) -> str:
    """Return the name of a step next to its output."""
    if isinstance(step, PreviousStep):
        return f"{step.title} ({step.step_id})"
    return f"{step.title} ({step.id})"


def abridged(value: Any) -> str:
    """Return a value as text, truncated with a note if it is long."""
    text = text_of(value)
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}\n[abridged: {MAX_VALUE_CHARACTERS} of {len(text)} characters]"


def human_keys(pending: PendingStep) -> list[str]:
    """Return the state keys of answers of people."""
    keys = [step.output_key or HUMAN_KEY for step in pending.orchestration.steps if isinstance(step, HumanStep)]
    return list(dict.fromkeys(keys))


def _values(pending: PendingStep) -> Iterator[tuple[str, Any]]:
    for key in pending.step.input_keys:
        if key in pending.state:
            yield key, pending.state[key]


def _answers(pending: PendingStep) -> Iterator[tuple[str, Any]]:
    for key in human_keys(pending):
        if key in pending.state and key not in pending.step.input_keys:
            yield key, pending.state[key]


def _earlier(history: Sequence[PreviousStep]) -> Iterator[tuple[str, Any]]:
    for step in history[-MAX_EARLIER_STEPS:]:
        yield label(step), step.output


def _section(title: str, values: Iterator[tuple[str, Any]], budget: RenderBudget) -> Iterator[str]:
    shown: list[str] = []
    for name, value in values:
        shown.append(f"## {name}\n{abridged(value)}")
        budget.add(utf8_size(shown[-1]))
    if shown:
        yield f"# {title}"
        yield from shown
