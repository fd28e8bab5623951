"""The encodings in which a secret value may occur in text: base64, URL-encoded, escaped in JSON, line by line.

A form can be longer than its value, and there are a dozen of them. Of long forms only the first characters are kept;
the rest is computed again when these occur. So a value of 64 kB takes little more than its own size.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Final
from urllib.parse import quote, quote_plus
from weakref import WeakValueDictionary

REDACTED: Final = "[redacted]"
# A shorter value occurs in ordinary text by chance, so replacing it would damage more than it protects.
MIN_CHARACTERS: Final = 8
# "00000000" is in many numbers, "        " in any indented text.
MIN_DIFFERENT: Final = 4
# Each line of a key file is a secret: a log may contain one of them.
_MIN_LINE: Final = 16
# A 16-kbit private key has about 200 lines. Without a bound, a value of short lines would cost 30 times its size.
MAX_LINES: Final = 256
# How many characters of a form are kept. API keys and tokens are usually shorter, so their forms are kept whole.
HEAD: Final = 256
# Wherever a form of MIN_CHARACTERS or more begins, a whole piece of this length in it starts at a multiple of STRIDE.
PIECE: Final = 5
STRIDE: Final = MIN_CHARACTERS - PIECE + 1
# A long form is computed only for text that has its beginning and, at the right distance, its end. Text with more
# beginnings than this is searched in any case.
_TAIL: Final = 32
_MAX_BEGINNINGS: Final = 100
# Memory of a piece in an index: its string and its dictionary entry.
_PIECE_BYTES: Final = 110


def is_hidable(value: str) -> bool:
    """Return whether a value can be replaced in text without replacing unrelated text."""
    return len(value) >= MIN_CHARACTERS and len(set(value)) >= MIN_DIFFERENT


class SecretForms:
    """The forms of one value. Immutable and shared; created by `value_of`."""

    def __init__(self, text: str) -> None:
        forms = tuple(dict.fromkeys(_forms(text)))
        self.text: Final = text
        self.heads: Final = tuple(dict.fromkeys(form[:HEAD] for form in forms))
        self.longest: Final = max(len(form) for form in forms)
        self._short: Final = tuple(form for form in forms if len(form) <= HEAD)
        self._long: Final = tuple((form[:HEAD], len(form), form[-_TAIL:]) for form in forms if len(form) > HEAD)

    @property
    def is_short(self) -> bool:
        """Whether the heads are the complete forms."""
        return self.longest <= HEAD

    def forms(self) -> tuple[str, ...]:
        """Return all forms in full. Those of a long value are computed on each call."""
        return self.heads if self.is_short else tuple(dict.fromkeys(_forms(self.text)))

    def forms_in(self, text: str) -> list[str]:
        """Return the forms that occur in the text."""
        found = [form for form in self._short if form in text]
        if any(_may_occur(text, *form) for form in self._long):
            found += [form for form in self.forms() if len(form) > HEAD and form in text]
        return found

    def pieces(self) -> Iterator[str]:
        """Return the pieces at the beginning of each form, under which an index has the value."""
        for head in self.heads:
            for start in range(STRIDE):
                yield head[start : start + PIECE]

    @cached_property
    def size_bytes(self) -> int:
        """The memory of the value and its forms, with their share of an index."""
        heads = sum(sys.getsizeof(head) + STRIDE * _PIECE_BYTES for head in self.heads)
        return sys.getsizeof(self.text) + heads


def _may_occur(text: str, head: str, length: int, tail: str) -> bool:
    """Return whether text may contain a form of this length, by its beginning and its end."""
    at, last = text.find(head), len(text) - length
    for _ in range(_MAX_BEGINNINGS):
        if not 0 <= at <= last:
            return False
        if text.startswith(tail, at + length - len(tail)):
            return True
        at = text.find(head, at + 1)
    return at >= 0


_shared: Final[WeakValueDictionary[str, SecretForms]] = WeakValueDictionary()
_sharing: Final = threading.Lock()


def value_of(text: str) -> SecretForms | None:
    """Return the forms of a value; None if it is too short or has too few different characters to be replaced."""
    # A secret that was read from a file often ends with a line break, which is not sent.
    text = text.strip()
    with _sharing:
        found = _shared.get(text)
        if found is None and is_hidable(text):
            found = _shared[text] = SecretForms(text)
        return found


def _forms(value: str) -> Iterator[str]:
    """Return the value and its encodings."""
    yield value
    yield from _lines(value)
    yield from _base64(value.encode("utf-8", "surrogatepass"))
    for encoded in (
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    ):
        yield encoded
        # Some encoders write the digits of an escape in lower case.
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), encoded)
    for ascii_only in (False, True):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        # Once for JSON, once more for JSON that is a string within JSON.
        yield escaped
        yield json.dumps(escaped)[1:-1]
    # As Python writes it in the message of an exception.
    yield repr(value)[1:-1]


def _lines(value: str) -> list[str]:
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) < 2:
        return []
    return [line for line in lines if len(line) >= _MIN_LINE and is_hidable(line) and "-----" not in line][:MAX_LINES]


def _base64(raw: bytes) -> Iterator[str]:
    """Return the value in base64, even as a part of a longer string, such as "user:password"."""
    # The value may begin at any of the three bytes that form four characters.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # The first and last characters also depend on the bytes next to the value.
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
