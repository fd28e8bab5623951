"""The text of a stored item that a search compares with its query, and the filters of a search.

A path names fields of the item as LangGraph's stores do: `title`, `author.name`, `parts[0]`, `parts[*].text`, `*`,
`{title,author.name}`, or `$` for the whole item. Paths come from callers, and alternatives multiply, so the values that
paths may visit are counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from runlane.domain.text import clean_text
from runlane.errors import InvalidRequest

WHOLE: Final = "$"
MAX_VISITED: Final = 50_000
# The maximum number of characters that a search reads of an item.
MAX_CHARACTERS: Final = 1024 * 1024
_PARTS: Final = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^.\[\{]+")
_WORDS: Final = re.compile(r"\w+")


class _Visits:
    """Counts the values that paths visit, and refuses paths that visit too many."""

    def __init__(self) -> None:
        self._left = MAX_VISITED

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise InvalidRequest(
                f"The paths of the index visit more than {MAX_VISITED} values of the item. Name fewer fields."
            )


def texts_at(value: Any, path: str) -> list[str]:
    """Return the strings at a path: one for each value that it names."""
    return list(_texts_at(value, path, _Visits()))


def item_text(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return the text of an item that a search for words reads. For `$` this is every value, without field names."""
    visits = _Visits()
    names = dict.fromkeys(paths)
    found: list[str] = []
    size = 0
    for path in names:
        for text in _leaves(value) if path in ("", WHOLE) else _texts_at(value, path, visits):
            found.append(text)
            size += len(text) + 1
            if size > MAX_CHARACTERS:
                return clean_text("\n".join(found)[:MAX_CHARACTERS])
    return clean_text("\n".join(found))


def _texts_at(value: Any, path: str, visits: _Visits) -> Iterator[str]:
    if path in ("", WHOLE):
        yield json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
        return
    for found in _values(value, _PARTS.findall(path), visits):
        text = _text(found)
        if text is not None:
            yield text


def _values(value: Any, parts: Sequence[str], visits: _Visits) -> Iterator[Any]:
    visits.count()
    if not parts:
        yield value
        return
    part, rest = parts[0], parts[1:]
    if part.startswith("{"):
        for name in part[1:-1].split(","):
            yield from _values(value, [*_PARTS.findall(name.strip()), *rest], visits)
        return
    for inner in _children(value, part):
        yield from _values(inner, rest, visits)


def _children(value: Any, part: str) -> Iterator[Any]:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value)
            if part == "*":
                yield from fields.values()
            elif part in fields:
                yield fields[part]
        case list():
            items = cast("list[Any]", value)
            if part in ("*", "[*]"):
                yield from items
            elif part.startswith("["):
                number = int(part[1:-1]) if part[1:-1].lstrip("-").isdecimal() else len(items)
                yield from items[number:][:1]
        case _:
            return


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return str(value)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        inside = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        for item in inside:
            yield from _leaves(item)
    elif (text := _text(value)) is not None:
        yield text


def words(text: str) -> list[str]:
    """Return the words of a string, in lower case."""
    return _WORDS.findall(text.lower())


def score_texts(query: str, texts: Sequence[str]) -> list[float]:
    """Return how well each string matches the words of a query; 0 if it has none of them. Rare words count more."""
    wanted = set(words(query))
    found = [wanted.intersection(words(text)) for text in texts]
    counts = {word: sum(word in inside for inside in found) for word in wanted}
    weights = {word: math.log(1 + len(texts) / count) for word, count in counts.items() if count}
    return [sum(weights[word] for word in inside) for inside in found]


def matches_filter(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an item has these values. A value may be an object of operators, such as {"$gt": 4}."""
    return all(_matches(value.get(name), expected) for name, expected in wanted.items())


def _matches(value: Any, expected: Any) -> bool:
    match expected:
        case dict():
            fields = cast("dict[str, Any]", expected)
            if any(name.startswith("$") for name in fields):
                return all(_operate(name, value, operand) for name, operand in fields.items())
            return isinstance(value, dict) and matches_filter(cast("dict[str, Any]", value), fields)
        case list() | tuple():
            items = cast("list[Any]", expected)
            if not isinstance(value, list) or len(cast("list[Any]", value)) != len(items):
                return False
            return all(map(_matches, cast("list[Any]", value), items))
        case _:
            return value == expected


_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": lambda value, operand: value > operand,
    "$gte": lambda value, operand: value >= operand,
    "$lt": lambda value, operand: value < operand,
    "$lte": lambda value, operand: value <= operand,
}


def _operate(name: str, value: Any, operand: Any) -> bool:
    if name == "$eq":
        return value == operand
    if name == "$ne":
        return value != operand
    compare = _ORDER.get(name)
    if compare is None:
        raise InvalidRequest(f'"{name}" is not a valid operator of a filter. Use $eq, $ne, $gt, $gte, $lt or $lte.')
    numbers = isinstance(value, (int, float)) and isinstance(operand, (int, float))
    return (numbers or (isinstance(value, str) and isinstance(operand, str))) and compare(value, operand)
