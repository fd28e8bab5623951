"""Forms: validation of a person's answer against the fields of a human step.

Programs send JSON; web forms and terminals send strings. Both become the same values. An invalid answer is refused with
the name of the field before the run continues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final, cast

import orjson

from runlane.definitions.schema.step import FieldType, HumanField
from runlane.domain.text import check_text, clean_text
from runlane.errors import InvalidInput, InvalidRequest, nearest
from runlane.templates.json_schema import misfit

MAX_TEXT: Final = 10_000
MAX_TEXTAREA: Final = 100_000
MAX_EMAIL: Final = 254
# The unknown keys of an answer that its error lists.
_MAX_UNKNOWN: Final = 20

# The only key of an answer to a question without fields.
RESPONSE: Final = "response"
# The fields of a decision about a tool call: the choice to edit the call, and its new arguments.
DECISION: Final = "decision"
EDIT: Final = "edit"
ARGUMENTS: Final = "arguments"

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_EMAIL: Final = re.compile(
    r"[A-Za-z0-9_%+'\-]+(\.[A-Za-z0-9_%+'\-]+)*@([A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,63}"
)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_TEXTS: Final = ("text", "textarea")
_LARGEST: Final = 2**63 - 1


def validate(fields: Sequence[HumanField], answer: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the values of all fields. Raise InvalidInput with the problem of each invalid field."""
    given = _spread(fields, answer)
    if not fields:
        return _free(given)
    names = [field.name for field in fields]
    invalid: dict[str, str] = {}
    for key in given:
        if len(invalid) >= _MAX_UNKNOWN:
            break
        if key not in names:
            name = clean_text(str(key), 100)
            invalid[name] = f'"{name}" is not a field of this form{nearest(name, names)}. Fields: {", ".join(names)}.'
    values: dict[str, Any] = {}
    for field in fields:
        try:
            values[field.name] = _value(field, given.get(field.name))
        except InvalidRequest as error:
            invalid[field.name] = str(error)
    if invalid:
        raise InvalidInput(" ".join(invalid.values()), invalid)
    return values


def check_decision(values: Mapping[str, Any], shown: Any, schema: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a person's decision about a tool call is not valid."""
    if values.get(DECISION) == EDIT:
        edited_arguments(values, schema)
    elif values.get(ARGUMENTS) not in (None, "") and _object(values[ARGUMENTS]) != shown:
        raise _wrong_arguments(f'can be changed only with the decision "{EDIT}".')


def edited_arguments(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool call as edited by a person. Raise InvalidInput if they are not valid."""
    given = values.get(ARGUMENTS)
    if given in (None, ""):
        raise _wrong_arguments("is required to edit the call. Give all arguments as a JSON object.")
    arguments = _object(given)
    if arguments is None:
        raise _wrong_arguments("must be a JSON object.")
    problem = misfit(arguments, schema)
    if problem is not None:
        raise _wrong_arguments(f"does not match the tool: {problem}.")
    return arguments


def _object(given: Any) -> dict[str, Any] | None:
    try:
        found = orjson.loads(given) if isinstance(given, str) else given
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _wrong_arguments(problem: str) -> InvalidInput:
    message = f'"{ARGUMENTS}" {problem}'
    return InvalidInput(message, {ARGUMENTS: message})


def _spread(fields: Sequence[HumanField], answer: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return an answer as an object. A string is the answer to a question with at most one field."""
    if not isinstance(answer, str):
        return answer
    if len(fields) > 1:
        raise InvalidInput(
            f"A string does not name its field. Send an object with: {', '.join(field.name for field in fields)}."
        )
    return {fields[0].name if fields else RESPONSE: answer}


def _free(given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        if key != RESPONSE:
            raise InvalidInput(
                f'"{clean_text(str(key), 100)}" is not expected. Send a string, or {{"response": string}}.'
            )
        if not isinstance(value, str):
            raise InvalidInput(f'"{RESPONSE}" must be a string, not {_kind(value)}.')
        return {RESPONSE: check_text(value, f'"{RESPONSE}"', MAX_TEXTAREA) if value else ""}
    return {}


def _value(field: HumanField, given: Any) -> Any:
    if _is_empty(field, given):
        if field.required and field.default is None:
            raise InvalidInput(f'"{field.name}" is required{_describe_field(field)}. Give {_WANTED[field.type]}.')
        if field.default is None:
            return "" if given == "" and field.type in _TEXTS else None
        return _READERS[field.type](field, field.default)
    return _READERS[field.type](field, given)


def _is_empty(field: HumanField, given: Any) -> bool:
    """Return whether the field was left empty, for which web forms send an empty string."""
    if isinstance(given, str):
        return not given.strip() if field.required or field.type not in _TEXTS else not given
    return given is None or (given == [] and field.type == "multiselect" and field.required)


def _text(field: HumanField, given: Any) -> str:
    if not isinstance(given, str):
        raise _misfit(field, given)
    return check_text(given, f'"{field.name}"', MAX_TEXT if field.type == "text" else MAX_TEXTAREA)


def _number(field: HumanField, given: Any) -> int | float:
    number = given
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        text = given.strip()
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise _misfit(field, given)
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise InvalidInput(f'"{field.name}" is too large. Give a smaller number.')
    return number


def _boolean(field: HumanField, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    word = given.strip().lower() if isinstance(given, str) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _misfit(field, given)


def _date(field: HumanField, given: Any) -> str:
    if not isinstance(given, str) or not _DATE.fullmatch(given.strip()):
        raise _misfit(field, given)
    try:
        return date.fromisoformat(given.strip()).isoformat()
    except ValueError:
        raise _misfit(field, given) from None


def _email(field: HumanField, given: Any) -> str:
    if not isinstance(given, str) or len(given) > MAX_EMAIL or not _EMAIL.fullmatch(given.strip()):
        raise _misfit(field, given)
    return given.strip()


def _select(field: HumanField, given: Any) -> str:
    if isinstance(given, str):
        if given in field.options:
            return given
        if given.strip() in field.options:
            return given.strip()
    raise InvalidInput(f'"{field.name}" must be one of {_choices(field)}, not {_shown(given)}.')


def _multiselect(field: HumanField, given: Any) -> list[str]:
    if isinstance(given, str):
        # An option may contain a comma, so the whole string is compared with the options first.
        given = [given] if given.strip() in field.options else [part for part in given.split(",") if part.strip()]
    if not isinstance(given, (list, tuple)):
        raise _misfit(field, given)
    items = cast("Sequence[Any]", given)
    if len(items) > len(field.options):
        raise InvalidInput(f'"{field.name}" has {len(items)} choices, but only {len(field.options)} options exist.')
    chosen = [_select(field, item) for item in items]
    if len(set(chosen)) < len(chosen):
        raise InvalidInput(f'"{field.name}" has a choice twice. Give each choice once.')
    return chosen


_READERS: Final[Mapping[FieldType, Callable[[HumanField, Any], Any]]] = {
    "text": _text,
    "textarea": _text,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "email": _email,
    "select": _select,
    "multiselect": _multiselect,
}
_WANTED: Final[Mapping[FieldType, str]] = {
    "text": "a string",
    "textarea": "a string",
    "number": "a number",
    "boolean": "true or false",
    "date": "a date as 2026-01-31",
    "email": "an email address",
    "select": "one of the options",
    "multiselect": "a list of options",
}


def _misfit(field: HumanField, given: Any) -> InvalidInput:
    return InvalidInput(f'"{field.name}" must be {_WANTED[field.type]}, not {_shown(given)}.')


def _describe_field(field: HumanField) -> str:
    return f" ({field.label})" if field.label else ""


def _choices(field: HumanField) -> str:
    return ", ".join(f'"{option}"' for option in field.options[:20]) + (", …" if len(field.options) > 20 else "")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{clean_text(value, 100)}"'
    return _kind(value)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return f"a {type(cast('object', value)).__name__}"
