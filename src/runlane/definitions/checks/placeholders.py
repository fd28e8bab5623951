"""Placeholders in the templates of an orchestration: each must refer to a key that a run can have."""

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

# Every run has these keys from its start.
MESSAGE_KEYS: Final = ("user_input", "user_query")
# Keys that steps set without an output_key.
HUMAN_KEY: Final = "human_response"
ERROR_KEY: Final = "error"
ITEM_KEYS: Final = ("item", "index")


def known_keys(orchestration: Orchestration, given: Collection[str] = ()) -> set[str]:
    """Return every key that the state of a run may have. `given` contains the keys that callers pass."""
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


def check_placeholders(
    orchestration: Orchestration, given: Collection[str], location: Location, problems: Problems
) -> None:
    """Report placeholders and input_keys that name a key which is never set."""
    known = known_keys(orchestration, given)
    for step in orchestration.steps:
        for field, value in templates_of(step):
            here = location.at(step=step.id, field=field)
            try:
                paths = placeholders_in(value)
            except TemplateError as error:
                problems.error(here, str(error))
                continue
            for path in paths:
                key = path.partition(".")[0]
                if key not in known:
                    problems.error(
                        here,
                        f"The placeholder {{state.{path}}} never has a value{key_hint(key, known)}",
                        tolerable=True,
                    )
            for text, path in look_alikes_in(value):
                problems.warn(here, _not_a_placeholder(text, path))
        for key in step.input_keys:
            if key not in known:
                here = location.at(step=step.id, field="input_keys")
                problems.error(here, f'"{key}" is never set{key_hint(key, known)}', tolerable=True)


def check_instructions(agent: Agent, location: Location, problems: Problems) -> None:
    """Report placeholders in the instructions of an agent, because instructions are not rendered."""
    try:
        paths = placeholders_in(agent.system_prompt)
    except TemplateError:
        # Instructions may contain any braces.
        return
    if paths:
        problems.warn(
            location.at(field="system_prompt"),
            f"{{state.{paths[0]}}} is sent to the model unchanged: instructions are not rendered. Put it "
            "into the prompt_template of the step.",
        )


def _not_a_placeholder(text: str, path: str | None) -> str:
    if path is None:
        return (
            f'"{text}" is plain text: templates of other formats are not evaluated. Placeholders are {{state.key}} and '
            "{{key}}."
        )
    return f'"{text}" is plain text, not a placeholder. To insert a value of the state, write {{state.{path}}}.'


def templates_of(step: Step) -> Iterator[tuple[str, Any]]:
    """Return the fields of a step that contain templates."""
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
            fields = ("until", "match")
        case _:
            fields = ("prompt_template",)
    for field in fields:
        value = getattr(step, field, None)
        if value is not None:
            yield field, value


def key_hint(key: str, known: Collection[str]) -> str:
    """Return how to fix a key of the state that is never set."""
    names = sorted(known)
    return (
        f"{near(key, names)}. Keys: {listing(names)}. Correct the name, set output_key of an earlier step to "
        f'"{key}", or declare "{key}" in state_schema and pass it in the input of the run.'
    )
