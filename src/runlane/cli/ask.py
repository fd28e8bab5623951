"""Questions of runs in the terminal: asked field by field with their types and choices, or told with how to answer."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from runlane.cli.terminal import one_line, read_line, say_block
from runlane.definitions.forms import RESPONSE, validate
from runlane.definitions.schema.step import HumanField
from runlane.domain.ids import INSIDE
from runlane.domain.text import dump_json
from runlane.errors import InvalidInput

if TYPE_CHECKING:
    from runlane.client import Question

MAX_CONTEXT = 2000
# What is asked inside a step has a decision first, and fields that belong to one choice.
_ONLY_WITH = {"arguments": "edit", "reason": "deny", "result": "done", "amount_usd": "allow"}
_HINTS = {
    "textarea": "end with an empty line",
    "number": "a number",
    "boolean": "yes or no",
    "date": "a date as 2026-01-31",
    "email": "an email address",
    "multiselect": "several with commas",
}


def describe_question(question: Question, several: bool = False) -> list[str]:
    """What is asked, and the command that answers it."""
    lines = [f"{question.path} asks: {question.prompt or question.name}"]
    fields = [HumanField.model_validate(field) for field in question.fields]
    if question.context not in (None, ""):
        lines.append(f"  {_context(question)}")
    lines += [f"  {field.name}: {_about(field)}" for field in fields]
    command = ["runlane", "runs", "resume", question.run_id]
    # What may be left out would only be a wrong answer to whoever copies this.
    for field in [field for field in fields if field.required] or fields:
        command += ["--field", f"{field.name}={_example(field)}"]
    if not fields:
        command += ["--answer", "TEXT"]
    if several:
        command += ["--step", question.path]
    return [*lines, f"  answer: {shlex.join(command)}"]


def ask(
    question: Question, read: Callable[[str], str] = read_line, write: Callable[[str], None] = say_block
) -> dict[str, Any]:
    """A person's answer: each field is asked for until it fits. EOFError when there is nobody."""
    write("")
    write(f"{question.name}: {question.prompt}" if question.prompt else question.name)
    if question.context not in (None, ""):
        write(_context(question))
    fields = [HumanField.model_validate(field) for field in question.fields]
    if not fields:
        return {RESPONSE: read("answer: ")}
    answer: dict[str, Any] = {}
    for field in fields:
        if not _is_idle(question, field, answer):
            answer |= _one(field, read, write)
    return answer


def _is_idle(question: Question, field: HumanField, answer: Mapping[str, Any]) -> bool:
    """Whether nobody would read the field: something inside a step asks, and the decision has no use for it."""
    decision = answer.get("decision")
    return INSIDE in question.path and decision is not None and decision != _ONLY_WITH.get(field.name, decision)


def _context(question: Question) -> str:
    shown = question.context if isinstance(question.context, str) else dump_json(question.context)
    return shown if len(shown) <= MAX_CONTEXT else shown[: MAX_CONTEXT - 3] + "..."


def _one(field: HumanField, read: Callable[[str], str], write: Callable[[str], None]) -> Mapping[str, Any]:
    for number, option in enumerate(field.options, 1):
        write(f"  {number}. {one_line(option)}")
    hint = _hint(field)
    prompt = f"{field.label or field.name}{f' ({hint})' if hint else ''}: "
    while True:
        given = _lines(prompt, read) if field.type == "textarea" else read(prompt)
        try:
            return validate([field], {field.name: _chosen(field, given)} if given.strip() else {})
        except InvalidInput as error:
            write(f"  {one_line(str(error))}")


def _lines(prompt: str, read: Callable[[str], str]) -> str:
    lines = [read(prompt)]
    while lines[-1]:
        lines.append(read("... "))
    return "\n".join(lines[:-1])


def _chosen(field: HumanField, given: str) -> str | list[str]:
    """An option may be named by its number in the list, unless that is an option itself."""
    if not field.options or given.strip() in field.options:
        return given
    parts = [part.strip() for part in given.split(",")] if field.type == "multiselect" else [given.strip()]
    named = [
        field.options[int(part) - 1]
        if part not in field.options and part.isdecimal() and 0 < int(part) <= len(field.options)
        else part
        for part in parts
    ]
    return named if field.type == "multiselect" else named[0]


def _hint(field: HumanField) -> str:
    words = [_HINTS[field.type]] if field.type in _HINTS else []
    if field.default is not None:
        words.append(f"default {field.default if isinstance(field.default, str) else dump_json(field.default)}")
    elif not field.required:
        words.append("may be left empty")
    return ", ".join(words)


def _about(field: HumanField) -> str:
    words: Sequence[str] = [
        field.type,
        *([f"one of {', '.join(field.options)}"] if field.options else []),
        *(["required"] if field.required and field.default is None else []),
        *([field.label] if field.label else []),
    ]
    return ", ".join(words)


def _example(field: HumanField) -> str:
    if field.options:
        return field.options[0]
    return {"number": "1", "boolean": "yes", "date": "2026-01-31", "email": "name@example.com"}.get(field.type, "TEXT")


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C end a prompt at once: an event loop would only be told of it when the prompt is over."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
