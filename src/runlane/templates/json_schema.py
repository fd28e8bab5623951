"""Validation of JSON Schemas, and of values against them, with readable messages.

Nothing is fetched: a reference must resolve within the schema. Sizes, depths and the cost of a validation are limited,
and a pattern that would take too long is aborted. The library is loaded with the first schema, because most processes
never use one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import orjson

from runlane.errors import nearest
from runlane.templates.json_schema_cost import MAX_APPLICATIONS, STEPS, applications, size_of, step_limit, too_costly

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 100
_CACHED: Final = 512
_REGEX_BYTES: Final = 1024 * 1024
_SHOWN: Final = 200
_SHOWN_OPTIONS: Final = 20


class _Invalid(Exception):
    """The schema is not valid."""


def check_schema(schema: Mapping[str, Any] | bool) -> str | None:
    """Return why this JSON Schema cannot be used; None if it can."""
    try:
        text = _schema_text(schema)
        _validator(text, STEPS)
    except _Invalid as error:
        return str(error)
    if applications(text, 0) > MAX_APPLICATIONS:
        return "its references multiply, so that a validation would take too long; refer to each part fewer times"
    return None


def misfit(value: Any, schema: Mapping[str, Any], name: str = "the arguments") -> str | None:
    """Return how a value violates the schema, beginning with the location; None if the value is valid."""
    from jsonschema_rs import ValidationError

    size = size_of(value, MAX_DEPTH)
    if size is None:
        return f"{name} are nested more than {MAX_DEPTH} levels deep"
    try:
        text = _schema_text(schema)
        if too_costly(text, size):
            return f"{name} cannot be validated in reasonable time. Simplify the schema, or send fewer values"
        _validator(text, step_limit(text, size)).validate(value)
    except _Invalid as error:
        return f"{name} cannot be validated, because the schema is not valid: {error}"
    except ValidationError as error:
        return _words(error, value, schema, name)
    except (ValueError, TypeError, OverflowError) as error:
        return f"{name} are not JSON: {str(error)[:_SHOWN]}"
    return None


def cut(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value without unknown keys.

    At any depth, they are removed from objects whose properties are listed.
    """
    return _cut(value, schema, schema, 0)


def _cut(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    found = _resolved(schema, root)
    if found is None or depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        known = found.get("properties")
        if not isinstance(known, Mapping) or found.get("additionalProperties") or found.get("patternProperties"):
            return table
        parts = cast("Mapping[str, Any]", known)
        return {key: _cut(item, parts[key], root, depth + 1) for key, item in table.items() if key in parts}
    if isinstance(value, list):
        items = found.get("items")
        return [_cut(item, items, root, depth + 1) for item in cast("list[Any]", value)]
    return value


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Resolve a reference within the root. Return None if the schema does not list the known keys."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return None
        table = cast("Mapping[str, Any]", schema)
        if any(word in table for word in ("allOf", "anyOf", "oneOf", "if")):
            return None
        target = table.get("$ref")
        if not isinstance(target, str):
            return table
        if not target.startswith("#"):
            return None
        schema = root
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            schema = cast("Mapping[str, Any]", schema).get(name) if isinstance(schema, Mapping) else None
    return None


def _schema_text(schema: Mapping[str, Any] | bool) -> bytes:
    if size_of(schema, MAX_DEPTH) is None:
        raise _Invalid(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        text = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise _Invalid(f"it is not JSON: {error}") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise _Invalid(f"it has {len(text)} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
    return text


def _validator(text: bytes, steps: int) -> Validator:
    found = _compiled(text, steps)
    if isinstance(found, str):
        raise _Invalid(found)
    return found


@lru_cache(_CACHED)
def _compiled(text: bytes, steps: int) -> Validator | str:
    import jsonschema_rs

    patterns = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=steps, size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES
    )
    try:
        return jsonschema_rs.validator_for(
            orjson.loads(text), validate_formats=True, retriever=_refuse, mask="it", pattern_options=patterns
        )
    except jsonschema_rs.ValidationError as error:
        return _schema_words(error)
    except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
        return str(error)[:_SHOWN]


def _refuse(_uri: str) -> NoReturn:
    raise ValueError("references are not fetched")


def _schema_words(error: ValidationError) -> str:
    where = _describe_path(error.instance_path)
    message = error.message
    if error.kind.name == "$ref":
        if "retriev" in message:
            return "a $ref points outside of it, and nothing is fetched; put its target under $defs"
        return f"a $ref cannot be resolved: {message[:_SHOWN]}"
    if error.instance_path[-1:] == ["type"]:
        return f"{where} is not a type; types are string, number, integer, boolean, object, array and null"
    if error.instance_path[-1:] == ["pattern"]:
        return f"{where} is not a supported pattern"
    return f"{where or 'it'}: {message[:_SHOWN]}" if where else message[:_SHOWN]


def _words(error: ValidationError, value: Any, schema: Mapping[str, Any], name: str) -> str:
    from jsonschema_rs import ValidationErrorKind as Kind

    location = _describe_path(error.instance_path) or name
    found = _at(value, error.instance_path)
    match error.kind:
        case Kind.Required(property=key):
            return f"{_quoted(key)} is missing in {location}"
        case Kind.Type(types=types):
            return f"{location} must be {' or '.join(_in_order(types))}, not {_kind(found)}"
        case Kind.Enum(options=options):
            shown = ", ".join(repr(item)[:_SHOWN] for item in options[:_SHOWN_OPTIONS])
            return f"{location} must be one of {shown}{', …' if len(options) > _SHOWN_OPTIONS else ''}"
        case Kind.Constant(expected_value=expected):
            return f"{location} must be {repr(expected)[:_SHOWN]}"
        case Kind.AdditionalProperties(unexpected=keys) | Kind.UnevaluatedProperties(unexpected=keys):
            known = _properties(schema, error.schema_path[:-1])
            unknown = ", ".join(f"{_quoted(key)}{nearest(key[:_SHOWN], known)}" for key in keys[:5])
            return f"{unknown} {'is' if len(keys) == 1 else 'are'} unknown in {location}"
        case Kind.FalseSchema():
            return f"{location} has a value that is not allowed"
        case Kind.AnyOf() | Kind.OneOfNotValid():
            return f"{location} does not match any of the allowed forms{_hint(error)}"
        case Kind.BacktrackLimitExceeded() | Kind.RegexEngineFailure():
            return f"{location} cannot be matched against its pattern in reasonable time"
        case _:
            return f"{location}: {error.message[:_SHOWN]}"


def _hint(error: ValidationError) -> str:
    """Return the problem of the alternative that matches best, which is the one whose error is deepest."""
    context = cast("list[list[ValidationError]]", getattr(error.kind, "context", []))
    inner = [item for form in context for item in form[:1]]
    best = max(inner, key=lambda item: len(item.instance_path), default=None)
    if best is None or len(best.instance_path) <= len(error.instance_path):
        return ""
    return f"; {_describe_path(best.instance_path)}: {best.message[:_SHOWN]}"


def _properties(schema: Any, path: Sequence[str | int]) -> list[str]:
    """Return the properties that a part of the schema lists, without following references."""
    for part in path:
        schema = cast("Mapping[str | int, Any]", schema).get(part) if isinstance(schema, Mapping) else None
    known = cast("Mapping[str, Any]", schema).get("properties") if isinstance(schema, Mapping) else None
    return list(cast("Mapping[str, Any]", known)) if isinstance(known, Mapping) else []


def _in_order(types: Sequence[str]) -> list[str]:
    """Return the types with null last."""
    return sorted(types, key=lambda kind: kind == "null")


def _describe_path(path: Sequence[str | int]) -> str:
    """Return a location such as: item 1 of "tags" in "inner"; empty for the value itself."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text = f"item {part}{f' of {text}' if text else ''}"
        else:
            text = f"{_quoted(part)}{f' in {text}' if text else ''}"
    return text


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        value = value[part]
    return value


def _quoted(key: str) -> str:
    return f'"{key[:_SHOWN]}"'


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list() | tuple():
            return "array"
        case Mapping():
            return "object"
        case _:
            return type(value).__name__
