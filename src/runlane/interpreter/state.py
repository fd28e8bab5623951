"""The state of a run: layers of keys with known sizes.

A branch and an item of a list read through to the state around them and write to a layer of their own, which is merged
when they are done. Sizes are counted at each write, so that the whole state is never measured. Values are never changed
in place, so views, snapshots and results may share them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from runlane.definitions.schema.definition import Orchestration, StateField
from runlane.interpreter.values import Failed

STATE_TOO_LARGE: Final = "state_too_large"
WRONG_TYPE: Final = "wrong_type"

# The bytes of a key in JSON besides its characters: two quotes, a colon, a comma.
_KEY_BYTES: Final = 4

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "list": (list, tuple),
    "object": (dict,),
}


class StateRejected(Exception):
    """The machine cannot continue after a step; `failed` becomes the failure of that step."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failed = Failed(code, message)


def initial_state(orchestration: Orchestration, message: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an orchestration before its first step: defaults, the message, and the given values."""
    return {**defaults(orchestration), "user_input": message, "user_query": message, **given}


def defaults(orchestration: Orchestration) -> dict[str, Any]:
    """Return the default state of the definition."""
    return {key: field.default for key, field in orchestration.state_schema.items()}


def fits(value: Any, type_name: str) -> bool:
    """Return whether a value matches a declared type. Null, the default of every type, always does."""
    if value is None or type_name == "any":
        return True
    if isinstance(value, bool):
        return type_name == "boolean"
    if type_name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[type_name])


def measure(value: Any) -> int:
    """Return the size of a value as JSON, in bytes."""
    try:
        return len(orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, ValueError):
        # Numbers beyond 64 bits and halves of surrogate pairs, which are stored as strings.
        return len(repr(value))


class Layer:
    """Keys that one fiber of control may write.

    `outer` is the layer that it reads through to, `account` the one in which its bytes count as well: a nested
    orchestration reads nothing around it, but its state uses the same memory. `limit` bounds a layer with everything
    that counts in it.
    """

    __slots__ = ("_view", "account", "limit", "outer", "schema", "sizes", "total", "values")

    def __init__(
        self,
        schema: Mapping[str, StateField],
        *,
        outer: Layer | None = None,
        account: Layer | None = None,
        limit: int | None = None,
    ) -> None:
        self.schema = schema
        self.outer = outer
        self.account = account
        self.limit = limit
        self.values: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.total = 0
        self._view: Mapping[str, Any] | None = None

    @property
    def view(self) -> Mapping[str, Any]:
        """A read-only view of everything that can be read here, including later writes."""
        if self._view is None:
            maps: list[dict[str, Any]] = []
            layer: Layer | None = self
            while layer is not None:
                maps.append(layer.values)
                layer = layer.outer
            self._view = MappingProxyType(maps[0] if len(maps) == 1 else ChainMap(*maps))
        return self._view

    def write(self, key: str, value: Any, *, size: int | None = None, gathered: bool = False) -> int:
        """Set a key and return the value's size.

        A `gathered` value is one round's part of a list, so it may be declared as that list.
        """
        field = self.schema.get(key)
        if field is not None and not fits(value, field.type) and not (gathered and field.type == "list"):
            raise StateRejected(
                WRONG_TYPE,
                f'The state\'s key "{key}" is declared as {field.type}, and {_describe_value(value)} does not match. '
                "Change the declaration in state_schema, or the value.",
            )
        if size is None:
            size = measure(value)
        self.put(key, value, size)
        return size

    def put(self, key: str, value: Any, size: int) -> None:
        """Set a key without a type check."""
        whole = size + len(key) + _KEY_BYTES
        self.reserve(whole - self.sizes.get(key, 0))
        self.values[key] = value
        self.sizes[key] = whole

    def fill(self, values: Mapping[str, Any]) -> None:
        """Set many keys."""
        for key, value in values.items():
            self.write(key, value)

    def merge(self, layer: Layer, *, leaving_out: frozenset[str] = frozenset()) -> None:
        """Merge another layer of the same state, which must not be used any more."""
        layer.discard()
        for key, value in layer.values.items():
            if key not in leaving_out:
                self.put(key, value, layer.sizes[key] - len(key) - _KEY_BYTES)

    def reserve(self, size: int) -> None:
        """Count bytes of this layer (negative: released bytes), within the limits."""
        layer: Layer | None = self
        while layer is not None and size > 0:
            if layer.limit is not None and layer.total + size > layer.limit:
                raise StateRejected(
                    STATE_TOO_LARGE,
                    f"The state would have {layer.total + size} bytes, and at most {layer.limit} are allowed "
                    "(max_state_bytes). Store large values elsewhere, or set collect to false for "
                    "long loops.",
                )
            layer = layer.account
        self.count(size)

    @property
    def room(self) -> int | None:
        """Return the bytes that can still be written here; None means unlimited."""
        rooms: list[int] = []
        layer: Layer | None = self
        while layer is not None:
            if layer.limit is not None:
                rooms.append(layer.limit - layer.total)
            layer = layer.account
        return max(0, min(rooms)) if rooms else None

    def discard(self) -> None:
        """Stop counting this layer and everything in it."""
        if self.account is not None:
            self.account.count(-self.total)
            self.account = None

    def dump(self) -> dict[str, Any]:
        """Return the layer as JSON."""
        return {"values": dict(self.values), "sizes": dict(self.sizes)}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore a dump. Sizes are stored, so that a restored machine counts exactly like the first one."""
        self.values.update(data["values"])
        self.sizes.update(data["sizes"])
        self.count(sum(self.sizes.values()))

    def count(self, size: int) -> None:
        """Count bytes without checking limits: they were checked elsewhere, or before a restart."""
        layer: Layer | None = self
        while layer is not None:
            layer.total += size
            layer = layer.account


def _describe_value(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
