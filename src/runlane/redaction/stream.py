"""Redaction of text that arrives in pieces: a possible beginning of a value is held back until the next piece."""

from __future__ import annotations

from typing import Final

from runlane.redaction.forms import MIN_CHARACTERS
from runlane.redaction.redactor import Redactor

# A beginning of a value this short may be emitted where holding it back would put text out of order.
_HARMLESS: Final = MIN_CHARACTERS // 2


class RedactedStream:
    """One text. Values that are added to the redactor meanwhile are replaced from then on."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        # How many of the held characters have been emitted by pause().
        self._emitted = 0

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that can be emitted."""
        redactor = self._redactor
        text = self._held + piece
        if redactor.is_empty:
            return self._emit(text, len(text), text)
        cut = redactor.unfinished(text)
        for start, end in redactor.spans(text):
            if start >= cut:
                break
            if end > cut:
                cut = redactor.unfinished(text, end)
        return self._emit(text, cut, redactor.clean(text[:cut]))

    def pause(self) -> str:
        """Return held text that is too short to reveal a value, before other output is emitted."""
        if len(self._held) > _HARMLESS:
            return ""
        text, self._emitted = self._held[self._emitted :], len(self._held)
        return text

    def rest(self) -> str:
        """Return the held text after the last piece."""
        return self._emit(self._held, len(self._held), self._redactor.clean(self._held))

    def _emit(self, text: str, cut: int, cleaned: str) -> str:
        emitted = text[: min(self._emitted, cut)]
        self._held = text[cut:]
        self._emitted -= len(emitted)
        # Emitted text is not repeated, except where it has turned out to be part of a value.
        same = next(
            (at for at, (old, new) in enumerate(zip(emitted, cleaned, strict=False)) if old != new), len(emitted)
        )
        return cleaned[same:]
