"""Arguments of tools: whether they fit the tool's schema, so that a model is told before anything is called.

Of JSON Schema this looks at type, required, properties, additionalProperties, items and enum. The rest is for the
tool itself to check; nothing is fetched and no pattern is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from runlane.errors import nearest

_MAX_DEPTH: Final = 50
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def misfit(arguments: Any, schema: Mapping[str, Any], name: str = "the arguments", depth: int = 0) -> str | None:
    """What does not fit, in words; None if everything does."""
    if depth > _MAX_DEPTH:
        return f"{name} are nested more than {_MAX_DEPTH} levels deep"
    expected = schema.get("type")
    names = [expected] if isinstance(expected, str) else cast("list[str]", expected or [])
    if names and not any(_is(arguments, kind) for kind in names):
        return f"{name} must be {' or '.join(names)}, not {_kind(arguments)}"
    options = schema.get("enum")
    if isinstance(options, list) and arguments not in options:
        return f"{name} must be one of {', '.join(map(repr, cast('list[Any]', options)))}"
    if isinstance(arguments, Mapping):
        return _object_misfit(cast("Mapping[str, Any]", arguments), schema, name, depth)
    items = schema.get("items")
    if isinstance(arguments, (list, tuple)) and isinstance(items, Mapping):
        for index, item in enumerate(cast("list[Any]", arguments)):
            problem = misfit(item, cast("Mapping[str, Any]", items), f"item {index} of {name}", depth + 1)
            if problem is not None:
                return problem
    return None


def _object_misfit(value: Mapping[str, Any], schema: Mapping[str, Any], name: str, depth: int) -> str | None:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    for key in cast("list[str]", schema.get("required") or []):
        if key not in value:
            return f'"{key}" is missing in {name}'
    if schema.get("additionalProperties") is False:
        for key in value:
            if key not in properties:
                return f'"{key}" is not known in {name}{nearest(str(key), properties)}'
    for key, part in properties.items():
        if key in value and isinstance(part, Mapping):
            problem = misfit(value[key], cast("Mapping[str, Any]", part), f'"{key}"', depth + 1)
            if problem is not None:
                return problem
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("number", "integer"):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return kind not in _TYPES or isinstance(value, _TYPES[kind])


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((kind for kind, types in _TYPES.items() if isinstance(value, types)), type(value).__name__)
