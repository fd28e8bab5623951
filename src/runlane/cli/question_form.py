"""Questions of runs in the terminal: asked field by field with types and choices, or printed with an answer command."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from runlane.cli.json_input import read_object
from runlane.cli.terminal import one_line, read_line, write_block
from runlane.definitions.forms import RESPONSE, validate
from runlane.definitions.schema.step import HumanField
from runlane.domain.ids import INSIDE
from runlane.domain.text import dump_json
from runlane.errors import InvalidInput, InvalidRequest

if TYPE_CHECKING:
    from runlane.domain.wait import Question

MAX_CONTEXT = 2000
# A question from inside a step asks for a decision first; these fields belong to one decision only.
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
    """Return a question as lines, with the command that answers it."""
    lines = [f"{question.path} asks: {question.prompt or question.name}"]
    fields = [HumanField.model_validate(field) for field in question.fields]
    if question.context not in (None, ""):
        lines.append(f"  context: {_context(question)}")
    lines += [f"  {field.name}: {_describe_field(field)}" for field in fields]
    command = ["runlane", "runs", "resume", question.run_id]
    # Example values of optional fields would be wrong answers if the command is copied.
    for field in [field for field in fields if field.required] or fields:
        command += ["--field", f"{field.name}={_example(field)}"]
    if not fields:
        command += ["--answer", "TEXT"]
    if several:
        command += ["--step", question.path]
    return [*lines, f"  answer: {shlex.join(command)}"]


def ask(
    question: Question, read: Callable[[str], str] = read_line, write: Callable[[str], None] = write_block
) -> dict[str, Any]:
    """Return the answer of a person. Each field is asked for until it is valid. Raise EOFError at the end of input."""
    write("")
    write(f"{question.name}: {question.prompt}" if question.prompt else question.name)
    if question.context not in (None, ""):
        write(f"context: {_context(question)}")
    fields = [HumanField.model_validate(field) for field in question.fields]
    if not fields:
        return {RESPONSE: read("answer: ")}
    answer: dict[str, Any] = {}
    for field in fields:
        if not _is_unused(question, field, answer):
            answer |= _ask_field(field, read, write)
    return answer


def _is_unused(question: Question, field: HumanField, answer: Mapping[str, Any]) -> bool:
    """Return whether the decision, in a question from inside a step, has no use for the field."""
    decision = answer.get("decision")
    return INSIDE in question.path and decision is not None and decision != _ONLY_WITH.get(field.name, decision)


def _context(question: Question) -> str:
    shown = question.context if isinstance(question.context, str) else dump_json(question.context)
    return shown if len(shown) <= MAX_CONTEXT else shown[: MAX_CONTEXT - 3] + "..."


def _ask_field(field: HumanField, read: Callable[[str], str], write: Callable[[str], None]) -> Mapping[str, Any]:
    for number, option in enumerate(field.options, 1):
        write(f"  {number}. {one_line(option)}")
    hint = _hint(field)
    prompt = f"{field.label or field.name}{f' ({hint})' if hint else ''}: "
    while True:
        given = _read_lines(prompt, read) if field.type == "textarea" else read(prompt)
        try:
            return validate([field], {field.name: _choice(field, given)} if given.strip() else {})
        except InvalidInput as error:
            write(f"  {one_line(str(error))}")


def _read_lines(prompt: str, read: Callable[[str], str]) -> str:
    lines = [read(prompt)]
    while lines[-1]:
        lines.append(read("... "))
    return "\n".join(lines[:-1])


def _choice(field: HumanField, given: str) -> str | list[str]:
    """Return the chosen options. An option may be given by its number in the list, unless that is an option itself."""
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


def _describe_field(field: HumanField) -> str:
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


def choose_question(waits: Sequence[Question], step: str | None) -> Question | None:
    """Return the open question to ask; None if there is not exactly one, which resume() then reports."""
    open_questions = [
        wait
        for wait in waits
        if wait.kind == "human" and wait.answered_at_us is None and step in (None, wait.path, wait.step_id)
    ]
    return open_questions[0] if len(open_questions) == 1 else None


def parse_fields(fields: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE; a repeated name makes a list."""
    found: dict[str, list[str]] = {}
    for text in fields:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidRequest(f"--field {text!r} has no name and value. Form: --field decision=approve")
        found.setdefault(name.strip(), []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def parse_answer(given: str) -> dict[str, Any] | str:
    """Parse an object with fields, or a string with or without quotes."""
    if given == "-" or given.startswith(("@", "{")):
        return read_object(given, "--answer", "the fields by name")
    try:
        value = orjson.loads(given)
    except orjson.JSONDecodeError:
        return given
    return value if isinstance(value, str) else given


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C end a prompt at once; the event loop would only handle it after the prompt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
