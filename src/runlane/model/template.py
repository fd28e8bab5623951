"""Templates: texts with places that the state of a run fills.

`{state.key}`, `{state.key.sub.0}`, `{{key}}` and `{{key.sub}}` are places; other braces, such as those of JSON, are
text. A place that nothing fills is an error and never pasted through. A backslash before a place makes it text. What
is filled in is not looked at again, so that no value can bring places of its own; nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from runlane.errors import InvalidPlaceholder, TemplateTooLarge, UnknownPlaceholder
from runlane.model.text import dump_json

__all__ = [
    "InvalidPlaceholder",
    "TemplateTooLarge",
    "UnknownPlaceholder",
    "look_alikes_in",
    "look_up",
    "placeholders",
    "placeholders_in",
    "render",
    "render_value",
    "text_of",
    "with_key",
]

# A few characters of template may stand for megabytes of state; past this, memory is in danger.
MAX_CHARACTERS: Final = 64 * 1024 * 1024
_MAX_DEPTH: Final = 200
_GUESSED_NAMES: Final = 200
_SHOWN_CHARACTERS: Final = 80

# Every repetition is possessive or bounded: no text makes the search slower than linear.
_KEY: Final = r"[A-Za-z_][A-Za-z0-9_]*+"
_SUBS: Final = r"(?:\.[\w\-]++)*+"
_PLACE: Final = re.compile(
    rf"\{{\{{\s*+(?:state\.)?+(?P<double>{_KEY}{_SUBS})\s*+\}}\}}"
    rf"|\{{\s*+state\.(?P<single>{_KEY}{_SUBS})\s*+\}}"
    # What was meant as a place and is none must not be taken for text.
    r"|(?P<wrong>\{\{\s*+[^\W\d][\w\s.|\-\[\]]{0,200}+\}\}|\{\s*+state\.[^{}\n]{0,60}+\}?+)"
)
# What people write as places in other formats: {key}, ${key}, {{#each list}}, {% if key %}.
_LOOK_ALIKE: Final = re.compile(
    rf"(?<![\w}}{{\\])\$?+\{{\s*+(?P<path>{_KEY}{_SUBS})\s*+\}}(?!\}})"
    r"|(?<!\\)\{\{\s*+[#/^>!&]?+\s*+[A-Za-z_][^{}\n]{0,200}+\}\}"
    r"|(?<!\\)\{%[^{}\n]{0,200}?%\}"
)
_INDEX: Final = re.compile(r"-?[0-9]{1,9}")


def placeholders(text: str) -> list[str]:
    """What a text refers to, as dotted paths without `state.`, each once, in order."""
    return list(dict.fromkeys(path for _, _, path in _places(text) if path is not None))


def placeholders_in(value: Any) -> list[str]:
    """What all texts within a value refer to; keys of objects are no templates."""
    return list(dict.fromkeys(path for text in _texts(value, 0) for path in placeholders(text)))


def look_alikes_in(value: Any) -> list[tuple[str, str | None]]:
    """What all texts within a value have that looks like a place and is text: as written, and the path it may mean."""
    found: dict[tuple[str, str | None], None] = {}
    for text in _texts(value, 0):
        end = 0
        for start, stop, _ in [*_places(text), (len(text), len(text), None)]:
            for match in _LOOK_ALIKE.finditer(text, end, max(start, end)):
                found[match.group(), match["path"]] = None
            end = stop
    return list(found)


def render(text: str, state: Mapping[str, Any]) -> str:
    """The text with every place filled."""
    if "{" not in text:
        return text
    parts: list[str] = []
    size = 0
    end = 0
    for start, stop, path in _places(text):
        kept = text[end:start]
        # Without a path it is a backslash, which is left out.
        filled = "" if path is None else text_of(look_up(path, state))
        size += len(kept) + len(filled)
        if size > MAX_CHARACTERS:
            raise TemplateTooLarge(
                f"The filled text has more than {MAX_CHARACTERS} characters. Refer to smaller parts of the state."
            )
        parts += (kept, filled)
        end = stop
    parts.append(text[end:])
    return "".join(parts)


def render_value(value: Any, state: Mapping[str, Any]) -> Any:
    """The value with the texts in it rendered. A text that is exactly one place becomes what fills it."""
    return _render_value(value, state, 0)


def with_key(text: str, key: str, other: str) -> str:
    """The text with places of one key made places of another."""
    parts: list[str] = []
    end = 0
    for start, stop, path in _places(text):
        if path is not None and path.partition(".")[0] == key:
            parts += (text[end:start], f"{{state.{other}{path[len(key) :]}}}")
            end = stop
    parts.append(text[end:])
    return "".join(parts)


def look_up(path: str, state: Mapping[str, Any]) -> Any:
    """The value at a dotted path: keys of objects, positions in lists (from the end if negative)."""
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
    """A value as it appears in prose: text as it is, nothing for null, JSON for everything else."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return dump_json(dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value)


def _places(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Start, stop and path of every place; a place made text by a backslash has the backslashes to drop, and None.

    Backslashes before a place count in pairs, as in most languages; all others are text.
    """
    end = 0
    for found in _PLACE.finditer(text):
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


def _render_value(value: Any, state: Mapping[str, Any], depth: int) -> Any:
    _check_depth(depth)
    if isinstance(value, str):
        whole = _PLACE.fullmatch(value)
        path = (whole["double"] or whole["single"]) if whole else None
        return render(value, state) if path is None else look_up(path, state)
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {key: _render_value(item, state, depth + 1) for key, item in table.items()}
    if isinstance(value, (list, tuple)):
        return [_render_value(item, state, depth + 1) for item in cast("Sequence[Any]", value)]
    return value


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TemplateTooLarge(f"The value is nested more than {_MAX_DEPTH} levels deep. Make it flatter.")


def _names(table: Mapping[Any, Any]) -> list[str]:
    """Names to tell or to guess from; a state may have more and longer ones than a message should."""
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
