"""Redaction of a text that comes in pieces: what may be the beginning of a value is held back until it is clear."""

from __future__ import annotations

from typing import Final

from runlane.redaction.forms import MIN_CHARACTERS
from runlane.redaction.redactor import Redactor

# The beginning of a value that may be shown where holding it back would put a text out of order: half of the shortest.
_HARMLESS: Final = MIN_CHARACTERS // 2


class RedactedStream:
    """One text. Values that the redactor learns meanwhile count from then on."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        # How much of what is held back has been said all the same.
        self._said = 0

    def feed(self, piece: str) -> str:
        """What can be said now."""
        redactor = self._redactor
        text = self._held + piece
        if redactor.is_empty:
            return self._say(text, len(text), text)
        cut = redactor.unfinished(text)
        for start, end in redactor.spans(text):
            if start >= cut:
                break
            if end > cut:
                cut = redactor.unfinished(text, end)
        return self._say(text, cut, redactor.clean(text[:cut]))

    def pause(self) -> str:
        """What was held back and is too little to tell anything, for when something else is said first."""
        if len(self._held) > _HARMLESS:
            return ""
        told, self._said = self._held[self._said :], len(self._held)
        return told

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        return self._say(self._held, len(self._held), self._redactor.clean(self._held))

    def _say(self, text: str, cut: int, told: str) -> str:
        said = text[: min(self._said, cut)]
        self._held = text[cut:]
        self._said -= len(said)
        # What was said before is not said again, but for where it has turned out to be a part of a value.
        same = next((at for at, (old, new) in enumerate(zip(said, told, strict=False)) if old != new), len(said))
        return told[same:]
