"""Placeholders in an orchestration's texts: each must refer to something that a run can have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.definitions.schema.step import (
    EvaluatorStep,
    HumanStep,
    LoopStep,
    OrchestrationStep,
    PrintStep,
    Step,
    TaskStep,
    ToolStep,
    WaitStep,
)
from runlane.errors import TemplateError
from runlane.templates.template import look_alikes_in, placeholders_in

# A run has these from its start.
MESSAGE_KEYS: Final = ("user_input", "user_query")
# What steps put there by themselves.
HUMAN_KEY: Final = "human_response"
ERROR_KEY: Final = "error"
ITEM_KEYS: Final = ("item", "index")


def known_keys(orchestration: Orchestration, given: Collection[str] = ()) -> set[str]:
    """Every key that the state of a run may have; `given` are those that callers are known to pass."""
    keys = {*MESSAGE_KEYS, *orchestration.state_schema, *given}
    for step in orchestration.steps:
        if step.output_key is not None:
            keys.add(step.output_key)
        if step.on_error is not None:
            keys.add(ERROR_KEY)
        if isinstance(step, HumanStep):
            keys.add(HUMAN_KEY)
        if isinstance(step, LoopStep) and step.for_each is not None:
            keys.update(ITEM_KEYS)
    return keys


def check_places(orchestration: Orchestration, given: Collection[str], place: Location, problems: Problems) -> None:
    """Note placeholders, and keys that steps are to be given, which nothing can fill."""
    known = known_keys(orchestration, given)
    for step in orchestration.steps:
        for field, value in templates_of(step):
            here = place.at(step=step.id, field=field)
            try:
                paths = placeholders_in(value)
            except TemplateError as error:
                problems.error(here, str(error))
                continue
            for path in paths:
                key = path.partition(".")[0]
                if key not in known:
                    problems.error(
                        here, f"Nothing fills the placeholder {{state.{path}}}{key_cure(key, known)}", loose=True
                    )
            for text, path in look_alikes_in(value):
                problems.warn(here, _not_a_placeholder(text, path))
        for key in step.input_keys:
            if key not in known:
                here = place.at(step=step.id, field="input_keys")
                problems.error(here, f'Nothing gives "{key}"{key_cure(key, known)}', loose=True)


def check_instructions(agent: Agent, place: Location, problems: Problems) -> None:
    """Note placeholders in an agent's instructions, which are not filled."""
    try:
        paths = placeholders_in(agent.system_prompt)
    except TemplateError:
        # Braces of any kind are text here.
        return
    if paths:
        problems.warn(
            place.at(field="system_prompt"),
            f"{{state.{paths[0]}}} is sent to the model as it is: instructions have no placeholders. "
            "Put it into the prompt_template of the step.",
        )


def _not_a_placeholder(text: str, path: str | None) -> str:
    if path is None:
        return (
            f'"{text}" is text: templates of other formats are not evaluated. Placeholders are {{state.key}} and '
            "{{key}}."
        )
    return f'"{text}" is text, not a placeholder. Write {{state.{path}}} to fill it from the state.'


def templates_of(step: Step) -> Iterator[tuple[str, Any]]:
    """The fields of a step whose texts are templates."""
    fields: tuple[str, ...]
    match step:
        case EvaluatorStep():
            fields = ("prompt_template", "evaluator_prompt")
        case ToolStep():
            fields = ("prompt_template", "arguments")
        case HumanStep():
            fields = ("human_prompt",)
        case PrintStep():
            fields = ("print_content",)
        case OrchestrationStep():
            fields = ("message", "input")
        case TaskStep():
            fields = ("arguments",)
        case WaitStep():
            fields = ("until",)
        case _:
            fields = ("prompt_template",)
    for field in fields:
        value = getattr(step, field, None)
        if value is not None:
            yield field, value


def key_cure(key: str, known: Collection[str]) -> str:
    """What to do about a key of the state that nothing gives."""
    names = sorted(known)
    return (
        f"{near(key, names)}. Keys: {listing(names)}. Correct the name, let an earlier step have the output_key "
        f'"{key}", or declare "{key}" in state_schema and give it with the run\'s input.'
    )
