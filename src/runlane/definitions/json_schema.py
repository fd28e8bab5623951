"""JSON Schema of definition files, for completion and validation in editors.

The schema is generated from the classes that parse definitions. It also contains what the parser accepts beyond their
fields: aliases of fields, options as a string with commas, `$schema` itself, and a list of definitions in one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from pydantic import BaseModel

from runlane.definitions.parser import STEP_TYPES
from runlane.definitions.problem import KIND_WORDS
from runlane.definitions.schema.definition import KINDS, Kind
from runlane.definitions.schema.step import HumanField

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of a file with definitions of this kind."""
    model = KINDS[kind]
    whole: dict[str, Any] = model.model_json_schema(by_alias=False)
    parts: dict[str, Any] = whole.pop("$defs", {})
    parts[model.__name__] = whole
    whole["properties"]["$schema"] = {"type": "string", "description": "For editors."}
    for named in (model, *_within(parts)):
        _widen(parts[named.__name__], named)
    for part in cast("dict[str, dict[str, Any]]", parts).values():
        # Titles repeat the names of fields. An enum has no properties.
        for field in cast("dict[str, dict[str, Any]]", part.get("properties", {})).values():
            field.pop("title", None)
    one = {"$ref": f"#/$defs/{model.__name__}"}
    return {
        "$schema": DRAFT,
        "$id": f"urn:runlane:{kind}",
        "title": f"Runlane {KIND_WORDS[kind]}",
        "description": f"One {KIND_WORDS[kind]}, or a list of them.",
        "oneOf": [one, {"type": "array", "items": one}],
        "$defs": dict(sorted(parts.items())),
    }


def _within(parts: dict[str, Any]) -> Iterator[type[BaseModel]]:
    for kind in (HumanField, *STEP_TYPES.values()):
        if kind.__name__ in parts:
            yield kind


def _widen(part: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the alternatives that the parser accepts for this class."""
    properties: dict[str, Any] = part["properties"]
    required: list[str] = part.get("required", [])
    if model in STEP_TYPES.values():
        part["required"] = ["id", "type", *(name for name in required if name not in ("id", "type"))]
        properties["type"].pop("default", None)
    for name, field in model.model_fields.items():
        if field.alias is None:
            continue
        properties[field.alias] = {**properties[name], "description": f"An alias of {name}."}
        if name in required:
            required.remove(name)
            part["anyOf"] = [{"required": [name]}, {"required": [field.alias]}]
    if model is HumanField:
        options = properties["options"]
        choices = {"type": options.pop("type"), "items": options.pop("items")}
        options["anyOf"] = [choices, {"type": "string"}]
    if not part.get("required", True):
        part.pop("required")
