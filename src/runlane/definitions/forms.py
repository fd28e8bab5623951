"""Forms: whether a person's answer fits the fields that a human step asks for.

Programs send JSON, web forms and terminals send text; both become the same clean values. What does not fit is refused
with the field named, before the run goes on with it.
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

# The one key of an answer to a question without fields.
RESPONSE: Final = "response"
# In an answer about a call of a tool: the decision to edit it, and what it is to be called with.
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
    """The clean values by field, every field among them; InvalidInput names each that does not fit."""
    given = _spread(fields, answer)
    if not fields:
        return _free(given)
    names = [field.name for field in fields]
    wrong: dict[str, str] = {}
    for key in given:
        if key not in names:
            name = clean_text(str(key), 100)
            wrong[name] = f'"{name}" is not asked for{nearest(name, names)}. Fields: {", ".join(names)}.'
    values: dict[str, Any] = {}
    for field in fields:
        try:
            values[field.name] = _value(field, given.get(field.name))
        except InvalidRequest as error:
            wrong[field.name] = str(error)
    if wrong:
        raise InvalidInput(" ".join(wrong.values()), wrong)
    return values


def check_decision(values: Mapping[str, Any], shown: Any, schema: Mapping[str, Any]) -> None:
    """Whether a person's decision about a tool call can be meant. InvalidInput says why not."""
    if values.get(DECISION) == EDIT:
        edited_arguments(values, schema)
    elif values.get(ARGUMENTS) not in (None, "") and _object(values[ARGUMENTS]) != shown:
        raise _wrong_arguments(f'can be changed with the decision "{EDIT}" only.')


def edited_arguments(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a tool call as a person has edited them. InvalidInput says why they cannot be used."""
    given = values.get(ARGUMENTS)
    if given in (None, ""):
        raise _wrong_arguments("is required to edit the call. Give all of them as a JSON object.")
    arguments = _object(given)
    if arguments is None:
        raise _wrong_arguments("must be a JSON object.")
    problem = misfit(arguments, schema)
    if problem is not None:
        raise _wrong_arguments(f"does not fit the tool: {problem}.")
    return arguments


def _object(given: Any) -> dict[str, Any] | None:
    try:
        found = orjson.loads(given) if isinstance(given, str) else given
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _wrong_arguments(why: str) -> InvalidInput:
    told = f'"{ARGUMENTS}" {why}'
    return InvalidInput(told, {ARGUMENTS: told})


def _spread(fields: Sequence[HumanField], answer: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """A bare text answers a question that has one field, or none."""
    if not isinstance(answer, str):
        return answer
    if len(fields) > 1:
        raise InvalidInput(
            f"A text alone does not say which field it is for. Send an object with: "
            f"{', '.join(field.name for field in fields)}."
        )
    return {fields[0].name if fields else RESPONSE: answer}


def _free(given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        if key != RESPONSE:
            raise InvalidInput(
                f'"{clean_text(str(key), 100)}" is not asked for. The answer is a text, or {{"response": text}}.'
            )
        if not isinstance(value, str):
            raise InvalidInput(f'"{RESPONSE}" must be a text, not {_kind(value)}.')
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
    """Whether nothing was filled in; web forms send empty texts for that."""
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
        raise InvalidInput(f'"{field.name}" is too large a number.')
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
        # An option may have a comma in it, so the whole text is tried first.
        given = [given] if given.strip() in field.options else [part for part in given.split(",") if part.strip()]
    if not isinstance(given, (list, tuple)):
        raise _misfit(field, given)
    items = cast("Sequence[Any]", given)
    if len(items) > len(field.options):
        raise InvalidInput(f'"{field.name}" has {len(items)} choices; there are only {len(field.options)} options.')
    chosen = [_select(field, item) for item in items]
    if len(set(chosen)) < len(chosen):
        raise InvalidInput(f'"{field.name}" has a choice twice.')
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
    "text": "a text",
    "textarea": "a text",
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
