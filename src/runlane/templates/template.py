"""Templates: strings with placeholders for values of a run's state.

`{state.key}`, `{state.key.sub.0}`, `{{key}}` and `{{key.sub}}` are placeholders. Other braces, such as those of JSON,
are text. A placeholder without a value is an error and never remains in the result. A backslash before a placeholder
makes it text. Rendered values are not rendered again, so a value cannot add placeholders. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

from runlane.domain.text import dump_json, utf8_size
from runlane.errors import InvalidPlaceholder, TemplateTooLarge, UnknownPlaceholder

__all__ = [
    "MAX_BYTES",
    "FilledTemplate",
    "InvalidPlaceholder",
    "RenderBudget",
    "TemplateTooLarge",
    "UnknownPlaceholder",
    "fill",
    "look_alikes_in",
    "look_up",
    "placeholders",
    "placeholders_in",
    "render",
    "render_value",
    "size_of",
    "text_of",
    "with_key",
]

# A short template may refer to megabytes of state, so the size is counted before the result is built.
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_BYTES_SETTING: Final = "RUNLANE_MAX_STEP_BYTES"
_NOTHING: Final = ("", 0)
_MAX_DEPTH: Final = 200
_GUESSED_NAMES: Final = 200
_SHOWN_CHARACTERS: Final = 80

# Every repetition is possessive or limited, so the search is linear for every string.
_KEY: Final = r"[A-Za-z_][A-Za-z0-9_]*+"
_SUBS: Final = r"(?:\.[\w\-]++)*+"
_PLACEHOLDER: Final = re.compile(
    rf"\{{\{{\s*+(?:state\.)?+(?P<double>{_KEY}{_SUBS})\s*+\}}\}}"
    rf"|\{{\s*+state\.(?P<single>{_KEY}{_SUBS})\s*+\}}"
    # An invalid placeholder must not be treated as text.
    r"|(?P<wrong>\{\{\s*+[^\W\d][\w\s.|\-\[\]]{0,200}+\}\}|\{\s*+state\.[^{}\n]{0,60}+\}?+)"
)
# Placeholders of other formats: {key}, ${key}, {{#each list}}, {% if key %}.
_LOOK_ALIKE: Final = re.compile(
    rf"(?<![\w}}{{\\])\$?+\{{\s*+(?P<path>{_KEY}{_SUBS})\s*+\}}(?!\}})"
    r"|(?<!\\)\{\{\s*+[#/^>!&]?+\s*+[A-Za-z_][^{}\n]{0,200}+\}\}"
    r"|(?<!\\)\{%[^{}\n]{0,200}?%\}"
)
_INDEX: Final = re.compile(r"-?[0-9]{1,9}")


def placeholders(text: str) -> list[str]:
    """Return the distinct references of a template in order, as dotted paths without `state.`."""
    return list(dict.fromkeys(path for _, _, path in _find_placeholders(text) if path is not None))


def placeholders_in(value: Any) -> list[str]:
    """Return the references of all strings within a value. Keys of objects are not templates."""
    return list(dict.fromkeys(path for text in _texts(value, 0) for path in placeholders(text)))


def look_alikes_in(value: Any) -> list[tuple[str, str | None]]:
    """Return the parts of a value that look like placeholders: each as written, with the path probably meant."""
    found: dict[tuple[str, str | None], None] = {}
    for text in _texts(value, 0):
        end = 0
        for start, stop, _ in [*_find_placeholders(text), (len(text), len(text), None)]:
            for match in _LOOK_ALIKE.finditer(text, end, max(start, end)):
                found[match.group(), match["path"]] = None
            end = stop
    return list(found)


class RenderBudget:
    """The number of bytes that may still be rendered. `bound_by` is the name of the limit."""

    def __init__(self, max_bytes: int = MAX_BYTES, bound_by: str = MAX_BYTES_SETTING) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._bound_by = bound_by

    def add(self, size: int) -> None:
        """Count bytes. Raise TemplateTooLarge when the limit is exceeded."""
        self.used += size
        if self.used > self.max_bytes:
            raise TemplateTooLarge(
                f"The rendered value has more than {self.max_bytes} bytes ({self._bound_by}). "
                "Refer to smaller parts of the state."
            )


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    """A rendered template before its parts are joined. A value that is used several times is stored once."""

    parts: Sequence[str]
    size: int

    def text(self) -> str:
        """Return the joined string."""
        return "".join(self.parts)


def fill(text: str, state: Mapping[str, Any], budget: RenderBudget | None = None) -> FilledTemplate:
    """Replace every placeholder. The size in bytes is computed before memory for the result is allocated."""
    budget = RenderBudget() if budget is None else budget
    before = budget.used
    parts: list[str] = []
    known: dict[str, tuple[str, int]] = {}
    end = 0
    for start, stop, path in _find_placeholders(text):
        kept = text[end:start]
        end = stop
        # Without a path, the part is a backslash, which is dropped.
        filled = _NOTHING if path is None else known.get(path)
        if filled is None:
            filled = known[path or ""] = _sized(text_of(look_up(path or "", state)))
        budget.add(utf8_size(kept) + filled[1])
        parts += (kept, filled[0])
    parts.append(text[end:])
    budget.add(utf8_size(parts[-1]))
    return FilledTemplate(parts, budget.used - before)


def render(text: str, state: Mapping[str, Any], budget: RenderBudget | None = None) -> str:
    """Return the rendered string."""
    if "{" in text:
        return fill(text, state, budget).text()
    if budget is not None:
        budget.add(utf8_size(text))
    return text


def render_value(value: Any, state: Mapping[str, Any], budget: RenderBudget | None = None) -> Any:
    """Return the value with its strings rendered.

    A string that is exactly one placeholder is replaced by the value itself.
    """
    return _Rendering(state, RenderBudget() if budget is None else budget).value(value, 0)


def size_of(value: Any) -> int:
    """Return the size of a value in bytes: of a string unchanged, of any other value as JSON."""
    return utf8_size(value if isinstance(value, str) else dump_json(value))


def with_key(text: str, key: str, other: str) -> str:
    """Return the template in which the placeholders of one key refer to another key."""
    parts: list[str] = []
    end = 0
    for start, stop, path in _find_placeholders(text):
        if path is not None and path.partition(".")[0] == key:
            parts += (text[end:start], f"{{state.{other}{path[len(key) :]}}}")
            end = stop
    parts.append(text[end:])
    return "".join(parts)


def look_up(path: str, state: Mapping[str, Any]) -> Any:
    """Return the value at a dotted path: keys of objects, positions in lists (from the end if negative)."""
    key, *subs = path.split(".")
    if key not in state:
        raise UnknownPlaceholder(path, key, "the state", _names(state))
    value: Any = state[key]
    reached = key
    for sub in subs:
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            if sub not in table:
                raise UnknownPlaceholder(path, sub, f'"{reached}"', _names(table))
            value = table[sub]
        elif isinstance(value, (list, tuple)):
            items = cast("Sequence[Any]", value)
            if _INDEX.fullmatch(sub) is None or not -len(items) <= int(sub) < len(items):
                raise UnknownPlaceholder(path, sub, f'"{reached}", a list of {len(items)},', [])
            value = items[int(sub)]
        else:
            raise UnknownPlaceholder(path, sub, f'"{reached}", which is {_kind(value)},', [])
        reached = f"{reached}.{sub}"
    return value


def text_of(value: Any) -> str:
    """Return a value as a string: a string unchanged, null as an empty string, any other value as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return dump_json(dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value)


def _find_placeholders(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Yield start, stop and path of every placeholder; for an escaped one, the backslashes to drop and None.

    Backslashes before a placeholder are paired, as in most languages. All other backslashes are text.
    """
    end = 0
    for found in _PLACEHOLDER.finditer(text):
        start = found.start()
        first = start
        while first > end and text[first - 1] == "\\":
            first -= 1
        slashes = start - first
        end = found.end()
        if slashes >= 2:
            yield first, first + slashes // 2, None
        if slashes % 2:
            yield start - 1, start, None
            continue
        path = found["double"] or found["single"]
        if path is None:
            raise InvalidPlaceholder(found["wrong"])
        yield start, end, path


def _texts(value: Any, depth: int) -> Iterator[str]:
    _check_depth(depth)
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _texts(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item, depth + 1)


class _Rendering:
    """Renders the strings of a value.

    The size of each referenced value is measured once, and counted for each reference.
    """

    def __init__(self, state: Mapping[str, Any], budget: RenderBudget) -> None:
        self._state = state
        self._budget = budget
        self._sizes: dict[str, int] = {}

    def value(self, value: Any, depth: int) -> Any:
        _check_depth(depth)
        if isinstance(value, str):
            whole = _PLACEHOLDER.fullmatch(value)
            path = (whole["double"] or whole["single"]) if whole else None
            return render(value, self._state, self._budget) if path is None else self._looked_up(path)
        if isinstance(value, Mapping):
            table = cast("Mapping[Any, Any]", value)
            return {key: self.value(item, depth + 1) for key, item in table.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in cast("Sequence[Any]", value)]
        return value

    def _looked_up(self, path: str) -> Any:
        found = look_up(path, self._state)
        if path not in self._sizes:
            self._sizes[path] = size_of(found)
        self._budget.add(self._sizes[path])
        return found


def _sized(text: str) -> tuple[str, int]:
    return text, utf8_size(text)


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TemplateTooLarge(f"The value is nested more than {_MAX_DEPTH} levels deep. Make it flatter.")


def _names(table: Mapping[Any, Any]) -> list[str]:
    """Return names for suggestions. Number and length are limited, because a state may have many and long keys."""
    return [str(name)[:_SHOWN_CHARACTERS] for name in islice(table, _GUESSED_NAMES)]


def _kind(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case _:
            return f"of type {type(value).__name__}"
