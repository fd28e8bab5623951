"""Parsing: from JSON to definitions, with errors that name the field, what is wrong with it and the nearest right word.

Editors of other tools write every field of every step type, most of them empty; such fields are left out with a
warning. A field that nobody knows, or that says something where it has no meaning, is an error: ignoring it would
run something else than was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from runlane.definitions.files import DefinitionSource
from runlane.definitions.problem import Location, Problems, near
from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN
from runlane.definitions.schema.definition import KINDS, Definition, StateField
from runlane.definitions.schema.step import EndStep, HumanField, Step, StepRetry
from runlane.definitions.versions import MAX_BYTES, canonical

STEP_TYPES: Final[dict[str, type[BaseModel]]] = {
    kind.model_fields["type"].default: kind for kind in get_args(get_args(Step)[0])
}
_OTHERS: Final = {name for kind in STEP_TYPES.values() for name in kind.model_fields}
# What the editor of the original product writes into every step and we have no use for, with its defaults.
EDITOR_FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "cache_responses_enabled": (False,),
    "cache_semantic_enabled": (False,),
    "cache_response_ttl_seconds": (3600,),
    "cache_response_threshold": (0.95,),
    "cache_tools_enabled": (True,),
    "cache_tool_ttl_seconds": (3600,),
    "human_timeout_seconds": (3600,),
    "loop_count": (1, 3),
    "max_turns": (15,),
    "merge_strategy": ("list",),
}
# A value of these may be empty text on purpose.
_MAY_BE_EMPTY: Final = {"default"}
_SHOWN_CHARACTERS: Final = 100
_OWN_NAMES: Final = {
    field.alias: name
    for kind in (HumanField, *KINDS.values())
    for name, field in kind.model_fields.items()
    if field.alias is not None
}
_ROUTES: Final = {"route_map", "switch_cases"}


class DefinitionParser:
    """Parses definitions and notes what is wrong. A lenient one leaves out what it does not know, with a warning."""

    def __init__(self, problems: Problems, *, lenient: bool = False) -> None:
        self._problems = problems
        self._lenient = lenient

    def parse(self, item: DefinitionSource) -> Definition | None:
        """The definition, or None if it has errors."""
        before = len(self._problems.errors)
        place = item.place
        body = self._clean(item.body, KINDS[item.kind], place)
        if item.kind == "orchestration":
            body = self._orchestration(body, place)
        parsed = self._validate(KINDS[item.kind], body, place)
        if parsed is None or len(self._problems.errors) > before:
            return None
        found = cast("Definition", parsed)
        size = len(canonical(found))
        if size > MAX_BYTES:
            self._problems.error(place, f"It has {size} bytes; a definition may have at most {MAX_BYTES}.")
            return None
        return found

    def _orchestration(self, body: dict[str, Any], place: Location) -> dict[str, Any]:
        if isinstance(body.get("state_schema"), dict):
            body["state_schema"] = {
                key: self._inner(value, StateField, place, f"state_schema.{key}")
                for key, value in cast("dict[str, Any]", body["state_schema"]).items()
            }
        if isinstance(body.get("steps"), list):
            steps = [self._step(raw, number, place) for number, raw in enumerate(cast("list[Any]", body["steps"]), 1)]
            # A step that cannot be parsed has been told of; another one in its place lets the rest be looked at.
            body["steps"] = [step or _instead(number) for number, step in enumerate(steps)]
        return body

    def _step(self, raw: Any, number: int, place: Location) -> BaseModel | None:
        if not isinstance(raw, dict):
            self._problems.error(place.at(field=f"steps[{number - 1}]"), "A step is an object in braces.")
            return None
        body = dict(cast("dict[str, Any]", raw))
        name = body.get("id")
        place = place.at(step=name if isinstance(name, str) and name else f"number {number}")
        kind = body.get("type")
        if not isinstance(kind, str) or kind not in STEP_TYPES:
            wrong = (
                "The type is missing."
                if kind is None
                else f"There is no step type {_shown(kind)}{near(kind, STEP_TYPES)}."
            )
            self._problems.error(place.at(field="type"), f"{wrong} Types: {', '.join(STEP_TYPES)}.")
            return None
        body = self._clean(body, STEP_TYPES[kind], place)
        for routes in _ROUTES & body.keys():
            if isinstance(body[routes], dict):
                table = cast("dict[str, Any]", body[routes])
                body[routes] = {label: None if target == "" else target for label, target in table.items()}
        if isinstance(body.get("human_fields"), list):
            body["human_fields"] = [
                self._inner(value, HumanField, place, f"human_fields[{position}]")
                for position, value in enumerate(cast("list[Any]", body["human_fields"]))
            ]
        if "retry" in body:
            body["retry"] = self._inner(body["retry"], StepRetry, place, "retry")
        return self._validate(STEP_TYPES[kind], body, place)

    def _inner(self, value: Any, kind: type[BaseModel], place: Location, field: str) -> Any:
        if not isinstance(value, dict):
            return value
        return self._clean(cast("dict[str, Any]", value), kind, place, f"{field}.")

    def _clean(
        self, raw: Mapping[str, Any], kind: type[BaseModel], place: Location, within: str = ""
    ) -> dict[str, Any]:
        """The fields that the class knows, by their own names; null and empty text where they mean not given."""
        aliases = {field.alias: name for name, field in kind.model_fields.items() if field.alias}
        cleaned: dict[str, Any] = {}
        dropped: list[str] = []
        for key, value in raw.items():
            written = key[:_SHOWN_CHARACTERS]
            name = aliases.get(written, written)
            field = kind.model_fields.get(name)
            if field is None:
                if self._may_drop(written, value, kind):
                    dropped.append(written)
                else:
                    self._unknown(written, kind, place, within)
                continue
            if name in cleaned and cleaned[name] != value:
                self._problems.error(
                    place.at(field=f"{within}{name}"),
                    f'"{field.alias}" is the same field with another value. Keep one.',
                )
            empty = value is None or (value == "" and field.default is None and name not in _MAY_BE_EMPTY)
            if not empty or (field.is_required() and value is None):
                cleaned[name] = value
        if dropped:
            self._problems.warn(
                place, f"Left out, because they mean nothing here: {', '.join(f'{within}{name}' for name in dropped)}."
            )
        return cleaned

    def _may_drop(self, name: str, value: Any, kind: type[BaseModel]) -> bool:
        if self._lenient:
            return True
        if "type" not in kind.model_fields or kind not in STEP_TYPES.values():
            return False
        if name not in _OTHERS and name not in EDITOR_FIELDS:
            return False
        if value is None or value in ("", False, [], {}) or value in EDITOR_FIELDS.get(name, ()):
            return True
        return any(
            name in other.model_fields and value == other.model_fields[name].get_default(call_default_factory=True)
            for other in STEP_TYPES.values()
        )

    def _unknown(self, name: str, kind: type[BaseModel], place: Location, within: str) -> None:
        owners = [word for word, other in STEP_TYPES.items() if name in other.model_fields]
        place = place.at(field=f"{within}{name}")
        if kind in STEP_TYPES.values() and owners:
            own = kind.model_fields["type"].default
            self._problems.error(
                place, f"A step of type {own} has no such field; it belongs to {', '.join(owners)}. Remove it."
            )
            return
        if name in EDITOR_FIELDS:
            self._problems.error(place, "This field of another tool has no meaning here. Remove it.")
            return
        known = [field for field in kind.model_fields if field not in {"position_x", "position_y"}]
        self._problems.error(place, f"There is no such field{near(name, known)}. Fields: {', '.join(known)}.")

    def _validate(self, kind: type[BaseModel], body: dict[str, Any], place: Location) -> BaseModel | None:
        try:
            return kind.model_validate(body)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._problems.error(place.at(field=_field(detail)), _message(detail, kind))
        return None


def _instead(number: int) -> BaseModel:
    return EndStep.model_validate({"id": f"wrong-{number}"})


def _field(detail: ErrorDetails) -> str | None:
    told = ""
    *outer, last = detail["loc"] or ("",)
    if detail["type"] == "missing":
        last = _OWN_NAMES.get(str(last), last)
    for part in (*outer, last):
        told += f"[{part}]" if isinstance(part, int) else f".{part}"
    return told.removeprefix(".") or None


def _message(detail: ErrorDetails, kind: type[BaseModel]) -> str:
    given = detail["input"]
    match detail["type"]:
        case "missing":
            field = kind.model_fields.get(str(detail["loc"][-1])) if len(detail["loc"]) == 1 else None
            about = f" It says: {field.description}" if field is not None and field.description else ""
            return f"This field is missing.{about}"
        case "string_pattern_mismatch":
            pattern = detail.get("ctx", {}).get("pattern")
            if pattern == ID_PATTERN:
                return (
                    f"{_shown(given)} is no id: it must have 1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-', "
                    "and begin with a letter or digit."
                )
            if pattern == KEY_PATTERN:
                return (
                    f"{_shown(given)} is no key: it must have 1 to 128 of A-Z, a-z, 0-9 and '_', "
                    "and begin with a letter or '_'."
                )
            return f"{_shown(given)} does not fit {pattern}."
        case "literal_error":
            expected = str(detail.get("ctx", {}).get("expected", ""))
            words = expected.replace("'", "").replace(" or ", ", ").split(", ")
            return f"{_shown(given)} is none of {', '.join(words)}{near(given, words)}."
        case "value_error":
            told = detail["msg"].removeprefix("Value error, ")
            return f"{told if '_' in told.split()[0] else told[:1].upper() + told[1:]}."
        case "extra_forbidden":
            return "There is no such field."
        case _:
            return f"{detail['msg']}; it is {_shown(given)}."


def _shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}..."
