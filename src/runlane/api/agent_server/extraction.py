"""Parts of a value by path, such as `values.messages[-1].content`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from runlane.errors import InvalidRequest

_PATH: Final = re.compile(r"[^.\[\]]+(\[-?[0-9]{1,6}\])*(\.[^.\[\]]+(\[-?[0-9]{1,6}\])*)*")
_PART: Final = re.compile(r"[^.\[\]]+|\[-?[0-9]+\]")
_ROOTS: Final = ("values", "metadata", "config", "interrupts", "error", "status")


def parse_paths(paths: Mapping[str, str] | None) -> dict[str, list[str]]:
    """Return the parts of each path by its name."""
    parsed: dict[str, list[str]] = {}
    for name, path in (paths or {}).items():
        parts = _PART.findall(path)
        if _PATH.fullmatch(path) is None or parts[0] not in _ROOTS:
            raise InvalidRequest(
                f"extract.{name}={path[:100]!r} is not a valid path. Begin with {', '.join(_ROOTS)}, as in "
                "values.messages[-1].content."
            )
        parsed[name] = parts
    return parsed


def extract(value: Any, parts: list[str]) -> Any:
    """Return a part of a value; None if it does not exist."""
    for part in parts:
        if part.startswith("["):
            found = cast("list[Any]", value) if isinstance(value, list) else []
            index = int(part[1:-1])
            value = found[index] if -len(found) <= index < len(found) else None
        elif isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(part)
        else:
            return None
    return value
