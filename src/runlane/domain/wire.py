"""Values as JSON: one definition that serializes, parses and documents.

A value that clients see is a frozen dataclass whose annotations name the JSON key of each field and describe it.
pydantic derives the serializer of the API, the parser of the client and the schema of the API reference from them.
The dataclasses live in `domain`, because the client may import nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter, WithJsonSchema

from runlane.domain.timestamps import format_timestamp, parse_timestamp

T = TypeVar("T")

# Every key is in every answer, even if its value is the default.
WIRE: Final = ConfigDict(json_schema_serialization_defaults_required=True)


def _seconds_to_us(seconds: Any) -> Any:
    return round(seconds * 1_000_000) if isinstance(seconds, int | float) else seconds


Timestamp = Annotated[
    int,
    BeforeValidator(parse_timestamp),
    PlainSerializer(format_timestamp),
    WithJsonSchema({"type": "string", "description": "RFC 3339, UTC.", "examples": ["2026-01-31T12:00:00.000000Z"]}),
]
# Microseconds that are seconds in JSON.
Duration = Annotated[
    int,
    BeforeValidator(_seconds_to_us),
    PlainSerializer(lambda taken_us: taken_us / 1_000_000),
    WithJsonSchema({"type": "number"}),
]


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(value: object) -> bytes:
    """Serialize a value, with the keys that its class defines."""
    return _adapter(type(value)).dump_json(value, by_alias=True)


def to_dict(value: object) -> dict[str, Any]:
    """Return a value as a JSON object, with the keys that its class defines."""
    return _adapter(type(value)).dump_python(value, by_alias=True)


def from_json(kind: type[T], body: Any) -> T:
    """Parse a JSON value. Raises pydantic's ValidationError, a ValueError, if it does not match."""
    return _adapter(kind).validate_python(body)
