"""Parse definitions from JSON, with errors that name the field, the problem and the nearest valid word.

Editors of other tools write every field of every step type, and most of these fields are empty. Such fields are dropped
with a warning. An unknown field, or a value in a field without meaning for its step type, is an error: if it were
ignored, the execution would differ from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from runlane.definitions.files import DefinitionSource
from runlane.definitions.problem import MAX_PROBLEMS, Location, Problems, near
from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN
from runlane.definitions.schema.definition import KINDS, Definition, StateField
from runlane.definitions.schema.step import EndStep, HumanField, Step, StepRetry
from runlane.definitions.versions import MAX_BYTES, canonical
from runlane.domain.validation import MAX_COUNTED, listed_errors, too_many

STEP_TYPES: Final[dict[str, type[BaseModel]]] = {
    kind.model_fields["type"].default: kind for kind in get_args(get_args(Step)[0])
}
_OTHERS: Final = {name for kind in STEP_TYPES.values() for name in kind.model_fields}
# Unused fields that the original product's editor writes into every step, with their defaults.
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
# An empty string may be an intended value of these fields.
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
    """Parses definitions and collects problems. A lenient parser drops unknown fields with a warning."""

    def __init__(self, problems: Problems, *, lenient: bool = False) -> None:
        self._problems = problems
        self._lenient = lenient

    def parse(self, item: DefinitionSource) -> Definition | None:
        """Return the definition; None if it has errors."""
        before = len(self._problems.errors)
        location = item.location
        body = self._clean(item.body, KINDS[item.kind], location)
        if item.kind == "orchestration":
            body = self._orchestration(body, location)
        parsed = self._validate(KINDS[item.kind], body, location)
        if parsed is None or len(self._problems.errors) > before:
            return None
        found = cast("Definition", parsed)
        size = len(canonical(found))
        if size > MAX_BYTES:
            self._problems.error(location, f"It has {size} bytes; at most {MAX_BYTES} are allowed. Split it.")
            return None
        return found

    def _orchestration(self, body: dict[str, Any], location: Location) -> dict[str, Any]:
        if isinstance(body.get("state_schema"), dict):
            body["state_schema"] = {
                key: self._inner(value, StateField, location, f"state_schema.{key}")
                for key, value in cast("dict[str, Any]", body["state_schema"]).items()
            }
        if isinstance(body.get("steps"), list):
            steps = [
                self._step(raw, number, location) for number, raw in enumerate(cast("list[Any]", body["steps"]), 1)
            ]
            # The errors of a step were already reported. With a substitute step, the rest of the orchestration can be
            # checked.
            body["steps"] = [step or _instead(number) for number, step in enumerate(steps)]
        return body

    def _step(self, raw: Any, number: int, location: Location) -> BaseModel | None:
        if not isinstance(raw, dict):
            self._problems.error(location.at(field=f"steps[{number - 1}]"), "A step must be an object.")
            return None
        body = dict(cast("dict[str, Any]", raw))
        name = body.get("id")
        location = location.at(step=name if isinstance(name, str) and name else f"number {number}")
        kind = body.get("type")
        if not isinstance(kind, str) or kind not in STEP_TYPES:
            problem = (
                "The type is missing."
                if kind is None
                else f"{_shown(kind)} is not a step type{near(kind, STEP_TYPES)}."
            )
            self._problems.error(location.at(field="type"), f"{problem} Types: {', '.join(STEP_TYPES)}.")
            return None
        body = self._clean(body, STEP_TYPES[kind], location)
        for routes in _ROUTES & body.keys():
            if isinstance(body[routes], dict):
                table = cast("dict[str, Any]", body[routes])
                body[routes] = {label: None if target == "" else target for label, target in table.items()}
        if isinstance(body.get("human_fields"), list):
            body["human_fields"] = [
                self._inner(value, HumanField, location, f"human_fields[{position}]")
                for position, value in enumerate(cast("list[Any]", body["human_fields"]))
            ]
        if "retry" in body:
            body["retry"] = self._inner(body["retry"], StepRetry, location, "retry")
        return self._validate(STEP_TYPES[kind], body, location)

    def _inner(self, value: Any, kind: type[BaseModel], location: Location, field: str) -> Any:
        if not isinstance(value, dict):
            return value
        return self._clean(cast("dict[str, Any]", value), kind, location, f"{field}.")

    def _clean(
        self, raw: Mapping[str, Any], kind: type[BaseModel], location: Location, within: str = ""
    ) -> dict[str, Any]:
        """Return the known fields under their own names. Null, and empty strings that mean "not given", are omitted."""
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
                    self._unknown(written, kind, location, within)
                continue
            if name in cleaned and cleaned[name] != value:
                self._problems.error(
                    location.at(field=f"{within}{name}"),
                    f'"{field.alias}" is the same field with another value. Keep one of them.',
                )
            empty = value is None or (value == "" and field.default is None and name not in _MAY_BE_EMPTY)
            if not empty or (field.is_required() and value is None):
                cleaned[name] = value
        if dropped:
            self._problems.warn(
                location,
                f"Ignored, because they are not used: {', '.join(f'{within}{name}' for name in dropped)}.",
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

    def _unknown(self, name: str, kind: type[BaseModel], location: Location, within: str) -> None:
        owners = [word for word, other in STEP_TYPES.items() if name in other.model_fields]
        location = location.at(field=f"{within}{name}")
        if kind in STEP_TYPES.values() and owners:
            own = kind.model_fields["type"].default
            self._problems.error(
                location,
                f"A step of type {own} does not have this field; it belongs to {', '.join(owners)}. Remove it.",
            )
            return
        if name in EDITOR_FIELDS:
            self._problems.error(location, "This field of another tool is not supported. Remove it.")
            return
        known = [field for field in kind.model_fields if field not in {"position_x", "position_y"}]
        self._problems.error(location, f"Unknown field{near(name, known)}. Fields: {', '.join(known)}.")

    def _validate(self, kind: type[BaseModel], body: dict[str, Any], location: Location) -> BaseModel | None:
        try:
            return kind.model_validate(body)
        except ValidationError as error:
            for detail in listed_errors(error, MAX_PROBLEMS):
                self._problems.error(location.at(field=_field(detail)), _message(detail, kind))
            if error.error_count() > MAX_COUNTED:
                self._problems.error(location, too_many(error))
        return None


def _instead(number: int) -> BaseModel:
    return EndStep.model_validate({"id": f"wrong-{number}"})


def _field(detail: ErrorDetails) -> str | None:
    text = ""
    *outer, last = detail["loc"] or ("",)
    if detail["type"] == "missing":
        last = _OWN_NAMES.get(str(last), last)
    for part in (*outer, last):
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or None


def _message(detail: ErrorDetails, kind: type[BaseModel]) -> str:
    given = detail["input"]
    match detail["type"]:
        case "missing":
            field = kind.model_fields.get(str(detail["loc"][-1])) if len(detail["loc"]) == 1 else None
            about = f" Its meaning: {field.description}" if field is not None and field.description else ""
            return f"This field is missing.{about}"
        case "string_pattern_mismatch":
            pattern = detail.get("ctx", {}).get("pattern")
            if pattern == ID_PATTERN:
                return (
                    f"{_shown(given)} is not a valid id: it must have 1 to 128 of A-Z, a-z, 0-9, '_', '.' and '-', "
                    "and begin with a letter or digit."
                )
            if pattern == KEY_PATTERN:
                return (
                    f"{_shown(given)} is not a valid key: it must have 1 to 128 of A-Z, a-z, 0-9 and '_', "
                    "and begin with a letter or '_'."
                )
            return f"{_shown(given)} does not match {pattern}."
        case "literal_error":
            expected = str(detail.get("ctx", {}).get("expected", ""))
            words = expected.replace("'", "").replace(" or ", ", ").split(", ")
            return f"{_shown(given)} is not one of {', '.join(words)}{near(given, words)}."
        case "value_error":
            text = detail["msg"].removeprefix("Value error, ")
            return f"{text if '_' in text.split()[0] else text[:1].upper() + text[1:]}."
        case "extra_forbidden":
            return "Unknown field."
        case _:
            return f"{detail['msg']}; it is {_shown(given)}."


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
