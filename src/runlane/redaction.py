"""Redaction: values that nobody may read are replaced in whatever this process writes or says.

A process learns a value when it gets it, and from then on every text that leaves it is searched for the value and for
the forms it takes on the way: base64, URL-encoded, escaped in JSON. It is a net under those who handle secrets, not a
wall: a value that is changed first (reversed, cut, hashed) is not found again.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

REDACTED: Final = "[redacted]"
# A shorter value occurs in ordinary text by chance, so replacing it would damage more than it protects.
MIN_CHARACTERS: Final = 8
# "00000000" is in many numbers, "        " in any indented text.
MIN_DIFFERENT: Final = 4
# Lines of a key file are secrets of their own: a log may show one of them.
_MIN_LINE: Final = 16
# The oldest are forgotten: a process that lives for years must not get slower with every changed value.
_MAX_VALUES: Final = 10_000
# Up to so many forms, looking for each is faster than looking at each place of the text.
_FEW: Final = 100
# Every form has a whole piece of this length at some multiple of the stride, wherever it begins.
_PIECE: Final = 5
_STRIDE: Final = MIN_CHARACTERS - _PIECE + 1
_BLOCK: Final = 64 * 1024
# The beginning of a value that may be said, where holding it back would put a text out of order: half of the shortest.
_HARMLESS: Final = MIN_CHARACTERS // 2


class _Known:
    """Everything to look for, made anew when a value is learned and never changed."""

    def __init__(self, forms: Iterable[str]) -> None:
        # The longest first: of two that begin at the same place, the longer one is replaced.
        self.forms = sorted(set(forms), key=lambda form: (-len(form), form))
        self.ordered = sorted(self.forms)
        self.firsts = frozenset(form[0] for form in self.forms)
        self._pieces = frozenset(
            form[start : start + _PIECE] for form in self.forms if len(self.forms) > _FEW for start in range(_STRIDE)
        )

    def occurs(self, text: str) -> bool:
        """Whether something in the text may have to be replaced."""
        if len(self.forms) <= _FEW:
            return any(form in text for form in self.forms)
        for begin in range(0, len(text), _BLOCK):
            end = min(begin + _BLOCK, len(text))
            pieces = [text[at : at + _PIECE] for at in range(begin, end, _STRIDE)]
            if not self._pieces.isdisjoint(pieces):
                return any(form in text for form in self.forms)
        return False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds the forms. Made when the first one is met: that takes long, and most processes never meet any."""
        return re.compile("|".join(re.escape(form) for form in self.forms))

    def replace(self, text: str) -> str:
        """The text without what is known."""
        return self.pattern.sub(REDACTED, text)

    def may_go_on(self, text: str) -> bool:
        """Whether a form begins with this text and is longer."""
        at = bisect_left(self.ordered, text)
        if at < len(self.ordered) and self.ordered[at] == text:
            at += 1
        return at < len(self.ordered) and self.ordered[at].startswith(text)


_lock: Final = threading.Lock()
_values: Final[dict[str, tuple[str, ...]]] = {}
_known = _Known(())


def is_hidable(value: str) -> bool:
    """Whether a value can be replaced in texts without damage to them."""
    return len(value) >= MIN_CHARACTERS and len(set(value)) >= MIN_DIFFERENT


def learn(value: str) -> None:
    """Replace this value from now on, in everything. One that is too short or too plain to be found is left alone."""
    learn_all((value,))


def learn_all(values: Iterable[str]) -> None:
    """The same for several, at the cost of one."""
    global _known  # noqa: PLW0603 - what a process must not say is a fact of the process
    fresh = [value for value in values if value not in _values and is_hidable(value)]
    if not fresh:
        return
    with _lock:
        for value in fresh:
            _values[value] = tuple(_forms(value))
        while len(_values) > _MAX_VALUES:
            del _values[next(iter(_values))]
        _known = _Known(form for forms in _values.values() for form in forms)


def forget_all() -> None:
    """Know nothing. For tests: a process keeps what it has learned."""
    global _known  # noqa: PLW0603
    with _lock:
        _values.clear()
        _known = _Known(())


def knows_any() -> bool:
    """Whether there is anything to look for."""
    return bool(_known.forms)


def occurs(text: str) -> bool:
    """Whether there is anything to replace in a text."""
    known = _known
    return bool(known.forms) and known.occurs(text)


def clean(text: str) -> str:
    """The text with every known value replaced."""
    known = _known
    return known.replace(text) if known.forms and known.occurs(text) else text


def clean_json(text: str) -> str:
    """JSON text with every known value replaced: still JSON, also where the value is a number or a key."""
    known = _known
    if not known.forms or not known.occurs(text):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return known.replace(text)
    return json.dumps(_walk(value, known), ensure_ascii=False, separators=(",", ":"))


def clean_value(value: Any) -> Any:
    """A value as JSON has it, with every known value replaced; the same object if there is none in it."""
    known = _known
    if not known.forms:
        return value
    return _walk(value, known)


class Stream:
    """Cleans a text that comes in pieces: what may be the beginning of a known value is held back until it is not."""

    def __init__(self) -> None:
        self._held = ""
        # How much of what is held back has been said all the same.
        self._said = 0

    def feed(self, piece: str) -> str:
        """What can be said now."""
        known = _known
        text = self._held + piece
        if not known.forms:
            return self._say(text, len(text), text)
        cut = _doubtful(text, 0, known)
        if not known.occurs(text):
            return self._say(text, cut, text[:cut])
        for found in known.pattern.finditer(text):
            if found.start() >= cut:
                break
            if found.end() > cut:
                cut = _doubtful(text, found.end(), known)
        return self._say(text, cut, known.replace(text[:cut]))

    def pause(self) -> str:
        """What was held back and is too little to tell anything, for when something else is said first."""
        if len(self._held) > _HARMLESS:
            return ""
        told, self._said = self._held[self._said :], len(self._held)
        return told

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        return self._say(self._held, len(self._held), clean(self._held))

    def _say(self, text: str, cut: int, told: str) -> str:
        said = text[: min(self._said, cut)]
        self._held = text[cut:]
        self._said -= len(said)
        # What was said before is not said again, but for where it has turned out to be a part of a value.
        same = next((at for at, (old, new) in enumerate(zip(said, told, strict=False)) if old != new), len(said))
        return told[same:]


def _doubtful(text: str, begin: int, known: _Known) -> int:
    """Where the text ends with something that may go on as a known value."""
    for at in range(begin, len(text)):
        if text[at] in known.firsts and known.may_go_on(text[at:]):
            return at
    return len(text)


def _walk(value: Any, known: _Known) -> Any:
    match value:
        case str():
            return known.replace(value) if known.occurs(value) else value
        case bool() | None:
            return value
        case int() | float():
            return REDACTED if known.occurs(repr(value)) else value
        case dict():
            table = cast("dict[Any, Any]", value)
            cleaned = {_walk(key, known): _walk(inner, known) for key, inner in table.items()}
            return table if _same(cleaned.items(), table.items()) else cleaned
        case list() | tuple():
            items = cast("list[Any]", value)
            found = [_walk(inner, known) for inner in items]
            return items if all(new is old for new, old in zip(found, items, strict=True)) else found
        case _:
            return value


def _same(new: Iterable[tuple[Any, Any]], old: Iterable[tuple[Any, Any]]) -> bool:
    pairs = zip(new, old, strict=False)
    return all(key is before and value is was for (key, value), (before, was) in pairs)


def _forms(value: str) -> Iterator[str]:
    """The value and what becomes of it on its way into a text."""
    yield value
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _MIN_LINE and is_hidable(line) and "-----" not in line)
    raw = value.encode("utf-8", "surrogatepass")
    yield from _base64(raw)
    for encoded in (
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    ):
        yield encoded
        # Some write the digits of an escape in small letters.
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), encoded)
    for ascii_only in (False, True):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        # Once for JSON, once more for JSON that is a text within JSON.
        yield escaped
        yield json.dumps(escaped)[1:-1]
    # As Python shows it in the text of an exception.
    yield repr(value)[1:-1]


def _base64(raw: bytes) -> Iterator[str]:
    """Base64 of the value, also as a part of something longer, such as "user:password"."""
    # It may begin at any of the three bytes that make four characters.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # The first and last characters also depend on what stands beside the value.
        begin = (0, 2, 3)[shift]
        rest = (shift + len(raw)) % 3
        end = len(encoded) if rest == 0 else len(encoded) - (3 if rest == 1 else 2)
        inner = encoded[begin:end]
        yield inner
        yield inner.translate(_URL_SAFE)
        if shift == 0:
            yield encoded


_ESCAPE: Final = re.compile("%[0-9A-F]{2}")
_URL_SAFE: Final = str.maketrans("+/", "-_")
