"""Search for secret values in text, and replace them.

With few values, each is searched for. With many, an index of short pieces finds those that may occur.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, cast

from runlane.redaction.forms import PIECE, REDACTED, STRIDE, SecretForms

# Up to this many forms, searching for each is faster than an index lookup at each position of the text.
_FEW: Final = 100
_BLOCK: Final = 64 * 1024


class ValueIndex:
    """Values by owner. Several owners may have the same value."""

    __slots__ = ("_heads", "_holders", "_pieces", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: dict[Hashable, SecretForms] = {}
        self.size_bytes = 0
        self._holders: dict[SecretForms, int] = {}
        self._heads = 0
        # Created when there are many forms.
        self._pieces: dict[str, tuple[SecretForms, ...]] | None = None

    def add(self, owner: Hashable, value: SecretForms) -> None:
        """Set the value of an owner, which replaces its previous one."""
        if self.values.get(owner) is value:
            return
        self.remove(owner)
        self.values[owner] = value
        count = self._holders.get(value, 0)
        self._holders[value] = count + 1
        if count:
            return
        self.size_bytes += value.size_bytes
        self._heads += len(value.heads)
        if self._pieces is not None:
            _enter(self._pieces, value)
        elif self._heads > _FEW:
            self._pieces = {}
            for held in self._holders:
                _enter(self._pieces, held)

    def remove(self, owner: Hashable) -> None:
        """Remove the value of an owner. It stays in the index if another owner has it too."""
        value = self.values.pop(owner, None)
        if value is None:
            return
        self._holders[value] -= 1
        if self._holders[value]:
            return
        del self._holders[value]
        self.size_bytes -= value.size_bytes
        self._heads -= len(value.heads)
        if self._pieces is None:
            return
        for piece in set(value.pieces()):
            left = tuple(held for held in self._pieces[piece] if held is not value)
            if left:
                self._pieces[piece] = left
            else:
                del self._pieces[piece]

    def candidates(self, text: str) -> Collection[SecretForms]:
        """Return the values that may occur in the text."""
        if self._pieces is None:
            return list(self._holders)
        found: dict[SecretForms, None] = {}
        for begin in range(0, len(text), _BLOCK):
            end = min(begin + _BLOCK, len(text))
            for piece in self._pieces.keys() & {text[at : at + PIECE] for at in range(begin, end, STRIDE)}:
                found.update(dict.fromkeys(self._pieces[piece]))
        return list(found)


def _enter(pieces: dict[str, tuple[SecretForms, ...]], value: SecretForms) -> None:
    alone = (value,)
    for piece in set(value.pieces()):
        held = pieces.get(piece)
        pieces[piece] = alone if held is None else (*held, value)


def forms_in(text: str, values: Iterable[SecretForms]) -> list[str]:
    """Return the forms of these values that occur in the text."""
    return [form for value in values for form in value.forms_in(text)]


def spans(text: str, forms: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Return the positions of the forms from the left, without overlaps. Of two with the same start the longer wins."""
    ahead = [(text.find(form), -len(form), form) for form in forms]
    heapify(ahead)
    done = 0
    while ahead:
        at, minus_length, form = heappop(ahead)
        if at < 0:
            continue
        if at >= done:
            done = at - minus_length
            yield at, done
        heappush(ahead, (text.find(form, done), minus_length, form))


def replaced(text: str, forms: Sequence[str]) -> str:
    """Return the text with each of the forms replaced."""
    kept, done = list[str](), 0
    for start, end in spans(text, forms):
        kept += text[done:start], REDACTED
        done = end
    return "".join((*kept, text[done:]))


class ValueSearch(ABC):
    """Replaces secret values. Subclasses return the values that may occur."""

    __slots__ = ()

    @abstractmethod
    def _candidates(self, text: str) -> Collection[SecretForms]:
        """Return the values that may occur in the text."""

    def occurs(self, text: str) -> bool:
        """Return whether any value occurs in the text."""
        return any(value.forms_in(text) for value in self._candidates(text))

    def clean(self, text: str) -> str:
        """Return the text with every known value replaced; the same object if none occurs."""
        found = forms_in(text, self._candidates(text))
        return replaced(text, found) if found else text

    def clean_json(self, text: str) -> str:
        """Replace every known value in JSON text. The result is JSON even where the value is a number or a key."""
        found = forms_in(text, self._candidates(text))
        if not found:
            return text
        try:
            value = json.loads(text)
        except ValueError:
            return replaced(text, found)
        return json.dumps(self.clean_value(value), ensure_ascii=False, separators=(",", ":"))

    def clean_value(self, value: Any) -> Any:
        """Replace every known value in a JSON value; return the same object if none occurs."""
        match value:
            case str():
                return self.clean(value)
            case bool() | None:
                return value
            case int() | float():
                return REDACTED if self.occurs(repr(value)) else value
            case dict():
                table = cast("dict[Any, Any]", value)
                cleaned = {self.clean_value(key): self.clean_value(inner) for key, inner in table.items()}
                return table if _same(cleaned.items(), table.items()) else cleaned
            case list() | tuple():
                items = cast("list[Any]", value)
                found = [self.clean_value(inner) for inner in items]
                return items if all(new is old for new, old in zip(found, items, strict=True)) else found
            case _:
                return value


def _same(new: Collection[tuple[Any, Any]], old: Collection[tuple[Any, Any]]) -> bool:
    pairs = zip(new, old, strict=False)
    return len(new) == len(old) and all(key is before and value is was for (key, value), (before, was) in pairs)
